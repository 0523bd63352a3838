//! Evaluation of the small-integer arithmetic that exporters write to compute shapes.

use super::{
    MAX_INTS, NodeContext, Shape, axis_of,
    layout::{range_length, shape_range},
};

/// Returns the elements of a node's outputs if the operator is shape arithmetic and its inputs are known.
pub(super) fn ints(at: &NodeContext<'_>, shape: Option<&Shape>) -> Option<Vec<Vec<i64>>> {
    match at.node.op.as_str() {
        "Shape" => one(shape_values(at)),
        "Size" => one(Some(vec![count(at.shape(0)?)?])),
        "Identity" | "Cast" | "Squeeze" | "Unsqueeze" | "Reshape" | "Flatten" => {
            let integral = at.node.op != "Cast" || matches!(at.node.int("to"), Some(6 | 7 | 9));
            one(at.ints(0).filter(|_| integral).map(<[i64]>::to_vec))
        }
        "Concat" if at.shape(0)?.len() == 1 => {
            let parts = (0..at.inputs.len()).map(|index| at.ints(index)).collect::<Option<Vec<_>>>()?;
            one(Some(parts.concat()))
        }
        "Gather" if at.shape(0)?.len() == 1 => one(gather(at.ints(0)?, at.ints(1)?)),
        "Slice" if at.shape(0)?.len() == 1 => one(slice(at)),
        "Split" if at.shape(0)?.len() == 1 => split(at),
        "ConstantOfShape" => one(filled(at, shape?)),
        "Range" => one(range(at)),
        "Expand" => one(expand(at.ints(0)?, shape?)),

        "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Min" | "Max" | "Equal" | "Less" | "Greater" | "And"
        | "Or" => one(binary(at)),
        "Neg" => one(at.ints(0)?.iter().map(|value| value.checked_neg()).collect()),
        "Abs" => one(at.ints(0)?.iter().map(|value| value.checked_abs()).collect()),
        "Not" => one(Some(at.ints(0)?.iter().map(|&value| i64::from(value == 0)).collect())),
        "Where" => one(choose(at)),
        "ReduceProd" => one(Some(vec![at.ints(0)?.iter().try_fold(1i64, |a, b| a.checked_mul(*b))?])),
        "ReduceSum" if at.shape(0)?.len() <= 1 => {
            one(Some(vec![at.ints(0)?.iter().try_fold(0i64, |a, b| a.checked_add(*b))?]))
        }
        _ => None,
    }
}

fn count(shape: &Shape) -> Option<i64> {
    let count = shape.iter().try_fold(1u64, |count, extent| count.checked_mul((*extent)?))?;
    i64::try_from(count).ok()
}

fn shape_values(at: &NodeContext<'_>) -> Option<Vec<i64>> {
    let shape = at.shape(0)?.get(shape_range(at)?)?;
    shape.iter().map(|extent| i64::try_from((*extent)?).ok()).collect()
}

fn gather(data: &[i64], indices: &[i64]) -> Option<Vec<i64>> {
    indices.iter().map(|&index| data.get(axis_of(index, data.len())?).copied()).collect()
}

fn slice(at: &NodeContext<'_>) -> Option<Vec<i64>> {
    let data = at.ints(0)?;
    let start = *at.listed("starts", 1)?.first()?;
    let end = *at.listed("ends", 2)?.first()?;
    let step = if at.has(4) { *at.ints(4)?.first()? } else { 1 };
    let range = from_front(start, data.len())..from_front(end, data.len());
    (step == 1).then(|| data.get(range).unwrap_or_default().to_vec())
}

fn split(at: &NodeContext<'_>) -> Option<Vec<Vec<i64>>> {
    let mut rest = at.ints(0)?;
    let parts = at.node.outputs.len();
    let even = rest.len().div_ceil(parts.max(1));
    let sizes = at.listed("split", 1);
    (0..parts)
        .map(|part| {
            let size = match &sizes {
                Some(sizes) => usize::try_from(*sizes.get(part)?).ok()?,
                None => even.min(rest.len()),
            };
            let (front, back) = rest.split_at_checked(size)?;
            rest = back;
            Some(front.to_vec())
        })
        .collect()
}

fn filled(at: &NodeContext<'_>, shape: &Shape) -> Option<Vec<i64>> {
    let value = match at.node.attribute("value") {
        Some(crate::graph::Attribute::Tensor(tensor)) => *tensor.ints()?.first()?,
        _ => return None,
    };
    let count = usize::try_from(count(shape)?).ok()?;
    (count <= MAX_INTS).then(|| vec![value; count])
}

fn range(at: &NodeContext<'_>) -> Option<Vec<i64>> {
    let length = range_length(at)?;
    let start = *at.ints(0)?.first()?;
    let step = *at.ints(2)?.first()?;
    if length > MAX_INTS as u64 {
        return None;
    }
    (0..length as i64).map(|index| start.checked_add(index.checked_mul(step)?)).collect()
}

fn expand(values: &[i64], shape: &Shape) -> Option<Vec<i64>> {
    let count = usize::try_from(count(shape)?).ok()?;
    match values {
        [value] if count <= MAX_INTS => Some(vec![*value; count]),
        values if values.len() == count => Some(values.to_vec()),
        _ => None,
    }
}

/// Pairs the elements of two lists of equal length; a single number is paired with every element of the other list.
fn paired(a: &[i64], b: &[i64]) -> Option<Vec<(i64, i64)>> {
    match (a, b) {
        (a, b) if a.len() == b.len() => Some(a.iter().copied().zip(b.iter().copied()).collect()),
        (a, [b]) => Some(a.iter().map(|&a| (a, *b)).collect()),
        ([a], b) => Some(b.iter().map(|&b| (*a, b)).collect()),
        _ => None,
    }
}

fn binary(at: &NodeContext<'_>) -> Option<Vec<i64>> {
    paired(at.ints(0)?, at.ints(1)?)?
        .into_iter()
        .map(|(a, b)| match at.node.op.as_str() {
            "Add" => a.checked_add(b),
            "Sub" => a.checked_sub(b),
            "Mul" => a.checked_mul(b),
            "Div" => a.checked_div(b),
            "Mod" => a.checked_rem_euclid(b),
            "Min" => Some(a.min(b)),
            "Max" => Some(a.max(b)),
            "Equal" => Some(i64::from(a == b)),
            "Less" => Some(i64::from(a < b)),
            "Greater" => Some(i64::from(a > b)),
            "And" => Some(a & b),
            _ => Some(a | b),
        })
        .collect()
}

fn choose(at: &NodeContext<'_>) -> Option<Vec<i64>> {
    let branches = paired(at.ints(1)?, at.ints(2)?)?;
    let conditions = at.ints(0)?;
    if conditions.len() != 1 && conditions.len() != branches.len() {
        return None;
    }
    let conditions = conditions.iter().cycle();
    Some(
        branches.into_iter().zip(conditions).map(|((yes, no), &is)| if is != 0 { yes } else { no }).collect(),
    )
}

/// Returns the values of the only output, unless they are too many.
fn one(values: Option<Vec<i64>>) -> Option<Vec<Vec<i64>>> {
    values.filter(|values| values.len() <= MAX_INTS).map(|values| vec![values])
}

/// Returns a position that may be counted from the end, within `0..=length`.
fn from_front(position: i64, length: usize) -> usize {
    let length = length as i64;
    if position < 0 { position.saturating_add(length) } else { position }.clamp(0, length) as usize
}
