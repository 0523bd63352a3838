// Pictures of messages. A file becomes a data URL.

import { dataUrl } from "./files";

export interface Picture {
  name: string;
  /** The file as a data URL. */
  url: string;
}

/** Longest side of a picture that is sent as it is. Models see no finer details. */
const MAX_SIDE = 2048;

/** Bytes of a file that is sent as it is. The server takes 32 MiB for all pictures of a conversation together. */
const MAX_BYTES = 1_000_000;

/** Quality of converted pictures, from 0 to 1. */
const QUALITY = 0.9;

/** Types that the server reads. */
const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/** Returns whether a text is the data URL of a picture that the server reads. */
export function isPictureUrl(url: string): boolean {
  return /^data:image\/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+={0,2}$/.test(url);
}

/** Reads a file. A large picture, or one of another type, becomes a JPEG file of at most 2048 pixels a side. */
export async function readPicture(file: File): Promise<Picture> {
  const address = URL.createObjectURL(file);
  const image = new Image();
  image.src = address;
  try {
    await image.decode();
    const { naturalWidth: width, naturalHeight: height } = image;
    const isSent = TYPES.includes(file.type) && file.size <= MAX_BYTES && Math.max(width, height) <= MAX_SIDE;
    return { name: file.name || "picture", url: isSent ? await dataUrl(file) : drawn(image) };
  } catch {
    throw new Error(`${file.name}: expected a picture, as in PNG, JPEG, WebP or GIF; this browser cannot read the file`);
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** Draws a picture within the maximum size, on white, because JPEG has no transparency. */
function drawn(image: HTMLImageElement): string {
  // A vector drawing may state no size.
  const width = image.naturalWidth || 1024;
  const height = image.naturalHeight || 1024;
  const scale = Math.min(1, MAX_SIDE / Math.max(width, height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d")!;
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", QUALITY);
}
