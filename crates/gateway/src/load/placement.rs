//! Report of where a loaded model runs, weighted by the multiply-accumulates of its nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use narthex_device::{
    RefusedNode,
    placement::{GraphPlacement, Placement},
};
use narthex_graph::{Bytes, Graph, context::CONTEXT_OP, work::multiply_accumulates};
use narthex_spec::{
    DeviceKind, DeviceName, Ep, MediaKind,
    manifest::{GraphEntry, Part},
};

use crate::{
    error::Error,
    load::{
        fallback,
        request::{DeviceAssignment, LoadRequest, SelectedDevice},
    },
    report::{
        fallback::FallbackNodes,
        placement::{PhaseShares, PlacementLine, PlacementReport, TowerReport},
    },
};

/// Value of a symbolic dimension when multiply-accumulates are counted: the tokens of a short prompt.
const NOMINAL_TOKENS: u64 = 64;

/// Symbolic dimensions that are 1 for a single prompt: sequences, and rows of logits.
const UNIT_SYMBOLS: [&str; 3] = ["batch", "batch_size", "rows"];

/// Operator, work and constants of a node.
struct NodeCost {
    op: String,
    multiply_accumulates: u64,
    /// Bytes of each constant that the node reads.
    constants: BTreeMap<String, u64>,
}

/// Reports the placement of a model on its devices.
pub(crate) fn report(
    request: &LoadRequest<'_>,
    devices: &DeviceAssignment,
    graphs: &[GraphPlacement],
    notes: Vec<String>,
) -> Result<PlacementReport, Error> {
    let folder = &request.package.folder;
    let manifest = request.manifest();
    let mut lines = Vec::new();
    let mut done = Vec::new();
    let mut fallback = FallbackNodes::default();
    for GraphPlacement { graph, placement } in graphs {
        let costs = node_costs(folder, graph)?;
        let all: u64 = costs.values().map(|node| node.multiply_accumulates).sum();
        let graph_lines = graph_lines(graph, placement, &costs);
        let device = device_of(&manifest.graphs, graph, devices);
        let on_npu = graph_lines
            .iter()
            .filter(|line| device.name.kind() == DeviceKind::Npu && line.ep == device.name.ep())
            .map(|line| line.compute_share * all as f64)
            .sum();
        let entry = manifest.graphs.iter().find(|entry| entry.file == *graph);
        done.push((entry.map_or(Part::Whole, |entry| entry.part), Compute { all, on_npu }));
        lines.extend(graph_lines);
        // The maker of a bound package decided what runs on the CPU, so nothing fell back there.
        if manifest.bound.is_none() {
            fallback = fallback.and(fallback_nodes(folder, graph, placement, device));
        }
    }

    let phases = phase_shares(&done);
    let total = done.iter().fold(Compute::default(), |sum, (_, compute)| sum.and(*compute));
    Ok(PlacementReport {
        device: devices.main.name,
        decode: None,
        head: devices.head.as_ref().map(|head| head.name),
        multiply_accumulates: total.all,
        npu_share: phases.map_or_else(|| total.npu_share(), PhaseShares::min),
        phases,
        lines,
        towers: Vec::new(),
        fallback,
        why: None,
        notes,
    })
}

/// Reports the placement of a tower of a package.
pub(crate) fn tower_report(
    folder: &Path,
    graph: &str,
    placement: &Placement,
    reads: MediaKind,
) -> Result<TowerReport, Error> {
    let costs = node_costs(folder, graph)?;
    let lines = graph_lines(graph, placement, &costs);
    Ok(TowerReport {
        reads,
        device: DeviceName::Cpu,
        weight_bytes: lines.iter().map(|line| line.weight_bytes).sum(),
        multiply_accumulates: costs.values().map(|node| node.multiply_accumulates).sum(),
        lines,
    })
}

/// Multiply-accumulates, in total and on an NPU.
#[derive(Debug, Clone, Copy, Default)]
struct Compute {
    all: u64,
    on_npu: f64,
}

impl Compute {
    fn and(self, other: Self) -> Self {
        Self { all: self.all.saturating_add(other.all), on_npu: self.on_npu + other.on_npu }
    }

    fn npu_share(self) -> f64 {
        if self.all > 0 { self.on_npu / self.all as f64 } else { 0.0 }
    }
}

/// Returns the NPU's share in each phase of a decoder with static graphs; `None` for other models, such as one that
/// transcribes speech, whose encoder runs too.
fn phase_shares(done: &[(Part, Compute)]) -> Option<PhaseShares> {
    let mut head = Compute::default();
    let mut layers = BTreeMap::<(usize, usize), Compute>::new();
    for (part, compute) in done {
        match part {
            Part::Head { .. } => head = head.and(*compute),
            Part::Layers { tokens, past, .. } | Part::Chunk { tokens, past } => {
                let sum = layers.entry((*tokens, *past)).or_default();
                *sum = sum.and(*compute);
            }
            // Its decoder's steps are a part of each window.
            Part::Encoder => return None,
            Part::Whole | Part::Bucket { .. } | Part::Decoder | Part::Vision | Part::Audio => {}
        }
    }

    let shares = layers.iter().map(|((tokens, _), compute)| (*tokens, compute.and(head).npu_share()));
    let decode = shares.clone().filter(|(tokens, _)| *tokens == 1);
    let decode = decode.map(|(_, share)| share).reduce(f64::min)?;
    let prefill = shares.filter(|(tokens, _)| *tokens > 1).map(|(_, share)| share).reduce(f64::min);
    Some(PhaseShares { prefill: prefill.unwrap_or(decode), decode })
}

/// Returns the nodes of a graph that run on another provider than their device's.
fn fallback_nodes(
    folder: &Path,
    graph: &str,
    placement: &Placement,
    device: &SelectedDevice,
) -> FallbackNodes {
    let ep = device.device.ep();
    let nodes = placement.nodes.iter().filter(|node| node.ep != ep);
    let refused: Vec<RefusedNode> = nodes
        .map(|node| RefusedNode { name: node.name.clone(), op: node.op.clone(), reason: None })
        .collect();
    fallback::explain_nodes(folder, graph, &device.device, ep, &refused)
}

/// Returns the device that a graph was loaded on.
fn device_of<'a>(entries: &[GraphEntry], graph: &str, devices: &'a DeviceAssignment) -> &'a SelectedDevice {
    entries
        .iter()
        .find(|entry| entry.file == graph && matches!(entry.part, Part::Head { .. }))
        .and(devices.head.as_ref())
        .unwrap_or(&devices.main)
}

/// Returns the costs of a graph's nodes, by path.
fn node_costs(folder: &Path, file: &str) -> Result<BTreeMap<String, NodeCost>, Error> {
    let path = folder.join(file);
    let bytes = narthex_files::map(&path).map_err(Error::io("read", &path))?;
    let graph = Graph::decode_shared(Bytes::from_owner(bytes)).map_err(|error| Error::Io {
        what: format!("cannot read {file} of the package"),
        source: std::io::Error::other(error.to_string()),
    })?;
    let known = graph.infer(&|symbol| Some(if UNIT_SYMBOLS.contains(&symbol) { 1 } else { NOMINAL_TOKENS }));
    let sizes: BTreeMap<&str, u64> = graph
        .initializers
        .iter()
        .map(|constant| (constant.name.as_str(), constant.expected_bytes().unwrap_or(0)))
        .collect();
    let nodes = graph.nodes.iter().map(|node| {
        let constants =
            node.inputs.iter().filter_map(|name| Some((name.clone(), *sizes.get(name.as_str())?)));
        // The work inside a compiled context is unknown, so it counts as one multiply-accumulate: all of the work if it
        // is the only node, else nearly nothing.
        let multiply_accumulates = match node.op.as_str() {
            CONTEXT_OP => 1,
            _ => multiply_accumulates(node, &known).unwrap_or(0),
        };
        let cost = NodeCost { op: node.op.clone(), multiply_accumulates, constants: constants.collect() };
        (node.name.clone(), cost)
    });
    Ok(nodes.collect())
}

/// Returns the lines of one graph, by provider.
fn graph_lines(graph: &str, placement: &Placement, costs: &BTreeMap<String, NodeCost>) -> Vec<PlacementLine> {
    let total: u64 = costs.values().map(|node| node.multiply_accumulates).sum();
    let mut eps: Vec<Ep> = placement.nodes.iter().map(|node| node.ep).collect();
    eps.sort_unstable();
    eps.dedup();
    let providers = node_providers(placement, costs);

    eps.into_iter()
        .map(|ep| {
            let placed = placement.nodes.iter().filter(|node| node.ep == ep);
            let mut ops: Vec<&str> = placed.map(|node| node.op.as_str()).collect();
            let nodes = providers.iter().filter(|(_, provider)| **provider == ep);
            let nodes: Vec<&NodeCost> = nodes.filter_map(|(path, _)| costs.get(*path)).collect();
            if ops.contains(&CONTEXT_OP) {
                ops = nodes.iter().map(|node| node.op.as_str()).collect();
            }
            let mut counts = BTreeMap::new();
            ops.iter().for_each(|op| *counts.entry((*op).to_owned()).or_insert(0usize) += 1);

            let mut work = 0u64;
            let mut read = BTreeSet::new();
            let mut weight_bytes = 0u64;
            for node in nodes {
                work += node.multiply_accumulates;
                let new = node.constants.iter().filter(|(name, _)| read.insert(name.as_str()));
                weight_bytes += new.map(|(_, bytes)| bytes).sum::<u64>();
            }
            PlacementLine {
                graph: graph.to_owned(),
                ep,
                subgraphs: placement.subgraphs.get(&ep).copied().unwrap_or(0),
                nodes: ops.len(),
                ops: counts,
                weight_bytes,
                compute_share: if total == 0 { 0.0 } else { work as f64 / total as f64 },
            }
        })
        .collect()
}

/// Returns the provider of each node of a graph file, by path. ONNX Runtime fuses nodes and names the result after one
/// of them, or not at all; a fused node counts only if all placed nodes are on one provider. Nodes of a graph that was
/// compiled ahead of time are inside its context.
fn node_providers<'a>(placement: &Placement, costs: &'a BTreeMap<String, NodeCost>) -> BTreeMap<&'a str, Ep> {
    let placed: BTreeMap<&str, Ep> =
        placement.nodes.iter().map(|node| (node.name.as_str(), node.ep)).collect();
    let fused: Vec<(&str, Ep)> =
        placed.iter().map(|(name, ep)| (*name, *ep)).filter(|(name, _)| !costs.contains_key(*name)).collect();
    let first = placement.nodes.first().map(|node| node.ep);
    let only = first.filter(|first| placement.nodes.iter().all(|node| node.ep == *first));
    let context = placement.nodes.iter().find(|node| node.op == CONTEXT_OP).map(|node| node.ep);
    let mut providers = BTreeMap::new();
    for path in costs.keys().map(String::as_str) {
        let fused = fused.iter().find(|(name, _)| name.starts_with(path)).map(|(_, ep)| *ep);
        let provider = placed.get(path).copied().or(fused).or(only).or(context);
        providers.extend(provider.map(|ep| (path, ep)));
    }
    providers
}

#[cfg(test)]
mod tests {
    use narthex_device::{ep::Device, placement::PlacedNode};
    use narthex_graph::{Initializer, InitializerData};
    use narthex_spec::{DType, Variant};

    use super::*;

    fn costs() -> BTreeMap<String, NodeCost> {
        let node = |op: &str, work, constant: &str, bytes| NodeCost {
            op: op.to_owned(),
            multiply_accumulates: work,
            constants: BTreeMap::from([(constant.to_owned(), bytes)]),
        };
        BTreeMap::from([
            ("/a/MatMul".to_owned(), node("MatMul", 75, "shared", 100)),
            ("/b/MatMul".to_owned(), node("MatMul", 25, "shared", 100)),
            ("/b/Add".to_owned(), node("Add", 0, "bias", 8)),
        ])
    }

    fn placed(ep: Ep, op: &str, name: &str) -> PlacedNode {
        PlacedNode { ep, op: op.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn work_and_weights_follow_the_nodes() {
        let nodes = vec![
            placed(Ep::Qnn, "MatMul", "/a/MatMul"),
            placed(Ep::Cpu, "MatMul", "/b/MatMul"),
            placed(Ep::Cpu, "Add", "/b/Add"),
            placed(Ep::Cpu, "Cast", "/made/at/load"),
        ];
        let placement = Placement { nodes, subgraphs: BTreeMap::from([(Ep::Qnn, 1), (Ep::Cpu, 1)]) };
        let lines = graph_lines("g.onnx", &placement, &costs());
        let line = |ep| lines.iter().find(|line| line.ep == ep).unwrap();
        let (cpu, npu) = (line(Ep::Cpu), line(Ep::Qnn));
        assert_eq!((npu.nodes, npu.weight_bytes, npu.compute_share), (1, 100, 0.75));
        assert_eq!((cpu.nodes, cpu.weight_bytes, cpu.compute_share), (3, 108, 0.25));
        assert_eq!(cpu.ops, BTreeMap::from([("Add".into(), 1), ("Cast".into(), 1), ("MatMul".into(), 1)]));
    }

    #[test]
    fn a_head_on_the_cpu_weighs_most_in_the_shorter_phase() {
        let layers = |tokens, all| {
            let part = Part::Layers { tokens, past: 64, range: None };
            (part, Compute { all, on_npu: all as f64 })
        };
        let head = (Part::Head { rows: 1 }, Compute { all: 25, on_npu: 0.0 });
        let done = [layers(64, 4_000), layers(64, 5_975), layers(8, 975), layers(1, 75), layers(1, 25), head];
        assert_eq!(phase_shares(&done), Some(PhaseShares { prefill: 0.975, decode: 0.8 }));
        assert_eq!(phase_shares(&[layers(1, 75), head]), Some(PhaseShares { prefill: 0.75, decode: 0.75 }));
        assert_eq!(phase_shares(&[(Part::Whole, Compute { all: 1, on_npu: 1.0 })]), None);
        let encoder = (Part::Encoder, Compute { all: 900, on_npu: 0.0 });
        assert_eq!(phase_shares(&[encoder, layers(1, 75), head]), None);
    }

    #[test]
    fn fused_nodes_do_the_work_of_their_originals() {
        let check = |nodes: Vec<PlacedNode>, ep, expected: f64| {
            let placement = Placement { nodes, ..Placement::default() };
            let lines = graph_lines("g.onnx", &placement, &costs());
            let line = lines.iter().find(|line| line.ep == ep).unwrap();
            assert_eq!(line.compute_share, expected, "{placement:?}");
        };
        let fused = |ep| placed(ep, "Gemm", "/b/MatMul/MatMulAddFusion");
        let nameless = placed(Ep::Cpu, "FusedMatMul", "");
        check(vec![placed(Ep::Cpu, "MatMul", "/a/MatMul"), fused(Ep::Cpu)], Ep::Cpu, 1.0);
        check(vec![nameless.clone(), placed(Ep::Cpu, "MatMul", "/a/MatMul")], Ep::Cpu, 1.0);
        check(vec![placed(Ep::Qnn, "MatMul", "/a/MatMul"), fused(Ep::Cpu)], Ep::Cpu, 0.25);
        // A nameless fused node is ambiguous between two providers, so its work counts for neither.
        check(vec![placed(Ep::Qnn, "MatMul", "/a/MatMul"), nameless], Ep::Cpu, 0.0);
    }

    #[test]
    fn a_symbol_counts_as_one_prompt() {
        let folder = tempfile::tempdir().unwrap();
        let mut builder = narthex_graph::Builder::new("g", &[("", 20)]);
        let x = builder.input("x", DType::F32, &["batch".into(), "sequence".into(), 4usize.into()]);
        let weights = builder.input("w", DType::F32, &[4usize.into(), 8usize.into()]);
        builder.op("/a", "MatMul", &[&x, &weights]);
        std::fs::write(folder.path().join("g.onnx"), builder.finish().encode()).unwrap();
        let work: u64 =
            node_costs(folder.path(), "g.onnx").unwrap().values().map(|node| node.multiply_accumulates).sum();
        assert_eq!(work, NOMINAL_TOKENS * 4 * 8);
    }

    #[test]
    fn a_graph_may_contain_its_weights() {
        let folder = tempfile::tempdir().unwrap();
        let mut graph = narthex_graph::Builder::new("g", &[("", 20)]).finish();
        let bytes = vec![0; (64 << 20) + 1];
        graph.initializers.push(Initializer {
            name: "w".to_owned(),
            dtype: DType::I8.into(),
            shape: vec![bytes.len()],
            data: InitializerData::Inline(bytes.into()),
        });
        std::fs::write(folder.path().join("g.onnx"), graph.encode()).unwrap();
        assert!(node_costs(folder.path(), "g.onnx").unwrap().is_empty());
    }

    #[test]
    fn a_head_may_have_a_device_of_its_own() {
        let entry = |file: &str, part| GraphEntry {
            file: file.to_owned(),
            variant: Variant::Static,
            part,
            inputs: Vec::new(),
            outputs: Vec::new(),
            kv: Vec::new(),
        };
        let entries = [
            entry("layers.onnx", Part::Layers { tokens: 1, past: 63, range: None }),
            entry("head.onnx", Part::Head { rows: 1 }),
        ];
        let check = |graph, head: Option<DeviceName>, expected| {
            let selected = |name| SelectedDevice { name, device: Device::Cpu };
            let devices = DeviceAssignment { main: selected(DeviceName::Qnn), head: head.map(selected) };
            assert_eq!(device_of(&entries, graph, &devices).name, expected, "{graph}, {head:?}");
        };
        check("layers.onnx", Some(DeviceName::Cpu), DeviceName::Qnn);
        check("head.onnx", Some(DeviceName::Cpu), DeviceName::Cpu);
        check("head.onnx", None, DeviceName::Qnn);
    }

    #[test]
    fn nodes_beside_a_context_are_inside_it() {
        let nodes = vec![placed(Ep::Qnn, CONTEXT_OP, "context"), placed(Ep::Cpu, "MatMul", "/b/MatMul")];
        let placement = Placement { nodes, subgraphs: BTreeMap::from([(Ep::Qnn, 1), (Ep::Cpu, 1)]) };
        let lines = graph_lines("g.onnx", &placement, &costs());
        let found = lines.iter().map(|line| (line.ep, line.nodes, line.compute_share)).collect::<Vec<_>>();
        assert!(found.contains(&(Ep::Qnn, 2, 0.75)) && found.contains(&(Ep::Cpu, 1, 0.25)), "{found:?}");
    }

    #[test]
    fn a_compiled_graph_is_all_of_its_file() {
        let nodes = vec![placed(Ep::Qnn, CONTEXT_OP, "context")];
        let placement = Placement { nodes, subgraphs: BTreeMap::from([(Ep::Qnn, 1)]) };
        let lines = graph_lines("g.onnx", &placement, &costs());
        assert_eq!((lines[0].nodes, lines[0].weight_bytes, lines[0].compute_share), (3, 108, 1.0));
        assert_eq!(lines[0].ops["MatMul"], 2);
    }
}
