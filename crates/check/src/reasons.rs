//! Reasons why single nodes do not run on the NPU.

use std::collections::BTreeMap;

use narthex_graph::onnx::files::OnnxFile;
use narthex_spec::Target;

use crate::{
    dim_bindings::{DimBindings, symbols},
    facts::Facts,
    placement::{
        placed_graph::PlacedGraph,
        problem::{NodePlacement, Problem},
    },
    report::Fix,
};

/// Maximum number of symbolic dimensions in a reason.
const MAX_SYMBOLS: usize = 3;

/// Reason why a node does not run on the NPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// Description of the problem, without the node's name.
    pub why: String,
    /// Next step, if one is known.
    pub fix: Option<Fix>,
}

/// Returns the nodes of a graph that the target's compiler does not support according to the rules, each with its
/// reason, by path.
pub fn reasons(part: &OnnxFile, target: &Target) -> BTreeMap<String, Reason> {
    let extents = DimBindings::new(&BTreeMap::new());
    let view = PlacedGraph::new(part, Facts::of(target), &extents);
    let open = open(&view, &extents);

    let mut reasons = BTreeMap::new();
    for (_, node, outcome) in view.placed() {
        match outcome {
            NodePlacement::Folded | NodePlacement::Npu | NodePlacement::Fallback => {}
            NodePlacement::Dynamic => {
                reasons.insert(node.path(), open.clone());
            }
            NodePlacement::Problem(Problem { why, fix, .. }) => {
                reasons.insert(node.path(), Reason { why: why.clone(), fix: fix.clone() });
            }
        }
    }
    reasons
}

/// Returns the reason for nodes that depend on symbolic dimensions.
fn open(view: &PlacedGraph<'_>, extents: &DimBindings) -> Reason {
    let symbols = symbols(view.graph());
    let named: Vec<String> = symbols.iter().take(MAX_SYMBOLS).map(|symbol| format!("{symbol:?}")).collect();
    let more = if symbols.len() > MAX_SYMBOLS { " and others" } else { "" };
    let why = format!(
        "it depends on a dimension of the inputs that is dynamic ({}{more}), and an NPU's compiler needs fixed shapes",
        named.join(", ")
    );
    let settings: String = symbols
        .iter()
        .take(MAX_SYMBOLS)
        .map(|symbol| match extents.get(symbol) {
            Some(extent) => format!(" --set {symbol}={extent}"),
            None => format!(" --set {symbol}=N"),
        })
        .collect();
    Reason {
        why,
        fix: Some(Fix::automatic(format!("fix it: narthex check {} --fix DIR{settings}", view.part.name))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use narthex_graph::{Builder, build::NodeSpec, graph::MICROSOFT};
    use narthex_spec::{DType, dtype::Dim};

    use super::*;
    use crate::FixAuthor;

    #[test]
    fn each_node_that_stays_away_has_its_reason() {
        let mut b = Builder::new("g", &[("", 20), (MICROSOFT, 1)]);
        let x = b.input("x", DType::F16, &[1.into(), 4.into(), 64.into()]);
        let open = b.input("ids", DType::F16, &[1.into(), Dim::symbol("sequence"), 64.into()]);
        let kept = b.op("/a", "Relu", &[&x]);
        let moving = b.op("/b", "Relu", &[&open]);
        let name = "/c/SkipSimplifiedLayerNormalization";
        let op = "SkipSimplifiedLayerNormalization";
        let inputs: &[&str] = &[&kept, &kept, "x"];
        let skip = b.node(NodeSpec { name, op, domain: MICROSOFT, inputs, attributes: &[] });
        for output in [&moving, &skip] {
            b.output(output, DType::F16, &[1.into(), 4.into(), 64.into()]);
        }
        let (graph, data_files) = (b.finish(), BTreeMap::new());
        let part = OnnxFile {
            name: "m.onnx".into(),
            folder: PathBuf::new(),
            graph,
            data_files,
            watch: Default::default(),
        };
        let found = reasons(&part, &"qnn:x-elite".parse().unwrap());
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["/b/Relu", name]);
        let fix = |name: &str| found[name].fix.clone().unwrap();
        assert!(found["/b/Relu"].why.contains("dynamic (\"sequence\")"), "{found:?}");
        assert!(
            fix("/b/Relu").text.ends_with("narthex check m.onnx --fix DIR --set sequence=64"),
            "{found:?}"
        );
        assert!(found[name].why.contains("contributed operators"), "{found:?}");
        assert_eq!(fix(name).by, FixAuthor::Narthex);
    }
}
