import { type ComponentChildren } from "preact";
import type { Certificate, Fallen, Line, LoadedModel, NumericsCheck, Refusal } from "../api";
import { bytes, count, deviceName, kindOf, percent } from "../format";
import { health } from "../server";
import { Table } from "../table";

export function ProofView() {
  const loaded = health.value?.models ?? [];
  return (
    <div class="page wide">
      <header class="view-header">
        <h1>Proof</h1>
        <p class="lead">
          ONNX Runtime records which device runs each node of a graph. Narthex reads this record at every load. This is
          the record.
        </p>
      </header>
      {health.value && loaded.length === 0 && (
        <p>
          No model is in memory. <a href="#/models">Load one</a>, or send a message in the <a href="#/chat">chat</a>.
        </p>
      )}
      {loaded.map((model) => (
        <ModelProof key={`${model.id}@${model.scheme}`} model={model} />
      ))}
    </div>
  );
}

/** Lines of one graph. */
function byGraph(lines: Line[]): [string, Line[]][] {
  const graphs = new Map<string, Line[]>();
  for (const line of lines) graphs.set(line.graph, [...(graphs.get(line.graph) ?? []), line]);
  return [...graphs];
}

/** Returns the device whose kind a provider's nodes have: OpenVINO serves NPUs, GPUs and CPUs. */
function kindOfLine(line: Line, model: LoadedModel) {
  const devices = (model.device ?? "").split(/[=,]/);
  return kindOf(devices.find((device) => device.startsWith(line.ep)) ?? line.ep);
}

function ModelProof({ model }: { model: LoadedModel }) {
  const { state, placement, fallen, notes } = model;
  return (
    <section class="proof" aria-label={`Proof of ${model.id}`}>
      <div class="card-head">
        <h2>{model.id}</h2>
        <span class="quiet">{model.scheme}</span>
      </div>
      {state.state === "loading" && <p class="quiet">The model is loading.</p>}
      {state.state === "failed" && (
        <p class="error">
          {state.reason}
          {state.hint && ` ${state.hint}`}
        </p>
      )}
      {placement && <Verdict model={model} lines={placement} />}
      {placement && byGraph(placement).map(([graph, lines]) => <Graph key={graph} name={graph} lines={lines} model={model} />)}
      {model.towers?.map((tower) =>
        byGraph(tower.lines).map(([graph, lines]) => (
          <Graph key={graph} name={`${graph} (reads ${tower.reads}s)`} lines={lines} model={{ ...model, device: tower.device }} />
        )),
      )}
      {fallen && fallen.count > 0 && <Refused title="Nodes on another device than intended" fallen={fallen} />}
      <dl class="facts-list">
        {placement && <Fact name="Quality certificate">{certificate(model.certificate)}</Fact>}
        {model.numerics.map((check) => (
          <Fact key={check.device} name="Numerics check">
            {numerics(check)}
          </Fact>
        ))}
        {model.kv_cache && <Fact name="KV cache">{kvCache(model.kv_cache)}</Fact>}
        {model.why && <Fact name="Choice of devices">{model.why}</Fact>}
        {notes?.map((note) => (
          <Fact key={note} name="Note of the load">
            {note}
          </Fact>
        ))}
        {model.draft_model && (
          <Fact name="Draft model">
            {model.draft_model.name} ({model.draft_model.scheme}, {bytes(model.draft_model.bytes)})
          </Fact>
        )}
      </dl>
      <PassedOver refusals={model.passed_over} />
    </section>
  );
}

/** The loss of the weights, which the compile measured. */
function certificate(loss: Certificate | null): string {
  if (!loss) return "The loss of this package was not measured.";
  const accepted = loss.accepted_loss ? "; above the bound, and accepted" : "";
  const figures =
    loss.of === "decoder"
      ? `perplexity ${signed(loss.perplexity_change)} and ${loss.divergence.toFixed(4)} nats, the same best token at ` +
        `${percent(loss.agreement)} of ${count(loss.positions)} positions`
      : `cosines of ${loss.mean_cosine.toFixed(4)} on average and ${loss.lowest_cosine.toFixed(4)} at worst, over ` +
        `${count(loss.texts)} texts`;
  return `Compared with f32 on ${loss.date}: ${figures}${accepted}`;
}

/** The comparison of a device with the CPU. */
function numerics(check: NumericsCheck): string {
  const figures =
    check.of === "decoder"
      ? `${check.divergence.toFixed(4)} nats on average, the same best token at ${percent(check.agreement)} of ` +
        `${count(check.positions)} positions`
      : `a cosine of ${check.lowest_cosine.toFixed(5)} at worst, over ${count(check.texts)} texts`;
  return `The ${deviceName(check.device)} agrees with the CPU: ${figures}`;
}

/** A relative change: `+0.35 %`. */
function signed(change: number): string {
  return `${change < 0 ? "−" : "+"}${Math.abs(change * 100).toFixed(2)} %`;
}

/** The element type of the KV cache, and what it costs. */
function kvCache({ dtype, loss }: NonNullable<LoadedModel["kv_cache"]>): string {
  if (!loss) return dtype;
  const { divergence, positions } = loss;
  return `${dtype}: perplexity ${signed(loss.perplexity_change)} and ${divergence.toFixed(4)} nats from f32, over ${count(positions)} positions`;
}

function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** The proof in one sentence. */
function Verdict({ model, lines }: { model: LoadedModel; lines: Line[] }) {
  const nodes = lines.reduce((sum, line) => sum + line.nodes, 0);
  const totals = new Map<string, number>();
  for (const line of lines) totals.set(line.ep, (totals.get(line.ep) ?? 0) + line.nodes);
  const [first, ...others] = [...totals].sort((a, b) => b[1] - a[1]);
  if (!first) return null;
  const share = model.npu_share ?? 0;
  const phases = model.npu_phases;
  return (
    <p class="verdict">
      {others.length === 0 ? (
        <>
          All <b>{count(nodes)}</b> nodes run on the <b>{deviceName(first[0])}</b>.
        </>
      ) : (
        <>
          <b>{count(first[1])}</b> of <b>{count(nodes)}</b> nodes run on the <b>{deviceName(first[0])}</b>
          {others.map(([ep, number]) => `, ${count(number)} on the ${deviceName(ep)}`)}.
        </>
      )}{" "}
      {share > 0 && (
        <span>
          The NPU does <b>{percent(share)}</b> of the multiply-accumulates
          {phases && ` (${percent(phases.prefill)} of a prompt, ${percent(phases.decode)} of an answer)`}.
        </span>
      )}
      {share === 0 && <span class="quiet">No NPU takes part.</span>}
    </p>
  );
}

/** A graph as a strip: each part is as wide as its share of the nodes, coloured by its device. */
function Graph({ name, lines, model }: { name: string; lines: Line[]; model: LoadedModel }) {
  const nodes = lines.reduce((sum, line) => sum + line.nodes, 0);
  const parts = lines.flatMap((line) =>
    Object.entries(line.ops)
      .sort((a, b) => b[1] - a[1])
      .map(([op, number]) => ({ op, number, line })),
  );
  const spoken = lines.map((line) => `${line.nodes} of ${nodes} nodes on ${deviceName(line.ep)}`).join(", ");
  return (
    <figure class="graph">
      <figcaption>
        <h3>{name}</h3>
        <span class="quiet">{count(nodes)} nodes</span>
      </figcaption>
      <div class="strip" role="img" aria-label={spoken}>
        {parts.map(({ op, number, line }) => (
          <span
            key={line.ep + op}
            data-kind={kindOfLine(line, model)}
            style={{ flexGrow: number }}
            title={`${op}: ${number} on ${deviceName(line.ep)}`}
          >
            {number / nodes > 0.09 && <em>{op}</em>}
          </span>
        ))}
      </div>
      <ul class="legend">
        {lines.map((line) => (
          <li key={line.ep}>
            <i data-kind={kindOfLine(line, model)} />
            <b>{deviceName(line.ep)}</b>
            <span>
              {count(line.nodes)} nodes in {count(line.subgraphs)} {line.subgraphs === 1 ? "part" : "parts"} ·{" "}
              {percent(line.compute_share)} of the multiply-accumulates · {bytes(line.weight_bytes)} of weights
            </span>
          </li>
        ))}
      </ul>
      <details>
        <summary>Operators</summary>
        <Table
          label={`Operators of ${name}`}
          columns={[
            { title: "Operator" },
            { title: "Device" },
            { title: "Nodes", align: "right" },
          ]}
        >
          {parts.map(({ op, number, line }) => (
            <tr key={line.ep + op}>
              <td>{op}</td>
              <td>{deviceName(line.ep)}</td>
              <td data-align="right">{count(number)}</td>
            </tr>
          ))}
        </Table>
      </details>
    </figure>
  );
}

function Refused({ title, fallen }: { title: string; fallen: Fallen }) {
  return (
    <details class="refused" open={fallen.count <= 12}>
      <summary>
        {title}: {count(fallen.count)}
      </summary>
      <Table
        label={title}
        columns={[
          { title: "Node" },
          { title: "Operator" },
          { title: "Reason" },
        ]}
      >
        {fallen.nodes.map((node) => (
          <tr key={node.graph + node.path}>
            <td>
              <code>{node.path}</code>
              <small>{node.graph}</small>
            </td>
            <td>{node.op}</td>
            <td>
              {node.why}
              {node.fix && <small>{node.fix}</small>}
            </td>
          </tr>
        ))}
      </Table>
      {fallen.count > fallen.nodes.length && (
        <p class="quiet">The server lists the first {count(fallen.nodes.length)}.</p>
      )}
    </details>
  );
}

function PassedOver({ refusals }: { refusals: Refusal[] }) {
  if (refusals.length === 0) return null;
  const here = refusals.filter((refusal) => refusal.announced);
  const absent = refusals.filter((refusal) => !refusal.announced);
  return (
    <>
      {here.length > 0 && <h3>Devices that were not used</h3>}
      <Refusals refusals={here} />
      {absent.length > 0 && (
        <details>
          <summary>{absent.length} further devices cannot run this model on this machine</summary>
          <Refusals refusals={absent} />
        </details>
      )}
    </>
  );
}

function Refusals({ refusals }: { refusals: Refusal[] }) {
  return (
    <ul class="refusals">
      {refusals.map((refusal) => (
        <li key={refusal.device}>
          <b>{deviceName(refusal.device)}</b>
          <span>
            {refusal.reason}
            {refusal.fix && <small>{refusal.fix}</small>}
          </span>
          {refusal.fallen && refusal.fallen.count > 0 && <Refused title="Refused nodes" fallen={refusal.fallen} />}
        </li>
      ))}
    </ul>
  );
}
