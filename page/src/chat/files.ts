// Files that messages carry. Each is a data URL, which stays in the conversation and in its exports.

import type { Picture } from "./pictures";
import type { Sound } from "./sounds";

/** Media of a message. */
export interface Attachments {
  pictures: Picture[];
  sounds: Sound[];
}

export const NOTHING: Attachments = { pictures: [], sounds: [] };

/** Returns the data URL of a file. */
export function dataUrl(file: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
