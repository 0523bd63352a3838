import type { Health, LoadedModel } from "../api";
import { bytes, count, deviceName, duration, kindOf, percent } from "../format";
import { health, history, metrics, type Sample } from "../server";
import { Table } from "../table";

export function SystemView() {
  const report = health.value;
  if (!report) {
    return (
      <div class="page">
        <header class="view-header">
          <h1>System</h1>
        </header>
        <p class="quiet">Reading the state of the server…</p>
      </div>
    );
  }
  return (
    <div class="page wide">
      <header class="view-header">
        <h1>System</h1>
        <p class="quiet">
          Narthex {report.version} · {report.status === "ok" ? "no model failed to load" : "a model could not be loaded"}
        </p>
      </header>
      <Numbers report={report} samples={history.value} />
      <Memory memory={report.memory} />
      <Engines models={report.models} />
      <Devices report={report} />
      <Requests />
    </div>
  );
}

/** The numbers of this moment, each with its course since the page was opened. */
function Numbers({ report, samples }: { report: Health; samples: Sample[] }) {
  const last = samples.at(-1);
  const engines = report.models.flatMap((model) => (model.engine ? [model.engine] : []));
  const read = engines.reduce((sum, engine) => sum + engine.prompt_tokens, 0);
  const cached = engines.reduce((sum, engine) => sum + engine.cached_tokens, 0);
  return (
    <div class="numbers">
      <Course
        name="Tokens per second"
        value={last ? count(Math.round(last.tokensPerSecond)) : "–"}
        detail={`peak ${count(Math.round(Math.max(0, ...samples.map((sample) => sample.tokensPerSecond))))}`}
        values={samples.map((sample) => sample.tokensPerSecond)}
      />
      <Course
        name="Answers running"
        value={count(last?.running ?? 0)}
        detail={last?.waiting ? `${count(last.waiting)} waiting` : "none waiting"}
        values={samples.map((sample) => sample.running + sample.waiting)}
      />
      <Course
        name="KV cache"
        value={bytes(report.memory.kv_used_bytes)}
        detail={`of ${bytes(report.memory.kv_budget_bytes)}`}
        values={samples.map((sample) => sample.kvBytes)}
      />
      <Course
        name="Prompt cache"
        value={read > 0 ? percent(cached / read) : "–"}
        detail={read > 0 ? `${count(cached)} of ${count(read)} tokens` : "no prompt yet"}
      />
    </div>
  );
}

function Course(props: { name: string; value: string; detail?: string; values?: number[] }) {
  return (
    <section class="number" aria-label={props.name}>
      <h2>{props.name}</h2>
      <p class="figure">{props.value}</p>
      {props.detail && <p class="quiet">{props.detail}</p>}
      {props.values && <Sparkline values={props.values} />}
    </section>
  );
}

/** The course of a value, from the opening of the page to now, without axes: its form is the message. */
function Sparkline({ values }: { values: number[] }) {
  const width = 240;
  const height = 40;
  // More points than pixels would only cost time.
  const step = Math.max(1, Math.ceil(values.length / width));
  const points = values.filter((_, index) => (values.length - 1 - index) % step === 0);
  const top = Math.max(...points, Number.MIN_VALUE);
  const x = (index: number) => (points.length < 2 ? width : (index / (points.length - 1)) * width);
  const y = (value: number) => height - 1 - (value / top) * (height - 4);
  const line = points.map((value, index) => `${index ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  return (
    <svg class="spark" viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true">
      {points.length > 1 && <path class="area" d={`${line}L${width} ${height}L0 ${height}Z`} />}
      {points.length > 1 && <path class="line" d={line} />}
    </svg>
  );
}

function Memory({ memory }: { memory: Health["memory"] }) {
  const total = memory.total_bytes;
  const free = memory.free_bytes;
  if (total === null || free === null) {
    return (
      <section class="block">
        <h2>Memory</h2>
        <p>
          {bytes(memory.weights_bytes)} of weights, {bytes(memory.kv_used_bytes)} of KV cache
        </p>
      </section>
    );
  }
  const rest = Math.max(0, total - free - memory.weights_bytes - memory.kv_used_bytes);
  const parts = [
    { name: "Weights", value: memory.weights_bytes, part: "weights" },
    { name: "KV cache", value: memory.kv_used_bytes, part: "kv" },
    { name: "Other use", value: rest, part: "other" },
    { name: "Free", value: free, part: "free" },
  ];
  return (
    <section class="block" aria-labelledby="memory-title">
      <h2 id="memory-title">Memory</h2>
      <div class="bar" role="img" aria-label={parts.map((part) => `${part.name} ${bytes(part.value)}`).join(", ")}>
        {parts.map(({ name, value, part }) => (
          <span key={part} data-part={part} style={{ flexGrow: value / total }} title={`${name}: ${bytes(value)}`} />
        ))}
      </div>
      <ul class="legend columns">
        {parts.map(({ name, value, part }) => (
          <li key={part}>
            <i data-part={part} />
            <b>{name}</b>
            <span>{bytes(value)}</span>
          </li>
        ))}
      </ul>
      {memory.low && (
        <p class="error" role="alert">
          The free memory is below {bytes(memory.warning_below_bytes ?? 0)}. Unload a model, or close other programs.
        </p>
      )}
    </section>
  );
}

function Engines({ models }: { models: LoadedModel[] }) {
  const loaded = models.filter((model) => model.engine);
  return (
    <section class="block" aria-labelledby="engines-title">
      <h2 id="engines-title">Models in memory</h2>
      {loaded.length === 0 ? (
        <p class="quiet">None. A model is loaded on its first request.</p>
      ) : (
        <Table
          label="Models in memory"
          columns={[
            { title: "Model" },
            { title: "Device" },
            { title: "Running", align: "right" },
            { title: "Waiting", align: "right" },
            { title: "KV cache", align: "right" },
            { title: "Prompt tokens", align: "right" },
            { title: "Generated", align: "right" },
          ]}
        >
          {loaded.map(({ id, scheme, device, engine }) => (
            <tr key={id + scheme}>
              <th scope="row">
                {id} <small>{scheme}</small>
              </th>
              <td>
                {device && (
                  <span class="device" data-kind={kindOf(device)}>
                    {deviceName(device)}
                  </span>
                )}
              </td>
              <td data-align="right">
                {engine!.slots > 0 ? `${engine!.running} of ${engine!.slots}` : engine!.running}
              </td>
              <td data-align="right">{engine!.waiting}</td>
              <td data-align="right">{engine!.kv_budget_bytes > 0 ? bytes(engine!.kv_used_bytes) : "–"}</td>
              <td data-align="right">{count(engine!.prompt_tokens)}</td>
              <td data-align="right">{count(engine!.generated_tokens)}</td>
            </tr>
          ))}
        </Table>
      )}
    </section>
  );
}

function Devices({ report }: { report: Health }) {
  return (
    <section class="block" aria-labelledby="devices-title">
      <h2 id="devices-title">Devices</h2>
      <DeviceList devices={report.devices} />
      {report.absent_devices.length > 0 && (
        <details>
          <summary>{report.absent_devices.length} further devices that this machine lacks</summary>
          <DeviceList devices={report.absent_devices} />
        </details>
      )}
    </section>
  );
}

function DeviceList({ devices }: { devices: Health["devices"] }) {
  return (
    <ul class="refusals">
      {devices.map((device) => (
        <li key={device.device}>
          <b>{deviceName(device.device)}</b>
          <span>
            {device.usable ? "ready" : device.reason}
            {device.fix && <small>{device.fix}</small>}
          </span>
        </li>
      ))}
    </ul>
  );
}

/** Requests since the start of the server, for callers who may read the metrics. */
function Requests() {
  const all = metrics.value;
  if (!all) return null;
  const value = (name: string) => all.find((metric) => metric.name === name)?.value ?? 0;
  const requests = all.filter((metric) => metric.name === "narthex_http_requests_total");
  const routes = [...new Set(requests.map((metric) => metric.labels["route"] ?? ""))]
    .filter((route) => route !== "unknown" && !route.startsWith("/page/"))
    .map((route) => {
      const own = requests.filter((metric) => metric.labels["route"] === route);
      const failed = own.filter((metric) => Number(metric.labels["status"]) >= 400);
      const sum = (list: typeof own) => list.reduce((total, metric) => total + metric.value, 0);
      return { route, total: sum(own), failed: sum(failed) };
    })
    .sort((a, b) => b.total - a.total);
  const answers = value("narthex_request_seconds_count");
  const mean = (name: string) => duration((value(`${name}_sum`) / value(`${name}_count`)) * 1000);
  return (
    <section class="block" aria-labelledby="requests-title">
      <h2 id="requests-title">Requests since the start</h2>
      {answers > 0 && (
        <p>
          {count(answers)} answers with {count(value("narthex_generated_tokens_total"))} tokens. On average, the first
          token came after {mean("narthex_first_token_seconds")} and the whole answer after{" "}
          {mean("narthex_request_seconds")}.
        </p>
      )}
      <details>
        <summary>By endpoint</summary>
        <table>
          <thead>
            <tr>
              <th scope="col">Endpoint</th>
              <th scope="col" data-align="right">
                Requests
              </th>
              <th scope="col" data-align="right">
                Refused or failed
              </th>
            </tr>
          </thead>
          <tbody>
            {routes.map(({ route, total, failed }) => (
              <tr key={route}>
                <td>
                  <code>{route}</code>
                </td>
                <td data-align="right">{count(total)}</td>
                <td data-align="right">{count(failed)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </section>
  );
}
