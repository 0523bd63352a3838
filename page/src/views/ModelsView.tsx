import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { json, jsonLines, type LoadedModel, messageFor, type Model } from "../api";
import { begin, update } from "../chat/chats";
import { bytes, count, deviceName, kindOf } from "../format";
import { go } from "../route";
import { health, installed, models, pollNow, refreshModels } from "../server";

/** A running or failed download. */
interface Pull {
  model: string;
  status: string;
  share: number | null;
  error: string;
  control: AbortController | null;
}

const pull = signal<Pull | null>(null);
/** Models whose load or unload runs, and errors of the last one. */
const busy = signal<Record<string, "load" | "unload">>({});
const failures = signal<Record<string, string>>({});

interface PullLine {
  status?: string;
  total?: number;
  completed?: number;
}

async function startPull(model: string): Promise<void> {
  const control = new AbortController();
  const set = (fields: Partial<Pull>) => {
    if (pull.value?.control === control) pull.value = { ...pull.value, ...fields };
  };
  pull.value = { model, status: "Starting", share: null, error: "", control };
  try {
    for await (const line of jsonLines<PullLine>("/api/pull", { model }, control.signal)) {
      const share = line.total ? (line.completed ?? 0) / line.total : null;
      set({ status: line.status ?? "", share });
    }
    pull.value = null;
    await refreshModels();
  } catch (error) {
    if (control.signal.aborted) pull.value = null;
    else set({ error: messageFor(error), control: null });
  }
}

const isGenerator = (model: Model) => model.kind === "chat" || model.kind === "text";

/** Whether the server has a request that only loads a model of this kind. */
const canLoad = (model: Model) => isGenerator(model) || model.kind === "embedding";

/** Loads or unloads a model. Requests without a prompt do nothing else. */
async function setLoaded(model: Model, work: "load" | "unload"): Promise<void> {
  const { [model.id]: _, ...rest } = failures.value;
  failures.value = rest;
  busy.value = { ...busy.value, [model.id]: work };
  try {
    if (work === "unload") await json("/api/generate", { model: model.id, stream: false, keep_alive: 0 });
    else if (isGenerator(model)) await json("/api/generate", { model: model.id, stream: false });
    else await json("/api/embed", { model: model.id });
  } catch (error) {
    failures.value = { ...failures.value, [model.id]: messageFor(error) };
  }
  const { [model.id]: __, ...others } = busy.value;
  busy.value = others;
  await pollNow();
}

export function ModelsView() {
  const list = models.value;
  const here = list?.filter((model) => model.installed) ?? [];
  const elsewhere = list?.filter((model) => !model.installed) ?? [];
  return (
    <div class="page">
      <header class="view-header">
        <h1>Models</h1>
      </header>
      {list === null && <p class="quiet">Reading the models…</p>}
      {list !== null && here.length === 0 && <p>No model is installed on this machine.</p>}
      <ul class="cards">
        {here.map((model) => (
          <ModelCard key={model.id} model={model} />
        ))}
      </ul>
      <PullForm suggestions={elsewhere} />
    </div>
  );
}

function ModelCard({ model }: { model: Model }) {
  const file = installed.value.find((one) => one.name === model.id);
  const loaded = health.value?.models.filter((one) => one.id === (model.root ?? model.id)) ?? [];
  const ready = loaded.find((one) => one.state.state === "ready");
  const failed = loaded.find((one) => one.state.state === "failed");
  const size = ready?.package_bytes ?? file?.size;
  const work = busy.value[model.id];
  const failure = failures.value[model.id];
  const facts = [
    model.kind,
    file?.details.parameter_size && `${file.details.parameter_size} parameters`,
    ready?.scheme ?? file?.details.quantization_level,
    size !== undefined && bytes(size),
    model.context_length && `context ${count(model.context_length)}`,
  ];
  return (
    <li class="card">
      <div class="card-head">
        <h2>{model.id}</h2>
        <State ready={ready} isLoading={work === "load" || loaded.some((one) => one.state.state === "loading")} />
      </div>
      <p class="quiet">{facts.filter(Boolean).join(" · ")}</p>
      {model.root && <p class="quiet">Another name of {model.root}</p>}
      {ready?.engine && ready.engine.kv_budget_bytes > 0 && (
        <p class="quiet">
          {bytes(ready.engine.kv_used_bytes)} of KV cache, {count(ready.engine.running)} answers running
        </p>
      )}
      {failed?.state.state === "failed" && (
        <p class="error">
          {failed.state.reason}
          {failed.state.hint && ` ${failed.state.hint}`}
        </p>
      )}
      {failure && (
        <p class="error" role="alert">
          {failure}
        </p>
      )}
      <div class="row">
        {model.kind === "chat" && (
          <button
            type="button"
            class="button"
            onClick={() => {
              begin();
              update({ model: model.id });
              go("chat");
            }}
          >
            Chat<span class="sr-only"> with {model.id}</span>
          </button>
        )}
        {!ready && canLoad(model) && (
          <button type="button" class="button" disabled={Boolean(work)} onClick={() => void setLoaded(model, "load")}>
            {work === "load" ? "Loading…" : "Load"}
            <span class="sr-only"> {model.id}</span>
          </button>
        )}
        {ready && (
          <button type="button" class="button" disabled={Boolean(work)} onClick={() => void setLoaded(model, "unload")}>
            {work === "unload" ? "Unloading…" : "Unload"}
            <span class="sr-only"> {model.id}</span>
          </button>
        )}
        {ready && (
          <a class="button" href="#/proof">
            Proof<span class="sr-only"> of {model.id}</span>
          </a>
        )}
      </div>
    </li>
  );
}

function State({ ready, isLoading }: { ready?: LoadedModel; isLoading: boolean }) {
  if (isLoading) return <span class="device">loading</span>;
  if (!ready?.device) return <span class="state-off">not in memory</span>;
  return (
    <span class="device" data-kind={kindOf(ready.device)}>
      {deviceName(ready.device)}
    </span>
  );
}

function PullForm({ suggestions }: { suggestions: Model[] }) {
  const [name, setName] = useState("");
  const state = pull.value;
  const isRunning = Boolean(state?.control);
  return (
    <section class="block" aria-labelledby="pull-title">
      <h2 id="pull-title">Install a model</h2>
      <p class="quiet">
        A name of the catalogue, as in <code>qwen3:0.6b</code>. The server fetches and compiles it.
      </p>
      <form
        class="row"
        onSubmit={(event) => {
          event.preventDefault();
          if (name.trim()) void startPull(name.trim());
        }}
      >
        <label class="sr-only" for="pull-name">
          Name of the model
        </label>
        <input
          id="pull-name"
          value={name}
          placeholder="Name of the model"
          autocomplete="off"
          onInput={(event) => setName(event.currentTarget.value)}
        />
        {isRunning ? (
          <button type="button" class="button" onClick={() => state!.control!.abort()}>
            Cancel
          </button>
        ) : (
          <button type="submit" class="button primary" disabled={!name.trim()}>
            Install
          </button>
        )}
      </form>
      {suggestions.length > 0 && (
        <ul class="offers" aria-label="Models that requests may install">
          {suggestions.map((model) => (
            <li key={model.id}>
              <span>{model.id}</span>
              <span class="quiet">{model.kind}</span>
              <button type="button" class="button" disabled={isRunning} onClick={() => void startPull(model.id)}>
                Install<span class="sr-only"> {model.id}</span>
              </button>
            </li>
          ))}
        </ul>
      )}
      {state && isRunning && (
        <div class="progress">
          <progress max={1} value={state.share ?? undefined} aria-label={`Progress of ${state.model}`} />
          <p class="quiet" role="status">
            {state.model}: {state.status}
          </p>
        </div>
      )}
      {state?.error && (
        <p class="error" role="alert">
          {state.error}
        </p>
      )}
    </section>
  );
}
