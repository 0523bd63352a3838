//! Fixes that Narthex applies itself, as labelled patches.
//!
//! Every rewrite computes the same values as the original nodes. Two rewrites have an effect on the caller: a dimension
//! that has been fixed requires padding or slicing of the inputs, and a boolean mask becomes numbers, with -100 for
//! masked positions.

use narthex_graph::{
    Attribute, Graph, Node,
    graph::MICROSOFT,
    onnx::files::OnnxFile,
    patch::{Edit, Patch, PatchError},
    replacement::Replacement,
};
use narthex_spec::DType;

use crate::{
    dim_bindings::{DimBindings, symbols},
    facts::{Compiler, Facts},
    options::CheckOptions,
    placement::{
        operator_forms, placed_graph::PlacedGraph, problem::NodePlacement, rewrites::narthex_rewrites,
    },
    report::Rule,
};

/// Value added to the scores of masked tokens. Half precision represents it exactly, and e^-100 is 0 there.
const MASKED: f32 = -100.0;

/// Applies every fix to the parts. Returns the new parts and the labels of the changes.
///
/// # Errors
/// A patch that does not fit its graph, which is a defect of Narthex.
pub fn fixed(parts: &[OnnxFile], options: &CheckOptions) -> Result<(Vec<OnnxFile>, Vec<String>), PatchError> {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    let mut fixed = parts.to_vec();
    for part in &mut fixed {
        let patches = patches(part, options);
        part.graph.apply(&patches)?;
        for kind in patches.iter().map(|patch| kind_of(&patch.label)) {
            match kinds.iter_mut().find(|(known, _)| known == kind) {
                Some((_, count)) => *count += 1,
                None => kinds.push((kind.to_owned(), 1)),
            }
        }
    }
    let words = kinds.into_iter().map(|(kind, count)| match count {
        1 => kind,
        _ => format!("{kind} ({count} times)"),
    });
    let mut words: Vec<String> = words.collect();
    if parts.iter().any(|part| part.data_files.len() > 1) {
        words.push("write the weights into one data file".to_owned());
    }
    Ok((fixed, words))
}

/// Returns a label without the node that it is about.
fn kind_of(label: &str) -> &str {
    label.split_once(": ").map_or(label, |(kind, _)| kind)
}

/// Returns the patches for one graph, which may be applied together.
pub fn patches(part: &OnnxFile, options: &CheckOptions) -> Vec<Patch> {
    let extents = DimBindings::new(&options.extents);
    let facts = Facts::of(&options.target);
    let view = PlacedGraph::new(part, facts, &extents);
    let mut patches = bindings(&part.graph, &|symbol| extents.get(symbol));
    patches.extend(overridable(&view));
    for (_, node, outcome) in view.placed() {
        if *outcome == NodePlacement::Folded || facts.compiler != Compiler::Htp {
            continue;
        }
        patches.extend(rewrite(&view, node, outcome));
    }
    patches
}

/// Returns the patches that fix the dimensions with an extent.
pub(super) fn bindings(graph: &Graph, extent: &dyn Fn(&str) -> Option<u64>) -> Vec<Patch> {
    let bound = symbols(graph).into_iter().filter_map(|symbol| {
        let extent = extent(&symbol)?;
        let label = format!("fix dimension {symbol} at {extent}");
        Some(Patch { label, edits: vec![Edit::Bind { symbol, extent }] })
    });
    bound.collect()
}

fn overridable(view: &PlacedGraph<'_>) -> Option<Patch> {
    let names = view.graph().inputs.iter().map(|input| &input.name);
    let edits: Vec<Edit> = names
        .filter(|name| view.constants.contains_key(name.as_str()))
        .map(|name| Edit::DropInput { name: name.clone() })
        .collect();
    (!edits.is_empty()).then(|| Patch { label: "remove weights from the inputs".to_owned(), edits })
}

fn rewrite(view: &PlacedGraph<'_>, node: &Node, outcome: &NodePlacement) -> Option<Patch> {
    let NodePlacement::Problem(problem) = outcome else { return None };
    match (node.domain.as_str(), node.op.as_str(), problem.rule) {
        (MICROSOFT, "MatMulNBits", Rule::MatMulNBitsRank | Rule::OperatorForm) => matmul_nbits(view, node),
        ("", "Attention", Rule::BooleanMask) => float_mask(view, node),
        ("", "Mul", Rule::CompilerFails) => weight_second(node),
        ("", "GatherND", _) => pick(view, node),
        _ => {
            narthex_rewrites(view, node)?;
            match node.op.as_str() {
                "SkipSimplifiedLayerNormalization" => skip_norm(node, Norm::Rms),
                "SkipLayerNormalization" => skip_norm(node, Norm::Layer),
                "BiasGelu" | "FastGelu" => gelu(node),
                _ => None,
            }
        }
    }
}

/// Returns the name of an output, if the node has it.
fn output(node: &Node, index: usize) -> Option<&String> {
    node.outputs.get(index).filter(|name| !name.is_empty())
}

/// Returns the bytes of a number.
fn number_bytes(element: DType, value: f32) -> Option<Vec<u8>> {
    match element {
        DType::F32 => Some(value.to_le_bytes().to_vec()),
        DType::F16 => Some(half::f16::from_f32(value).to_le_bytes().to_vec()),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Norm {
    Rms,
    Layer,
}

/// ```text
/// x ── Add(skip) ── Add(bias) ──┬── norm ── output 0
///                               └── output 3
/// ```
fn skip_norm(node: &Node, norm: Norm) -> Option<Patch> {
    let mut new = Replacement::of(node);
    let x = node.input(0)?;
    let skip = node.input(1)?;
    let gain = node.input(2)?;
    let (beta, bias) = match norm {
        Norm::Rms => (None, node.input(3)),
        Norm::Layer => (node.input(3), node.input(4)),
    };

    let sum = output(node, 3).cloned().unwrap_or_else(|| format!("{}/sum", new.stem()));
    match bias {
        Some(bias) => {
            let plain = new.op("Add", &[x, skip], &[]);
            new.op_to("Add", &[&plain, bias], &[], &[&sum]);
        }
        None => new.op_to("Add", &[x, skip], &[], &[&sum]),
    }

    let epsilon = node.attribute("epsilon").cloned().unwrap_or(Attribute::Float(1e-12));
    let attributes = [("axis", Attribute::Int(-1)), ("epsilon", epsilon)];
    if let Some(normed) = output(node, 0) {
        let inputs: Vec<&str> = [Some(sum.as_str()), Some(gain), beta].into_iter().flatten().collect();
        let op = if norm == Norm::Rms { "SimplifiedLayerNormalization" } else { "LayerNormalization" };
        new.op_to(op, &inputs, &attributes, &[normed]);
    }

    let kind = if norm == Norm::Rms {
        "replace SkipSimplifiedLayerNormalization with Add and SimplifiedLayerNormalization"
    } else {
        "replace SkipLayerNormalization with Add and LayerNormalization"
    };
    new.patch(kind)
}

/// ```text
/// x [.., K] ── Reshape [1, -1, K] ── MatMulNBits ── Reshape [.., N] ── Add(bias)
/// ```
fn matmul_nbits(view: &PlacedGraph<'_>, node: &Node) -> Option<Patch> {
    // Only an exporter can fix reordered columns and incomplete blocks.
    let blocks_fit = node.int("K")? % node.int("block_size").filter(|&size| size > 0)? == 0;
    if node.input(4).is_some() || !blocks_fit {
        return None;
    }

    let shape = view.input(node, 0)?.shape.clone()?;
    let output = node.outputs.first()?;
    let bias = node.input(5);
    let mut new = Replacement::of(node);
    let is_3d = shape.len() == 3;
    let mut inputs: Vec<String> = node.inputs.iter().take(4).cloned().collect();
    while inputs.last().is_some_and(String::is_empty) {
        inputs.pop();
    }

    if !is_3d {
        let flat = new.shape("flat", &[1, -1, node.int("K")?]);
        *inputs.first_mut()? = new.op("Reshape", &[node.input(0)?, &flat], &[]);
    }

    let attributes: Vec<(&str, Attribute)> =
        node.attributes.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let op = format!("{MICROSOFT}/MatMulNBits");
    if is_3d && bias.is_none() {
        return None;
    }

    let mut value = new.op(&op, &inputs, &attributes);
    if !is_3d {
        let back = back_shape(&shape, node.int("N")?)?;
        let back = new.shape("back", &back);
        match bias {
            Some(_) => value = new.op("Reshape", &[&value, &back], &[]),
            None => new.op_to("Reshape", &[&value, &back], &[], &[output]),
        }
    }

    if let Some(bias) = bias {
        new.op_to("Add", &[&value, bias], &[], &[output]);
    }
    new.patch(if is_3d { "add MatMulNBits's bias with Add" } else { "reshape around MatMulNBits" })
}

/// Returns the shape before the product with a new last extent; at most one extent may be unknown.
fn back_shape(shape: &[Option<u64>], n: i64) -> Option<Vec<i64>> {
    let (_, front) = shape.split_last()?;
    let mut back: Vec<i64> = front.iter().map(|extent| extent.map_or(-1, |extent| extent as i64)).collect();
    if back.len() == 1 {
        back = vec![-1];
    }
    back.push(n);
    (back.iter().filter(|&&extent| extent < 0).count() <= 1).then_some(back)
}

/// ```text
/// mask (bool) ── Where(mask, 0, -100) ── Attention
/// ```
fn float_mask(view: &PlacedGraph<'_>, node: &Node) -> Option<Patch> {
    let element = view.input(node, 0)?.element?;
    let mut new = Replacement::of(node);
    let seen = new.constant("seen", element, &[], number_bytes(element.dtype()?, 0.0)?);
    let hidden = new.constant("hidden", element, &[], number_bytes(element.dtype()?, MASKED)?);
    let mask = new.op("Where", &[node.input(3)?, &seen, &hidden], &[]);
    let mut attention = node.clone();
    *attention.inputs.get_mut(3)? = mask;
    new.push(attention);
    new.patch("convert a boolean mask to numbers")
}

/// Returns a patch that swaps the factors of a product.
fn weight_second(node: &Node) -> Option<Patch> {
    let mut swapped = node.clone();
    swapped.inputs.reverse();
    let mut new = Replacement::of(node);
    new.push(swapped);
    new.patch("make a norm's weight the second operand")
}

/// ```text
/// indices ── Mod(extents) ── Mul(strides) ── ReduceSum(last axis) ──┐
/// x ── Reshape [-1] ─────────────────────────────────────────────── Gather
/// ```
///
/// The upper row is constant. `Mod` converts indices that count from the end.
fn pick(view: &PlacedGraph<'_>, node: &Node) -> Option<Patch> {
    let extents = operator_forms::picks_elements(view, node)?;
    // The stride of an axis is the product of the extents after it.
    let mut strides = Vec::with_capacity(extents.len());
    let mut stride = 1i64;
    for extent in extents.iter().rev() {
        strides.insert(0, stride);
        stride = stride.checked_mul(*extent)?;
    }
    let mut new = Replacement::of(node);
    let one_axis = new.shape("one_axis", &[-1]);
    let extents = new.shape("extents", &extents);
    let strides = new.shape("strides", &strides);
    let wrapped = new.op("Mod", &[node.input(1)?, &extents], &[]);
    let steps = new.op("Mul", &[&wrapped, &strides], &[]);
    let place = new.op("ReduceSum", &[&steps, &one_axis], &[("keepdims", Attribute::Int(0))]);
    let row = new.op("Reshape", &[node.input(0)?, &one_axis], &[]);
    new.op_to("Gather", &[&row, &place], &[("axis", Attribute::Int(0))], &[node.outputs.first()?]);
    new.patch("select elements with Gather instead of GatherND")
}

/// ```text
/// x ── Add(bias) ── Gelu
/// ```
fn gelu(node: &Node) -> Option<Patch> {
    let mut new = Replacement::of(node);
    let mut x = node.input(0)?.to_owned();
    if let Some(bias) = node.input(1) {
        x = new.op("Add", &[&x, bias], &[]);
    }
    let output = node.outputs.first()?;
    if node.op == "BiasGelu" {
        new.op_to(&format!("{MICROSOFT}/Gelu"), &[&x], &[], &[output]);
        return new.patch("replace BiasGelu with Add and Gelu");
    }
    new.op_to("Gelu", &[&x], &[("approximate", Attribute::String("tanh".to_owned()))], &[output]);
    new.patch("replace FastGelu with Gelu")
}
