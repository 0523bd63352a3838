// Sounds of messages, which a model hears as they are. A file becomes a data URL.

import { dataUrl } from "./files";

export interface Sound {
  name: string;
  /** The file as a data URL. */
  url: string;
}

/** Maximum bytes of a file, which the server takes. */
const MAX_BYTES = 20 << 20;

/** Returns whether a text is the data URL of a sound. */
export function isSoundUrl(url: string): boolean {
  return /^data:(audio|video)\/[a-z0-9.+-]+;base64,[A-Za-z0-9+/]+={0,2}$/.test(url);
}

/** Returns the file of a sound in base64. */
export function base64Of({ url }: Sound): string {
  return url.slice(url.indexOf(",") + 1);
}

/** Reads a file. The server decodes it, and states what it cannot read. */
export async function readSound(file: File): Promise<Sound> {
  if (file.size > MAX_BYTES) {
    const found = Math.ceil(file.size / 2 ** 20);
    throw new Error(`${file.name}: expected a sound of at most ${MAX_BYTES >> 20} MiB, found ${found} MiB`);
  }
  if (file.size === 0) throw new Error(`${file.name}: the file is empty`);
  // A recorder states its codec beside the type.
  const type = file.type.split(";")[0]!.trim().toLowerCase();
  return { name: file.name || "sound", url: await dataUrl(new Blob([file], { type })) };
}
