// What the server reports, for all views. One poll serves them all, and stops while nobody looks.

import { computed, signal } from "@preact/signals";
import {
  ApiError,
  type CatalogueModel,
  type FinishedRequest,
  type Health,
  type InstalledModel,
  json,
  key,
  keyDemand,
  messageFor,
  type Model,
  type ModelSettings,
  request,
  type ServerHistory,
  type Voice,
} from "./api";

/** Milliseconds between two polls. */
const INTERVAL = 2000;

/** Samples that are kept: five minutes. The server keeps the last hour. */
const HISTORY = 150;

export const health = signal<Health | null>(null);
export const models = signal<Model[] | null>(null);
export const installed = signal<InstalledModel[]>([]);
/** The models for the server's machine, the most useful of each kind first. */
export const catalogue = signal<CatalogueModel[] | null>(null);
/** Settings of the models; null without the rights to change them. */
export const settings = signal<ModelSettings | null>(null);
/** Voices of the installed models that speak. */
export const voices = signal<Voice[]>([]);
/** Reason why the server could not be asked. */
export const outage = signal<string | null>(null);
/** Metrics; null without the rights to read them. */
export const metrics = signal<Metric[] | null>(null);
/** The last hour, as the server recorded it. */
export const lastHour = signal<ServerHistory | null>(null);
/** The last requests, newest first; null without the rights to read them. */
export const lastRequests = signal<FinishedRequest[] | null>(null);
/** Samples since the page was opened, oldest first. */
export const history = signal<Sample[]>([]);

/** Models that answer conversations. */
export const chatModels = computed(() => (models.value ?? []).filter((model) => model.kind === "chat"));

export interface Metric {
  name: string;
  labels: Record<string, string>;
  value: number;
}

export interface Sample {
  time: number;
  tokensPerSecond: number;
  running: number;
  waiting: number;
  kvBytes: number;
  freeBytes: number | null;
}

let generated: { time: number; tokens: Map<string, number> } | null = null;

/** Reads the models again. */
export async function refreshModels(): Promise<void> {
  const list = await json<{ data: Model[] }>("/v1/models?available=true");
  models.value = list.data;
  installed.value = (await json<{ models: InstalledModel[] }>("/api/tags")).models;
  const speaks = list.data.some((model) => model.kind === "speech" && model.installed);
  const known = speaks ? (await json<{ voices: Voice[] }>("/v1/audio/voices")).voices : [];
  voices.value = known.filter((voice) => voice.installed);
}

/** Reads the settings of the models again, if the caller may. */
export async function refreshSettings(): Promise<void> {
  try {
    const read = await json<ModelSettings>("/v1/settings");
    settings.value = read.editable ? read : null;
  } catch (error) {
    if (error instanceof ApiError && error.status === 403) settings.value = null;
    else throw error;
  }
}

/** Changes the settings of a model. */
export async function changeSettings(model: string, change: Record<string, unknown>): Promise<void> {
  settings.value = await json<ModelSettings>("/v1/settings", { model, ...change });
  await refreshModels();
}

/** Lets the server read its settings file again. Returns the server's remarks. */
export async function reloadSettings(): Promise<string[]> {
  const read = await json<ModelSettings>("/v1/settings", { reload: true });
  settings.value = read;
  await refreshModels();
  return read.notes ?? [];
}

/** Reads the catalogue again. */
export async function refreshCatalogue(): Promise<void> {
  catalogue.value = (await json<{ models: CatalogueModel[] }>("/v1/catalogue")).models;
}

/** Reads the state of the server again. */
export async function refreshHealth(): Promise<void> {
  const report = await json<Health | { status: string }>("/health");
  if (!("models" in report)) {
    // Without a key, the report only states that the server runs.
    keyDemand.value = key.value ? "wrong" : "missing";
    return;
  }
  health.value = report;
  sample(report);
}

/** Adds a sample of a report to the history. */
function sample(report: Health): void {
  const time = Date.now();
  const engines = report.models.filter((model) => model.engine);
  const tokens = new Map(engines.map((model) => [`${model.id}@${model.scheme}`, model.engine!.generated_tokens]));
  let fresh = 0;
  if (generated) {
    for (const [model, total] of tokens) {
      // The count of a model begins again with each load.
      const before = generated.tokens.get(model) ?? 0;
      fresh += total >= before ? total - before : total;
    }
  }
  const seconds = generated ? (time - generated.time) / 1000 : 0;
  generated = { time, tokens };
  const sum = (of: (engine: NonNullable<(typeof engines)[number]["engine"]>) => number) =>
    engines.reduce((total, model) => total + of(model.engine!), 0);
  const next: Sample = {
    time,
    tokensPerSecond: seconds > 0 ? fresh / seconds : 0,
    running: sum((engine) => engine.running),
    waiting: sum((engine) => engine.waiting),
    kvBytes: report.memory.kv_used_bytes,
    freeBytes: report.memory.free_bytes,
  };
  history.value = [...history.value.slice(-HISTORY), next];
}

/** Reads a line of the metrics: `name{label="value"} number`. */
function metric(line: string): Metric | null {
  const parts = /^([a-z_:]+)(?:\{(.*)\})? (\S+)$/.exec(line);
  if (!parts) return null;
  const labels: Record<string, string> = {};
  for (const [, name, value] of (parts[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name!] = value!;
  return { name: parts[1]!, labels, value: Number(parts[3]) };
}

/** Reads the metrics, if the caller may. */
export async function refreshMetrics(): Promise<void> {
  try {
    const text = await (await request("/metrics")).text();
    metrics.value = text.split("\n").map(metric).filter((found) => found !== null);
  } catch (error) {
    if (error instanceof ApiError && error.status === 403) metrics.value = null;
    else throw error;
  }
}

/** Reads the last requests, if the caller may. */
async function refreshRequests(): Promise<void> {
  try {
    lastRequests.value = (await json<{ requests: FinishedRequest[] }>("/health/requests")).requests;
  } catch (error) {
    if (error instanceof ApiError && error.status === 403) lastRequests.value = null;
    else throw error;
  }
}

/** Reads the last hour again, if the server has a new sample. */
async function refreshLastHour(): Promise<void> {
  const newest = lastHour.value?.samples.at(-1)?.time ?? 0;
  if (Date.now() / 1000 - newest < (lastHour.value?.interval ?? 0)) return;
  lastHour.value = await json<ServerHistory>("/health/history");
}

async function poll(withDetails: () => boolean): Promise<void> {
  if (document.hidden || keyDemand.value !== "none") return;
  try {
    await refreshHealth();
    if (models.value === null && keyDemand.value === "none") await refreshModels();
    if (withDetails()) await Promise.all([refreshMetrics(), refreshLastHour(), refreshRequests()]);
    outage.value = null;
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 401)) outage.value = messageFor(error);
  }
}

/** Polls until the page is closed. The first poll is at once. */
export async function watch(withDetails: () => boolean): Promise<never> {
  for (;;) {
    await poll(withDetails);
    await new Promise((resolve) => setTimeout(resolve, INTERVAL));
  }
}

/** Polls now, after an action or a new key. */
export const pollNow = () => poll(() => false);
