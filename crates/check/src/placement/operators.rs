//! Predicted placement of a node, from its operator and form.

use narthex_graph::{Attribute, Element, Node, context::CONTEXT_OP};

use crate::{
    placement::{
        answers::{check_case, other_type},
        operator_forms::{self, FormDecision},
        problem::{NodePlacement, Problem},
    },
    report::{Fix, Rule},
    view::View,
};

/// Returns the placement that the rules predict for a node.
pub(crate) fn place(view: &View<'_>, node: &Node) -> NodePlacement {
    // Dequantisation of constant weights is not folded: the compiler fuses it with the nodes that read the weights.
    if view.known.output(node).constant && node.op != "DequantizeLinear" {
        return NodePlacement::Folded;
    }
    if let Some(problem) = control_flow(node) {
        return NodePlacement::Problem(problem);
    }

    let touched = node.inputs.iter().chain(&node.outputs).filter(|name| !name.is_empty());
    if let Some(element) = touched
        .filter_map(|name| view.known.get(name).element)
        .find(|element| *element == Element::STRING || *element == Element::NONE)
    {
        return NodePlacement::Problem(other_type(node, element));
    }
    // A context that a vendor's compiler produced runs on the NPU by definition.
    if node.op == CONTEXT_OP {
        return NodePlacement::Npu;
    }

    let answer = match operator_forms::decide(view, node) {
        FormDecision::Supported => None,
        FormDecision::Refused(problem) => Some(problem),
        FormDecision::None => check_plain_case(view, node),
    };

    match answer {
        Some(problem) => NodePlacement::Problem(problem),
        None => match open(view, node) {
            Some(outcome) => outcome,
            None => NodePlacement::Npu,
        },
    }
}

/// Returns the placement of a node that depends on unknown extents.
fn open(view: &View<'_>, node: &Node) -> Option<NodePlacement> {
    let fixed = |known: &dyn Fn(&str) -> bool| {
        node.inputs.iter().chain(&node.outputs).filter(|name| !name.is_empty()).all(|name| known(name))
    };
    // Unused optional outputs have no inferred shape, so only values that are read or are graph outputs count.
    let used = |name: &str| view.readers.contains_key(name) || view.is_output(name);
    if fixed(&|name| view.open.get(name).is_fixed() || !used(name)) {
        return None;
    }
    if fixed(&|name| view.known.get(name).is_fixed() || !used(name)) {
        return Some(NodePlacement::Dynamic);
    }
    // An input has an extent that is neither given nor assumed.
    if view.graph().inputs.iter().any(|input| !view.known.get(&input.name).is_fixed()) {
        return Some(NodePlacement::Dynamic);
    }
    let fix = "export the model so that no shape depends on data (NonZero, Unique, run-time Reshape), or declare the \
               shape";
    Some(NodePlacement::Problem(Problem::fallback(
        Rule::UnknownShape,
        "its shape is unknown before the graph runs, and an NPU's compiler needs every shape",
        Fix::manual(fix),
    )))
}

fn control_flow(node: &Node) -> Option<Problem> {
    let has_body = node.attributes.iter().any(|(_, value)| matches!(value, Attribute::Graph(_)));
    (has_body && node.domain.is_empty()).then(|| {
        let fix = match node.op.as_str() {
            "If" => {
                "export the required branch as a separate graph; for a merged decoder, the one with a past"
            }
            _ => "export the loop's body as a separate graph, and let the host repeat it",
        };
        let why = format!("an NPU does not support {} with a body", node.op);
        Problem::fallback(Rule::ControlFlow, why, Fix::manual(fix))
    })
}

/// Looks up the operator's plain case.
fn check_plain_case(view: &View<'_>, node: &Node) -> Option<Problem> {
    // The element type of `Where` is that of its branches.
    check_case(view, node, "", view.input(node, usize::from(node.op == "Where")))
}
