//! Where a loaded model runs: per graph and provider the nodes, their operators, their weights, their share of the
//! work. Nothing here loads or decides anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use narthex_device::{
    RefusedNode,
    ep::Device,
    placement::{GraphPlacement, Placement},
};
use narthex_graph::{Graph, context::CONTEXT_OP, work::multiply_accumulates};
use narthex_spec::{
    DeviceKind, DeviceName, DevicePlacement, Ep, HeadSplit, PhaseSplit,
    manifest::{GraphEntry, Part},
};
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    library::package,
    load::{
        fallback::{self, Fallen},
        sessions::Opening,
    },
};

/// What a symbolic extent counts as where work is weighed: tokens of a short prompt.
const NOMINAL: u64 = 64;

/// The symbols of those extents that are 1 for one prompt: sequences, and rows of logits.
const ONCE: [&str; 3] = ["batch", "batch_size", "rows"];

/// Where a model runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacementReport {
    /// The device that it was loaded on; of two, the one that reads prompts, or has the layers.
    pub device: DeviceName,
    /// The device that writes the answers, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<DeviceName>,
    /// The device that has the head, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<DeviceName>,
    /// Multiply-accumulates of one run of every graph.
    pub multiply_accumulates: u64,
    /// Share of the model's multiply-accumulates that an NPU does, 0 to 1: of a decoder the smaller one of its phases'.
    /// The host's own work (embedding rows, angles, masks, sampling) multiplies no matrices. A stand-in is no NPU.
    pub npu_share: f64,
    /// That share in each phase of a decoder in graphs of fixed shape, or on two devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<PhaseShares>,
    /// One line for each graph and provider.
    pub lines: Vec<PlacementLine>,
    /// The nodes that do not run on the device that their graph was loaded on.
    #[serde(default, skip_serializing_if = "Fallen::is_empty")]
    pub fallen: Fallen,
    /// Why it runs there, where measurements on this machine decided it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What was refused on the way, such as a stale compiled form of a graph.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Shares of the multiply-accumulates of a decoder's phases that an NPU does, 0 to 1. The head is part of both.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PhaseShares {
    /// While it reads a prompt; of graphs for several lengths the least share.
    pub prefill: f64,
    /// While it writes an answer.
    pub decode: f64,
}

impl PhaseShares {
    fn least(self) -> f64 {
        self.prefill.min(self.decode)
    }
}

/// What a provider does of a graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacementLine {
    /// The graph's file.
    pub graph: String,
    /// The provider.
    pub ep: Ep,
    /// HeadSplit of the graph that it runs as a whole.
    pub subgraphs: usize,
    /// Nodes that it runs.
    pub nodes: usize,
    /// Those nodes by operator.
    pub ops: BTreeMap<String, usize>,
    /// Bytes of the constants that those nodes read.
    pub weight_bytes: u64,
    /// Their share of the graph's multiply-accumulates, 0 to 1.
    pub compute_share: f64,
}

impl PlacementReport {
    /// Where it runs.
    pub fn place(&self) -> DevicePlacement {
        match (self.decode, self.head) {
            (Some(decode), _) => DevicePlacement::Phases(PhaseSplit { prefill: self.device, decode }),
            (None, Some(head)) => DevicePlacement::Head(HeadSplit { layers: self.device, head }),
            (None, None) => DevicePlacement::Single(self.device),
        }
    }

    /// The device's name, or both as `prefill=qnn,decode=cpu` or `layers=qnn,head=cpu`.
    pub fn name(&self) -> String {
        self.place().to_string()
    }

    /// The software in an NPU's place that runs some of it. Its times are nobody's speed, and are not told.
    pub fn stand_in(&self) -> Option<DeviceName> {
        self.place().devices().into_iter().find(|device| device.kind() == DeviceKind::StandIn)
    }

    /// The NPU's share of the work in words, such as `86.20 % of the multiply-accumulates`, with each phase's where they
    /// differ.
    pub fn share_in_words(&self) -> String {
        let share = format!("{:.2} % of the multiply-accumulates", self.npu_share * 100.0);
        match self.phases.filter(|phases| phases.prefill != phases.decode) {
            Some(PhaseShares { prefill, decode }) => {
                let (prefill, decode) = (prefill * 100.0, decode * 100.0);
                format!("{share} (prefill {prefill:.2} %, decode {decode:.2} %)")
            }
            None => share,
        }
    }

    /// The report of a model that is divided between two devices.
    pub(crate) fn joined(prefill: Self, decode: Self) -> Self {
        let phases = PhaseShares {
            prefill: prefill.phases.map_or(prefill.npu_share, |phases| phases.prefill),
            decode: decode.phases.map_or(decode.npu_share, |phases| phases.decode),
        };
        Self {
            device: prefill.device,
            decode: Some(decode.device),
            head: None,
            multiply_accumulates: prefill.multiply_accumulates.saturating_add(decode.multiply_accumulates),
            npu_share: phases.least(),
            phases: Some(phases),
            lines: [prefill.lines, decode.lines].concat(),
            fallen: prefill.fallen.and(decode.fallen),
            why: None,
            notes: [prefill.notes, decode.notes].concat(),
        }
    }
}

/// Where a request was answered, for whoever sends the answer on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RanOn {
    /// The device, or both as `prefill=qnn,decode=cpu`.
    pub device: String,
    /// The devices that should have run it and did not, with their reasons; `None` where there is nothing to tell.
    pub fallback: Option<String>,
}

/// What one node of a graph file is worth.
struct Worth {
    op: String,
    work: u64,
    constants: BTreeMap<String, u64>,
}

/// Reports on a model that was loaded on a device, its head perhaps elsewhere.
pub(crate) fn report(
    opening: &Opening<'_>,
    (device, own): (DeviceName, &Device),
    graphs: &[GraphPlacement],
    notes: Vec<String>,
) -> Result<PlacementReport, Error> {
    let head = opening.head.map(|(head, _)| head);
    let (mut lines, mut done) = (Vec::new(), Vec::new());
    let mut fallen = Fallen::default();
    for found in graphs {
        let worth = worth(opening.folder, &found.graph)?;
        let work: u64 = worth.values().map(|node| node.work).sum();
        let new = graph_lines(&found.graph, &found.placement, &worth);
        let (on, device) = device_of(&opening.manifest.graphs, &found.graph, ((device, own), opening.head));
        let own = new.iter().filter(|line| on.kind() == DeviceKind::Npu && line.ep == on.ep());
        let on_npu = own.map(|line| line.compute_share * work as f64).sum::<f64>();
        let entry = opening.manifest.graphs.iter().find(|entry| entry.file == found.graph);
        done.push((entry.map_or(Part::Whole, |entry| entry.part), Work { all: work, on_npu }));
        lines.extend(new);
        // What of a bundle its maker left to the CPU has not fallen.
        if opening.manifest.bound.is_none() {
            fallen = fallen.and(left(opening.folder, found, device));
        }
    }
    let phases = phases(&done);
    let total = done.iter().fold(Work::default(), |sum, (_, work)| sum.and(*work));
    let (decode, why) = (None, None);
    Ok(PlacementReport {
        device,
        decode,
        head,
        multiply_accumulates: total.all,
        npu_share: phases.map_or_else(|| total.npu_share(), PhaseShares::least),
        phases,
        lines,
        fallen,
        why,
        notes,
    })
}

/// Multiply-accumulates, and those of them that an NPU does.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    all: u64,
    on_npu: f64,
}

impl Work {
    fn and(self, other: Self) -> Self {
        Self { all: self.all.saturating_add(other.all), on_npu: self.on_npu + other.on_npu }
    }

    fn npu_share(self) -> f64 {
        if self.all > 0 { self.on_npu / self.all as f64 } else { 0.0 }
    }
}

/// The NPU's share in each phase of a decoder in graphs of fixed shape; `None` for a model that has no phases.
fn phases(done: &[(Part, Work)]) -> Option<PhaseShares> {
    let (mut head, mut layers) = (Work::default(), BTreeMap::<(usize, usize), Work>::new());
    for (part, work) in done {
        match part {
            Part::Head { .. } => head = head.and(*work),
            Part::Layers { tokens, past, .. } | Part::Chunk { tokens, past } => {
                let sum = layers.entry((*tokens, *past)).or_default();
                *sum = sum.and(*work);
            }
            Part::Whole | Part::Bucket { .. } => {}
        }
    }
    let least = |of: fn(usize) -> bool| {
        let layers = layers.iter().filter(|((tokens, _), _)| of(*tokens));
        layers.map(|(_, work)| work.and(head).npu_share()).reduce(f64::min)
    };
    let (decode, prefill) = (least(|tokens| tokens == 1)?, least(|tokens| tokens > 1));
    Some(PhaseShares { prefill: prefill.unwrap_or(decode), decode })
}

/// The nodes of a graph that its device's provider left to another one.
fn left(folder: &Path, found: &GraphPlacement, device: &Device) -> Fallen {
    let ep = device.ep();
    let nodes = found.placement.nodes.iter().filter(|node| node.ep != ep);
    let refused: Vec<RefusedNode> = nodes
        .map(|node| RefusedNode { name: node.name.clone(), op: node.op.clone(), reason: None })
        .collect();
    fallback::fallen(folder, &found.graph, (ep, fallback::target(device).as_ref()), &refused)
}

/// The device that a graph was loaded on: the head's own, if it has one.
fn device_of<D>(entries: &[GraphEntry], graph: &str, (device, head): (D, Option<D>)) -> D {
    let is_head = |entry: &&GraphEntry| entry.file == graph && matches!(entry.part, Part::Head { .. });
    entries.iter().find(is_head).and(head).unwrap_or(device)
}

/// The nodes of a graph file, by path.
fn worth(folder: &Path, file: &str) -> Result<BTreeMap<String, Worth>, Error> {
    let bytes = package::read(folder, file)?;
    let graph = Graph::decode(&bytes).map_err(|error| Error::Io {
        what: format!("cannot read {file} of the package"),
        source: std::io::Error::other(error.to_string()),
    })?;
    let known = graph.infer(&|symbol| Some(if ONCE.contains(&symbol) { 1 } else { NOMINAL }));
    let sizes: BTreeMap<&str, u64> = graph
        .initializers
        .iter()
        .map(|constant| (constant.name.as_str(), constant.expected_bytes().unwrap_or(0)))
        .collect();
    let nodes = graph.nodes.iter().map(|node| {
        let constants =
            node.inputs.iter().filter_map(|name| Some((name.clone(), *sizes.get(name.as_str())?)));
        // A context does not tell its work: it is all that there is, or counts for nothing beside what does.
        let work = match node.op.as_str() {
            CONTEXT_OP => 1,
            _ => multiply_accumulates(node, &known).unwrap_or(0),
        };
        (node.name.clone(), Worth { op: node.op.clone(), work, constants: constants.collect() })
    });
    Ok(nodes.collect())
}

/// The lines of one graph, by provider.
fn graph_lines(graph: &str, placement: &Placement, worth: &BTreeMap<String, Worth>) -> Vec<PlacementLine> {
    let total: u64 = worth.values().map(|node| node.work).sum();
    let mut eps: Vec<Ep> = placement.nodes.iter().map(|node| node.ep).collect();
    eps.sort_unstable();
    eps.dedup();
    let runs = runners(placement, worth);
    let line = |ep: Ep| {
        let own = || placement.nodes.iter().filter(|node| node.ep == ep);
        let run = || runs.iter().filter(|(_, on)| **on == ep).filter_map(|(path, _)| worth.get(*path));
        let ops: Vec<&str> = if own().any(|node| node.op == CONTEXT_OP) {
            run().map(|node| node.op.as_str()).collect()
        } else {
            own().map(|node| node.op.as_str()).collect()
        };
        let mut counts = BTreeMap::new();
        ops.iter().for_each(|op| *counts.entry((*op).to_owned()).or_insert(0usize) += 1);
        let (mut work, mut read, mut weight_bytes) = (0u64, BTreeSet::new(), 0u64);
        for node in run() {
            work += node.work;
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
    };
    eps.into_iter().map(line).collect()
}

/// The provider that runs each node of a graph file, by path. ONNX Runtime makes nodes of its own out of several, and calls
/// them after one of those, if at all; where all that is placed is on one provider, so is what went into them. Of a graph
/// that was compiled ahead of time, all that is not beside its context is in it.
fn runners<'a>(placement: &Placement, worth: &'a BTreeMap<String, Worth>) -> BTreeMap<&'a str, Ep> {
    let placed: BTreeMap<&str, Ep> =
        placement.nodes.iter().map(|node| (node.name.as_str(), node.ep)).collect();
    let made: Vec<(&str, Ep)> =
        placed.iter().map(|(name, ep)| (*name, *ep)).filter(|(name, _)| !worth.contains_key(*name)).collect();
    let first = placement.nodes.first().map(|node| node.ep);
    let only = first.filter(|first| placement.nodes.iter().all(|node| node.ep == *first));
    let context = placement.nodes.iter().find(|node| node.op == CONTEXT_OP).map(|node| node.ep);
    let runner = |path: &str| {
        let after = || made.iter().find(|(name, _)| name.starts_with(path)).map(|(_, ep)| *ep);
        placed.get(path).copied().or_else(after).or(only).or(context)
    };
    worth.keys().filter_map(|path| Some((path.as_str(), runner(path)?))).collect()
}

#[cfg(test)]
mod tests {
    use narthex_device::placement::PlacedNode;
    use narthex_spec::{DType, Variant};

    use super::*;

    fn worth() -> BTreeMap<String, Worth> {
        let node = |op: &str, work, constant: &str, bytes| Worth {
            op: op.to_owned(),
            work,
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
        let lines = graph_lines("g.onnx", &placement, &worth());
        let line = |ep| lines.iter().find(|line| line.ep == ep).unwrap();
        let (cpu, npu) = (line(Ep::Cpu), line(Ep::Qnn));
        assert_eq!((npu.nodes, npu.weight_bytes, npu.compute_share), (1, 100, 0.75));
        assert_eq!((cpu.nodes, cpu.weight_bytes, cpu.compute_share), (3, 108, 0.25));
        assert_eq!(cpu.ops, BTreeMap::from([("Add".into(), 1), ("Cast".into(), 1), ("MatMul".into(), 1)]));
    }

    #[test]
    fn two_devices_share_a_model() {
        let report = |device, work, npu_share| PlacementReport {
            device,
            decode: None,
            head: None,
            multiply_accumulates: work,
            npu_share,
            phases: None,
            lines: Vec::new(),
            fallen: Fallen::default(),
            why: None,
            notes: vec![format!("{device}")],
        };
        let joined =
            PlacementReport::joined(report(DeviceName::Qnn, 900, 1.0), report(DeviceName::Cpu, 300, 0.0));
        assert_eq!((joined.npu_share, joined.multiply_accumulates), (0.0, 1200));
        assert_eq!(joined.phases, Some(PhaseShares { prefill: 1.0, decode: 0.0 }));
        let words = joined.share_in_words();
        assert_eq!(words, "0.00 % of the multiply-accumulates (prefill 100.00 %, decode 0.00 %)");
        assert_eq!((joined.name().as_str(), joined.notes.len()), ("prefill=qnn,decode=cpu", 2));
        let parts = PlacementReport { decode: None, head: joined.decode, phases: None, ..joined };
        assert_eq!(parts.share_in_words(), "0.00 % of the multiply-accumulates");
        assert_eq!(parts.name(), "layers=qnn,head=cpu");
    }

    #[test]
    fn a_head_on_the_cpu_weighs_most_in_the_shorter_phase() {
        let layers = |tokens, all| {
            let part = Part::Layers { tokens, past: 64, range: None };
            (part, Work { all, on_npu: all as f64 })
        };
        let head = (Part::Head { rows: 1 }, Work { all: 25, on_npu: 0.0 });
        let done = [layers(64, 4_000), layers(64, 5_975), layers(8, 975), layers(1, 75), layers(1, 25), head];
        assert_eq!(phases(&done), Some(PhaseShares { prefill: 0.975, decode: 0.8 }));
        assert_eq!(phases(&[layers(1, 75), head]), Some(PhaseShares { prefill: 0.75, decode: 0.75 }));
        assert_eq!(phases(&[(Part::Whole, Work { all: 1, on_npu: 1.0 })]), None);
    }

    #[test]
    fn nodes_that_the_runtime_made_do_the_work_of_those_that_they_stand_for() {
        let check = |nodes: Vec<PlacedNode>, ep, expected: f64| {
            let placement = Placement { nodes, ..Placement::default() };
            let lines = graph_lines("g.onnx", &placement, &worth());
            let line = lines.iter().find(|line| line.ep == ep).unwrap();
            assert_eq!(line.compute_share, expected, "{placement:?}");
        };
        let fused = |ep| placed(ep, "Gemm", "/b/MatMul/MatMulAddFusion");
        let nameless = placed(Ep::Cpu, "FusedMatMul", "");
        check(vec![placed(Ep::Cpu, "MatMul", "/a/MatMul"), fused(Ep::Cpu)], Ep::Cpu, 1.0);
        check(vec![nameless.clone(), placed(Ep::Cpu, "MatMul", "/a/MatMul")], Ep::Cpu, 1.0);
        check(vec![placed(Ep::Qnn, "MatMul", "/a/MatMul"), fused(Ep::Cpu)], Ep::Cpu, 0.25);
        // Of what two providers might have done neither is given.
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
        let work: u64 = super::worth(folder.path(), "g.onnx").unwrap().values().map(|node| node.work).sum();
        assert_eq!(work, NOMINAL * 4 * 8);
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
        let check = |graph, head, expected| {
            assert_eq!(device_of(&entries, graph, (DeviceName::Qnn, head)), expected, "{graph}, {head:?}");
        };
        check("layers.onnx", Some(DeviceName::Cpu), DeviceName::Qnn);
        check("head.onnx", Some(DeviceName::Cpu), DeviceName::Cpu);
        check("head.onnx", None, DeviceName::Qnn);
    }

    #[test]
    fn what_is_not_beside_a_context_is_in_it() {
        let nodes = vec![placed(Ep::Qnn, CONTEXT_OP, "context"), placed(Ep::Cpu, "MatMul", "/b/MatMul")];
        let placement = Placement { nodes, subgraphs: BTreeMap::from([(Ep::Qnn, 1), (Ep::Cpu, 1)]) };
        let lines = graph_lines("g.onnx", &placement, &worth());
        let found = lines.iter().map(|line| (line.ep, line.nodes, line.compute_share)).collect::<Vec<_>>();
        assert!(found.contains(&(Ep::Qnn, 2, 0.75)) && found.contains(&(Ep::Cpu, 1, 0.25)), "{found:?}");
    }

    #[test]
    fn a_compiled_graph_is_all_of_its_file() {
        let nodes = vec![placed(Ep::Qnn, CONTEXT_OP, "context")];
        let placement = Placement { nodes, subgraphs: BTreeMap::from([(Ep::Qnn, 1)]) };
        let lines = graph_lines("g.onnx", &placement, &worth());
        assert_eq!((lines[0].nodes, lines[0].weight_bytes, lines[0].compute_share), (3, 108, 1.0));
        assert_eq!(lines[0].ops["MatMul"], 2);
    }
}
