// Conversations in the browser's database. Nothing of them is sent anywhere but in requests to the model.

import { remove as removeFrom, readAll, write } from "../database";
import type { Conversation } from "./conversation";

/** Returns all conversations, newest first. */
export async function load(): Promise<Conversation[]> {
  const all = await readAll<Conversation>("conversations");
  return all.sort((a, b) => b.updated - a.updated);
}

export const save = (conversation: Conversation) => write("conversations", conversation);

export const remove = (id: string) => removeFrom("conversations", id);
