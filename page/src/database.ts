// The browser's database: objects by their `id`, in stores.

/** Every store. A new one needs the next version. */
const STORES = ["conversations", "benchmarks"] as const;
const VERSION = 2;

type Store = (typeof STORES)[number];

function open(): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("narthex", VERSION);
    request.onupgradeneeded = () => {
      for (const name of STORES) {
        if (!request.result.objectStoreNames.contains(name)) request.result.createObjectStore(name, { keyPath: "id" });
      }
    };
    request.onsuccess = () => {
      // A later version of the page, in another tab, must not wait for this one.
      request.result.onversionchange = () => {
        request.result.close();
        database = null;
      };
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  });
}

let database: Promise<IDBDatabase> | null = null;

async function use<T>(name: Store, mode: IDBTransactionMode, work: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  database ??= open();
  const store = (await database).transaction(name, mode).objectStore(name);
  return new Promise((resolve, reject) => {
    const request = work(store);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export const readAll = <T>(name: Store) => use<T[]>(name, "readonly", (store) => store.getAll());

export const write = (name: Store, object: { id: string }) => use(name, "readwrite", (store) => store.put(object));

export const remove = (name: Store, id: string) => use(name, "readwrite", (store) => store.delete(id));
