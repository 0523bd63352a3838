import { Close } from "../icons";
import type { Sound } from "./sounds";

/** Sounds with their players. With `remove`, each has a button that removes it. */
export function Sounds({ sounds, remove }: { sounds: Sound[]; remove?: (index: number) => void }) {
  return (
    <ul class="sounds" aria-label="Sounds">
      {sounds.map((sound, index) => (
        <li key={index}>
          <span class="sound-name">{sound.name}</span>
          <audio controls preload="metadata" src={sound.url} aria-label={sound.name} />
          {remove && (
            <button
              type="button"
              class="icon-button"
              aria-label={`Remove ${sound.name}`}
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
