// Benchmarks: requests of a given size, timed by the server, and the stored runs.

import { signal } from "@preact/signals";
import { type Chunk, events, messageFor, type Timings } from "../api";
import { newId } from "../chat/conversation";
import { readAll, remove, write } from "../database";
import { health } from "../server";
import { runsOf } from "./reports";

/** Size of a run. */
export interface Plan {
  model: string;
  /** Tokens of each prompt, about. */
  prompt: number;
  /** Tokens of each answer. */
  answer: number;
  /** Requests at the same time. */
  parallel: number;
}

/** A finished run. Each figure is the median of the rounds. */
export interface Run extends Plan {
  id: string;
  time: number;
  device: string;
  scheme: string;
  version: string;
  /** Prompt tokens that were computed, of one request. */
  promptTokens: number;
  promptPerSecond: number;
  /** Tokens a second of one answer. */
  perSecond: number;
  /** Tokens a second of all answers together. */
  total: number;
  /** Milliseconds to the first token. */
  firstToken: number;
  /** Processor of the machine, for a run of a report. */
  machine?: string;
}

/** Rounds that count, after one that loads the model and warms it up. */
export const ROUNDS = 3;

export const runs = signal<Run[]>([]);
export const active = signal<{ plan: Plan; round: number; control: AbortController } | null>(null);
export const failure = signal("");

const WORDS = "time year people way day man thing woman life child world school state family student group country".split(" ");

/** Returns about as many tokens, which no request had before: the cache must not answer for the model. */
function promptOf(tokens: number): string {
  const numbers = crypto.getRandomValues(new Uint32Array(tokens));
  return Array.from(numbers, (number) => WORDS[number % WORDS.length]).join(" ");
}

function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

interface Answer {
  timings: Timings;
  firstToken: number;
}

async function answerTo(plan: Plan, signal: AbortSignal): Promise<Answer> {
  const body = {
    model: plan.model,
    messages: [{ role: "user", content: promptOf(plan.prompt) }],
    max_tokens: plan.answer,
    ignore_eos: true,
    temperature: 0,
    stream: true,
  };
  const start = performance.now();
  let firstToken: number | null = null;
  let timings: Timings | undefined;
  for await (const chunk of events<Chunk>("/v1/chat/completions", body, signal)) {
    const hasToken = chunk.choices.some(({ delta }) => delta.content || delta.reasoning_content || delta.tool_calls);
    if (hasToken) firstToken ??= performance.now() - start;
    timings = chunk.timings ?? timings;
  }
  if (!timings) throw new Error("The server sent no times with the answer.");
  return { timings, firstToken: firstToken ?? performance.now() - start };
}

/** One round: the requests at the same time, and the tokens a second of all. */
async function round(plan: Plan, signal: AbortSignal): Promise<{ answers: Answer[]; total: number }> {
  const start = performance.now();
  const answers = await Promise.all(Array.from({ length: plan.parallel }, () => answerTo(plan, signal)));
  const seconds = (performance.now() - start) / 1000;
  return { answers, total: answers.reduce((sum, { timings }) => sum + timings.predicted_n, 0) / seconds };
}

/** Runs a benchmark and stores its run. */
export async function measure(plan: Plan): Promise<void> {
  const control = new AbortController();
  failure.value = "";
  active.value = { plan, round: 0, control };
  try {
    // The first round loads the model, and its times do not count.
    await round({ ...plan, answer: Math.min(plan.answer, 8) }, control.signal);
    const rounds = [];
    for (let index = 1; index <= ROUNDS; index += 1) {
      active.value = { plan, round: index, control };
      rounds.push(await round(plan, control.signal));
    }
    await keep(plan, rounds);
  } catch (error) {
    if (!control.signal.aborted) failure.value = messageFor(error);
    control.abort();
  }
  active.value = null;
}

async function keep(plan: Plan, rounds: { answers: Answer[]; total: number }[]): Promise<void> {
  const answers = rounds.flatMap((one) => one.answers);
  const { timings } = answers[0]!;
  const loaded = health.value?.models.find((model) => model.id === plan.model && model.state.state === "ready");
  const run: Run = {
    ...plan,
    id: newId(),
    time: Date.now(),
    device: timings.device,
    scheme: loaded?.scheme ?? "",
    version: health.value?.version ?? "",
    promptTokens: timings.prompt_n,
    promptPerSecond: median(answers.map((answer) => answer.timings.prompt_per_second ?? 0)),
    perSecond: median(answers.map((answer) => answer.timings.predicted_per_second ?? 0)),
    total: median(rounds.map((one) => one.total)),
    firstToken: median(answers.map((answer) => answer.firstToken)),
  };
  await store([run]);
}

/** Adds runs to the stored ones, newest first. Those with the same id are replaced. */
async function store(added: Run[]): Promise<void> {
  const others = runs.value.filter((run) => added.every(({ id }) => id !== run.id));
  runs.value = [...added, ...others].sort((a, b) => b.time - a.time);
  await Promise.all(added.map((run) => write("benchmarks", run))).catch((error) => {
    failure.value = `This browser does not keep the run: ${messageFor(error)}`;
  });
}

/** Adds the runs of files: reports of `narthex bench --json`, and runs that a page exported. */
export async function readReports(files: Iterable<File>): Promise<void> {
  failure.value = "";
  for (const file of files) {
    try {
      await store(runsOf(await file.text(), file.lastModified));
    } catch (error) {
      failure.value = `${file.name}: ${messageFor(error)}`;
    }
  }
}

/** Reads the stored runs, newest first. */
export async function start(): Promise<void> {
  try {
    runs.value = (await readAll<Run>("benchmarks")).sort((a, b) => b.time - a.time);
  } catch (error) {
    failure.value = `This browser keeps no runs: ${messageFor(error)}`;
  }
}

export async function discard(id: string): Promise<void> {
  runs.value = runs.value.filter((run) => run.id !== id);
  await remove("benchmarks", id).catch(() => undefined);
}
