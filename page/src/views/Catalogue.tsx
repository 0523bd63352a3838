import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { type CatalogueModel, json, type MemoryPlan, messageFor, type Plan, type SchemeMemory } from "../api";
import { bytes, count, percent } from "../format";
import { catalogue, health, pollNow } from "../server";
import { Table } from "../table";
import { type Pull, pull, startPull } from "./pull";

/** Models that are listed before “Show all”. */
const FIRST = 6;

const KINDS: Record<string, string> = {
  chat: "Chat",
  text: "Text",
  embedding: "Embedding",
  rerank: "Reranking",
  answer: "Answers in texts",
  masked: "Masks",
  transcription: "Speech to text",
  speech: "Text to speech",
};

const PICKS: Record<string, string> = {
  chat: "first choice for conversations",
  code: "first choice for code",
  small: "first choice for small machines",
  embedding: "first choice for search",
};

/** What a model does with the media that its conversations may contain. */
const SENSES: Record<string, string> = { image: "sees pictures", audio: "hears" };

const kind = signal("chat");

/** The models that are not installed, the most useful on this machine first, each with its plan. */
export function Catalogue() {
  const [filter, setFilter] = useState("");
  const [isWhole, setWhole] = useState(false);
  const all = catalogue.value;
  const kinds = Object.keys(KINDS).filter((name) => all?.some((model) => model.kind === name && !model.installed));
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const fitting = (all ?? []).filter((model) => {
    const text = `${model.id} ${model.title}`.toLowerCase();
    return model.kind === kind.value && !model.installed && words.every((word) => text.includes(word));
  });
  // The sort keeps the order of equal ones.
  const isFirst = (model: CatalogueModel) => Boolean(model.pick && model.here?.fits);
  fitting.sort((a, b) => Number(isFirst(b)) - Number(isFirst(a)));
  const shown = isWhole || words.length > 0 ? fitting : fitting.slice(0, FIRST);
  return (
    <section class="block" aria-labelledby="catalogue-title">
      <h2 id="catalogue-title">For this machine</h2>
      <p class="quiet">
        {all === null
          ? "Ranking the models for this machine…"
          : "First choices, then the most useful: larger models answer better, as long as they fit and are not slow."}
      </p>
      {all !== null && (
        <div class="filters">
          <label class="field">
            <span>Kind</span>
            <select value={kind.value} onChange={(event) => (kind.value = event.currentTarget.value)}>
              {kinds.map((name) => (
                <option key={name} value={name}>
                  {KINDS[name]}
                </option>
              ))}
            </select>
          </label>
          <label class="field">
            <span>Name</span>
            <input value={filter} placeholder="qwen" onInput={(event) => setFilter(event.currentTarget.value)} />
          </label>
        </div>
      )}
      <ul class="catalogue">
        {shown.map((model) => (
          <Offer key={model.id} model={model} />
        ))}
      </ul>
      {all !== null && fitting.length === 0 && <p class="quiet">No further model of this kind has such a name.</p>}
      {shown.length < fitting.length && (
        <button type="button" class="button" onClick={() => setWhole(true)}>
          Show all {fitting.length}
        </button>
      )}
    </section>
  );
}

/** A model that can be installed, with the verdict for this machine. */
function Offer({ model }: { model: CatalogueModel }) {
  const [isOpen, setOpen] = useState(false);
  const { here } = model;
  const state = pull.value?.model === model.id ? pull.value : null;
  return (
    <li class="offer" data-fits={here?.fits ?? true}>
      <div class="offer-head">
        <h3>{model.id}</h3>
        {model.pick && <span class="pick">{PICKS[model.pick] ?? model.pick}</span>}
        {model.reads.map((medium) => (
          <span key={medium} class="sense">
            {SENSES[medium] ?? medium}
          </span>
        ))}
      </div>
      <p class="quiet">
        {[
          model.title,
          model.parameters && `${parameters(model.parameters)} parameters`,
          model.download_bytes && `download of ${bytes(model.download_bytes)}`,
        ]
          .filter(Boolean)
          .join(" · ")}
      </p>
      {here && <Verdict here={here} kind={model.kind} />}
      <div class="row">
        <InstallButton model={model} />
        {here && (
          <button
            type="button"
            class="button"
            aria-expanded={isOpen}
            aria-controls={`plan-${model.id}`}
            onClick={() => setOpen(!isOpen)}
          >
            Plan<span class="sr-only"> of {model.id}</span>
          </button>
        )}
      </div>
      {state && <PullState state={state} />}
      <div id={`plan-${model.id}`} hidden={!isOpen}>
        {isOpen && <PlanView model={model} />}
      </div>
    </li>
  );
}

/** Formats a number of parameters: `135 M`, `1.7 B`. */
function parameters(value: number): string {
  return value < 1e9 ? `${Math.ceil(value / 1e6)} M` : `${(value / 1e9).toFixed(1)} B`;
}

/** Memory, speed and quality in one line. */
function Verdict({ here, kind }: { here: NonNullable<CatalogueModel["here"]>; kind: string }) {
  const memory = health.value?.memory;
  if (!here.fits) {
    const total = memory?.total_bytes;
    return (
      <p class="error">
        Its weights take {bytes(here.bytes)} in {here.scheme}
        {total ? `, and this machine has ${bytes(total)} of memory.` : ", more than this machine’s memory."}
      </p>
    );
  }
  const isTight = memory?.free_bytes != null && here.bytes > memory.free_bytes;
  return (
    <>
      <ul class="verdicts">
        <li>
          <Meter level={{ slow: 1, medium: 2, fast: 3 }[here.speed]} />
          {here.speed}
          <span class="sr-only"> speed</span>
        </li>
        <li>
          {bytes(here.bytes)} of memory in {here.scheme}
        </li>
        {here.quality !== null && here.quality < 0.9995 && (
          <li title="By perplexity, compared with 32-bit weights">keeps {percent(here.quality)} of the quality</li>
        )}
        {here.quality !== null && here.quality >= 0.9995 && <li>keeps its quality</li>}
        {kind === "chat" && here.speed === "slow" && <li>below 5 tokens/s</li>}
      </ul>
      {isTight && (
        <p class="warning">
          Only {bytes(memory!.free_bytes!)} are free now. Unload a model or close other programs before its first use.
        </p>
      )}
    </>
  );
}

/** Three bars, of which some are filled. */
function Meter({ level }: { level: number }) {
  return (
    <span class="meter" aria-hidden="true">
      {[1, 2, 3].map((bar) => (
        <i key={bar} data-on={bar <= level} />
      ))}
    </span>
  );
}

/** The button that installs a model, or how its user can do it. */
function InstallButton({ model }: { model: CatalogueModel }) {
  const isRunning = Boolean(pull.value?.control);
  if (isRunning && pull.value!.model === model.id) {
    return (
      <button type="button" class="button" onClick={() => pull.value!.control!.abort()}>
        Cancel<span class="sr-only"> the installation of {model.id}</span>
      </button>
    );
  }
  if (!model.available) {
    return (
      <span class="quiet">
        {model.gated ? "Its publisher asks for a licence first. " : ""}Install it with <code>narthex pull {model.id}</code>
      </span>
    );
  }
  return (
    <button
      type="button"
      class={`button ${model.here?.fits ? "primary" : ""}`}
      disabled={isRunning}
      onClick={() => void startPull(model.id)}
    >
      Install<span class="sr-only"> {model.id}</span>
    </button>
  );
}

/** The progress of an installation, or why it failed. */
export function PullState({ state }: { state: Pull }) {
  if (state.error) {
    return (
      <p class="error" role="alert">
        {state.error}
      </p>
    );
  }
  return (
    <div class="progress">
      <progress max={1} value={state.share ?? undefined} aria-label={`Progress of ${state.model}`} />
      <p class="quiet" role="status">
        {state.status}
        {state.share !== null && ` · ${percent(state.share)}`}
      </p>
    </div>
  );
}

/** Conversations whose memory is planned. An empty context is the longest of the model. */
interface Conversations {
  context: string;
  users: string;
}

/** The plan of a model: where it has room, and what NPUs would run. */
function PlanView({ model }: { model: CatalogueModel }) {
  const [plan, setPlan] = useState<Plan | null>(null);
  const [failure, setFailure] = useState("");
  const hasCache = model.kind === "chat" || model.kind === "text";
  const [conversations, setConversations] = useState<Conversations>({ context: "", users: "1" });
  useEffect(() => {
    const control = new AbortController();
    const stated = Object.entries(conversations).filter(([, value]) => hasCache && value);
    const query = new URLSearchParams(stated).toString();
    const path = `/v1/catalogue/${encodeURIComponent(model.id)}${query && `?${query}`}`;
    const show = (read: Plan) => (setPlan(read), setFailure(""));
    json<Plan>(path, undefined, control.signal).then(show, (error) => {
      if (!control.signal.aborted) setFailure(messageFor(error));
    });
    return () => control.abort();
  }, [model.id, conversations]);
  useEffect(() => void pollNow(), [model.id]);
  if (failure && !plan) {
    return (
      <p class="error" role="alert">
        {failure}
      </p>
    );
  }
  if (!plan) {
    return (
      <p class="quiet" role="status">
        Planning…
      </p>
    );
  }
  return (
    <div class="plan">
      <Table
        label={`Room for ${model.id}`}
        columns={[
          { title: "Weights" },
          { title: "Memory", align: "right" },
          ...plan.devices.map((device) => ({ title: deviceTitle(device) })),
        ]}
      >
        {plan.schemes.map(({ scheme, bytes: size }) => (
          <tr key={scheme}>
            <th scope="row">{scheme}</th>
            <td data-align="right">{bytes(size)}</td>
            {plan.devices.map((device, index) => {
              const fit = device.schemes.find((one) => one.scheme === scheme);
              return <td key={index}>{room(fit, plan)}</td>;
            })}
          </tr>
        ))}
      </Table>
      {plan.minimum_memory !== null && <p class="error">It needs at least {bytes(plan.minimum_memory)} of memory.</p>}
      {hasCache && (
        <ConversationFields conversations={conversations} longest={plan.context} set={setConversations} failure={failure} />
      )}
      {plan.memory && !failure && <MemoryTable name={model.id} memory={plan.memory} />}
      <dl class="facts-list">
        <div>
          <dt>Structure</dt>
          <dd>{plan.structure}</dd>
        </div>
        {plan.kv_token_bytes > 0 && (
          <div>
            <dt>KV cache</dt>
            <dd>
              {bytes(plan.kv_token_bytes * 1000)} for 1,000 tokens on the CPU
              {plan.kv_slot_bytes > 0 && `, and at most ${bytes(plan.kv_slot_bytes)} of states for each conversation`}
            </dd>
          </div>
        )}
        {byVerdict(plan.npus).map(({ verdict, targets, runs }) => (
          <div key={verdict}>
            <dt>{targets.join(", ")}</dt>
            <dd class={runs ? "" : "quiet"}>{runs ? `${verdict} (predicted)` : `refused: ${verdict}`}</dd>
          </div>
        ))}
        {model.license && (
          <div>
            <dt>Licence</dt>
            <dd>{model.license}</dd>
          </div>
        )}
        {model.notes && (
          <div>
            <dt>Note</dt>
            <dd>{model.notes}</dd>
          </div>
        )}
      </dl>
    </div>
  );
}

/** Fields for the conversations whose memory is planned. */
function ConversationFields(props: {
  conversations: Conversations;
  longest: number;
  set: (conversations: Conversations) => void;
  failure: string;
}) {
  const { conversations, longest, set, failure } = props;
  const field = (name: keyof Conversations, label: string, placeholder: string) => (
    <label class="field">
      <span>{label}</span>
      <input
        type="number"
        min={1}
        value={conversations[name]}
        placeholder={placeholder}
        onChange={(event) => set({ ...conversations, [name]: event.currentTarget.value })}
      />
    </label>
  );
  return (
    <div class="filters">
      {field("users", "Conversations at once", "1")}
      {field("context", "Tokens of each", String(longest))}
      {failure && (
        <p class="error" role="alert">
          {failure}
        </p>
      )}
    </div>
  );
}

/** The memory of conversations on each device. */
function MemoryTable({ name, memory }: { name: string; memory: MemoryPlan }) {
  const rows = memory.devices.flatMap((device) => device.schemes.map((scheme) => ({ device, scheme })));
  const hasTowers = rows.some(({ scheme }) => scheme.towers > 0);
  return (
    <Table
      label={`Memory of ${count(memory.users)} conversations of ${count(memory.context)} tokens with ${name}`}
      columns={[
        { title: "Device" },
        { title: "Weights", align: "right" },
        ...(hasTowers ? [{ title: "Towers", align: "right" as const }] : []),
        { title: "KV cache", align: "right" },
        { title: "Buffers", align: "right" },
        { title: "Total", align: "right" },
        { title: "Fits" },
        { title: "Longest", align: "right" },
      ]}
    >
      {rows.map(({ device, scheme }) => (
        <tr key={device.device + device.name + scheme.scheme}>
          <th scope="row">
            {deviceTitle(device)} <small>{scheme.scheme}</small>
            <small>weights are {device.weights === "mapped" ? "mapped from files" : "copied"}</small>
          </th>
          <td data-align="right">{bytes(scheme.weights)}</td>
          {hasTowers && <td data-align="right">{bytes(scheme.towers)}</td>}
          <td data-align="right">{bytes(scheme.kv)}</td>
          <td data-align="right">{bytes(scheme.buffers)}</td>
          <td data-align="right">{bytes(total(scheme))}</td>
          <td>{scheme.fits === null ? "unknown" : scheme.fits ? "yes" : "no"}</td>
          <td data-align="right">{scheme.longest === null ? "–" : `${count(scheme.longest)} tokens`}</td>
        </tr>
      ))}
    </Table>
  );
}

const total = ({ weights, towers, kv, buffers }: SchemeMemory) => weights + towers + kv + buffers;

function deviceTitle({ device, name, memory }: { device: string; name: string; memory: number | null }): string {
  return `${name || device.toUpperCase()}${memory ? `, ${bytes(memory)}` : ""}`;
}

function room(fit: Plan["devices"][number]["schemes"][number] | undefined, plan: Plan): string {
  if (!fit) return "unknown";
  if (fit.context === null) return fit.reason ?? "no room";
  return fit.context >= plan.context ? `the whole context of ${count(plan.context)} tokens` : `${count(fit.context)} tokens`;
}

/** Groups NPUs with the same verdict. */
function byVerdict(npus: Plan["npus"]): { verdict: string; targets: string[]; runs: boolean }[] {
  const groups = new Map<string, { verdict: string; targets: string[]; runs: boolean }>();
  for (const { verdict, target, runs } of npus) {
    const group = groups.get(verdict) ?? { verdict, targets: [], runs };
    group.targets.push(target);
    groups.set(verdict, group);
  }
  return [...groups.values()];
}
