//! Where a node goes: what the target's compiler does with its operator in the form in which it stands here.

use narthex_graph::{Attribute, Element, Node, context::CONTEXT_OP, graph::MICROSOFT, infer::TensorInfo};
use narthex_spec::DType;

use super::{
    facts::{Answer, Compiler},
    forms,
    report::{Fix, Rule},
    view::{Outcome, Problem, View},
};

/// Where a node goes.
pub(super) fn place(view: &View<'_>, node: &Node) -> Outcome {
    // Quantised weights are kept as they are, for the compiler to take them with what reads them.
    if view.known.output(node).constant && node.op != "DequantizeLinear" {
        return Outcome::Folded;
    }
    if let Some(problem) = control_flow(node) {
        return Outcome::Problem(problem);
    }
    let no_numbers = |element: &Element| *element == Element::STRING || *element == Element::NONE;
    let touched = node.inputs.iter().chain(&node.outputs).filter(|name| !name.is_empty());
    if let Some(element) = touched.filter_map(|name| view.known.get(name).element).find(no_numbers) {
        return Outcome::Problem(other_type(node, element));
    }
    // What a vendor's compiler has made is the NPU's by definition.
    if node.op == CONTEXT_OP {
        return Outcome::Npu;
    }
    let answer = match forms::special(view, node) {
        Some(Ok(())) => None,
        Some(Err(problem)) => Some(problem),
        None => ask(view, node),
    };
    match answer {
        Some(problem) => Outcome::Problem(problem),
        None => match open(view, node) {
            Some(outcome) => outcome,
            None => Outcome::Npu,
        },
    }
}

/// What follows from extents that are not known.
fn open(view: &View<'_>, node: &Node) -> Option<Outcome> {
    let fixed = |known: &dyn Fn(&str) -> bool| {
        node.inputs.iter().chain(&node.outputs).filter(|name| !name.is_empty()).all(|name| known(name))
    };
    // Optional outputs that nobody reads are not followed, so only what is read or leaves the graph counts.
    let used = |name: &str| view.readers.contains_key(name) || view.is_output(name);
    if fixed(&|name| view.open.get(name).is_fixed() || !used(name)) {
        return None;
    }
    if fixed(&|name| view.known.get(name).is_fixed() || !used(name)) {
        return Some(Outcome::Dynamic);
    }
    if has_open_input(view) {
        return Some(Outcome::Dynamic);
    }
    let problem = Problem::falls(
        Rule::UnknownShape,
        "its shape cannot be told before the graph runs, and an NPU's compiler needs every shape",
    );
    Some(Outcome::Problem(problem.fix(Fix::you(
        "export the model so that no shape depends on data (NonZero, Unique, run-time Reshape), or declare the shape",
    ))))
}

/// Whether an input has an extent that was neither given nor assumed.
fn has_open_input(view: &View<'_>) -> bool {
    view.graph().inputs.iter().any(|input| !view.known.get(&input.name).is_fixed())
}

fn control_flow(node: &Node) -> Option<Problem> {
    let has_body = node.attributes.iter().any(|(_, value)| matches!(value, Attribute::Graph(_)));
    (has_body && node.domain.is_empty()).then(|| {
        let fix = match node.op.as_str() {
            "If" => "export the branch that is wanted as a graph of its own; for a merged decoder, the one with a past",
            _ => "export the loop's body as a graph of its own and let the host repeat it",
        };
        Problem::falls(Rule::ControlFlow, format!("an NPU runs no {} with a body", node.op)).fix(Fix::you(fix))
    })
}

/// The operator's plain case.
fn ask(view: &View<'_>, node: &Node) -> Option<Problem> {
    ask_case(view, node, "", view.input(node, main_input(node)))
}

/// Which input decides the element type.
fn main_input(node: &Node) -> usize {
    usize::from(node.op == "Where")
}

/// Asks for one case of an operator on a tensor; a tensor of which nothing is known goes by the commonest.
pub(super) fn ask_case(
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
    match view.facts.ask(&operator, case, element, rank) {
        Answer::Takes => None,
        Answer::TooManyAxes { most } => Some(
            Problem::falls(
                Rule::Rank,
                format!(
                    "it has tensors of {rank} axes, and the compiler takes this operator with at most {most}"
                ),
            )
            .fix(Fix::you("fold axes together with Reshape before it and unfold them after it")),
        ),
        Answer::OtherTypes if forms::narthex_rewrites(view, node).is_some() => {
            Some(refused(view, node, &operator))
        }
        Answer::OtherTypes => Some(other_type(node, element)),
        Answer::Refuses => Some(refused(view, node, &operator)),
        Answer::Fails => Some(
            Problem::refuses(
                Rule::CompilerFails,
                "the vendor's compiler gives up on the whole graph when it meets this operator in this form",
            )
            .fix(Fix::you(rewrite(node).unwrap_or("write it with other operators"))),
        ),
    }
}

/// The most axes among the tensors that a node reads and makes; constants are laid out as the compiler wants them.
fn widest(view: &View<'_>, node: &Node) -> usize {
    let names = node.inputs.iter().chain(&node.outputs).filter(|name| !name.is_empty());
    let tensors = names.map(|name| view.known.get(name)).filter(|tensor| !tensor.constant);
    tensors.filter_map(|tensor| tensor.shape.as_ref().map(Vec::len)).max().unwrap_or(0)
}

fn other_type(node: &Node, element: Element) -> Problem {
    let why = format!("the compiler does not take this operator on elements of type {element}");
    let fix = match element {
        Element::F64 => "export the model in f32 or f16".to_owned(),
        element if element == DType::I64 => {
            "cast to i32 before it, or keep this integer arithmetic on the host and give its result as an input".to_owned()
        }
        element if element == DType::Bf16 => "export the model in f16, or choose a chip with bf16 (qnn:x2-elite)".to_owned(),
        _ => format!("cast around {}, or keep it on the host", node.op),
    };
    Problem::falls(Rule::ElementType, why).fix(Fix::you(fix))
}

fn refused(view: &View<'_>, node: &Node, operator: &str) -> Problem {
    let (rule, why) = if node.domain == MICROSOFT {
        (
            Rule::ContribOperator,
            "it is one of ONNX Runtime's contributed operators, which this compiler does not take",
        )
    } else if !node.domain.is_empty() {
        (Rule::UnsupportedOperator, "it is of a custom domain, and no provider but its maker's takes it")
    } else if view.facts.knows(operator) {
        (Rule::UnsupportedOperator, "the compiler was asked and leaves this operator to another device")
    } else {
        (
            Rule::UnsupportedOperator,
            "it is not among the operators that the compiler was asked for, so it counts as refused",
        )
    };
    let problem = Problem::falls(rule, why);
    match forms::narthex_rewrites(view, node) {
        Some(text) => problem.fix(Fix::narthex(text)),
        None => problem.fix(Fix::you(rewrite(node).unwrap_or(
            "write it with operators that the compiler takes, or let the host compute it and give the result as an input",
        ))),
    }
}

/// What an exporter can write in an operator's place.
fn rewrite(node: &Node) -> Option<&'static str> {
    Some(match node.op.as_str() {
        "SkipLayerNormalization" => "write Add and LayerNormalization",
        "RotaryEmbedding" => {
            "write the rotation as Split, Mul, Sub, Add and Concat with cos and sin as inputs"
        }
        "MultiHeadAttention" | "Attention" | "GroupQueryAttention" => {
            "write attention as MatMul, Add of a float mask, Softmax and MatMul; with the model builder, export without fused attention"
        }
        "Erf" => {
            "write the activation as Gelu, or as x/2 · (1 + Erf(x/√2)), which the compiler knows as a whole"
        }
        "FastGelu" => "write it as Gelu with approximate=tanh (operator set 20)",
        "GatherBlockQuantized" => "keep the token table on the host and give embedded tokens as an input",
        "Trilu" | "EyeLike" => "make the mask on the host and give it as a float input",
        "NonZero" | "Unique" | "Compress" | "NonMaxSuppression" => {
            "its result has as many elements as the data says; compute it on the host"
        }
        "Mean" => "write Add and Mul, or ReduceMean",
        "GroupNormalization" => "write it as Reshape, InstanceNormalization, Reshape, Mul and Add",
        "MatMulInteger" | "ConvInteger" | "DynamicQuantizeLinear" => {
            "dynamic quantisation suits CPUs; quantise statically with QuantizeLinear and DequantizeLinear pairs, or use MatMulNBits"
        }
        _ => return None,
    })
}
