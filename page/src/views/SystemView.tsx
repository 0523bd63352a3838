import { useState } from "preact/hooks";
import type { Health, LoadedModel, ServerHistory, Upstream } from "../api";
import { bytes, count, deviceName, duration, kindOf, percent, rate } from "../format";
import { Plot, Sparkline } from "../plot";
import { health, history, lastHour, lastRequests, metrics, type Sample } from "../server";
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
      <LastHour total={report.memory.total_bytes} />
      <Memory memory={report.memory} />
      <Engines models={report.models} />
      {report.upstreams && <Upstreams upstreams={report.upstreams} />}
      <Devices report={report} />
      <LastRequests />
      <Requests />
    </div>
  );
}

/** The numbers of this moment, each with its course over the last minutes. */
function Numbers({ report, samples }: { report: Health; samples: Sample[] }) {
  const last = samples.at(-1);
  const engines = report.models.flatMap((model) => (model.engine ? [model.engine] : []));
  const cached = engines.reduce((sum, engine) => sum + engine.cached_tokens, 0);
  // The server counts the tokens that it computes apart from those of the cache.
  const read = engines.reduce((sum, engine) => sum + engine.prompt_tokens, cached);
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
      {report.power && report.power.watts !== null && (
        <Course
          name="Power"
          value={`${report.power.watts.toFixed(1)} W`}
          detail={
            (report.power.idle_watts === null ? "" : `${report.power.idle_watts.toFixed(1)} W without requests, by `) +
            report.power.sensor
          }
        />
      )}
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

/** The last hour, which the server records. */
function LastHour({ total }: { total: number | null }) {
  const hour = lastHour.value;
  if (!hour || hour.samples.length < 2) {
    return (
      <section class="block">
        <h2>The last hour</h2>
        <p class="quiet">The server has just started; it keeps a sample every ten seconds.</p>
      </section>
    );
  }
  return (
    <section class="block" aria-labelledby="hour-title">
      <h2 id="hour-title">The last hour</h2>
      <HourPlots samples={hour.samples} total={total} />
    </section>
  );
}

/** Formats a number that is small at times. */
const figure = (value: number) => (value < 10 ? value.toFixed(1) : count(Math.round(value)));

function HourPlots({ samples, total }: { samples: ServerHistory["samples"]; total: number | null }) {
  const times = samples.map((sample) => sample.time);
  const line = (name: string, of: (sample: ServerHistory["samples"][number]) => number) => ({
    name,
    values: samples.map(of),
  });
  const memory = [line("weights", (sample) => sample.weights_bytes), line("KV caches", (sample) => sample.kv_used_bytes)];
  if (samples.some((sample) => sample.free_bytes !== null)) memory.push(line("free", (sample) => sample.free_bytes ?? 0));
  return (
    <div class="plots">
      <Plot
        title="Tokens per second"
        times={times}
        lines={[line("generated", (sample) => sample.tokens_per_second)]}
        format={figure}
      />
      <Plot
        title="Requests"
        times={times}
        lines={[line("answers that run", (sample) => sample.running), line("waiting", (sample) => sample.waiting)]}
        format={(value) => count(Math.round(value))}
        least={1}
      />
      <Plot
        title="Prompt tokens per second"
        times={times}
        lines={[
          line("computed", (sample) => sample.prompt_tokens_per_second),
          line("from the cache", (sample) => sample.cached_tokens_per_second),
        ]}
        format={figure}
      />
      <Plot title="Memory" times={times} lines={memory} format={bytes} least={total ?? 1} />
      {samples.some((sample) => sample.watts !== null) && (
        <Plot
          title="Power"
          times={times}
          lines={[line("machine", (sample) => sample.watts ?? 0)]}
          format={(value) => `${value.toFixed(1)} W`}
        />
      )}
    </div>
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

/** Other servers that answer requests. */
function Upstreams({ upstreams }: { upstreams: Upstream[] }) {
  return (
    <section class="block" aria-labelledby="upstreams-title">
      <h2 id="upstreams-title">Upstreams</h2>
      <Table
        label="Upstreams"
        columns={[
          { title: "Name" },
          { title: "State" },
          { title: "Running", align: "right" },
          { title: "Requests", align: "right" },
          { title: "Failed", align: "right" },
          { title: "Prompt tokens", align: "right" },
          { title: "Generated", align: "right" },
          { title: "First byte", align: "right" },
        ]}
      >
        {upstreams.map((upstream) => (
          <tr key={upstream.name}>
            <th scope="row">{upstream.name}</th>
            <td>
              {upstream.state === "ok" ? "ready" : "skipped after failures"}
              {upstream.last_error && <small>last failure: {upstream.last_error}</small>}
            </td>
            <td data-align="right">{count(upstream.running)}</td>
            <td data-align="right">{count(upstream.requests)}</td>
            <td data-align="right">{count(upstream.errors)}</td>
            <td data-align="right">{count(upstream.prompt_tokens)}</td>
            <td data-align="right">{count(upstream.generated_tokens)}</td>
            <td data-align="right">{upstream.first_byte_ms === null ? "–" : duration(upstream.first_byte_ms)}</td>
          </tr>
        ))}
      </Table>
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

/** Requests that are shown before the others are asked for. */
const SHOWN_REQUESTS = 10;

/** The last requests, without their texts, for callers who may see those of others. */
function LastRequests() {
  const all = lastRequests.value;
  const [showsAll, setShowsAll] = useState(false);
  if (!all || all.length === 0) return null;
  return (
    <section class="block" aria-labelledby="last-requests-title">
      <h2 id="last-requests-title">Last requests</h2>
      <Table
        label="Last requests"
        columns={[
          { title: "Time" },
          { title: "Request" },
          { title: "Model" },
          { title: "First token", align: "right" },
          { title: "Total", align: "right" },
          { title: "Tokens", align: "right" },
          { title: "Status", align: "right" },
        ]}
      >
        {all.slice(0, showsAll ? all.length : SHOWN_REQUESTS).map((one) => (
          <tr key={one.number}>
            <td>
              <time dateTime={new Date(one.time * 1000).toISOString()}>
                {new Date(one.time * 1000).toLocaleTimeString()}
              </time>
            </td>
            <td>
              <code>{one.route}</code>
              {one.id && <small>{one.id}</small>}
            </td>
            <td>
              {one.model}
              {one.device && <small>{deviceName(one.device)}</small>}
            </td>
            <td data-align="right">{one.first_token_ms === null ? "–" : duration(one.first_token_ms)}</td>
            <td data-align="right">{duration(one.total_ms)}</td>
            <td data-align="right">
              {one.tokens > 0 ? count(one.tokens) : "–"}
              {one.tokens_per_second !== null && <small>{rate(one.tokens_per_second)}</small>}
            </td>
            <td data-align="right">{one.status ?? "disconnected"}</td>
          </tr>
        ))}
      </Table>
      {all.length > SHOWN_REQUESTS && (
        <button type="button" class="button" onClick={() => setShowsAll(!showsAll)}>
          {showsAll ? "Show fewer" : `Show all ${all.length}`}
        </button>
      )}
    </section>
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
