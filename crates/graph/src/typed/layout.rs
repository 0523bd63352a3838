//! ONNX operators that move elements without computing.

use narthex_spec::{DType, dtype::Dim};

use super::{
    CheckedNode, Result, Scope, Tensor, TensorType, TypedBuilder, mismatch,
    shape::{add, axis_of, reshape, sum},
};
use crate::graph::Attribute;

impl TypedBuilder {
    /// Adds a reshape. An extent of 0 keeps the dimension; an extent of -1 takes the remaining elements.
    pub fn reshape(&mut self, scope: &Scope, x: Tensor, extents: &[i64]) -> Result<Tensor> {
        let [kind] = self.types(scope, "Reshape", [x])?;
        let Some(shape) = reshape(&kind.shape, extents) else {
            return Err(mismatch(scope, "Reshape", format!("as many elements as {extents:?}"), &[&kind]));
        };
        let extents = self.ints(&[extents.len()], extents);
        Ok(self.onnx(scope, "Reshape", &[x, extents], &[], TensorType { dtype: kind.dtype, shape }))
    }

    /// Adds a transpose to this order of axes.
    pub fn transpose(&mut self, scope: &Scope, x: Tensor, order: &[usize]) -> Result<Tensor> {
        let [kind] = self.types(scope, "Transpose", [x])?;
        let is_order = order.len() == kind.shape.len() && (0..order.len()).all(|axis| order.contains(&axis));
        if !is_order {
            return Err(mismatch(scope, "Transpose", format!("the axes {order:?}"), &[&kind]));
        }
        let shape = order.iter().map(|&axis| kind.shape[axis].clone()).collect();
        let order = order.iter().map(|&axis| axis as i64).collect();
        let attributes = [("perm", Attribute::Ints(order))];
        Ok(self.onnx(scope, "Transpose", &[x], &attributes, TensorType { dtype: kind.dtype, shape }))
    }

    /// Adds a reshape that divides the last axis into blocks: `[.., n]` → `[.., n / block, block]`.
    pub fn blocks(&mut self, scope: &Scope, x: Tensor, block: usize) -> Result<Tensor> {
        let [kind] = self.types(scope, "Reshape", [x])?;
        let blocks = match kind.last() {
            Some(&Dim::Fixed(extent)) if block > 0 && extent.is_multiple_of(block as u64) => {
                extent / block as u64
            }
            _ => return Err(mismatch(scope, "Reshape", format!("blocks of {block}"), &[&kind])),
        };
        let mut extents = vec![0; kind.shape.len() - 1];
        extents.extend([blocks as i64, block as i64]);
        self.reshape(scope, x, &extents)
    }

    /// Adds a concatenation along the last axis.
    pub fn concat_last(&mut self, scope: &Scope, parts: &[Tensor]) -> Result<Tensor> {
        let rank = parts.first().and_then(|&part| self.get(part)).map_or(0, |kind| kind.shape.len());
        self.concatenation(scope, parts, rank.saturating_sub(1), -1)
    }

    /// Adds a concatenation along an axis.
    pub fn concat(&mut self, scope: &Scope, parts: &[Tensor], axis: usize) -> Result<Tensor> {
        self.concatenation(scope, parts, axis, axis as i64)
    }

    /// Adds a concatenation along an axis that the node calls `name`.
    fn concatenation(&mut self, scope: &Scope, parts: &[Tensor], axis: usize, name: i64) -> Result<Tensor> {
        let expected = format!("tensors that differ in axis {axis} alone");
        let [first, rest @ ..] = parts else { return Err(mismatch(scope, "Concat", expected, &[])) };
        let [mut whole] = self.types(scope, "Concat", [*first])?;
        for part in rest {
            let [kind] = self.types(scope, "Concat", [*part])?;
            let joined = whole.shape.get(axis).zip(kind.shape.get(axis)).and_then(|(a, b)| sum(a, b));
            let alike = kind.dtype == whole.dtype
                && kind.shape.len() == whole.shape.len()
                && kind.shape.iter().zip(&whole.shape).enumerate().all(|(at, (a, b))| at == axis || a == b);
            let Some(joined) = joined.filter(|_| alike) else {
                return Err(mismatch(scope, "Concat", expected, &[&whole, &kind]));
            };
            whole.shape[axis] = joined;
        }
        Ok(self.onnx(scope, "Concat", parts, &[("axis", Attribute::Int(name))], whole))
    }

    /// Adds a split along an axis into parts of these sizes. For a single part, no node is added and the tensor itself
    /// is returned.
    pub fn split(&mut self, scope: &Scope, x: Tensor, axis: i64, sizes: &[usize]) -> Result<Vec<Tensor>> {
        let [kind] = self.types(scope, "Split", [x])?;
        let all = Dim::from(sizes.iter().sum::<usize>());
        let place = axis_of(axis, kind.shape.len()).filter(|&place| kind.shape[place] == all);
        let Some(place) = place else {
            return Err(mismatch(scope, "Split", format!("{all} elements along axis {axis}"), &[&kind]));
        };
        if sizes.len() == 1 {
            return Ok(vec![x]);
        }

        let outputs: Vec<String> =
            (0..sizes.len()).map(|part| scope.node(&format!("Split/out.{part}"))).collect();
        let lengths: Vec<i64> = sizes.iter().map(|&size| size as i64).collect();
        let lengths = self.ints(&[sizes.len()], &lengths);
        let node = CheckedNode {
            scope,
            op: "Split",
            domain: "",
            inputs: &[Some(x), Some(lengths)],
            attributes: &[("axis", Attribute::Int(axis))],
        };

        self.write(&node, &outputs.iter().map(String::as_str).collect::<Vec<_>>());
        Ok(outputs
            .into_iter()
            .zip(sizes)
            .map(|(name, &size)| {
                let mut part = kind.clone();
                part.shape[place] = Dim::from(size);
                self.value(name, part)
            })
            .collect())
    }

    /// Adds a [`split`](Self::split) into a fixed number of parts.
    pub fn split_into<const PARTS: usize>(
        &mut self,
        scope: &Scope,
        x: Tensor,
        axis: i64,
        sizes: [usize; PARTS],
    ) -> Result<[Tensor; PARTS]> {
        let parts = self.split(scope, x, axis, &sizes)?;
        Ok(std::array::from_fn(|part| parts.get(part).copied().unwrap_or(x)))
    }

    /// Adds a slice of an axis from `start` to `end`, exclusive.
    pub fn slice(
        &mut self,
        scope: &Scope,
        x: Tensor,
        axis: usize,
        start: usize,
        end: usize,
    ) -> Result<Tensor> {
        let [mut kind] = self.types(scope, "Slice", [x])?;
        match kind.shape.get_mut(axis) {
            Some(Dim::Fixed(extent)) if start <= end && end as u64 <= *extent => {
                *extent = (end - start) as u64;
            }
            _ => {
                let expected = format!("at least {end} elements along axis {axis}");
                return Err(mismatch(scope, "Slice", expected, &[&kind]));
            }
        }
        let [start, end, axis] = [start, end, axis].map(|value| self.ints(&[1], &[value as i64]));
        Ok(self.onnx(scope, "Slice", &[x, start, end, axis], &[], kind))
    }

    /// Adds a slice of an axis from `start` to its end.
    pub fn slice_from(&mut self, scope: &Scope, x: Tensor, axis: usize, start: usize) -> Result<Tensor> {
        let [mut kind] = self.types(scope, "Slice", [x])?;
        let shorter = kind.shape.get(axis).and_then(|dim| add(dim, -(start as i64)));
        let Some(shorter) = shorter else {
            return Err(mismatch(scope, "Slice", format!("{start} elements along axis {axis}"), &[&kind]));
        };
        kind.shape[axis] = shorter;
        let start = self.ints(&[1], &[start as i64]);
        let [end, axis] = [i64::MAX, axis as i64].map(|value| self.ints(&[1], &[value]));
        Ok(self.onnx(scope, "Slice", &[x, start, end, axis], &[], kind))
    }

    /// Adds a slice of an axis from its start to `count` elements before its end.
    pub fn slice_but_last(&mut self, scope: &Scope, x: Tensor, axis: usize, count: usize) -> Result<Tensor> {
        let [mut kind] = self.types(scope, "Slice", [x])?;
        let shorter = kind.shape.get(axis).and_then(|dim| add(dim, -(count as i64)));
        let Some(shorter) = shorter.filter(|_| count > 0) else {
            return Err(mismatch(scope, "Slice", format!("{count} elements along axis {axis}"), &[&kind]));
        };
        kind.shape[axis] = shorter;
        let [start, end, axis] = [0, -(count as i64), axis as i64].map(|value| self.ints(&[1], &[value]));
        Ok(self.onnx(scope, "Slice", &[x, start, end, axis], &[], kind))
    }

    /// Adds a gather along an axis. The indices may have any shape.
    pub fn gather(&mut self, scope: &Scope, x: Tensor, indices: Tensor, axis: usize) -> Result<Tensor> {
        let [kind, at] = self.types(scope, "Gather", [x, indices])?;
        if axis >= kind.shape.len() || !matches!(at.dtype, DType::I64 | DType::I32) {
            let expected = format!("elements along axis {axis} and integers");
            return Err(mismatch(scope, "Gather", expected, &[&kind, &at]));
        }
        let mut shape = kind.shape;
        shape.splice(axis..=axis, at.shape);
        let kind = TensorType { dtype: kind.dtype, shape };
        let attribute = ("axis", Attribute::Int(axis as i64));
        let attributes = if axis == 0 { &[][..] } else { std::slice::from_ref(&attribute) };
        Ok(self.onnx(scope, "Gather", &[x, indices], attributes, kind))
    }

    /// Adds a selection of rows of each member of a batch: `[batch, rows, ..]` and indices i64 `[batch, count, 1]` →
    /// `[batch, count, ..]`.
    pub fn gather_rows(&mut self, scope: &Scope, x: Tensor, indices: Tensor) -> Result<Tensor> {
        const OP: &str = "GatherND";
        let [kind, at] = self.types(scope, OP, [x, indices])?;
        let (Some([batch, _]), [other, count, Dim::Fixed(1)], DType::I64) =
            (kind.shape.first_chunk(), &at.shape[..], at.dtype)
        else {
            let expected = "rows [batch, rows, ..] and indices i64 [batch, count, 1]";
            return Err(mismatch(scope, OP, expected, &[&kind, &at]));
        };
        if batch != other {
            return Err(mismatch(scope, OP, "rows and indices of one batch", &[&kind, &at]));
        }
        let mut shape = kind.shape.clone();
        shape[1] = count.clone();
        let kind = TensorType { dtype: kind.dtype, shape };
        Ok(self.onnx(scope, OP, &[x, indices], &[("batch_dims", Attribute::Int(1))], kind))
    }

    /// Adds new axes of extent 1 at these positions, counted in the result.
    pub fn unsqueeze(&mut self, scope: &Scope, x: Tensor, axes: &[usize]) -> Result<Tensor> {
        let [mut kind] = self.types(scope, "Unsqueeze", [x])?;
        for &axis in axes {
            if axis > kind.shape.len() {
                return Err(mismatch(scope, "Unsqueeze", format!("at least {axis} axes"), &[&kind]));
            }
            kind.shape.insert(axis, Dim::Fixed(1));
        }
        let places: Vec<i64> = axes.iter().map(|&axis| axis as i64).collect();
        let axes = self.ints(&[axes.len()], &places);
        Ok(self.onnx(scope, "Unsqueeze", &[x, axes], &[], kind))
    }

    /// Pads the end of an axis with zeros.
    pub fn pad_end(&mut self, scope: &Scope, x: Tensor, axis: usize, zeros: usize) -> Result<Tensor> {
        self.pad(scope, x, axis, [0, zeros])
    }

    /// Pads the start and the end of an axis with zeros.
    pub fn pad(&mut self, scope: &Scope, x: Tensor, axis: usize, zeros: [usize; 2]) -> Result<Tensor> {
        let [mut kind] = self.types(scope, "Pad", [x])?;
        let [before, after] = zeros.map(|zeros| zeros as i64);
        let longer = kind.shape.get(axis).and_then(|dim| add(dim, before + after));
        let Some(longer) = longer else {
            return Err(mismatch(scope, "Pad", format!("an axis {axis}"), &[&kind]));
        };
        kind.shape[axis] = longer;
        let rank = kind.shape.len();
        let mut pads = vec![0; 2 * rank];
        pads[axis] = before;
        pads[rank + axis] = after;
        let pads = self.ints(&[2 * rank], &pads);
        Ok(self.onnx(scope, "Pad", &[x, pads], &[], kind))
    }
}
