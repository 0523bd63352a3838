//! Operators whose placement depends on attributes, constant parameters or neighbouring nodes.

use narthex_graph::{Element, Node, graph::MICROSOFT};
use narthex_spec::DType;

use crate::{
    facts::Compiler,
    placement::{answers::check_case, problem::Problem},
    report::{Fix, Rule},
    view::View,
};

/// Decision on a node by its form.
pub(crate) enum FormDecision {
    /// The operator has no special form. Its type and rank decide.
    None,
    /// The compiler supports this form.
    Supported,
    /// The compiler does not support this form.
    Refused(Problem),
}

/// Returns the decision on a node by its form.
pub(crate) fn decide(view: &View<'_>, node: &Node) -> FormDecision {
    if view.facts.compiler == Compiler::OpenVino {
        return FormDecision::None;
    }

    let problem = match (node.domain.as_str(), node.op.as_str()) {
        // ONNX Runtime removes these when it loads the graph.
        ("", "Identity" | "Dropout" | "Constant") => None,
        ("" | MICROSOFT, "QuantizeLinear") => None,
        ("" | MICROSOFT, "DequantizeLinear") => dequantize(view, node),
        ("", "Mul") if is_faulty_norm(view, node) => Some(faulty_norm()),
        ("", "MatMulInteger" | "DynamicQuantizeLinear") if is_dynamic_product(view, node) => None,
        ("", "Erf") if is_gelu(view, node) => None,
        ("", "Cast") => cast(view, node),
        ("", "Attention") => attention(view, node),
        (MICROSOFT, "MatMulNBits") => matmul_nbits(view, node),
        (MICROSOFT, "GroupQueryAttention") => Some(group_query()),
        ("", "Gemm") => gemm(view, node),
        ("", "LayerNormalization" | "RMSNormalization" | "SimplifiedLayerNormalization") => norm(view, node),
        ("", "Reshape" | "Expand" | "Tile") => parameters(view, node, &[1]),
        ("", "Slice") => parameters(view, node, &[1, 2, 3, 4]),
        ("", "TopK" | "CumSum" | "OneHot" | "Split" | "Squeeze" | "Unsqueeze") => {
            parameters(view, node, &[1])
        }
        ("", "Pad") => parameters(view, node, &[1, 2, 3]),
        ("", "Gather" | "GatherElements" | "GatherND" | "ScatterElements" | "ScatterND") => {
            indexed(view, node)
        }
        ("", "Resize") => resize(view, node),
        ("", "RotaryEmbedding") => {
            let case = if node.input(3).is_some() { "positions" } else { "" };
            check_case(view, node, case, view.input(node, 0))
        }
        ("", "Range" | "ConstantOfShape") => Some(late_extent()),
        _ => return FormDecision::None,
    };

    match problem {
        Some(problem) => FormDecision::Refused(problem),
        None => FormDecision::Supported,
    }
}

/// Returns the problem of an operator that the compiler does not support in this form.
fn form(why: impl Into<String>, fix: impl Into<String>) -> Option<Problem> {
    Some(Problem::fallback(Rule::OperatorForm, why, Fix::manual(fix)))
}

fn late_extent() -> Problem {
    let fix =
        "compute the values on the host and pass them as an input, or fix the shapes on which it depends";
    Problem::fallback(Rule::OperatorForm, "its extent is known only at run time", Fix::manual(fix))
}

/// Checks parameters that the compiler requires as constants.
fn parameters(view: &View<'_>, node: &Node, indices: &[usize]) -> Option<Problem> {
    let open = indices.iter().find(|&&index| view.input(node, index).is_some_and(|tensor| !tensor.constant));
    match open.and_then(|&index| node.input(index)) {
        Some(name) => form(
            format!("its parameter {name:?} is computed at run time, and the compiler requires a constant"),
            "fix the shapes that the parameter is computed from, or compute it on the host",
        ),
        None => check_case(view, node, "", view.input(node, 0)),
    }
}

fn indexed(view: &View<'_>, node: &Node) -> Option<Problem> {
    let problem = check_case(view, node, index_case(view, node), view.input(node, 0))?;
    Some(match picks_elements(view, node) {
        Some(_) => {
            let fix = Fix::automatic("replace it with Reshape to one axis and Gather");
            Problem { fix: Some(fix), ..problem }
        }
        None => problem,
    })
}

/// Returns the recorded case of an operator that reads indices.
fn index_case(view: &View<'_>, node: &Node) -> &'static str {
    let index = view.input(node, 1);
    let short = index.and_then(|tensor| tensor.element).is_some_and(|element| element == DType::I32);
    let rank = index.and_then(|tensor| tensor.shape.as_ref()).map_or(0, Vec::len);
    let wide = rank > 1;
    let deep = rank > 2;
    match (node.op.as_str(), wide, short) {
        ("Gather", true, true) => "wide i32 indices",
        ("Gather", true, false) => "wide i64 indices",
        ("GatherND", ..) if deep => "wide i64 indices",
        // GatherND and ScatterND were recorded only with 64-bit indices, which ONNX requires.
        ("GatherND" | "ScatterND", ..) | (_, _, false) => "i64 indices",
        _ => "i32 indices",
    }
}

/// Returns the extents of the data if `GatherND` selects single elements by constant indices, as in the padding-mask
/// broadcasts that exporters write.
pub(crate) fn picks_elements(view: &View<'_>, node: &Node) -> Option<Vec<i64>> {
    let data = view.input(node, 0)?;
    let index = view.input(node, 1)?;
    let extents: Option<Vec<i64>> =
        data.shape.as_ref()?.iter().map(|extent| i64::try_from((*extent)?).ok().filter(|&e| e > 0)).collect();
    let extents = extents?;
    let deep = index.shape.as_ref()?.last()?.is_some_and(|last| last == extents.len() as u64);
    let plain = node.is_onnx("GatherND")
        && node.int("batch_dims").unwrap_or(0) == 0
        && view.graph().opset() >= Some(13);
    (plain && deep && index.constant && !extents.is_empty()).then_some(extents)
}

/// Returns whether a node is the final product of an RMS norm in the form
/// `weight · (x · Reciprocal(Sqrt(Add(ReduceMean(Pow(x, 2)), ε))))` in single precision, with the weight first.
/// PyTorch's exporter writes the norms of Llama and similar models in this form. QNN 2.51 recognises it and then fails
/// to compile it. With the weight second, or in half precision, it compiles.
fn is_faulty_norm(view: &View<'_>, node: &Node) -> bool {
    let is_single = element(view, node, 1) == Some(DType::F32.into());
    let has_constant_weight = view.input(node, 0).is_some_and(|weight| weight.constant);
    has_constant_weight && is_single && ends_norm(view, node) == Some(true)
}

/// Returns true if the second operand of a product is a norm of Pow, ReduceMean, Add, Sqrt, Reciprocal and Mul.
fn ends_norm(view: &View<'_>, node: &Node) -> Option<bool> {
    let scaled = made_by(view, node.input(1), "Mul")?;
    let reciprocal = made_by(view, scaled.input(1), "Reciprocal")?;
    let sqrt = made_by(view, reciprocal.input(0), "Sqrt")?;
    let sum = made_by(view, sqrt.input(0), "Add")?;
    let mean = made_by(view, sum.input(0), "ReduceMean")?;
    let square = made_by(view, mean.input(0), "Pow")?;
    Some(square.input(0) == scaled.input(0))
}

/// Returns the node that produces a value, if it has this operator.
fn made_by<'a>(view: &View<'a>, name: Option<&str>, op: &str) -> Option<&'a Node> {
    name.and_then(|name| view.producer(name)).filter(|producer| producer.is_onnx(op))
}

fn element(view: &View<'_>, node: &Node, index: usize) -> Option<Element> {
    view.input(node, index).and_then(|tensor| tensor.element)
}

fn faulty_norm() -> Problem {
    Problem::blocking(
        Rule::CompilerFails,
        "it ends a norm written as Pow, ReduceMean, Add, Sqrt, Reciprocal, Mul and Mul with the weight first, on which \
         the vendor's compiler fails with error 1002 (Failed to finalize QNN graph)",
        Fix::automatic("make the weight the second operand, or use SimplifiedLayerNormalization"),
    )
}

fn cast(view: &View<'_>, node: &Node) -> Option<Problem> {
    let to = node.int("to").and_then(|to| i32::try_from(to).ok()).map(Element::from_code)?;
    let from = view.input(node, 0)?;
    if from.element == Some(to) {
        return None;
    }
    let case = format!("to {to}");
    check_case(view, node, &case, Some(from)).map(|problem| match from.element {
        Some(element) => {
            Problem { why: format!("the compiler does not support a cast from {element} to {to}"), ..problem }
        }
        None => problem,
    })
}

fn gemm(view: &View<'_>, node: &Node) -> Option<Problem> {
    use narthex_graph::Attribute::Float;
    let mut factors = ["alpha", "beta"].iter().filter_map(|name| node.attribute(name));
    if factors.any(|value| matches!(value, Float(factor) if *factor != 1.0)) {
        let why = "alpha or beta is not 1, so the compiler leaves Gemm to another device";
        return form(why, "fold alpha and beta into the weight and the bias");
    }
    check_case(view, node, "", view.input(node, 0))
}

fn norm(view: &View<'_>, node: &Node) -> Option<Problem> {
    let rank = view.input(node, 0).and_then(|tensor| tensor.shape.as_ref()).map(Vec::len);
    let axis = node.int("axis").unwrap_or(-1);
    if rank.is_some_and(|rank| axis != -1 && axis != rank as i64 - 1) {
        let why = format!(
            "it normalises all axes from {axis} to the last, but the compiler supports only the last axis"
        );
        return form(why, "fold the normalised axes into one with Reshape");
    }
    if let (Some(data), Some(gain)) = (element(view, node, 0), element(view, node, 1))
        && data != gain
    {
        let why =
            format!("its activations are {data} and its gain is {gain}, and the compiler requires one type");
        let fix = Fix::manual(format!("store the gain as {data}"));
        return Some(Problem::fallback(Rule::ElementType, why, fix));
    }
    check_case(view, node, "", view.input(node, 0))
}

fn resize(view: &View<'_>, node: &Node) -> Option<Problem> {
    let mode = node.text("mode").unwrap_or("nearest");
    check_case(view, node, mode, view.input(node, 0))
}

fn attention(view: &View<'_>, node: &Node) -> Option<Problem> {
    let mask = view.input(node, 3);
    if mask.is_some_and(|mask| mask.element.is_some_and(|element| element == DType::Bool)) {
        let why = "its mask is boolean, and the compiler supports only masks that are added to the scores";
        let fix = "convert the mask to numbers by a Where before it: 0 if a token is visible, otherwise -100";
        return Some(Problem::fallback(Rule::BooleanMask, why, Fix::automatic(fix)));
    }
    for unwanted in ["softmax_precision", "softcap", "qk_matmul_output_mode"] {
        if node.attribute(unwanted).is_some_and(|value| !is_zero(value)) {
            let why = format!("it sets {unwanted}, which the compiler does not support");
            return form(why, format!("export without {unwanted}"));
        }
    }
    if node.input(6).is_some() {
        let why = "it reads the number of keys without padding, which the compiler does not support";
        return form(why, "hide padding with the mask instead");
    }
    let case = match (mask.is_some(), node.int("is_causal")) {
        (true, _) => "float mask",
        (false, Some(1)) => "causal",
        (false, _) => "",
    };
    check_case(view, node, case, view.input(node, 0))
}

fn is_zero(value: &narthex_graph::Attribute) -> bool {
    use narthex_graph::Attribute::{Float, Int};
    matches!(value, Int(0)) || matches!(value, Float(v) if *v == 0.0)
}

fn group_query() -> Problem {
    Problem::fallback(
        Rule::ContribOperator,
        "QNN leaves fused attention over a cache to the CPU unless op_affinity assigns it to the NPU",
        Fix::manual(
            "write attention as MatMul, Add of a float mask, Softmax and MatMul with the new keys and values as outputs, as \
         `narthex compile --target` does",
        ),
    )
}

fn matmul_nbits(view: &View<'_>, node: &Node) -> Option<Problem> {
    let bits = node.int("bits").unwrap_or(4);
    let block = node.int("block_size").unwrap_or(0);
    let k = node.int("K").unwrap_or(0);
    if node.input(4).is_some() {
        return form(
            "it reorders columns with g_idx, which the compiler does not support",
            "reorder the weight's columns once when exporting, and drop g_idx",
        );
    }

    let step = match bits {
        2 => 16,
        4 => 8,
        8 => 4,
        _ => {
            return form(
                format!("it has {bits} bits; the compiler supports 2, 4 and 8"),
                "quantise to 4 or 8 bits",
            );
        }
    };

    if block <= 0 || block % step != 0 || k % block != 0 {
        let why = format!(
            "its K is {k} with blocks of {block}; the compiler requires blocks of a multiple of {step} that divide K"
        );
        return form(why, "quantise with a block size that divides K, such as 32");
    }

    let rank = view.input(node, 0).and_then(|tensor| tensor.shape.as_ref()).map(Vec::len);
    if rank.is_some_and(|rank| rank != 3) {
        let why = format!(
            "its activations have {} axes, but the compiler requires 3 for MatMulNBits",
            rank.unwrap_or(0)
        );
        let fix = Fix::automatic("put a Reshape to [1, rows, K] before it and one back after it");
        return Some(Problem::fallback(Rule::MatMulNBitsRank, why, fix));
    }
    if node.input(5).is_some() {
        let fix = Fix::automatic("add the bias with an Add after it");
        let why = "it has a bias, which the compiler does not support";
        return Some(Problem::fallback(Rule::OperatorForm, why, fix));
    }

    let case = if node.input(3).is_some() && bits == 4 {
        "4 bits, zero points".to_owned()
    } else {
        format!("{bits} bits")
    };
    check_case(view, node, &case, view.input(node, 0))
}

/// Returns a problem if a weight is dequantised for an operator whose activations are not quantised.
fn dequantize(view: &View<'_>, node: &Node) -> Option<Problem> {
    let value = node.outputs.first()?;
    if !is_weight(view, node.input(0)?) {
        return None;
    }
    let lone = view.readers_of(value).find(|reader| {
        let products = ["MatMul", "Gemm", "Conv", "ConvTranspose"];
        products.contains(&reader.op.as_str())
            && reader.inputs.iter().any(|input| is_plain_activation(view, input))
    })?;
    let why = format!(
        "it dequantises a weight for {}, whose activations are not quantised: the CPU would unpack the weight in every run",
        lone.path()
    );
    let fix = "store the weight as MatMulNBits, or quantise the activations too with QuantizeLinear and \
               DequantizeLinear around them";
    Some(Problem::fallback(Rule::WeightOnlyDequantize, why, Fix::manual(fix)))
}

/// Returns whether a node is part of `DynamicQuantizeLinear`, `MatMulInteger` with a constant, and the `Cast` back,
/// which the compiler supports only together.
fn is_dynamic_product(view: &View<'_>, node: &Node) -> bool {
    match node.op.as_str() {
        "MatMulInteger" => is_integer_product(view, node),
        _ => {
            let output = node.outputs.first();
            output
                .is_some_and(|output| view.readers_of(output).all(|reader| is_integer_product(view, reader)))
        }
    }
}

/// Returns true if a node multiplies quantised activations by a constant, and only casts read its result.
fn is_integer_product(view: &View<'_>, node: &Node) -> bool {
    let has_constant = node.input(1).is_some_and(|weight| view.known.get(weight).constant);
    let quantiser = node.input(0).and_then(|activations| view.producer(activations));
    let mut readers = node.outputs.iter().flat_map(|output| view.readers_of(output));
    node.op == "MatMulInteger"
        && has_constant
        && quantiser.is_some_and(|producer| producer.op == "DynamicQuantizeLinear")
        && readers.all(|reader| reader.op == "Cast")
}

fn is_weight(view: &View<'_>, name: &str) -> bool {
    view.constants.contains_key(name) || view.known.get(name).constant
}

/// Returns true if a value is neither a weight nor quantised.
fn is_plain_activation(view: &View<'_>, name: &str) -> bool {
    let is_quantised = view.producer(name).is_some_and(|producer| producer.op == "DequantizeLinear");
    !name.is_empty() && !is_weight(view, name) && !is_quantised
}

/// Returns whether a node is part of `x · (1 + Erf(x / √2)) / 2`, which the compiler supports only as a whole.
pub(crate) fn is_gelu(view: &View<'_>, node: &Node) -> bool {
    let scaled = node.input(0).and_then(|input| view.producer(input));
    scaled.is_some_and(|producer| matches!(producer.op.as_str(), "Div" | "Mul"))
        && only_reader(view, node, "Add").and_then(|add| only_reader(view, add, "Mul")).is_some()
}

/// Returns the only node that reads a node's first output, if it has this operator.
fn only_reader<'a>(view: &View<'a>, node: &Node, op: &str) -> Option<&'a Node> {
    let mut readers = view.readers_of(node.outputs.first()?);
    let reader = readers.next().filter(|reader| reader.is_onnx(op))?;
    readers.next().is_none().then_some(reader)
}
