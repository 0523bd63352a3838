//! Rules on element types and on how weights are stored.

use std::collections::BTreeMap;

use narthex_graph::{Element, InitializerData, graph::MICROSOFT};
use narthex_spec::DType;

use crate::{
    placement::{placed_graph::PlacedGraph, problem::NodePlacement},
    report::{Finding, Fix, Rule, Severity},
};

/// Limit of chosen mask values. Scores below it are the minimum of a type, not a chosen value.
const MIN_CHOSEN_MASK: f64 = -10_000.0;

/// Returns the findings on element types.
pub(crate) fn check(view: &PlacedGraph<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(no_tensor(view));
    findings.extend(boolean_inputs(view));
    findings.extend(mask_values(view));
    findings.push(quantisation(view));
    findings
}

fn no_tensor(view: &PlacedGraph<'_>) -> Option<Finding> {
    let odd: Vec<String> = view
        .graph()
        .inputs
        .iter()
        .chain(&view.graph().outputs)
        .filter(|value| value.dtype == Element::NONE || value.dtype == Element::STRING)
        .map(|value| value.name.clone())
        .collect();
    (!odd.is_empty()).then(|| {
        let message =
            format!("{} is not numeric, and an NPU computes only with numeric tensors", odd.join(", "));
        let fix = Fix::manual("keep the part that processes texts or sequences on the host");
        Finding::new(Rule::ElementType, Severity::Fallback, message).at(odd).fix(fix)
    })
}

/// Returns a finding on boolean inputs. They work only if the compiler supports every node that reads them.
fn boolean_inputs(view: &PlacedGraph<'_>) -> Option<Finding> {
    let names = view.input_names(|input| input.dtype == DType::Bool);
    (!names.is_empty()).then(|| {
        let message = format!(
            "{} is boolean; some operators and most NPUs support only masks that are added to the scores",
            names.join(", ")
        );
        let fix = Fix::manual("export with a float mask: 0 if a token is visible, otherwise -100");
        Finding::new(Rule::BooleanMask, Severity::Note, message).at(names).fix(fix)
    })
}

/// Returns a finding on constants that represent minus infinity.
fn mask_values(view: &PlacedGraph<'_>) -> Option<Finding> {
    let mut places = Vec::new();
    let mut lowest = 0.0f64;
    for constant in &view.graph().initializers {
        let Some(value) = scalar(constant) else { continue };
        if value < MIN_CHOSEN_MASK
            && view
                .readers_of(&constant.name)
                .any(|reader| matches!(reader.op.as_str(), "Where" | "Add" | "Mul" | "Expand"))
        {
            places.extend(view.readers_of(&constant.name).map(|reader| reader.path()));
            lowest = lowest.min(value);
        }
    }
    (!places.is_empty()).then(|| {
        let message = format!(
            "scores are masked with {lowest:e}: in half precision that is minus infinity, and a row that is completely masked \
             becomes NaN"
        );
        let fix = Fix::manual("mask with a small negative number, such as -100");
        Finding::new(Rule::MaskValue, Severity::Cost, message).at(places).fix(fix)
    })
}

/// Returns the value of a constant with one float.
fn scalar(constant: &narthex_graph::Initializer) -> Option<f64> {
    let InitializerData::Inline(bytes) = &constant.data else { return None };
    match constant.dtype.dtype()? {
        DType::F32 => Some(f64::from(f32::from_le_bytes(bytes.as_ref().try_into().ok()?))),
        DType::F16 => Some(half::f16::from_le_bytes(bytes.as_ref().try_into().ok()?).to_f64()),
        _ => None,
    }
}

/// Returns a description of the storage of weights and activations.
pub(crate) fn scheme(view: &PlacedGraph<'_>) -> String {
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for node in &view.graph().nodes {
        match (node.domain.as_str(), node.op.as_str()) {
            (MICROSOFT, "MatMulNBits") => {
                let bits = node.int("bits").unwrap_or(4);
                let block = node.int("block_size").unwrap_or(0);
                let kind = format!("MatMulNBits {bits} bits, blocks of {block}");
                *kinds.entry(kind).or_default() += constant_bytes(view, node, 1);
            }
            (_, "DequantizeLinear") if constant_bytes(view, node, 0) > 0 => {
                let element = view.input(node, 0).and_then(|tensor| tensor.element);
                let kind = format!("{} with DequantizeLinear", element.map_or("?".into(), |e| e.to_string()));
                *kinds.entry(kind).or_default() += constant_bytes(view, node, 0);
            }
            ("", "MatMul" | "Gemm" | "Conv") if constant_bytes(view, node, 1) > 0 => {
                let element = view.input(node, 1).and_then(|tensor| tensor.element);
                *kinds.entry(element.map_or("?".into(), |e| e.to_string())).or_default() +=
                    constant_bytes(view, node, 1);
            }
            _ => {}
        }
    }

    let mut kinds: Vec<(String, u64)> = kinds.into_iter().collect();
    kinds.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let weights = kinds.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>().join(" and ");
    let weights =
        if weights.is_empty() { "no large weights".to_owned() } else { format!("weights {weights}") };
    format!("{weights}; {}", activations(view))
}

fn activations(view: &PlacedGraph<'_>) -> String {
    let mut types: BTreeMap<String, usize> = BTreeMap::new();
    for node in view.graph().nodes.iter().filter(|node| node.op == "QuantizeLinear") {
        if let Some(element) = view.known.output(node).element {
            *types.entry(element.to_string()).or_default() += 1;
        }
    }
    if let Some((element, _)) = types.iter().max_by_key(|(_, count)| **count) {
        return format!("activations {element}");
    }
    let products = ["MatMul", "Gemm", "Conv", "MatMulNBits"];
    let element = view
        .placed()
        .filter(|(_, node, outcome)| {
            **outcome != NodePlacement::Folded && products.contains(&node.op.as_str())
        })
        .find_map(|(_, node, _)| view.input(node, 0)?.element);
    element.map_or_else(|| "no products".to_owned(), |element| format!("activations {element}"))
}

fn quantisation(view: &PlacedGraph<'_>) -> Finding {
    let scheme = scheme(view);
    let plain = view.graph().nodes.iter().any(|node| {
        node.op == "MatMul"
            && node.input(1).and_then(|name| view.constants.get(name)).is_some_and(|weight| {
                (weight.dtype == DType::F32 || weight.dtype == DType::F16) && weight.bytes() > 1 << 20
            })
    });
    if plain {
        let message = format!(
            "{scheme}; unquantised weights take two bytes each on the NPU, which reads all of them for every token"
        );
        let fix = Fix::manual("quantise the weights to 4 or 8 bits as MatMulNBits");
        return Finding::new(Rule::Quantisation, Severity::Cost, message).fix(fix);
    }
    Finding::new(Rule::Quantisation, Severity::Note, scheme)
}

/// Returns the number of bytes of an input if it is a constant, or else 0.
fn constant_bytes(view: &PlacedGraph<'_>, node: &narthex_graph::Node, index: usize) -> u64 {
    let constant = node.input(index).and_then(|name| view.constants.get(name));
    constant.map_or(0, |constant| constant.bytes())
}
