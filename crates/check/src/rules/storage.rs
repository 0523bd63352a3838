//! Rules on files and sizes: external data, layout, address space.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use narthex_graph::{
    InitializerData,
    onnx::files::{OnnxFile, stays_inside},
};

use crate::{
    facts::{Facts, Sessions},
    placement::{placed_graph::PlacedGraph, problem::NodePlacement},
    report::{Finding, Fix, Rule, Severity},
};

/// Returns the findings on one graph's files and sizes.
pub(crate) fn check(view: &PlacedGraph<'_>) -> Vec<Finding> {
    let mut findings = external(view.part);
    findings.extend(several_files(view.part));
    findings.extend(overridable(view));
    findings.extend(part_size(view));
    findings.extend(tensor_size(view));
    findings
}

/// Returns a finding on one data file.
fn data_file_finding(file: &str, message: String, fix: &str) -> Finding {
    Finding::new(Rule::ExternalData, Severity::Blocking, message)
        .at(vec![file.to_owned()])
        .fix(Fix::manual(fix))
}

/// Returns findings on data files that are missing, too short, or not accessible to ONNX Runtime.
fn external(part: &OnnxFile) -> Vec<Finding> {
    let mut needed: BTreeMap<&str, (u64, usize)> = BTreeMap::new();
    for constant in &part.graph.initializers {
        if let InitializerData::External { file, offset, length } = &constant.data {
            let need = needed.entry(file).or_default();
            *need = (need.0.max(offset.saturating_add(*length)), need.1 + 1);
        }
    }

    let mut findings = Vec::new();
    for (file, (bytes, tensors)) in needed {
        if !stays_inside(file) {
            let message = format!(
                "{tensors} weights are in {file:?}, and ONNX Runtime reads data files only from the model's folder"
            );
            let fix = "move the data file into the model's folder, and name it without folders above it";
            findings.push(data_file_finding(file, message, fix));
            continue;
        }
        match part.data_files.get(file) {
            Some(Some(found)) if *found >= bytes => {}
            Some(Some(found)) => findings.push(data_file_finding(
                file,
                format!(
                    "{file} has {found} bytes, but the model's {tensors} weights in it extend to byte {bytes}"
                ),
                "fetch or export the data file again; it is truncated or belongs to another model",
            )),
            _ => findings.push(data_file_finding(
                file,
                format!("{file}, which contains {tensors} weights, does not exist"),
                "put the data file into the model's folder",
            )),
        }
    }
    findings
}

fn several_files(part: &OnnxFile) -> Option<Finding> {
    (part.data_files.len() > 1).then(|| {
        let names: Vec<String> = part.data_files.keys().cloned().collect();
        let message = format!("the weights are spread over {} data files", names.len());
        Finding::new(Rule::SeveralFiles, Severity::Note, message)
            .at(names)
            .fix(Fix::automatic("--fix DIR writes one data file"))
    })
}

fn overridable(view: &PlacedGraph<'_>) -> Option<Finding> {
    let names = view.input_names(|input| view.constants.contains_key(input.name.as_str()));
    (!names.is_empty()).then(|| {
        let message = "weights are declared as inputs too, so a caller could replace them and no compiler may fold them";
        Finding::new(Rule::OverridableWeight, Severity::Cost, message.to_owned()).at(names).fix(Fix::automatic("remove them from the inputs"))
    })
}

fn part_size(view: &PlacedGraph<'_>) -> Option<Finding> {
    let bytes = npu_weight_bytes(view);
    let Facts { part_caution, part_limit, .. } = view.facts;
    let parts = bytes.div_ceil(part_caution.max(1));
    let fix =
        Fix::manual(format!("split the model into {parts} parts of whole layers, each a separate graph"));
    if bytes > part_limit {
        let [takes, holds] = gigabytes([bytes, part_limit]);
        let message =
            format!("its weights take {takes} GB on the NPU, and one part holds at most {holds} GB");
        return Some(Finding::new(Rule::PartSize, Severity::Blocking, message).fix(fix));
    }
    (bytes > part_caution).then(|| {
        let [takes, safe] = gigabytes([bytes, part_caution]);
        let message = format!(
            "its weights take {takes} GB on the NPU, in addition to activations and spills; parts above {safe} GB often \
             fail to load"
        );
        Finding::new(Rule::PartSize, Severity::Cost, message).fix(fix)
    })
}

/// Formats two sizes in GB, with enough digits to show that they differ.
fn gigabytes(sizes: [u64; 2]) -> [String; 2] {
    // Nine digits show single bytes.
    for digits in 1..=9 {
        let texts = gigabytes_with(digits, sizes);
        if texts[0] != texts[1] {
            return texts;
        }
    }
    gigabytes_with(1, sizes)
}

fn gigabytes_with(digits: usize, sizes: [u64; 2]) -> [String; 2] {
    sizes.map(|bytes| format!("{:.digits$}", bytes as f64 / 1e9))
}

/// Returns the number of bytes that the constants of the NPU's nodes take there.
pub(crate) fn npu_weight_bytes(view: &PlacedGraph<'_>) -> u64 {
    npu_weights(view).values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// Returns the number of bytes that each constant of the NPU's nodes takes there. Single-precision floats are stored in
/// half precision. Weights that a node dequantizes stay packed, so its output takes no memory of its own.
fn npu_weights<'a>(view: &PlacedGraph<'a>) -> BTreeMap<&'a str, u64> {
    let mut weights = BTreeMap::new();
    let mut dequantized: BTreeSet<&str> = BTreeSet::new();
    for (_, node, outcome) in view.placed() {
        let keeps_packed = matches!(node.op.as_str(), "Reshape" | "Transpose" | "Cast")
            && node.input(0).is_some_and(|input| dequantized.contains(input));
        if node.op == "DequantizeLinear" || keeps_packed {
            dequantized.extend(node.outputs.iter().map(String::as_str));
        }
        // Nodes that are not on the NPU only because of an unknown extent will have weights there once the extent is
        // fixed.
        if !matches!(outcome, NodePlacement::Npu | NodePlacement::Dynamic) {
            continue;
        }
        for name in &node.inputs {
            if dequantized.contains(name.as_str()) {
                continue;
            }
            let tensor = view.known.get(name);
            if tensor.constant && !weights.contains_key(name.as_str()) {
                let stored = view.constants.get(name.as_str()).map(|constant| constant.bytes());
                let size = stored.or_else(|| tensor.bytes()).unwrap_or(0);
                let wide = tensor.element.is_some_and(|element| element == narthex_spec::DType::F32);
                weights.insert(name.as_str(), if wide { size / 2 } else { size });
            }
        }
    }
    weights
}

/// Location of a weight. Graphs that read the same location of a file share the weight.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WeightLocation<'a> {
    /// In a data file, starting at this byte.
    File(&'a Path, &'a str, u64),
    /// In a graph, under this name.
    Graph(&'a str, &'a str),
}

/// Weights of all graphs of a model; shared weights count once.
#[derive(Debug, Default)]
pub(crate) struct Weights<'a> {
    /// Number of bytes that each weight takes on the NPU.
    npu: BTreeMap<WeightLocation<'a>, u64>,
    /// Number of bytes of each weight, and number of graphs that read it.
    read: BTreeMap<WeightLocation<'a>, (u64, usize)>,
}

impl<'a> WeightLocation<'a> {
    fn of(view: &PlacedGraph<'a>, name: &'a str) -> Self {
        match view.constants.get(name).map(|constant| &constant.data) {
            Some(InitializerData::External { file, offset, .. }) => {
                Self::File(&view.part.folder, file, *offset)
            }
            _ => Self::Graph(&view.part.name, name),
        }
    }
}

impl<'a> Weights<'a> {
    /// Adds the weights of a graph.
    pub(crate) fn add(&mut self, view: &PlacedGraph<'a>) {
        for (name, bytes) in npu_weights(view) {
            let known = self.npu.entry(WeightLocation::of(view, name)).or_default();
            *known = bytes.max(*known);
        }

        let constants = view.constants.iter();
        let weights: BTreeMap<WeightLocation<'a>, u64> =
            constants.map(|(name, constant)| (WeightLocation::of(view, name), constant.bytes())).collect();
        for (place, bytes) in weights {
            let known = self.read.entry(place).or_default();
            *known = (bytes.max(known.0), known.1 + 1);
        }
    }

    /// Returns the number of bytes that all weights take on the NPU.
    pub(crate) fn npu_bytes(&self) -> u64 {
        self.npu.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Returns the number of bytes of the weights that more than one graph reads.
    fn shared_bytes(&self) -> u64 {
        let shared = self.read.values().filter(|(_, graphs)| *graphs > 1);
        shared.fold(0, |sum, (bytes, _)| sum.saturating_add(*bytes))
    }
}

/// Returns a finding on tensors that are so large that one operator may not fit in the memory next to the NPU's cores.
fn tensor_size(view: &PlacedGraph<'_>) -> Option<Finding> {
    let near = view.facts.near_memory?;
    let mut largest = 0;
    let mut places = Vec::new();
    for (_, node, outcome) in view.placed() {
        if *outcome == NodePlacement::Folded {
            continue;
        }
        let output = view.known.output(node);
        // The NPU computes with two bytes per element, whatever the float type of the graph.
        let bytes = output.count().unwrap_or(0).saturating_mul(2);
        if bytes > near.saturating_mul(8) && !output.constant {
            largest = largest.max(bytes);
            places.push(node.path());
        }
    }

    (!places.is_empty()).then(|| {
        let message = format!(
            "it produces tensors of up to {} MB, but the memory next to the cores has {} MB; an operator that cannot be split \
             into pieces fails to compile with error 1002",
            largest / 1_000_000,
            near >> 20
        );
        let fix = Fix::manual("compute fewer rows at once (a shorter sequence), or split the operator along its largest axis");
        Finding::new(Rule::TensorSize, Severity::Note, message).at(places).fix(fix)
    })
}

/// Returns the findings on the division of a model into files.
pub(crate) fn check_layout(parts: &[OnnxFile], weights: &Weights<'_>, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if parts.len() > 1 {
        let names: Vec<String> = parts.iter().map(|part| part.name.clone()).collect();
        let shared = weights.shared_bytes();
        let message = if shared > 0 {
            format!(
                "the model has {} graphs, which share {:.1} MB of weights",
                parts.len(),
                shared as f64 / 1e6
            )
        } else {
            format!("the model has {} graphs, which share no weights", parts.len())
        };
        findings.push(Finding::new(Rule::SeveralFiles, Severity::Note, message).at(names));
    }
    let total = weights.npu_bytes();
    findings.extend(facts.sessions.and_then(|sessions| model_size(total, sessions)));
    findings
}

/// Returns a finding if the weights of all graphs together exceed the memory of one driver process, or of all of them.
fn model_size(total: u64, Sessions { bytes, count }: Sessions) -> Option<Finding> {
    if total <= bytes {
        return None;
    }
    let all = Sessions { bytes, count }.all();
    let [takes, have] = gigabytes([total, if total <= all { bytes } else { all }]);
    let (severity, then) = if total <= all {
        (Severity::Cost, "so it needs several and loads its largest part first".to_owned())
    } else {
        (Severity::Blocking, format!("and a program has about {count} of them ({have} GB)"))
    };
    let message = format!(
        "the model's weights take {takes} GB on the NPU together; one process of the NPU's driver holds about {:.2} GB, \
         {then}",
        bytes as f64 / 1e9
    );
    Some(Finding::new(Rule::PartSize, severity, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_sizes_are_shown_with_different_digits() {
        let check = |sizes, expect: [&str; 2]| assert_eq!(gigabytes(sizes), expect, "{sizes:?}");
        check([5_000_000_000, 2 << 30], ["5.0", "2.1"]);
        check([3_763_000_000, 3_750_000_000], ["3.76", "3.75"]);
        check([3_750_000_001, 3_750_000_000], ["3.750000001", "3.750000000"]);
        check([1, 1], ["0.0", "0.0"]);
    }
}
