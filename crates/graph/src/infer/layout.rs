//! Shapes of operators that only move data.

use super::{NodeContext, Shape, axis_of, one};

/// Returns the shapes of a node's outputs, or `None` for other operators.
pub(super) fn shapes(at: &NodeContext<'_>) -> Option<Vec<Option<Shape>>> {
    if !at.node.domain.is_empty() {
        return None;
    }

    match at.node.op.as_str() {
        "Reshape" => one(reshape(at)),
        "Flatten" => one(flatten(at)),
        "Transpose" => one(transpose(at)),
        "Squeeze" => one(squeeze(at)),
        "Unsqueeze" => one(unsqueeze(at)),
        "Concat" => one(concat(at)),
        "Slice" => one(slice(at)),
        "Split" => Some(split(at)),
        "Expand" => one(expand(at)),
        "Tile" => one(tile(at)),
        "Pad" => one(pad(at)),
        "Gather" => one(gather(at)),
        "GatherElements" => one(at.shape(1).cloned()),
        "GatherND" => one(gather_nd(at)),
        "Shape" => one(shape_of(at)),
        "Size" => one(Some(Vec::new())),
        "ConstantOfShape" => one(at.ints(0).map(extents)),
        "Range" => one(Some(vec![range_length(at)])),
        _ => None,
    }
}

fn extents(values: &[i64]) -> Shape {
    values.iter().map(|&extent| u64::try_from(extent).ok()).collect()
}

fn product(extents: &[Option<u64>]) -> Option<u64> {
    extents.iter().try_fold(1u64, |count, extent| count.checked_mul((*extent)?))
}

fn reshape(at: &NodeContext<'_>) -> Option<Shape> {
    let input = at.shape(0);
    let Some(wanted) = at.ints(1) else {
        // The length of the shape is the rank.
        let rank = (*at.shape(1)?.first()?)?;
        return (rank <= 64).then(|| vec![None; rank as usize]);
    };
    let keeps_zero = at.node.int("allowzero").unwrap_or(0) == 0;
    let mut shape: Shape = Vec::with_capacity(wanted.len());
    for (axis, &extent) in wanted.iter().enumerate() {
        shape.push(match extent {
            0 if keeps_zero => input.and_then(|shape| *shape.get(axis)?),
            _ => u64::try_from(extent).ok(),
        });
    }
    if let Some(free) = wanted.iter().position(|&extent| extent == -1) {
        let rest: Shape =
            shape.iter().enumerate().filter(|(axis, _)| *axis != free).map(|(_, e)| *e).collect();
        let total = input.and_then(|shape| product(shape));
        if let (Some(total), Some(rest), Some(slot)) = (total, product(&rest), shape.get_mut(free)) {
            *slot = total.checked_div(rest);
        }
    }
    Some(shape)
}

fn flatten(at: &NodeContext<'_>) -> Option<Shape> {
    let shape = at.shape(0)?;
    let axis = at.node.int("axis").unwrap_or(1);
    let axis = if axis == shape.len() as i64 { shape.len() } else { axis_of(axis, shape.len())? };
    let (front, back) = shape.split_at(axis);
    Some(vec![product(front), product(back)])
}

fn transpose(at: &NodeContext<'_>) -> Option<Shape> {
    let shape = at.shape(0)?;
    match at.node.ints("perm") {
        Some(perm) => perm.iter().map(|&axis| shape.get(usize::try_from(axis).ok()?).copied()).collect(),
        None => Some(shape.iter().rev().copied().collect()),
    }
}

fn squeeze(at: &NodeContext<'_>) -> Option<Shape> {
    let shape = at.shape(0)?;
    let has_axes = at.node.ints("axes").is_some() || at.has(1);
    let gone: Vec<usize> = match at.listed("axes", 1) {
        Some(axes) => axes.iter().map(|&axis| axis_of(axis, shape.len())).collect::<Option<_>>()?,
        None if has_axes => return None,
        None => {
            product(shape)?;
            (0..shape.len()).filter(|&axis| shape.get(axis) == Some(&Some(1))).collect()
        }
    };
    Some(
        shape
            .iter()
            .enumerate()
            .filter(|(axis, _)| !gone.contains(axis))
            .map(|(_, extent)| *extent)
            .collect(),
    )
}

fn unsqueeze(at: &NodeContext<'_>) -> Option<Shape> {
    let shape = at.shape(0)?;
    let axes = at.listed("axes", 1)?;
    let rank = shape.len() + axes.len();
    let new: Vec<usize> = axes.iter().map(|&axis| axis_of(axis, rank)).collect::<Option<_>>()?;
    let mut old = shape.iter();
    (0..rank).map(|axis| if new.contains(&axis) { Some(Some(1)) } else { old.next().copied() }).collect()
}

fn concat(at: &NodeContext<'_>) -> Option<Shape> {
    let mut shape = at.shape(0)?.clone();
    let axis = axis_of(at.node.int("axis").unwrap_or(0), shape.len())?;
    for index in 1..at.inputs.len() {
        let next = at.shape(index)?;
        if next.len() != shape.len() {
            return None;
        }
        for (place, (mine, other)) in shape.iter_mut().zip(next).enumerate() {
            *mine = if place == axis {
                mine.zip(*other).and_then(|(a, b)| a.checked_add(b))
            } else {
                mine.or(*other)
            };
        }
    }
    Some(shape)
}

/// Returns the number of elements that a slice selects from an extent.
pub(super) fn slice_length(extent: u64, start: i64, end: i64, step: i64) -> Option<u64> {
    let extent = i64::try_from(extent).ok()?;
    let start = wrapped(start, extent);
    let end = wrapped(end, extent);
    let length = match step {
        1.. => {
            let start = start.clamp(0, extent);
            let end = end.clamp(0, extent);
            (end - start).max(0).checked_add(step - 1)? / step
        }
        0 => return None,
        _ => {
            let start = start.clamp(-1, extent - 1);
            let end = end.clamp(-1, extent - 1);
            let step = step.checked_neg()?;
            (start - end).max(0).checked_add(step - 1)? / step
        }
    };
    u64::try_from(length).ok()
}

fn slice(at: &NodeContext<'_>) -> Option<Shape> {
    let mut shape = at.shape(0)?.clone();
    let starts = at.listed("starts", 1);
    let ends = at.listed("ends", 2);
    let count = starts.as_ref().map(Vec::len).or_else(|| at.shape(1)?.first().copied()?.map(|n| n as usize));
    let axes = match at.listed("axes", 3) {
        Some(axes) => axes,
        None if at.has(3) => return Some(vec![None; shape.len()]),
        None => (0..count? as i64).collect(),
    };
    let steps = at.ints(4).map_or_else(|| vec![1; axes.len()], <[i64]>::to_vec);
    for (index, &axis) in axes.iter().enumerate() {
        let place = axis_of(axis, shape.len())?;
        let bounds =
            starts.as_ref().zip(ends.as_ref()).and_then(|(s, e)| Some((*s.get(index)?, *e.get(index)?)));
        let extent = shape.get_mut(place)?;
        *extent = match (*extent, bounds) {
            (Some(extent), Some((start, end))) => slice_length(extent, start, end, *steps.get(index)?),
            _ => None,
        };
    }
    Some(shape)
}

fn split(at: &NodeContext<'_>) -> Vec<Option<Shape>> {
    let parts = at.node.outputs.len();
    let Some(shape) = at.shape(0) else { return vec![None; parts] };
    let Some(axis) = axis_of(at.node.int("axis").unwrap_or(0), shape.len()) else { return vec![None; parts] };
    let Some(&extent) = shape.get(axis) else { return vec![None; parts] };
    let sizes = at.listed("split", 1);
    let given = sizes.is_some() || at.has(1);
    (0..parts)
        .map(|part| {
            let mut shape = shape.clone();
            *shape.get_mut(axis)? = match (&sizes, extent) {
                (Some(sizes), _) => sizes.get(part).and_then(|&size| u64::try_from(size).ok()),
                (None, Some(extent)) if !given => {
                    let chunk = extent.div_ceil(parts as u64);
                    Some(extent.saturating_sub(chunk * part as u64).min(chunk))
                }
                _ => None,
            };
            Some(shape)
        })
        .collect()
}

fn expand(at: &NodeContext<'_>) -> Option<Shape> {
    let wanted = at.ints(1)?;
    super::compute::broadcast(&[Some(at.shape(0)?), Some(&extents(wanted))])
}

fn tile(at: &NodeContext<'_>) -> Option<Shape> {
    let shape = at.shape(0)?;
    let repeats = at.ints(1)?;
    (repeats.len() == shape.len()).then(|| {
        shape
            .iter()
            .zip(repeats)
            .map(|(extent, &by)| (*extent)?.checked_mul(u64::try_from(by).ok()?))
            .collect()
    })
}

fn pad(at: &NodeContext<'_>) -> Option<Shape> {
    let mut shape = at.shape(0)?.clone();
    let pads = at.listed("pads", 1)?;
    let axes = match at.ints(3) {
        Some(axes) => axes.iter().map(|&axis| axis_of(axis, shape.len())).collect::<Option<Vec<_>>>()?,
        None if at.has(3) => return None,
        None => (0..shape.len()).collect(),
    };
    for (index, axis) in axes.iter().enumerate() {
        let before = *pads.get(index)?;
        let after = *pads.get(index + axes.len())?;
        let extent = shape.get_mut(*axis)?;
        *extent = extent.and_then(|e| e.checked_add_signed(before)?.checked_add_signed(after));
    }
    Some(shape)
}

fn gather(at: &NodeContext<'_>) -> Option<Shape> {
    let data = at.shape(0)?;
    let indices = at.shape(1)?;
    let axis = axis_of(at.node.int("axis").unwrap_or(0), data.len())?;
    let (front, back) = data.split_at(axis);
    Some(front.iter().chain(indices).chain(back.get(1..)?).copied().collect())
}

fn gather_nd(at: &NodeContext<'_>) -> Option<Shape> {
    let data = at.shape(0)?;
    let indices = at.shape(1)?;
    let batch = usize::try_from(at.node.int("batch_dims").unwrap_or(0)).ok()?;
    let (last, front) = indices.split_last()?;
    let depth = usize::try_from((*last)?).ok()?;
    let rest = data.get(batch.checked_add(depth)?..)?;
    Some(front.iter().chain(rest).copied().collect())
}

/// Returns the axes that `Shape` outputs.
pub(super) fn shape_range(at: &NodeContext<'_>) -> Option<std::ops::Range<usize>> {
    let rank = at.shape(0)?.len();
    let bound = rank as i64;
    let start = wrapped(at.node.int("start").unwrap_or(0), bound).clamp(0, bound) as usize;
    let end = wrapped(at.node.int("end").unwrap_or(i64::MAX), bound).clamp(0, bound) as usize;
    Some(start..end.max(start))
}

fn shape_of(at: &NodeContext<'_>) -> Option<Shape> {
    Some(vec![Some(shape_range(at)?.len() as u64)])
}

pub(super) fn range_length(at: &NodeContext<'_>) -> Option<u64> {
    let start = *at.ints(0)?.first()?;
    let limit = *at.ints(1)?.first()?;
    let step = *at.ints(2)?.first()?;
    let span = if step < 0 { start.checked_sub(limit)? } else { limit.checked_sub(start)? }.max(0) as u64;
    (step != 0).then(|| span.div_ceil(step.unsigned_abs()))
}

/// Returns a position counted from the front; a negative one is counted from the end.
fn wrapped(position: i64, extent: i64) -> i64 {
    if position < 0 { position.saturating_add(extent) } else { position }
}
