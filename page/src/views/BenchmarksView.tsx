import { useEffect, useRef, useState } from "preact/hooks";
import { preferredModel } from "../chat/chats";
import { download } from "../download";
import { count, deviceName, duration, kindOf, rate } from "../format";
import { Download, Trash, Upload } from "../icons";
import { chatModels } from "../server";
import { Table } from "../table";
import { active, discard, failure, measure, readReports, ROUNDS, type Run, runs, start } from "./benchmarks";

/** The figures that the plots compare. */
const FIGURES: { name: string; of: (run: Run) => number; format: (value: number) => string; isLowBest?: boolean }[] = [
  { name: "Tokens per second of one answer", of: (run) => run.perSecond, format: rate },
  { name: "Tokens per second of all answers", of: (run) => run.total, format: rate },
  { name: "Prompt tokens per second", of: (run) => run.promptPerSecond, format: rate },
  { name: "Time to the first token", of: (run) => run.firstToken, format: duration, isLowBest: true },
];

export function BenchmarksView() {
  useEffect(() => void start(), []);
  return (
    <div class="page wide">
      <header class="view-header">
        <h1>Benchmarks</h1>
        <p class="lead">
          A run sends prompts of random words, which no cache knows, and takes the times that the server reports. Each
          figure is the median of {ROUNDS} rounds after one that warms the model up.
        </p>
      </header>
      <RunForm />
      {runs.value.length > 0 && <Comparison all={runs.value} />}
      <Stored all={runs.value} />
    </div>
  );
}

function RunForm() {
  const [model, setModel] = useState("");
  const [size, setSize] = useState({ prompt: 256, answer: 64, parallel: 1 });
  const chosen = model || preferredModel.value;
  const running = active.value;
  const field = (name: keyof typeof size, label: string, values: number[]) => (
    <label class="field">
      <span>{label}</span>
      <select
        value={size[name]}
        onChange={(event) => setSize({ ...size, [name]: Number(event.currentTarget.value) })}
      >
        {values.map((value) => (
          <option key={value} value={value}>
            {count(value)}
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <form
      class="bench-form"
      onSubmit={(event) => {
        event.preventDefault();
        if (!running && chosen) void measure({ model: chosen, ...size });
      }}
    >
      <label class="field">
        <span>Model</span>
        <select value={chosen} onChange={(event) => setModel(event.currentTarget.value)}>
          {!chosen && <option value="">No model</option>}
          {chatModels.value.map((one) => (
            <option key={one.id} value={one.id}>
              {one.id}
            </option>
          ))}
        </select>
      </label>
      {field("prompt", "Prompt tokens", [64, 256, 1024, 4096])}
      {field("answer", "Answer tokens", [16, 64, 256])}
      {field("parallel", "Requests at once", [1, 2, 4, 8])}
      {running ? (
        // Without keys, the click that cancels would end on the button that submits.
        <button key="cancel" type="button" class="button" onClick={() => running.control.abort()}>
          Cancel
        </button>
      ) : (
        <button key="run" type="submit" class="button primary" disabled={!chosen}>
          Run
        </button>
      )}
      {running && (
        <div class="progress">
          <progress max={ROUNDS + 1} value={running.round} aria-label="Progress of the run" />
          <p class="quiet" role="status">
            {running.round === 0 ? `Warming up ${running.plan.model}` : `Round ${running.round} of ${ROUNDS}`}
          </p>
        </div>
      )}
      {failure.value && (
        <p class="error" role="alert">
          {failure.value}
        </p>
      )}
    </form>
  );
}

/** Name of a run in plots: its model and size. */
function title(run: Run): string {
  const parallel = run.parallel > 1 ? ` × ${run.parallel}` : "";
  return `${run.model}${run.scheme && ` ${run.scheme}`}, ${count(run.prompt)} + ${count(run.answer)}${parallel}`;
}

const date = (run: Run) =>
  new Date(run.time).toLocaleString(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

/** Plots of the newest runs, one for each figure. */
function Comparison({ all }: { all: Run[] }) {
  const shown = all.slice(0, 12);
  return (
    <section class="block" aria-labelledby="compare-title">
      <h2 id="compare-title">Comparison</h2>
      <div class="comparison">
        {FIGURES.map(({ name, of, format, isLowBest }) => {
          const top = Math.max(...shown.map(of), Number.MIN_VALUE);
          const best = isLowBest ? Math.min(...shown.map(of)) : top;
          return (
            <figure key={name} class="bars">
              <figcaption>
                <h3>{name}</h3>
                <span class="quiet">{isLowBest ? "shorter is better" : "longer is better"}</span>
              </figcaption>
              <ul>
                {shown.map((run) => (
                  <li key={run.id}>
                    <span class="bars-name">
                      {title(run)}{" "}
                      <small>
                        {[deviceName(run.device), run.machine, date(run)].filter(Boolean).join(", ")}
                      </small>
                    </span>
                    <span class="bars-bar" aria-hidden="true">
                      <i data-kind={kindOf(run.device)} style={{ width: `${Math.max(0.5, (of(run) / top) * 100)}%` }} />
                    </span>
                    <b class={of(run) === best ? "best" : ""}>{format(of(run))}</b>
                  </li>
                ))}
              </ul>
            </figure>
          );
        })}
      </div>
    </section>
  );
}

function Stored({ all }: { all: Run[] }) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <section class="block stored" aria-labelledby="stored-title">
      <h2 id="stored-title">Stored runs</h2>
      <p class="quiet">
        They are in this browser. Conversations and other requests at the same time slow a run down. Reports of{" "}
        <code>narthex bench --json</code>, also of other machines, are compared with them.
      </p>
      {all.length > 0 && <StoredTable all={all} />}
      <div class="row">
        {all.length > 0 && (
          <button
            type="button"
            class="button"
            onClick={() => download("narthex-benchmarks.json", "application/json", JSON.stringify(all, null, 2))}
          >
            <Download /> Export as JSON
          </button>
        )}
        <button type="button" class="button" onClick={() => input.current?.click()}>
          <Upload /> Add reports
        </button>
        <input
          ref={input}
          type="file"
          multiple
          accept=".json,application/json"
          class="sr-only"
          tabIndex={-1}
          aria-label="Files with reports"
          onChange={(event) => {
            void readReports([...(event.currentTarget.files ?? [])]);
            event.currentTarget.value = "";
          }}
        />
      </div>
    </section>
  );
}

function StoredTable({ all }: { all: Run[] }) {
  return (
    <Table
      label="Stored runs"
      columns={[
        { title: "Model" },
        { title: "Device" },
        { title: "Prompt", align: "right" },
        { title: "Answer", align: "right" },
        { title: "At once", align: "right" },
        { title: "One answer", align: "right" },
        { title: "All answers", align: "right" },
        { title: "Reading", align: "right" },
        { title: "First token", align: "right" },
        { title: "Version" },
        { title: "Delete" },
      ]}
    >
      {all.map((run) => (
        <tr key={run.id}>
          <th scope="row">
            {run.model} <small>{run.scheme}</small>
            <small>{[run.machine, date(run)].filter(Boolean).join(", ")}</small>
          </th>
          <td>
            <span class="device" data-kind={kindOf(run.device)}>
              {deviceName(run.device)}
            </span>
          </td>
          <td data-align="right">{count(run.promptTokens)}</td>
          <td data-align="right">{count(run.answer)}</td>
          <td data-align="right">{run.parallel}</td>
          <td data-align="right">{rate(run.perSecond)}</td>
          <td data-align="right">{rate(run.total)}</td>
          <td data-align="right">{rate(run.promptPerSecond)}</td>
          <td data-align="right">{duration(run.firstToken)}</td>
          <td>{run.version}</td>
          <td>
            <button
              type="button"
              class="icon-button"
              aria-label={`Delete the run of ${title(run)}, ${date(run)}`}
              title="Delete"
              onClick={() => void discard(run.id)}
            >
              <Trash />
            </button>
          </td>
        </tr>
      ))}
    </Table>
  );
}
