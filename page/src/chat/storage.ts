// Conversations in the browser's database. Nothing of them is sent anywhere but in requests to the model.

import type { Conversation } from "./conversation";

const STORE = "conversations";

function open(): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("narthex", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

let database: Promise<IDBDatabase> | null = null;

async function use<T>(mode: IDBTransactionMode, work: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  database ??= open();
  const store = (await database).transaction(STORE, mode).objectStore(STORE);
  return new Promise((resolve, reject) => {
    const request = work(store);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Returns all conversations, newest first. */
export async function load(): Promise<Conversation[]> {
  const all = await use<Conversation[]>("readonly", (store) => store.getAll());
  return all.sort((a, b) => b.updated - a.updated);
}

export const save = (conversation: Conversation) => use("readwrite", (store) => store.put(conversation));

export const remove = (id: string) => use("readwrite", (store) => store.delete(id));
