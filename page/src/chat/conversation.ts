// Conversations: trees of messages, of which one branch is shown.

import type { Timings } from "../api";
import { isPictureUrl, type Picture } from "./pictures";
import { base64Of, isSoundUrl, type Sound } from "./sounds";

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

export interface Message {
  id: string;
  parent: string | null;
  role: "user" | "assistant" | "tool";
  content: string;
  /** Pictures of a user's message. */
  pictures?: Picture[];
  /** Sounds of a user's message. */
  sounds?: Sound[];
  time: number;
  reasoning?: string;
  calls?: ToolCall[];
  /** Call that a tool's result answers. */
  callId?: string;
  model?: string;
  timings?: Timings;
  /** Milliseconds from the request to the first token, as this page measured them. */
  firstToken?: number;
  /** Why the answer ended, if not by itself: `length`, `stopped` or an error. */
  end?: string;
  error?: string;
}

export interface Settings {
  system: string;
  temperature: string;
  top_p: string;
  top_k: string;
  max_tokens: string;
  seed: string;
  reasoning: "" | "none" | "low" | "medium" | "high";
  /** A JSON schema for answers. */
  schema: string;
  /** Definitions of tools, as in `/v1/chat/completions`. */
  tools: string;
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  model: string;
  settings: Settings;
  messages: Record<string, Message>;
  /** The shown child of a message, or of the start (`""`). */
  chosen: Record<string, string>;
}

export const PLAIN: Settings = {
  system: "",
  temperature: "",
  top_p: "",
  top_k: "",
  max_tokens: "",
  seed: "",
  reasoning: "",
  schema: "",
  tools: "",
};

export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36)).join("");

export function newConversation(model: string, settings: Settings = PLAIN): Conversation {
  const time = Date.now();
  return { id: newId(), title: "", created: time, updated: time, model, settings, messages: {}, chosen: {} };
}

/** Returns the alternatives after a message, oldest first. */
export function children(conversation: Conversation, parent: string | null): Message[] {
  const all = Object.values(conversation.messages).filter((message) => message.parent === parent);
  return all.sort((a, b) => a.time - b.time || a.id.localeCompare(b.id));
}

/** Returns the shown branch. */
export function branch(conversation: Conversation): Message[] {
  const shown: Message[] = [];
  let parent = "";
  for (;;) {
    const next = conversation.messages[conversation.chosen[parent] ?? ""];
    if (!next || shown.length > 10_000) return shown;
    shown.push(next);
    parent = next.id;
  }
}

/** Returns the conversation with a further message, which is shown. */
export function add(conversation: Conversation, message: Message): Conversation {
  return {
    ...conversation,
    title: conversation.title || titleOf(message),
    updated: Date.now(),
    messages: { ...conversation.messages, [message.id]: message },
    chosen: { ...conversation.chosen, [message.parent ?? ""]: message.id },
  };
}

/** Returns the conversation with a changed message. */
export function change(conversation: Conversation, id: string, fields: Partial<Message>): Conversation {
  const message = conversation.messages[id];
  if (!message) return conversation;
  return { ...conversation, messages: { ...conversation.messages, [id]: { ...message, ...fields } } };
}

/** Returns the conversation with another alternative shown. */
export function choose(conversation: Conversation, message: Message): Conversation {
  return { ...conversation, chosen: { ...conversation.chosen, [message.parent ?? ""]: message.id } };
}

function titleOf(message: Message): string {
  const line = message.content.trim().split("\n")[0] || message.pictures?.[0]?.name || message.sounds?.[0]?.name || "";
  return line.length > 60 ? `${line.slice(0, 57).trimEnd()}…` : line;
}

/** Thrown for a setting that no request can have. */
export class BadSetting extends Error {}

function number(name: string, text: string): number | undefined {
  if (!text.trim()) return undefined;
  const value = Number(text);
  if (!Number.isFinite(value)) throw new BadSetting(`${name}: expected a number, found “${text}”`);
  return value;
}

function parsed(name: string, text: string): unknown {
  if (!text.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new BadSetting(`${name}: expected JSON; ${(error as Error).message}`);
  }
}

/** Returns the tools of the settings: a list, or one definition. A bare function is wrapped. */
function tools(text: string): unknown[] | undefined {
  const value = parsed("Tools", text);
  if (value === undefined) return undefined;
  const list = Array.isArray(value) ? value : [value];
  return list.map((tool) => (tool && typeof tool === "object" && "name" in tool ? { type: "function", function: tool } : tool));
}

/** Returns the content of a message: its text, or a list with its media before the text. */
function contentOf({ content, pictures = [], sounds = [] }: Message): unknown {
  const images = pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  const media = [...images, ...sounds.map((sound) => ({ type: "input_audio", input_audio: { data: base64Of(sound) } }))];
  if (media.length === 0) return content;
  return content ? [...media, { type: "text", text: content }] : media;
}

/** Returns the body of the request for the answer after a message. */
export function requestBody(conversation: Conversation, path: Message[]): Record<string, unknown> {
  const { settings } = conversation;
  const schema = parsed("JSON schema", settings.schema);
  const messages: Record<string, unknown>[] = settings.system.trim()
    ? [{ role: "system", content: settings.system }]
    : [];
  for (const message of path) {
    if (message.role === "tool") {
      messages.push({ role: "tool", tool_call_id: message.callId, content: message.content });
    } else if (message.calls?.length) {
      const calls = message.calls.map(({ id, name, arguments: text }) => ({
        id,
        type: "function",
        function: { name, arguments: text },
      }));
      messages.push({ role: "assistant", content: message.content || null, tool_calls: calls });
    } else {
      messages.push({ role: message.role, content: contentOf(message) });
    }
  }
  return {
    model: conversation.model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    // Small models can fall into a loop, which would fill the whole context.
    end_at_repetition: true,
    temperature: number("Temperature", settings.temperature),
    top_p: number("Top p", settings.top_p),
    top_k: number("Top k", settings.top_k),
    max_tokens: number("Maximum tokens", settings.max_tokens),
    seed: number("Seed", settings.seed),
    reasoning_effort: settings.reasoning || undefined,
    tools: tools(settings.tools),
    response_format:
      schema === undefined ? undefined : { type: "json_schema", json_schema: { name: "answer", strict: true, schema } },
  };
}

/** Returns the shown branch as Markdown. */
export function asMarkdown(conversation: Conversation): string {
  const parts = [`# ${conversation.title || "Conversation"}\n`];
  if (conversation.settings.system.trim()) parts.push(`## System\n\n${conversation.settings.system.trim()}\n`);
  for (const message of branch(conversation)) {
    const name = { user: "User", assistant: message.model ?? "Assistant", tool: "Tool" }[message.role];
    const calls = (message.calls ?? []).map((call) => `\`\`\`json\n${call.name}(${call.arguments})\n\`\`\``);
    const title = (name: string) => name.replace(/[[\]\\]/g, "");
    const pictures = (message.pictures ?? []).map((picture) => `![${title(picture.name)}](${picture.url})`);
    const sounds = (message.sounds ?? []).map((sound) => `[${title(sound.name)}](${sound.url})`);
    parts.push(`## ${name}\n\n${[...pictures, ...sounds, message.content.trim(), ...calls].filter(Boolean).join("\n\n")}\n`);
  }
  return parts.join("\n");
}

/** A file of an exported message. */
interface StoredFile {
  name: string;
  url: string;
}

/** Reads the pictures or sounds of an exported message. */
function filesOf(value: unknown, isUrl: (url: string) => boolean, expected: string): StoredFile[] | undefined {
  if (value === undefined) return undefined;
  const isFile = (one: Partial<StoredFile> | null) => isText(one?.name) && isText(one.url) && isUrl(one.url);
  if (!Array.isArray(value) || !value.every(isFile)) throw new Error(expected);
  return value.map(({ name, url }: StoredFile) => ({ name, url }));
}

const isText = (value: unknown): value is string => typeof value === "string";

/** Reads an exported conversation, or a list of them. Everything that the page uses is checked. */
export function fromJson(text: string): Conversation[] {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`expected a conversation as JSON; ${(error as Error).message}`);
  }
  return (Array.isArray(value) ? value : [value]).map(conversationOf);
}

function conversationOf(value: Partial<Conversation> | null): Conversation {
  const { messages, chosen } = value ?? {};
  if (!value || typeof messages !== "object" || !messages || typeof chosen !== "object" || !chosen) {
    throw new Error("expected a conversation that this page exported: it needs `messages` and `chosen`");
  }
  const known: Record<string, Message> = {};
  for (const [id, message] of Object.entries(messages)) {
    const { role, content, parent } = message ?? {};
    const isMessage = role === "user" || role === "assistant" || role === "tool";
    if (!isMessage || !isText(content) || !(parent === null || (isText(parent) && parent in messages))) {
      throw new Error(`message ${id}: expected a role, a text and a parent among the messages`);
    }
    const pictures = `message ${id}: expected pictures with a name and a data URL of type png, jpeg, webp or gif`;
    const sounds = `message ${id}: expected sounds with a name and a data URL of a type of audio or video`;
    known[id] = {
      ...message,
      id,
      time: Number(message.time) || 0,
      pictures: filesOf(message.pictures, isPictureUrl, pictures),
      sounds: filesOf(message.sounds, isSoundUrl, sounds),
    };
  }
  const settings = { ...PLAIN };
  for (const name of Object.keys(PLAIN) as (keyof Settings)[]) {
    const given = value.settings?.[name];
    if (isText(given)) (settings as Record<string, string>)[name] = given;
  }
  // A new id keeps the conversation that was exported.
  const fresh = newConversation(isText(value.model) ? value.model : "", settings);
  const title = isText(value.title) ? value.title : "";
  return { ...fresh, title, messages: known, chosen: Object.fromEntries(Object.entries(chosen).filter(([, id]) => isText(id))) };
}
