// Reading aloud, with voices of this machine only: others send the text to a service.

import { signal } from "@preact/signals";
import { Close, Speaker } from "./icons";

const voices = signal<SpeechSynthesisVoice[]>([]);
/** The text that is read. */
const spoken = signal("");

function readVoices(): void {
  voices.value = speechSynthesis.getVoices().filter((voice) => voice.localService);
}

if ("speechSynthesis" in window) {
  readVoices();
  speechSynthesis.addEventListener("voiceschanged", readVoices);
}

/** Returns the voice for a language: the default one if it fits, else the first. */
function voiceFor(language: string): SpeechSynthesisVoice {
  const fitting = voices.value.filter((voice) => voice.lang.startsWith(language));
  return fitting.find((voice) => voice.default) ?? fitting[0] ?? voices.value[0]!;
}

function toggle(text: string): void {
  speechSynthesis.cancel();
  if (spoken.value === text) {
    spoken.value = "";
    return;
  }
  const utterance = new SpeechSynthesisUtterance(text);
  utterance.voice = voiceFor(navigator.language.slice(0, 2));
  utterance.lang = utterance.voice.lang;
  utterance.onend = utterance.onerror = () => {
    if (spoken.value === text) spoken.value = "";
  };
  spoken.value = text;
  speechSynthesis.speak(utterance);
}

/** A button that reads a text aloud, where a voice is installed. */
export function SpeakButton({ text }: { text: string }) {
  if (voices.value.length === 0) return null;
  const isSpoken = spoken.value === text;
  const label = isSpoken ? "Stop reading" : "Read aloud";
  return (
    <button type="button" class="icon-button" aria-label={label} title={label} onClick={() => toggle(text)}>
      {isSpoken ? <Close /> : <Speaker />}
    </button>
  );
}
