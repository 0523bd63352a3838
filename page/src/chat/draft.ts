// The message that is being written: its text, its pictures and sounds, and what went wrong with a file.

import { computed, signal } from "@preact/signals";
import { messageFor } from "../api";
import { chatModels, models } from "../server";
import { current, preferredModel } from "./chats";
import { dictate, dictation, transcribe, transcriber } from "./dictation";
import { type Attachments, NOTHING } from "./files";
import { readPicture } from "./pictures";
import { readSound } from "./sounds";

export const text = signal("");
export const attachments = signal<Attachments>(NOTHING);
/** Why a file or a recording is not in the message. */
export const refusal = signal("");

/** The model of the shown conversation. */
const modelId = computed(() => current.value?.model || preferredModel.value);

function isCapable(capability: string): boolean {
  const model = models.value?.find((one) => one.id === modelId.value);
  return model?.capabilities?.includes(capability) ?? false;
}

/** Whether the model reads pictures. */
export const seesPictures = computed(() => isCapable("vision"));

/** Whether the model reads sounds. */
export const hearsSounds = computed(() => isCapable("audio"));

/** States why pictures are not taken, and which models take them. */
function blindness(): string {
  const seeing = chatModels.value.filter((model) => model.capabilities?.includes("vision")).map((model) => model.id);
  const advice = seeing.length > 0 ? `Models that do: ${seeing.slice(0, 4).join(", ")}.` : "The Models view lists some that do.";
  return `${modelId.value || "No model"} reads no pictures. ${advice}`;
}

const isSound = (file: File) => file.type.startsWith("audio/") || file.type.startsWith("video/");

/** Adds files to the message: pictures as they are, and sounds as they are if the model reads them, else their text. */
export async function attach(files: File[]): Promise<void> {
  refusal.value = "";
  const images = files.filter((file) => file.type.startsWith("image/"));
  const sounds = files.filter(isSound);
  const others = files.filter((file) => !images.includes(file) && !sounds.includes(file));
  if (others[0]) refusal.value = `${others[0].name}: expected a picture or a sound.`;
  if (images.length > 0 && !seesPictures.value) refusal.value = blindness();
  else await attempt(async () => add({ pictures: await Promise.all(images.map(readPicture)), sounds: [] }));
  for (const sound of sounds) {
    if (hearsSounds.value) await attempt(async () => add({ pictures: [], sounds: [await readSound(sound)] }));
    else if (transcriber.value && dictation.value === "off") await attempt(async () => append(await transcribe(sound, sound.name)));
    else if (!transcriber.value) {
      refusal.value = `${sound.name}: no installed model hears or turns speech into text. The Models view lists some.`;
    }
  }
}

function add({ pictures, sounds }: Attachments): void {
  const { pictures: earlier, sounds: heard } = attachments.value;
  attachments.value = { pictures: [...earlier, ...pictures], sounds: [...heard, ...sounds] };
}

/** Adds what the user says to the text. */
export const speak = () => attempt(async () => append(await dictate()));

async function attempt(work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    refusal.value = messageFor(error);
  }
}

function append(spoken: string | null): void {
  if (spoken === null) return;
  if (spoken) text.value = text.value.trim() ? `${text.value.trimEnd()} ${spoken}` : spoken;
  else refusal.value = "No speech was recognised.";
}

/** Returns the files of a paste or a drop. */
export function filesOf(data: DataTransfer | null): File[] {
  return [...(data?.files ?? [])];
}
