//! Rules on shapes: unknown extents, and well-formed graphs.

use narthex_graph::check::GraphError;
use narthex_spec::dtype::Dim;

use crate::{
    dim_bindings::{DimBindings, names, symbols},
    placement::{placed_graph::PlacedGraph, problem::NodePlacement},
    report::{Finding, Fix, Rule, Severity},
};

/// Maximum number of dimensions that are examined one by one; each costs a traversal of the whole graph.
const MAX_SYMBOLS: usize = 32;

/// Maximum number of inputs of a dimension that are listed with their shapes. A decoder has one for the keys and one
/// for the values of each layer.
const MAX_INPUTS: usize = 4;

/// Returns the findings on a graph's shapes.
pub(crate) fn check(view: &PlacedGraph<'_>, extents: &DimBindings) -> Vec<Finding> {
    let mut findings = well_formed(view);
    findings.extend(old_opset(view));
    let symbols = symbols(view.graph());
    findings.extend(symbols.iter().take(MAX_SYMBOLS).map(|symbol| dynamic(view, extents, symbol)));
    findings.extend(more_symbols(symbols.into_iter().skip(MAX_SYMBOLS).collect()));
    findings.extend(unranked(view));
    findings
}

fn well_formed(view: &PlacedGraph<'_>) -> Vec<Finding> {
    let mut graph_error = view.graph().check_values().err();
    // A weight that is also an input has a separate finding.
    if let Some(GraphError::DefinedTwice { name, .. }) = &graph_error
        && view.graph().inputs.iter().any(|input| input.name == *name)
        && view.constants.contains_key(name.as_str())
    {
        graph_error = None;
    }
    let unread = view.graph().unread.iter().map(|what| {
        let message = format!(
            "{what} is not examined, so the nodes that depend on it are not checked and --fix writes no file"
        );
        Finding::new(Rule::NotRead, Severity::Cost, message)
    });
    graph_error
        .map(|error| {
            let fix = Fix::manual("export the model again; ONNX Runtime refuses this file");
            Finding::new(Rule::Malformed, Severity::Blocking, format!("the graph is malformed: {error}"))
                .fix(fix)
        })
        .into_iter()
        .chain(unread)
        .collect()
}

/// Oldest version of ONNX's operators that ONNX Runtime supports. Earlier ones broadcast by attributes.
const OLDEST_OPSET: i64 = 7;

fn old_opset(view: &PlacedGraph<'_>) -> Option<Finding> {
    let opset = view.graph().opset().filter(|&opset| opset < OLDEST_OPSET)?;
    let message = format!(
        "the graph uses opset {opset}, and ONNX Runtime and the compilers of NPUs support {OLDEST_OPSET} and later"
    );
    let fix = "convert it: python3 -c \"import onnx, onnx.version_converter as c; \
               onnx.save(c.convert_version(onnx.load('OLD.onnx'), 17), 'NEW.onnx')\"";
    Some(Finding::new(Rule::OldOpset, Severity::Blocking, message).fix(Fix::manual(fix)))
}

/// Returns the finding on one symbolic dimension: its inputs, and the number of affected nodes.
fn dynamic(view: &PlacedGraph<'_>, extents: &DimBindings, symbol: &str) -> Finding {
    let inputs = inputs(view, symbol);
    // All other symbols have an extent here, so an extent that is still unknown depends on this symbol.
    let known = view.graph().infer(&|other| {
        // The inference splits sums and products.
        (other != symbol && !other.contains(['+', '*'])).then(|| extents.get(other).unwrap_or(2))
    });
    let touched: Vec<String> = view
        .placed()
        .filter(|(_, _, outcome)| **outcome != NodePlacement::Folded)
        .filter(|(_, node, _)| {
            node.inputs.iter().chain(&node.outputs).any(|name| {
                !name.is_empty() && !known.get(name).is_fixed() && view.known.get(name).shape.is_some()
            })
        })
        .map(|(_, node, _)| node.path())
        .collect();

    let nodes = match touched.as_slice() {
        [] => "no node reads it".to_owned(),
        [only] => format!("{only} reads it and would run elsewhere"),
        [first, ..] => format!("{} nodes, starting with {first}, would run elsewhere", touched.len()),
    };
    let message = format!(
        "dimension {symbol:?} of {inputs} is dynamic, and an NPU's compiler needs fixed shapes: {nodes}"
    );
    let set = match extents.get(symbol) {
        Some(extent) => format!("--fix DIR --set {symbol}={extent} fixes it"),
        None => format!("--fix DIR --set {symbol}=N fixes it at N"),
    };
    let severity = if touched.is_empty() { Severity::Note } else { Severity::Fallback };
    Finding::new(Rule::DynamicDimension, severity, message).at(touched).fix(Fix::automatic(set))
}

/// Lists the inputs that have a dimension, the first ones with their shapes.
fn inputs(view: &PlacedGraph<'_>, symbol: &str) -> String {
    let all = view.graph().inputs.iter();
    let inputs: Vec<_> = all.filter(|input| input.shape.iter().any(|dim| names(dim, symbol))).collect();
    let mut shown: Vec<String> = inputs
        .iter()
        .take(MAX_INPUTS)
        .map(|input| {
            let shape: Vec<String> = input.shape.iter().map(Dim::to_string).collect();
            format!("{} [{}]", input.name, shape.join(", "))
        })
        .collect();
    let more = inputs.len().saturating_sub(MAX_INPUTS);
    shown.extend((more > 0).then(|| format!("{more} more inputs")));
    shown.join(", ")
}

/// Returns a finding on the symbolic dimensions that are not examined one by one.
fn more_symbols(rest: Vec<String>) -> Option<Finding> {
    (!rest.is_empty()).then(|| {
        let message = format!("{} more dimensions of the inputs are dynamic", rest.len());
        let fix = Fix::automatic("--fix DIR --set NAME=N fixes each at N");
        Finding::new(Rule::DynamicDimension, Severity::Fallback, message).at(rest).fix(fix)
    })
}

fn unranked(view: &PlacedGraph<'_>) -> Option<Finding> {
    let names = view.input_names(|input| view.graph().unranked.contains(&input.name));
    (!names.is_empty()).then(|| {
        let message = format!("the file does not state the shape of {}", names.join(", "));
        Finding::new(Rule::UnknownShape, Severity::Fallback, message)
            .at(names)
            .fix(Fix::manual("export the model with the shapes of its inputs"))
    })
}
