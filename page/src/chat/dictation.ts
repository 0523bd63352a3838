// Speech to text: recordings of the microphone and files of sound become text by a model of this server.

import { computed, signal } from "@preact/signals";
import { json } from "../api";
import { health, models } from "../server";

/** Maximum bytes of a file: the server takes 32 MiB with the rest of the form. */
const MAX_BYTES = 31 << 20;

/** Types of recordings that the server reads, in order of preference. */
const TYPES = ["audio/webm;codecs=opus", "audio/mp4", "audio/ogg;codecs=opus"];

/** The model that transcribes: one in memory, else the first that is installed. */
export const transcriber = computed(() => {
  const known = (models.value ?? []).filter((model) => model.kind === "transcription" && model.installed);
  const loaded = (health.value?.models ?? []).map((model) => model.id);
  return (known.find((model) => loaded.includes(model.id)) ?? known[0])?.id ?? "";
});

/** Whether this page may record. Browsers offer a microphone to encrypted pages and to those of this machine only. */
export const canRecord = "mediaDevices" in navigator && "MediaRecorder" in window;

/** State of the dictation. */
export const dictation = signal<"off" | "starting" | "recording" | "transcribing">("off");

/** Seconds of the running recording. */
export const seconds = signal(0);

let recorder: MediaRecorder | null = null;
let control: AbortController | null = null;

/** Returns the text of a file, or null if the user gave up waiting. */
export async function transcribe(file: Blob, name: string): Promise<string | null> {
  if (file.size > MAX_BYTES) {
    throw new Error(`${name}: expected a file of at most ${MAX_BYTES >> 20} MiB, found ${Math.ceil(file.size / 2 ** 20)} MiB`);
  }
  const form = new FormData();
  form.append("file", file, name);
  form.append("model", transcriber.value);
  const own = new AbortController();
  control = own;
  dictation.value = "transcribing";
  try {
    return (await json<{ text: string }>("/v1/audio/transcriptions", form, own.signal)).text.trim();
  } catch (error) {
    if (own.signal.aborted) return null;
    throw error;
  } finally {
    if (control === own) {
      control = null;
      dictation.value = "off";
    }
  }
}

/** Records until `finish` or `cancel`, and returns the text, or null if it was cancelled. */
export async function dictate(): Promise<string | null> {
  dictation.value = "starting";
  let stream: MediaStream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  } catch (error) {
    dictation.value = "off";
    const isAbsent = error instanceof DOMException && error.name === "NotFoundError";
    throw new Error(
      isAbsent
        ? "This machine has no microphone."
        : "The browser gives this page no microphone. Allow it in the browser’s settings of this page.",
    );
  }

  const parts: Blob[] = [];
  recorder = new MediaRecorder(stream, { mimeType: TYPES.find((type) => MediaRecorder.isTypeSupported(type)) });
  recorder.ondataavailable = (event) => parts.push(event.data);
  const ended = new Promise((resolve) => (recorder!.onstop = resolve));
  seconds.value = 0;
  const clock = setInterval(() => (seconds.value += 1), 1000);
  recorder.start();
  dictation.value = "recording";
  await ended;

  clearInterval(clock);
  for (const track of stream.getTracks()) track.stop();
  const type = recorder.mimeType;
  recorder = null;
  if (dictation.peek() !== "recording") return null;
  return transcribe(new Blob(parts, { type }), `recording.${type.includes("mp4") ? "m4a" : type.includes("ogg") ? "ogg" : "webm"}`);
}

/** Ends the recording, whose text follows. */
export function finish(): void {
  recorder?.stop();
}

/** Discards the recording, or the transcript that is awaited. */
export function cancel(): void {
  if (dictation.value === "recording") {
    dictation.value = "off";
    recorder?.stop();
  }
  control?.abort();
}
