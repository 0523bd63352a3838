//! Shapes and element types of operators that compute.

use narthex_spec::DType;

use super::{NodeContext, Shape, axis_of, one};
use crate::{context::CONTEXT_OP, element::Element, graph::MICROSOFT};

/// Returns the shapes of a node's outputs, or `None` for an unknown operator.
pub(super) fn shapes(at: &NodeContext<'_>) -> Option<Vec<Option<Shape>>> {
    match at.node.op.as_str() {
        "MatMul" | "MatMulInteger" | "FusedMatMul" => one(matmul(at, 1)),
        "QLinearMatMul" => one(matmul(at, 3)),
        "QLinearAdd" | "QLinearMul" => one(broadcast(&[at.shape(0), at.shape(3)])),
        "QLinearSoftmax" | "QLinearSigmoid" | "QLinearLeakyRelu" => one(at.shape(0).cloned()),
        // The quantised tensor, its scale and its zero point.
        "DynamicQuantizeLinear" => Some(vec![at.shape(0).cloned(), Some(Shape::new()), Some(Shape::new())]),
        "MatMulNBits" => one(matmul_nbits(at)),
        "MoE" | "QMoE" => one(at.shape(0).cloned()),
        "Gemm" => one(gemm(at)),
        "Conv" | "ConvInteger" | "FusedConv" => one(conv(at)),
        "MaxPool" | "AveragePool" | "LpPool" => Some(vec![pool(at); at.node.outputs.len()]),
        "GlobalAveragePool" | "GlobalMaxPool" => one(global_pool(at)),
        "ArgMax" | "ArgMin" => one(arg(at)),
        "TopK" => Some(vec![top_k(at); 2]),
        "OneHot" => one(one_hot(at)),
        "Attention" if at.node.domain.is_empty() => Some(attention(at)),
        "GroupQueryAttention" => Some(group_query(at)),
        "LinearAttention" => Some(linear_attention(at)),
        "MultiHeadAttention" => one(multi_head(at)),
        "SkipSimplifiedLayerNormalization" | "SkipLayerNormalization" => Some(skip_norm(at)),

        "GatherBlockQuantized" => one(None),
        op if op.starts_with("Reduce") => one(reduce(at)),
        op if lists(SAME, op) => one(at.shape(0).cloned()),
        op if lists(BROADCAST, op) => one(broadcast(
            &(0..at.inputs.len())
                .filter(|&index| at.has(index))
                .map(|index| at.shape(index))
                .collect::<Vec<_>>(),
        )),
        _ => None,
    }
}

/// Returns whether a space-separated list contains an operator.
fn lists(words: &str, op: &str) -> bool {
    words.split_ascii_whitespace().any(|word| word == op)
}

/// Operators whose first output has the shape of their first input.
const SAME: &str = "
    Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization Bernoulli BiasGelu BitwiseNot Cast CastLike Ceil
    Celu Clip Cos Cosh CumSum DequantizeLinear Dropout Elu Erf Exp FastGelu Floor Gelu GroupNormalization
    HardSigmoid HardSwish Hardmax Identity InstanceNormalization IsInf IsNaN LRN LayerNormalization
    LeakyRelu Log LogSoftmax LpNormalization MeanVarianceNormalization Mish Neg Not QuantizeLinear QuickGelu
    RMSNormalization RandomNormalLike RandomUniformLike Reciprocal Relu RotaryEmbedding Round Scatter
    ScatterElements ScatterND Selu Shrink Sigmoid Sign SimplifiedLayerNormalization Sin Sinh Softmax
    Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Trilu";

/// Operators that broadcast their inputs.
const BROADCAST: &str = "
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max
    Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor";

/// Returns the shape to which inputs broadcast. Extents that cannot be determined are `None`.
pub(super) fn broadcast(shapes: &[Option<&Shape>]) -> Option<Shape> {
    let shapes = shapes.iter().copied().collect::<Option<Vec<&Shape>>>()?;
    let rank = shapes.iter().map(|shape| shape.len()).max()?;
    let mut result: Shape = vec![Some(1); rank];
    for shape in shapes {
        for (mine, other) in result.iter_mut().rev().zip(shape.iter().rev()) {
            *mine = match (*mine, *other) {
                (Some(1), other) => other,
                (mine, Some(1)) => mine,
                (Some(a), Some(b)) => (a == b).then_some(a),
                (Some(a), None) | (None, Some(a)) => Some(a),
                (None, None) => None,
            };
        }
    }
    Some(result)
}

fn matmul(at: &NodeContext<'_>, second: usize) -> Option<Shape> {
    let mut a = at.shape(0)?.clone();
    let mut b = at.shape(second)?.clone();
    if at.node.int("transA") == Some(1) {
        transpose(&mut a);
    }
    if at.node.int("transB") == Some(1) {
        transpose(&mut b);
    }

    let row = a.len() == 1;
    let column = b.len() == 1;
    if row {
        a.insert(0, Some(1));
    }
    if column {
        b.push(Some(1));
    }
    let rows = *a.get(a.len().checked_sub(2)?)?;
    let columns = *b.last()?;
    let mut shape = broadcast(&[
        Some(&a.get(..a.len() - 2)?.to_vec()),
        Some(&b.get(..b.len().checked_sub(2)?)?.to_vec()),
    ])?;
    if !row {
        shape.push(rows);
    }
    if !column {
        shape.push(columns);
    }
    Some(shape)
}

fn matmul_nbits(at: &NodeContext<'_>) -> Option<Shape> {
    let mut shape = at.shape(0)?.clone();
    *shape.last_mut()? = u64::try_from(at.node.int("N")?).ok();
    Some(shape)
}

/// Swaps the last two axes.
fn transpose(shape: &mut Shape) {
    let rank = shape.len();
    if rank >= 2 {
        shape.swap(rank - 1, rank - 2);
    }
}

fn gemm(at: &NodeContext<'_>) -> Option<Shape> {
    let row_axis = usize::from(at.node.int("transA") == Some(1));
    let column_axis = usize::from(at.node.int("transB") != Some(1));
    let rows = *at.shape(0)?.get(row_axis)?;
    let columns = *at.shape(1)?.get(column_axis)?;
    Some(vec![rows, columns])
}

/// Returns the number of window positions along each spatial axis of a convolution or pooling.
fn windows(at: &NodeContext<'_>, space: &[Option<u64>], kernel: &[Option<u64>]) -> Shape {
    let number = |name: &str, axis: usize, absent: u64| {
        at.node.ints(name).and_then(|all| all.get(axis)).map_or(Some(absent), |&v| u64::try_from(v).ok())
    };
    let same = at.node.text("auto_pad").is_some_and(|pad| pad.starts_with("SAME"));
    let along = |axis: usize, extent: u64, kernel: u64| {
        let stride = number("strides", axis, 1)?;
        let dilation = number("dilations", axis, 1)?;
        if same {
            return (stride > 0).then(|| extent.div_ceil(stride));
        }
        let pads = number("pads", axis, 0)?.checked_add(number("pads", axis + space.len(), 0)?)?;
        let reach = dilation.checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
        let room = extent.checked_add(pads)?.checked_sub(reach)?;
        let up = at.node.int("ceil_mode") == Some(1);
        let steps = if up { room.checked_add(stride.checked_sub(1)?)? } else { room }.checked_div(stride)?;
        steps.checked_add(1)
    };
    let pairs = space.iter().zip(kernel).enumerate();
    pairs.map(|(axis, (extent, kernel))| along(axis, (*extent)?, (*kernel)?)).collect()
}

fn conv(at: &NodeContext<'_>) -> Option<Shape> {
    let data = at.shape(0)?;
    let weight = at.shape(1)?;
    let mut shape = vec![*data.first()?, *weight.first()?];
    shape.extend(windows(at, data.get(2..)?, weight.get(2..)?));
    (shape.len() == data.len()).then_some(shape)
}

fn pool(at: &NodeContext<'_>) -> Option<Shape> {
    let data = at.shape(0)?;
    let kernel: Shape = at.node.ints("kernel_shape")?.iter().map(|&e| u64::try_from(e).ok()).collect();
    let mut shape = data.get(..2)?.to_vec();
    shape.extend(windows(at, data.get(2..)?, &kernel));
    (shape.len() == data.len()).then_some(shape)
}

fn global_pool(at: &NodeContext<'_>) -> Option<Shape> {
    let data = at.shape(0)?;
    Some(data.iter().enumerate().map(|(axis, extent)| if axis < 2 { *extent } else { Some(1) }).collect())
}

fn reduce(at: &NodeContext<'_>) -> Option<Shape> {
    let shape = at.shape(0)?;
    let keep = at.node.int("keepdims").unwrap_or(1) == 1;
    let axes = at.listed("axes", 1);
    if axes.is_none() && at.has(1) {
        return None;
    }
    let all = axes.as_ref().is_none_or(Vec::is_empty);
    if all && at.node.int("noop_with_empty_axes") == Some(1) {
        return Some(shape.clone());
    }
    let gone = match axes {
        Some(axes) if !all => {
            axes.iter().map(|&axis| axis_of(axis, shape.len())).collect::<Option<Vec<_>>>()?
        }
        _ => (0..shape.len()).collect(),
    };
    Some(without(shape, &gone, keep))
}

fn without(shape: &Shape, gone: &[usize], keep: bool) -> Shape {
    let extents = shape.iter().enumerate();
    extents
        .filter_map(|(axis, extent)| match gone.contains(&axis) {
            true if keep => Some(Some(1)),
            true => None,
            false => Some(*extent),
        })
        .collect()
}

fn arg(at: &NodeContext<'_>) -> Option<Shape> {
    let shape = at.shape(0)?;
    let axis = axis_of(at.node.int("axis").unwrap_or(0), shape.len())?;
    Some(without(shape, &[axis], at.node.int("keepdims").unwrap_or(1) == 1))
}

fn top_k(at: &NodeContext<'_>) -> Option<Shape> {
    let mut shape = at.shape(0)?.clone();
    let axis = axis_of(at.node.int("axis").unwrap_or(-1), shape.len())?;
    let k = at.ints(1).and_then(|k| k.first().copied()).or_else(|| at.node.int("k"));
    *shape.get_mut(axis)? = k.and_then(|k| u64::try_from(k).ok());
    Some(shape)
}

fn one_hot(at: &NodeContext<'_>) -> Option<Shape> {
    let mut shape = at.shape(0)?.clone();
    let depth =
        at.ints(1).and_then(|depth| depth.first().copied()).and_then(|depth| u64::try_from(depth).ok());
    let axis = axis_of(at.node.int("axis").unwrap_or(-1), shape.len() + 1)?;
    shape.insert(axis, depth);
    Some(shape)
}

/// Returns the output shapes of ONNX's `Attention`: Q, K, V have rank 4, or rank 3 with the heads folded into the last
/// extent.
fn attention(at: &NodeContext<'_>) -> Vec<Option<Shape>> {
    vec![attention_output(at)]
}

fn attention_output(at: &NodeContext<'_>) -> Option<Shape> {
    let q = at.shape(0)?;
    let v = at.shape(2)?;
    let mut shape = q.clone();
    *shape.last_mut()? = match q.len() {
        4 => *v.last()?,
        _ => {
            let size = (*v.last()?)?.checked_div(heads(at, "kv_num_heads")?)?;
            size.checked_mul(heads(at, "q_num_heads")?)
        }
    };
    Some(shape)
}

/// Returns a number of heads in an attribute.
fn heads(at: &NodeContext<'_>, name: &str) -> Option<u64> {
    u64::try_from(at.node.int(name)?).ok()
}

fn group_query(at: &NodeContext<'_>) -> Vec<Option<Shape>> {
    let mut out = at.shape(0).cloned();
    if !at.has(1) {
        // Q, K and V are packed into one input.
        let last = out.as_mut().and_then(|shape| shape.last_mut());
        if let (Some(last), Some(q), Some(kv)) = (last, heads(at, "num_heads"), heads(at, "kv_num_heads")) {
            *last = last.and_then(|all| all.checked_mul(q)?.checked_div(q.checked_add(kv.checked_mul(2)?)?));
        }
    }
    vec![out, at.shape(3).cloned(), at.shape(4).cloned()]
}

fn linear_attention(at: &NodeContext<'_>) -> Vec<Option<Shape>> {
    let width = || {
        let values = (*at.shape(2)?.last()?)?;
        values.checked_mul(heads(at, "q_num_heads")?)?.checked_div(heads(at, "kv_num_heads")?)
    };
    let mut out = at.shape(0).cloned();
    if let Some(last) = out.as_mut().and_then(|shape| shape.last_mut()) {
        *last = width();
    }
    vec![out, at.shape(3).cloned()]
}

fn multi_head(at: &NodeContext<'_>) -> Option<Shape> {
    let mut shape = at.shape(0)?.clone();
    if let Some(value) = at.shape(2).filter(|value| value.len() == 3 && shape.len() == 3) {
        *shape.last_mut()? = *value.last()?;
    }
    (shape.len() == 3).then_some(shape)
}

fn skip_norm(at: &NodeContext<'_>) -> Vec<Option<Shape>> {
    vec![at.shape(0).cloned(), None, None, at.shape(0).cloned()]
}

/// Returns the element type of one output of a node, if the operator determines it.
pub(super) fn element(at: &NodeContext<'_>, output: usize) -> Option<Element> {
    match (at.node.op.as_str(), output) {
        ("Shape" | "Size" | "NonZero" | "ArgMax" | "ArgMin", _) | ("TopK", 1) => known(DType::I64),
        ("RandomNormal" | "RandomUniform", _) => stated(at).or(known(DType::F32)),
        ("RandomNormalLike" | "RandomUniformLike" | "Bernoulli", _) => stated(at).or(at.element(0)),
        ("Multinomial", _) => stated(at).or(known(DType::I32)),
        ("Cast", _) => at.node.int("to").and_then(|to| i32::try_from(to).ok()).map(Element::from_code),
        ("CastLike", _) => at.element(1),
        ("Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "IsNaN" | "IsInf", _) => {
            known(DType::Bool)
        }
        ("Where" | "DequantizeLinear", _) => at.element(1),
        ("OneHot", _) => at.element(2),
        ("QuantizeLinear", _) => at.element(2).or_else(|| match at.node.int("output_dtype") {
            Some(code) if code != 0 => i32::try_from(code).ok().map(Element::from_code),
            _ => known(DType::U8),
        }),

        ("MatMulInteger" | "ConvInteger", _) => known(DType::I32),
        ("QLinearMatMul" | "QLinearConv", _) => at.element(7),
        ("DynamicQuantizeLinear", 0 | 2) => known(DType::U8),
        ("DynamicQuantizeLinear", _) => known(DType::F32),
        ("ConstantOfShape", _) => match at.node.attribute("value") {
            Some(crate::graph::Attribute::Tensor(tensor)) => Some(tensor.dtype),
            _ => known(DType::F32),
        },
        ("GatherBlockQuantized", _) => at.element(2),
        ("If" | "Loop" | "Scan" | CONTEXT_OP, _) => None,
        _ if at.node.domain.is_empty() || at.node.domain == MICROSOFT => at.element(0),
        _ => None,
    }
}

/// Returns the element type in the attribute `dtype`.
fn stated(at: &NodeContext<'_>) -> Option<Element> {
    at.node.int("dtype").and_then(|code| i32::try_from(code).ok()).map(Element::from_code)
}

fn known(dtype: DType) -> Option<Element> {
    Some(Element::from(dtype))
}
