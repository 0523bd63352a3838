// Runs from files: reports of `narthex bench --json`, with or without `--devices`, and runs that a page exported.

import type { Run } from "./benchmarks";

const EXPECTED = "expected a report of `narthex bench --json`, or runs that this page exported";

/** Maximum characters of a text of a file. */
const MAX_TEXT = 200;

type Fields = Record<string, unknown>;

function fields(value: unknown): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error(EXPECTED);
  return value as Fields;
}

function text(value: unknown): string {
  if (typeof value !== "string") throw new Error(EXPECTED);
  return value.slice(0, MAX_TEXT);
}

function number(value: unknown): number {
  if (typeof value !== "number" || !Number.isFinite(value) || value < 0) throw new Error(EXPECTED);
  return value;
}

/** Returns the runs of a file that was last changed at a time in milliseconds. */
export function runsOf(content: string, changed: number): Run[] {
  let value: unknown;
  try {
    value = JSON.parse(content);
  } catch {
    throw new Error(`${EXPECTED}; found no JSON`);
  }
  if (Array.isArray(value)) return value.map(exported);
  const report = fields(value);
  if (!Array.isArray(report["contenders"])) return [measured(report, text(report["device"]), report, changed)];
  const time = Date.parse(text(report["date"])) || changed;
  const contenders = report["contenders"].map(fields);
  const ran = contenders.filter((contender) => contender["outcome"] === "ran");
  if (ran.length === 0) throw new Error("expected a device with figures, found none in this report");
  return ran.map((contender) => measured(report, text(contender["place"]), contender, time));
}

/** Returns a run of an exported list. */
function exported(value: unknown): Run {
  const run = fields(value);
  return {
    id: text(run["id"]),
    time: number(run["time"]),
    model: text(run["model"]),
    scheme: text(run["scheme"]),
    device: text(run["device"]),
    version: text(run["version"]),
    machine: run["machine"] === undefined ? undefined : text(run["machine"]),
    prompt: number(run["prompt"]),
    answer: number(run["answer"]),
    parallel: number(run["parallel"]),
    promptTokens: number(run["promptTokens"]),
    promptPerSecond: number(run["promptPerSecond"]),
    perSecond: number(run["perSecond"]),
    total: number(run["total"]),
    firstToken: number(run["firstToken"]),
  };
}

/** Returns the run of a report on one device. The report measures one request after another. */
function measured(report: Fields, device: string, figures: Fields, time: number): Run {
  const median = (name: string) => number(fields(figures[name])["median"]);
  const machine = fields(report["machine"]);
  const [model, scheme] = [text(report["model"]), text(report["scheme"])];
  const [prompt, answer] = [number(report["prompt_tokens"]), number(report["generate_tokens"])];
  const [perSecond, firstToken] = [median("decode_tokens_per_second"), median("first_token_ms")];
  const seconds = firstToken / 1000 + (answer - 1) / perSecond;
  return {
    // A file that is read twice replaces its runs, also as a copy.
    id: ["report", model, scheme, device, prompt, answer, perSecond, firstToken].join(" "),
    time,
    model,
    scheme,
    device,
    version: text(machine["narthex"]),
    machine: text(machine["cpu"]),
    prompt,
    answer,
    parallel: 1,
    promptTokens: prompt,
    promptPerSecond: median("prefill_tokens_per_second"),
    perSecond,
    total: seconds > 0 && Number.isFinite(seconds) ? answer / seconds : 0,
    firstToken,
  };
}
