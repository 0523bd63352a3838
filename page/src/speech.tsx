// Reading aloud: with a voice of the server if one is installed, or else with one of this machine's own voices. Other
// voices of browsers send the text to a service.

import { computed, signal } from "@preact/signals";
import { messageFor, request } from "./api";
import { Close, Speaker } from "./icons";
import { voices } from "./server";

/** Samples of a second in the server's raw sound. */
const RATE = 24_000;

/** Maximum characters of a request. */
const MAX_CHARACTERS = 4_000;

/** Seconds before the first sample, in which the next ones arrive. */
const LEAD = 0.1;

const browserVoices = signal<SpeechSynthesisVoice[]>([]);
/** The text that is read, and whether its sound has begun. */
const spoken = signal<{ text: string; isHeard: boolean } | null>(null);
/** Why the last text is not read. */
const failure = signal<{ text: string; reason: string } | null>(null);
/** Ends what is read. */
let silence: () => void = () => undefined;
/** Number of texts that were begun or silenced, by which a text learns that it is no longer read. */
let turns = 0;

function readBrowserVoices(): void {
  browserVoices.value = speechSynthesis.getVoices().filter((voice) => voice.localService);
}

if ("speechSynthesis" in window) {
  readBrowserVoices();
  speechSynthesis.addEventListener("voiceschanged", readBrowserVoices);
}

/** Returns the first voice for the language of the user, or else the default one. */
function fitting<Of>(all: Of[], language: (voice: Of) => string, isDefault: (voice: Of) => boolean): Of | undefined {
  const own = navigator.language.slice(0, 2);
  const spoken = all.filter((voice) => language(voice).startsWith(own));
  return spoken.find(isDefault) ?? spoken[0] ?? all.find(isDefault) ?? all[0];
}

const serverVoice = computed(() => fitting(voices.value, (voice) => voice.language, (voice) => voice.default));

/** Divides a text between paragraphs, sentences or words, so that each part fits a request. */
export function divide(text: string, limit = MAX_CHARACTERS): string[] {
  const parts: string[] = [];
  let rest = text.trim();
  while (rest.length > limit) {
    const start = rest.slice(0, limit);
    const ends = [start.lastIndexOf("\n\n"), start.lastIndexOf(". ") + 1, start.lastIndexOf(" ")];
    const end = ends.find((at) => at > limit / 4) ?? limit;
    parts.push(rest.slice(0, end).trim());
    rest = rest.slice(end).trim();
  }
  return rest ? [...parts, rest] : parts;
}

/** Plays sound while it arrives. */
class Player {
  private readonly context = new AudioContext();
  /** Time at which the sound so far ends. */
  private end = 0;
  /** First half of a sample whose other half is in the next part. */
  private half: number | null = null;
  private last: AudioBufferSourceNode | null = null;

  /** Plays samples of 16 bits after those so far. */
  push(bytes: Uint8Array): void {
    const whole = this.half === null ? bytes : new Uint8Array([this.half, ...bytes]);
    this.half = whole.length % 2 ? whole[whole.length - 1]! : null;
    const count = Math.floor(whole.length / 2);
    if (count === 0) return;
    const buffer = this.context.createBuffer(1, count, RATE);
    const samples = buffer.getChannelData(0);
    const view = new DataView(whole.buffer, whole.byteOffset);
    for (let index = 0; index < count; index += 1) samples[index] = view.getInt16(2 * index, true) / 32_768;

    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.context.destination);
    const start = Math.max(this.end, this.context.currentTime + LEAD);
    source.start(start);
    this.end = start + buffer.duration;
    this.last = source;
  }

  /** Resolves when everything was heard. */
  async finish(): Promise<void> {
    const { last } = this;
    if (last && this.end > this.context.currentTime) await new Promise((resolve) => (last.onended = resolve));
  }

  close(): void {
    if (this.context.state !== "closed") void this.context.close();
  }
}

/** Reads a text with a voice of the server. */
async function readByServer(text: string, voice: { id: string; model: string }): Promise<void> {
  const control = new AbortController();
  const player = new Player();
  silence = () => {
    control.abort();
    player.close();
  };
  for (const input of divide(text)) {
    const body = { model: voice.model, voice: voice.id, input, response_format: "pcm" };
    const reader = (await request("/v1/audio/speech", body, control.signal)).body!.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      player.push(value);
      if (!control.signal.aborted) spoken.value = { text, isHeard: true };
    }
  }
  await player.finish();
  player.close();
}

/** Reads a text with a voice of the browser. */
function readByBrowser(text: string): Promise<void> {
  const voice = fitting(browserVoices.value, (one) => one.lang, (one) => one.default)!;
  const utterance = new SpeechSynthesisUtterance(text);
  utterance.voice = voice;
  utterance.lang = voice.lang;
  spoken.value = { text, isHeard: true };
  return new Promise((resolve) => {
    silence = () => speechSynthesis.cancel();
    utterance.onend = utterance.onerror = () => resolve();
    speechSynthesis.speak(utterance);
  });
}

async function toggle(text: string): Promise<void> {
  const isSpoken = spoken.value?.text === text;
  turns += 1;
  const turn = turns;
  silence();
  failure.value = null;
  spoken.value = isSpoken ? null : { text, isHeard: false };
  if (isSpoken) return;

  const voice = serverVoice.value;
  try {
    await (voice ? readByServer(text, voice) : readByBrowser(text));
  } catch (error) {
    if (turn === turns) failure.value = { text, reason: messageFor(error) };
  }
  if (turn !== turns) return;
  silence();
  spoken.value = null;
}

/** A button that reads a text aloud, where a voice is installed. */
export function SpeakButton({ text }: { text: string }) {
  if (!serverVoice.value && browserVoices.value.length === 0) return null;
  const isSpoken = spoken.value?.text === text;
  const label = isSpoken ? "Stop reading" : "Read aloud";
  return (
    <>
      {failure.value?.text === text && (
        <span class="error" role="alert">
          {failure.value.reason}
        </span>
      )}
      {isSpoken && !spoken.value!.isHeard && (
        <span class="quiet" role="status">
          The voice begins…
        </span>
      )}
      <button type="button" class="icon-button" aria-label={label} title={label} onClick={() => void toggle(text)}>
        {isSpoken ? <Close /> : <Speaker />}
      </button>
    </>
  );
}
