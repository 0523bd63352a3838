import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Close } from "../icons";
import type { Picture } from "./pictures";

/** The picture that is shown in its whole size. */
const shown = signal<Picture | null>(null);

/** Small pictures, which open in their whole size. With `remove`, each has a button that removes it. */
export function Pictures({ pictures, remove }: { pictures: Picture[]; remove?: (index: number) => void }) {
  return (
    <ul class="pictures" aria-label="Pictures">
      {pictures.map((picture, index) => (
        <li key={index}>
          <button type="button" class="picture" onClick={() => (shown.value = picture)}>
            <img src={picture.url} alt={picture.name} />
          </button>
          {remove && (
            <button
              type="button"
              class="picture-remove"
              aria-label={`Remove ${picture.name}`}
              title="Remove"
              onClick={() => remove(index)}
            >
              <Close />
            </button>
          )}
        </li>
      ))}
    </ul>
  );
}

/** Shows a picture in its whole size, over the page. */
export function PictureDialog() {
  const dialog = useRef<HTMLDialogElement>(null);
  const picture = shown.value;
  useEffect(() => {
    if (picture && !dialog.current!.open) dialog.current!.showModal();
  }, [picture]);
  return (
    <dialog
      ref={dialog}
      class="picture-dialog"
      aria-label={picture?.name}
      onClose={() => (shown.value = null)}
      onClick={() => dialog.current!.close()}
    >
      {picture && <img src={picture.url} alt={picture.name} />}
      <button type="button" class="round" aria-label="Close the picture">
        <Close />
      </button>
    </dialog>
  );
}
