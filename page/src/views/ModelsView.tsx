import { signal } from "@preact/signals";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { json, type LoadedModel, type LoadForecast, messageFor, type Model, type ModelSettings, request, requestOnceLoaded } from "../api";
import { begin, update } from "../chat/chats";
import { bytes, count, deviceName, kindOf } from "../format";
import { go } from "../route";
import { Close } from "../icons";
import {
  changeSettings,
  health,
  installed,
  models,
  pollNow,
  refreshCatalogue,
  refreshModels,
  reloadSettings,
  settings,
} from "../server";
import { Catalogue, PullState } from "./Catalogue";
import { pull, startPull } from "./pull";

/** Models whose load, unload or removal runs, and errors of the last one. */
const busy = signal<Record<string, Work>>({});
type Work = "load" | "unload" | "remove";
const failures = signal<Record<string, string>>({});

const isGenerator = (model: Model) => model.kind === "chat" || model.kind === "text";

/** Asks before a load that unloads other models or finds too little memory. Without a forecast, the load says what happens. */
async function isLoadWanted(model: Model): Promise<boolean> {
  const forecast = await json<LoadForecast>(`/v1/load/${model.id}`).catch(() => null);
  if (!forecast || (forecast.unloads.length === 0 && (forecast.room === "loaded" || forecast.room === "enough"))) return true;
  return confirm(`${model.id} ${forecast.text}. Load it?`);
}

/** Loads, unloads or removes a model. Requests without a prompt only load or unload. */
async function run(model: Model, work: Work): Promise<void> {
  if (work === "load" && !(await isLoadWanted(model))) return;
  const { [model.id]: _, ...rest } = failures.value;
  failures.value = rest;
  busy.value = { ...busy.value, [model.id]: work };
  try {
    if (work === "remove") await request("/api/delete", { model: model.id }, undefined, "DELETE");
    else if (work === "unload") await json("/api/generate", { model: model.id, stream: false, keep_alive: 0 });
    else await requestOnceLoaded("/api/generate", { model: model.id, stream: false });
    if (work === "remove") await Promise.all([refreshModels(), refreshCatalogue()]);
  } catch (error) {
    failures.value = { ...failures.value, [model.id]: messageFor(error) };
  }
  const { [model.id]: __, ...others } = busy.value;
  busy.value = others;
  await pollNow();
}

export function ModelsView() {
  const list = models.value;
  const here = list?.filter((model) => model.installed && !model.root) ?? [];
  const names = list?.filter((model) => model.root) ?? [];
  return (
    <div class="page">
      <header class="view-header">
        <h1>Models</h1>
        {settings.value && <ReloadSettings />}
      </header>
      {list === null && <p class="quiet">Reading the models…</p>}
      {list !== null && here.length === 0 && <p>No model is installed on this machine yet.</p>}
      <ul class="cards">
        {here.map((model) => (
          <ModelCard
            key={model.id}
            model={model}
            names={names.filter((alias) => alias.root === model.id).map((alias) => alias.id)}
          />
        ))}
      </ul>
      <Catalogue />
      <PullForm />
    </div>
  );
}

/** Lets the server read its settings file again, and shows what the server says about it. */
function ReloadSettings() {
  const [notes, setNotes] = useState<string[]>([]);
  const reload = async () => {
    try {
      setNotes(await reloadSettings());
    } catch (error) {
      setNotes([messageFor(error)]);
    }
  };
  return (
    <div role="status">
      <button type="button" class="link" onClick={() => void reload()}>
        Read narthex.toml again
      </button>
      {notes.map((note) => (
        <p key={note} class="quiet">
          {note}
        </p>
      ))}
    </div>
  );
}

function ModelCard({ model, names }: { model: Model; names: string[] }) {
  const file = installed.value.find((one) => one.name === model.id);
  const loaded = health.value?.models.filter((one) => one.id === model.id) ?? [];
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
      {names.length > 0 && !settings.value && <p class="quiet">Also named {names.join(", ")}</p>}
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
      {settings.value && <SettingsOf model={model.id} isDefaultable={isGenerator(model)} settings={settings.value} />}
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
        {!ready && (
          <button type="button" class="button" disabled={Boolean(work)} onClick={() => void run(model, "load")}>
            {work === "load" ? "Loading…" : "Load"}
            <span class="sr-only"> {model.id}</span>
          </button>
        )}
        {ready && (
          <button type="button" class="button" disabled={Boolean(work)} onClick={() => void run(model, "unload")}>
            {work === "unload" ? "Unloading…" : "Unload"}
            <span class="sr-only"> {model.id}</span>
          </button>
        )}
        {ready && (
          <a class="button" href="#/proof">
            Proof<span class="sr-only"> of {model.id}</span>
          </a>
        )}
        <span class="spring" />
        <button
          type="button"
          class="button danger"
          disabled={Boolean(work)}
          onClick={() => {
            const question = `Remove ${model.id} from this machine?${size === undefined ? "" : ` That frees ${bytes(size)}.`}`;
            if (confirm(question)) void run(model, "remove");
          }}
        >
          {work === "remove" ? "Removing…" : "Remove"}
          <span class="sr-only"> {model.id}</span>
        </button>
      </div>
    </li>
  );
}

/** What an admin may set about a model: a pin, the default model, and additional names. */
function SettingsOf(props: { model: string; isDefaultable: boolean; settings: ModelSettings }) {
  const { model, isDefaultable, settings } = props;
  const [name, setName] = useState<string | null>(null);
  const [failure, setFailure] = useState("");
  const field = useRef<HTMLInputElement>(null);
  const isNaming = name !== null;
  useLayoutEffect(() => {
    if (isNaming) field.current?.focus();
  }, [isNaming]);
  const change = async (fields: Record<string, unknown>) => {
    setFailure("");
    try {
      await changeSettings(model, fields);
      if ("add_name" in fields) setName(null);
    } catch (error) {
      setFailure(messageFor(error));
    }
  };
  const names = Object.keys(settings.names).filter((alias) => settings.names[alias] === model);
  const box = (label: string, title: string, isOn: boolean, key: string) => (
    <label class="check" title={title}>
      <input
        type="checkbox"
        checked={isOn}
        onChange={(event) => {
          const { checked } = event.currentTarget;
          // The box shows what the server says.
          event.currentTarget.checked = isOn;
          void change({ [key]: checked });
        }}
      />
      {label}
      <span class="sr-only"> ({model})</span>
    </label>
  );
  return (
    <div class="card-settings">
      {box("Keep in memory", "It is not unloaded to make room for another model.", settings.pinned.includes(model), "pin")}
      {isDefaultable &&
        box(
          "Answers unknown names",
          "It answers requests that name a model that the server does not have.",
          settings.default_model === model,
          "default",
        )}
      {names.map((alias) => (
        <span key={alias} class="name">
          {alias}
          <button
            type="button"
            class="icon-button"
            aria-label={`Remove the name ${alias}`}
            title="Remove the name"
            onClick={() => void change({ remove_name: alias })}
          >
            <Close />
          </button>
        </span>
      ))}
      {isNaming ? (
        <form
          class="row"
          onSubmit={(event) => {
            event.preventDefault();
            if (name.trim()) void change({ add_name: name.trim() });
          }}
        >
          <input
            ref={field}
            class="small"
            aria-label={`Additional name of ${model}`}
            value={name}
            placeholder="gpt-4o"
            autocomplete="off"
            onInput={(event) => setName(event.currentTarget.value)}
            onKeyDown={(event) => event.key === "Escape" && setName(null)}
          />
          <button key="add" type="submit" class="button" disabled={!name.trim()}>
            Add
          </button>
        </form>
      ) : (
        <button type="button" class="link" onClick={() => setName("")}>
          Add a name<span class="sr-only"> for {model}</span>
        </button>
      )}
      {failure && (
        <p class="error" role="alert">
          {failure}
        </p>
      )}
    </div>
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

/** Installs a model by any name that the server knows. */
function PullForm() {
  const [name, setName] = useState("");
  const [asked, setAsked] = useState("");
  const state = pull.value;
  const isRunning = Boolean(state?.control);
  const isOwn = state?.model === asked;
  return (
    <section class="block" aria-labelledby="pull-title">
      <h2 id="pull-title">Another model</h2>
      <p class="quiet">
        A name of the catalogue, or a repository as in <code>hf:owner/name</code>. The server fetches and compiles it.
      </p>
      <form
        class="row"
        onSubmit={(event) => {
          event.preventDefault();
          const model = name.trim();
          if (!model || isRunning) return;
          setAsked(model);
          void startPull(model);
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
        {isRunning && isOwn ? (
          // Without keys, the click that cancels would end on the button that submits.
          <button key="cancel" type="button" class="button" onClick={() => state!.control!.abort()}>
            Cancel
          </button>
        ) : (
          <button key="install" type="submit" class="button primary" disabled={!name.trim() || isRunning}>
            Install
          </button>
        )}
      </form>
      {state && isOwn && <PullState state={state} />}
    </section>
  );
}
