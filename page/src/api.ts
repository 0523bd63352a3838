// Requests to the server, with the key of this tab.

import { signal } from "@preact/signals";

const KEY = "narthex-key";

/** The key of this tab. It lives as long as the tab. */
export const key = signal(read());

/** Set while a request was refused for want of a valid key. */
export const keyDemand = signal<"none" | "missing" | "wrong">("none");

function read(): string {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

/** Sets or, with an empty text, forgets the key. */
export function setKey(value: string): void {
  key.value = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Without storage, the key lasts until the page is closed.
  }
}

/** An answer of the server that reports an error. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    /** Seconds after which the server wants the request again, if it says so. */
    readonly retryAfter = 0,
  ) {
    super(message);
  }
}

/** Returns the message of an error in the form of any of the protocols. */
function messageOf(text: string): string {
  try {
    const { error } = JSON.parse(text);
    const message = typeof error === "string" ? error : error?.message;
    if (typeof message === "string") return message;
  } catch {
    // The answer is not JSON.
  }
  return text.slice(0, 400);
}

/** Maximum bytes of a body. The server closes the connection of a larger one before the browser reads the reason. */
const MAX_BODY = 32 << 20;

/** Sends a request and returns the successful response. A form is sent as it is, other bodies as JSON. */
export async function request(
  path: string,
  body?: unknown,
  signal?: AbortSignal,
  method = body === undefined ? "GET" : "POST",
): Promise<Response> {
  const sent = key.value;
  const headers: Record<string, string> = {};
  if (sent) headers["Authorization"] = `Bearer ${sent}`;
  const isJson = body !== undefined && !(body instanceof FormData);
  if (isJson) headers["Content-Type"] = "application/json";
  const content = isJson ? JSON.stringify(body) : (body as FormData | undefined);
  if (typeof content === "string" && content.length > MAX_BODY) {
    throw new ApiError(413, "The texts, pictures and sounds of this conversation exceed 32 MiB. Begin a new conversation.");
  }
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: content,
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. Check that `narthex serve` is running.");
  }
  if (response.ok) return response;
  if (response.status === 401 && key.value === sent) keyDemand.value = sent ? "wrong" : "missing";
  const message = messageOf(await response.text());
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  throw new ApiError(response.status, message || `The server answered with status ${response.status}.`, retryAfter);
}

/** Resolves after a time, or rejects when the signal aborts. */
function pause(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal?.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}

/** Sends a request, and again as long as the server says that the model is still loading. */
export async function requestOnceLoaded(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  for (;;) {
    try {
      return await request(path, body, signal);
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 503 && error.retryAfter > 0)) throw error;
      await pause(error.retryAfter, signal);
    }
  }
}

/** Returns the JSON of an answer. */
export async function json<T>(path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  return (await request(path, body, signal)).json() as Promise<T>;
}

/** Yields the lines of a streamed answer. */
async function* lines(response: Response): AsyncGenerator<string> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop()!;
    yield* parts;
  }
  if (rest) yield rest;
}

/** Yields the JSON of server-sent events up to `[DONE]`. */
export async function* events<T>(path: string, body: unknown, signal: AbortSignal): AsyncGenerator<T> {
  for await (const line of lines(await requestOnceLoaded(path, body, signal))) {
    if (!line.startsWith("data:")) continue;
    const data = line.slice(5).trim();
    if (data === "[DONE]") return;
    const value = JSON.parse(data);
    if (value.error) throw new ApiError(200, messageOf(data));
    yield value as T;
  }
}

/** Yields the lines of JSON of an answer in Ollama's form. */
export async function* jsonLines<T>(path: string, body: unknown, signal: AbortSignal): AsyncGenerator<T> {
  for await (const line of lines(await request(path, body, signal))) {
    if (!line.trim()) continue;
    const value = JSON.parse(line);
    if (value.error) throw new ApiError(200, messageOf(line));
    yield value as T;
  }
}

/** Returns the message of any error. */
export function messageFor(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

// The answers of the server, as far as the page reads them.

export interface Sampling {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  repetition_penalty?: number;
}

export interface Model {
  id: string;
  kind: string;
  capabilities: string[] | null;
  installed: boolean;
  context_length: number | null;
  root?: string;
  sampling?: Sampling;
}

/** A model of the catalogue, with its usefulness on the server's machine. */
export interface CatalogueModel {
  id: string;
  title: string;
  kind: string;
  parameters: number | null;
  license: string | null;
  gated: boolean;
  pick?: string;
  notes: string | null;
  /** Media that conversations may contain: `image`, `audio`. */
  reads: string[];
  download_bytes: number | null;
  installed: boolean;
  available: boolean;
  here: {
    scheme: string;
    bytes: number;
    fits: boolean;
    speed: "fast" | "medium" | "slow";
    quality: number | null;
    score: number;
  } | null;
}

/** The plan of a model before its download. */
export interface Plan {
  id: string;
  structure: string;
  context: number;
  kv_token_bytes: number;
  /** Bytes of the states of a conversation of any length. */
  kv_slot_bytes: number;
  schemes: { scheme: string; bytes: number }[];
  devices: {
    device: string;
    name: string;
    memory: number | null;
    schemes: { scheme: string; context: number | null; reason: string | null }[];
  }[];
  npus: { target: string; scheme: string; runs: boolean; verdict: string; score: number }[];
  minimum_memory: number | null;
  /** Memory of the conversations that the request states. */
  memory?: MemoryPlan;
}

/** Memory of conversations on each device. */
export interface MemoryPlan {
  context: number;
  users: number;
  devices: {
    device: string;
    name: string;
    memory: number | null;
    weights: "mapped" | "copied";
    schemes: SchemeMemory[];
  }[];
}

export interface SchemeMemory {
  scheme: string;
  weights: number;
  towers: number;
  kv: number;
  buffers: number;
  fits: boolean | null;
  longest: number | null;
}

/** What a load of a model would do. */
export interface LoadForecast {
  unloads: string[];
  room: "loaded" | "enough" | "short" | "full";
  text: string;
}

/** Settings of the server's models, for admins. */
export interface ModelSettings {
  editable: boolean;
  notes?: string[];
  default_model: string | null;
  pinned: string[];
  /** Additional names, each with its model. */
  names: Record<string, string>;
}

export interface Voice {
  id: string;
  model: string;
  language: string;
  default: boolean;
  installed: boolean;
}

export interface InstalledModel {
  name: string;
  size: number;
  details: { parameter_size: string; quantization_level: string };
}

export interface Line {
  graph: string;
  ep: string;
  subgraphs: number;
  nodes: number;
  ops: Record<string, number>;
  weight_bytes: number;
  compute_share: number;
}

export interface Fallen {
  count: number;
  nodes: { graph: string; path: string; op: string; why: string; fix: string | null }[];
}

export interface Refusal {
  device: string;
  reason: string;
  fix: string | null;
  announced: boolean;
  fallen?: Fallen;
}

export interface Engine {
  running: number;
  waiting: number;
  slots: number;
  kv_used_bytes: number;
  prefix_bytes: number;
  kv_budget_bytes: number;
  kv_token_bytes: number;
  prompt_tokens: number;
  cached_tokens: number;
  restored_tokens: number;
  generated_tokens: number;
  accepted_tokens: number;
  rejected_tokens: number;
}

export interface LoadedModel {
  id: string;
  scheme: string;
  state: { state: "loading" | "ready" } | { state: "failed"; reason: string; hint: string | null };
  device: string | null;
  why: string | null;
  npu_share: number | null;
  npu_phases: { prefill: number; decode: number } | null;
  placement: Line[] | null;
  /** Towers that read media of conversations. They are not part of the other figures. */
  towers: { reads: string; device: string; weight_bytes: number; lines: Line[] }[] | null;
  fallen: Fallen | null;
  notes: string[] | null;
  passed_over: Refusal[];
  max_length: number | null;
  package_bytes: number | null;
  /** KV cache of a chat model on the CPU, with its loss from `f32`. */
  kv_cache: {
    dtype: string;
    loss: { perplexity_change: number; divergence: number; positions: number } | null;
  } | null;
  /** Loss of the weights, if the compile measured it. */
  certificate: Certificate | null;
  /** Comparisons of the devices with the CPU, which the model passed. */
  numerics: NumericsCheck[];
  draft_model: { name: string; scheme: string; bytes: number } | null;
  engine: Engine | null;
}

export type Certificate = { date: string; accepted_loss: boolean } & (
  | { of: "decoder"; positions: number; perplexity_change: number; divergence: number; agreement: number }
  | { of: "encoder"; texts: number; mean_cosine: number; lowest_cosine: number }
);

export type NumericsCheck = { device: string } & (
  | { of: "decoder"; positions: number; divergence: number; agreement: number }
  | { of: "encoder"; texts: number; lowest_cosine: number }
);

/** A request that has ended. */
export interface FinishedRequest {
  /** Unique in the list, unlike the id, which clients choose. */
  number: number;
  /** Seconds since 1970. */
  time: number;
  id: string | null;
  route: string;
  /** Null if the client disconnected before the response. */
  status: number | null;
  total_ms: number;
  device: string | null;
  model: string | null;
  tokens: number;
  cached_tokens: number;
  generated_tokens: number;
  first_token_ms: number | null;
  tokens_per_second: number | null;
}

/** The last hour of the server, oldest sample first. */
export interface ServerHistory {
  /** Seconds between two samples. */
  interval: number;
  samples: {
    /** Seconds since 1970. */
    time: number;
    tokens_per_second: number;
    /** Prompt tokens that were computed a second, and those that the KV cache had. */
    prompt_tokens_per_second: number;
    cached_tokens_per_second: number;
    running: number;
    waiting: number;
    weights_bytes: number;
    kv_used_bytes: number;
    free_bytes: number | null;
    /** Watts of the machine, if a counter can be read. */
    watts: number | null;
  }[];
}

export interface Device {
  device: string;
  usable: boolean;
  present: boolean;
  reason: string | null;
  fix: string | null;
}

/** Another server that answers requests. */
export interface Upstream {
  name: string;
  state: "ok" | "skipped";
  running: number;
  requests: number;
  errors: number;
  prompt_tokens: number;
  generated_tokens: number;
  first_byte_ms: number | null;
  last_error: string | null;
}

export interface Health {
  status: "ok" | "degraded";
  version: string;
  memory: {
    resident_bytes: number | null;
    weights_bytes: number;
    kv_used_bytes: number;
    kv_budget_bytes: number;
    total_bytes: number | null;
    free_bytes: number | null;
    warning_below_bytes: number | null;
    low: boolean;
  };
  power?: { sensor: string; watts: number | null; idle_watts: number | null };
  upstreams?: Upstream[];
  devices: Device[];
  absent_devices: Device[];
  models: LoadedModel[];
}

export interface Timings {
  device: string;
  cache_n: number;
  prompt_n: number;
  predicted_n: number;
  draft_n: number;
  draft_n_accepted: number;
  prompt_ms?: number;
  prompt_per_second?: number;
  predicted_ms?: number;
  predicted_per_second?: number;
}

export interface ToolCallDelta {
  index: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

export interface Chunk {
  choices: {
    delta: { content?: string | null; reasoning_content?: string | null; tool_calls?: ToolCallDelta[] };
    finish_reason: string | null;
  }[];
  timings?: Timings;
}
