//! The compiler's recorded answer for an operator, as a problem with its fix.

use narthex_graph::{Element, Node, graph::MICROSOFT, infer::TensorInfo};
use narthex_spec::DType;

use crate::{
    facts::{Compiler, OperatorSupport},
    placement::{
        problem::Problem,
        rewrites::{narthex_rewrites, rewrite},
    },
    report::{Fix, Rule},
    view::View,
};

/// Looks up one case of an operator on a tensor. An unknown tensor is assumed to have the most common type and rank.
pub(crate) fn check_case(
    view: &View<'_>,
    node: &Node,
    case: &str,
    tensor: Option<&TensorInfo>,
) -> Option<Problem> {
    let operator = node.operator();
    let element = tensor.and_then(|tensor| tensor.element).unwrap_or_else(|| DType::F32.into());
    let rank = widest(view, node);
    if view.facts.compiler == Compiler::OpenVino && element == Element::F64 {
        return Some(other_type(node, element));
    }

    match view.facts.support(&operator, case, element, rank) {
        OperatorSupport::Supported => None,
        OperatorSupport::RankTooHigh { max } => Some(Problem::fallback(
            Rule::Rank,
            format!(
                "its tensors have {rank} axes, and the compiler supports at most {max} for this operator"
            ),
            Fix::manual("fold axes together with Reshape before it and unfold them after it"),
        )),
        OperatorSupport::UnsupportedType if narthex_rewrites(view, node).is_some() => {
            Some(refused(view, node, &operator))
        }
        OperatorSupport::UnsupportedType => Some(other_type(node, element)),
        OperatorSupport::Unsupported => Some(refused(view, node, &operator)),
        OperatorSupport::CompileFails => Some(Problem::blocking(
            Rule::CompilerFails,
            "the vendor's compiler fails on the whole graph because of this operator in this form",
            Fix::manual(rewrite(node).unwrap_or("replace it with other operators")),
        )),
    }
}

/// Returns the maximum rank of the tensors that a node reads and writes. Constants are ignored, because the compiler
/// chooses their layout.
fn widest(view: &View<'_>, node: &Node) -> usize {
    let names = node.inputs.iter().chain(&node.outputs).filter(|name| !name.is_empty());
    let tensors = names.map(|name| view.known.get(name)).filter(|tensor| !tensor.constant);
    tensors.filter_map(|tensor| tensor.shape.as_ref().map(Vec::len)).max().unwrap_or(0)
}

pub(crate) fn other_type(node: &Node, element: Element) -> Problem {
    let why = format!("the compiler does not support this operator on elements of type {element}");
    let fix = match element {
        Element::F64 => "export the model in f32 or f16".to_owned(),
        element if element == DType::I64 => {
            "cast to i32 before it, or keep this integer arithmetic on the host and pass its result as an input".to_owned()
        }
        element if element == DType::Bf16 => "export the model in f16, or choose a chip with bf16 (qnn:x2-elite)".to_owned(),
        _ => format!("cast around {}, or keep it on the host", node.op),
    };
    Problem::fallback(Rule::ElementType, why, Fix::manual(fix))
}

fn refused(view: &View<'_>, node: &Node, operator: &str) -> Problem {
    let (rule, why) = if node.domain == MICROSOFT {
        (
            Rule::ContribOperator,
            "it is one of ONNX Runtime's contributed operators, which this compiler does not support",
        )
    } else if !node.domain.is_empty() {
        (Rule::UnsupportedOperator, "its domain is custom, and only the vendor's provider supports it")
    } else if view.facts.has_operator(operator) {
        (Rule::UnsupportedOperator, "the compiler leaves this operator to another device")
    } else {
        (Rule::UnsupportedOperator, "the compiler's support for it is unknown, so it counts as refused")
    };
    let fix = match narthex_rewrites(view, node) {
        Some(text) => Fix::automatic(text),
        None => Fix::manual(rewrite(node).unwrap_or(
            "replace it with operators that the compiler supports, or compute it on the host and pass the result as an input",
        )),
    };
    Problem::fallback(rule, why, fix)
}
