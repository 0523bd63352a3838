// The conversations of this browser, and the answers that run.

import { batch, computed, signal } from "@preact/signals";
import { type Chunk, events, messageFor, type Timings } from "../api";
import { chatModels, health } from "../server";
import {
  add,
  branch,
  change,
  type Conversation,
  type Message,
  newConversation,
  newId,
  PLAIN,
  requestBody,
  type Settings,
  type ToolCall,
} from "./conversation";
import { type Attachments, NOTHING } from "./files";
import * as storage from "./storage";

export const conversations = signal<Conversation[]>([]);
export const currentId = signal("");
export const current = computed(
  () => conversations.value.find((conversation) => conversation.id === currentId.value) ?? null,
);
/** Answers that run, by conversation. */
export const running = signal<Record<string, AbortController>>({});
/** Why conversations are not kept. */
export const unsaved = signal("");
/** What screen readers announce. */
export const announcement = signal("");

/** Reads the conversations. */
export async function start(): Promise<void> {
  try {
    conversations.value = await storage.load();
  } catch (error) {
    unsaved.value = `This browser keeps no conversations: ${messageFor(error)}`;
  }
  const newest = conversations.value[0];
  if (newest && !currentId.value) currentId.value = newest.id;
}

function put(conversation: Conversation): void {
  const others = conversations.value.filter((other) => other.id !== conversation.id);
  const isNew = others.length === conversations.value.length;
  conversations.value = isNew
    ? [conversation, ...others]
    : conversations.value.map((other) => (other.id === conversation.id ? conversation : other));
}

async function keep(conversation: Conversation): Promise<void> {
  put(conversation);
  // A conversation without messages is not worth keeping.
  if (Object.keys(conversation.messages).length === 0) return;
  try {
    await storage.save(conversation);
  } catch (error) {
    unsaved.value = `This browser keeps no conversations: ${messageFor(error)}`;
  }
}

/** The model for a new conversation: the last one that was used, else one in memory, else the first. */
export const preferredModel = computed(() => {
  const known = chatModels.value.map((model) => model.id);
  const loaded = (health.value?.models ?? []).map((model) => model.id);
  const last = conversations.value.map((conversation) => conversation.model).find((model) => known.includes(model));
  const installed = chatModels.value.find((model) => model.installed)?.id;
  return last ?? known.find((model) => loaded.includes(model)) ?? installed ?? known[0] ?? "";
});

/** Shows an empty conversation. */
export function begin(): void {
  const empty = conversations.value.find((one) => Object.keys(one.messages).length === 0);
  const next = empty ?? newConversation(preferredModel.value);
  batch(() => {
    put(next);
    currentId.value = next.id;
  });
}

/** Returns the shown conversation, or begins one. Its model is one that exists. */
export function ensure(): Conversation {
  if (!current.value) begin();
  const conversation = current.value!;
  if (conversation.model) return conversation;
  const chosen = { ...conversation, model: preferredModel.value };
  put(chosen);
  return chosen;
}

export function select(id: string): void {
  currentId.value = id;
}

export async function discard(id: string): Promise<void> {
  running.value[id]?.abort();
  conversations.value = conversations.value.filter((conversation) => conversation.id !== id);
  if (currentId.value === id) currentId.value = conversations.value[0]?.id ?? "";
  await storage.remove(id).catch(() => undefined);
}

/** Changes the shown conversation. */
export function update(fields: Partial<Conversation>): void {
  void keep({ ...ensure(), ...fields });
}

export function updateSettings(fields: Partial<Settings>): void {
  const conversation = ensure();
  void keep({ ...conversation, settings: { ...PLAIN, ...conversation.settings, ...fields } });
}

/** Adds imported conversations and shows the first. */
export async function adopt(imported: Conversation[]): Promise<void> {
  for (const conversation of imported) await keep(conversation);
  if (imported[0]) currentId.value = imported[0].id;
}

export function stop(): void {
  running.value[currentId.value]?.abort();
}

/** Sends a text with media after a message, or at the end. With the parent of another message, it is a new branch. */
export async function send(text: string, attachments: Attachments = NOTHING, parent?: string | null): Promise<void> {
  const { pictures, sounds } = attachments;
  const conversation = ensure();
  const last = branch(conversation).at(-1)?.id ?? null;
  const message: Message = {
    id: newId(),
    parent: parent === undefined ? last : parent,
    role: "user",
    content: text,
    pictures: pictures.length > 0 ? pictures : undefined,
    sounds: sounds.length > 0 ? sounds : undefined,
    time: Date.now(),
  };
  const next = add(conversation, message);
  await keep(next);
  await answer(next, message.id);
}

/** Answers again after the message before an answer. */
export async function retry(message: Message): Promise<void> {
  if (message.parent !== null) await answer(ensure(), message.parent);
}

/** Sends the results of an answer's calls. */
export async function sendResults(message: Message, results: Record<string, string>): Promise<void> {
  let conversation = ensure();
  let parent = message.id;
  for (const call of message.calls ?? []) {
    const result: Message = {
      id: newId(),
      parent,
      role: "tool",
      content: results[call.id] ?? "",
      callId: call.id,
      time: Date.now(),
    };
    conversation = add(conversation, result);
    parent = result.id;
  }
  await keep(conversation);
  await answer(conversation, parent);
}

/** Returns the messages up to one, in order. */
function pathTo(conversation: Conversation, id: string): Message[] {
  const path: Message[] = [];
  for (let at: string | null = id; at !== null; ) {
    const message: Message | undefined = conversation.messages[at];
    if (!message) break;
    path.unshift(message);
    at = message.parent;
  }
  return path;
}

/** Collects the deltas of an answer. */
class Collector {
  content = "";
  reasoning = "";
  calls: ToolCall[] = [];
  timings?: Timings;
  end = "";
  firstToken?: number;
  private readonly begun = performance.now();

  add(chunk: Chunk): void {
    if (chunk.timings) this.timings = chunk.timings;
    for (const { delta, finish_reason } of chunk.choices) {
      if (delta.content || delta.reasoning_content || delta.tool_calls) {
        this.firstToken ??= performance.now() - this.begun;
      }
      this.content += delta.content ?? "";
      this.reasoning += delta.reasoning_content ?? "";
      for (const part of delta.tool_calls ?? []) {
        const call = (this.calls[part.index] ??= { id: "", name: "", arguments: "" });
        call.id ||= part.id ?? "";
        call.name ||= part.function?.name ?? "";
        call.arguments += part.function?.arguments ?? "";
      }
      if (finish_reason === "length") this.end = "length";
    }
  }

  fields(): Partial<Message> {
    const { content, reasoning, timings, end, firstToken } = this;
    const calls = this.calls.length ? this.calls.map((call) => ({ ...call })) : undefined;
    return { content, reasoning: reasoning || undefined, calls, timings, end: end || undefined, firstToken };
  }
}

/** Requests the answer after a message and shows it as it arrives. */
async function answer(from: Conversation, after: string): Promise<void> {
  const { id } = from;
  if (running.value[id]) return;
  const message: Message = {
    id: newId(),
    parent: after,
    role: "assistant",
    content: "",
    time: Date.now(),
    model: from.model,
  };
  const control = new AbortController();
  const collector = new Collector();
  put(add(from, message));
  running.value = { ...running.value, [id]: control };
  announcement.value = "The model answers.";

  const latest = () => conversations.value.find((conversation) => conversation.id === id);
  let frame = 0;
  const show = () => {
    frame = 0;
    const conversation = latest();
    if (conversation) put(change(conversation, message.id, collector.fields()));
  };
  let failure: string | undefined;
  try {
    const body = requestBody(from, pathTo(from, after));
    for await (const chunk of events<Chunk>("/v1/chat/completions", body, control.signal)) {
      collector.add(chunk);
      frame ||= requestAnimationFrame(show);
    }
  } catch (error) {
    if (control.signal.aborted) collector.end = "stopped";
    else failure = messageFor(error);
  }

  cancelAnimationFrame(frame);
  const { [id]: _, ...others } = running.value;
  running.value = others;
  const conversation = latest();
  if (!conversation) return;
  await keep(change(conversation, message.id, { ...collector.fields(), error: failure }));
  announcement.value = failure ? `Error: ${failure}` : collector.end === "stopped" ? "Stopped." : collector.content;
}
