//! ONNX operators that compute.

use narthex_spec::{DType, dtype::Dim};

use super::{
    CheckedNode, Result, Scope, Tensor, TensorType, TypedBuilder, mismatch,
    shape::{axis_of, broadcast, divided},
};
use crate::{element::Element, graph::Attribute};

/// Extents of a convolution over one axis. Its input is padded by half a kernel at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv1d {
    /// Input `[batch, channels, length]`.
    pub x: Tensor,
    /// Weight `[outputs, channels, kernel]`.
    pub weight: Tensor,
    /// Bias `[outputs]`.
    pub bias: Tensor,
    /// Distance of two windows of the input.
    pub stride: usize,
}

/// A convolution over two axes whose windows neither overlap nor are padded: one window for each patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchConv {
    /// Input `[batch, channels, height, width]`, whose extents are multiples of the kernel's.
    pub x: Tensor,
    /// Weight `[outputs, channels, kernel height, kernel width]`.
    pub weight: Tensor,
    /// Bias `[outputs]`.
    pub bias: Tensor,
}

/// A convolution over two axes. Its input is padded with zeros, at the end with at most one more than at the beginning, so that
/// the output has ⌈extent / stride⌉ windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv2d {
    /// Input `[batch, channels, height, width]`.
    pub x: Tensor,
    /// Weight `[outputs, channels / groups, kernel height, kernel width]`.
    pub weight: Tensor,
    /// Bias `[outputs]`.
    pub bias: Option<Tensor>,
    /// Distance of two windows of the input.
    pub stride: usize,
    /// Number of groups of channels that are convolved separately.
    pub groups: usize,
}

/// A convolution over two axes with zeros before and after each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaddedConv {
    /// Input `[batch, channels, height, width]`. The height may be a multiple of a symbol if the zeros around it are one less
    /// than the kernel's height and the distance of windows divides it.
    pub x: Tensor,
    /// Weight `[outputs, channels / groups, kernel height, kernel width]`.
    pub weight: Tensor,
    /// Bias `[outputs]`.
    pub bias: Option<Tensor>,
    /// Distances of two windows in height and width.
    pub strides: [usize; 2],
    /// Zeros before the height and the width.
    pub before: [usize; 2],
    /// Zeros after the height and the width.
    pub after: [usize; 2],
    /// Number of groups of channels that are convolved separately.
    pub groups: usize,
}

/// An operator that reduces one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Mean, `ReduceMean`.
    Mean,
    /// Sum, `ReduceSum`.
    Sum,
    /// Maximum, `ReduceMax`.
    Max,
}

/// Elementwise operators.
impl TypedBuilder {
    /// Adds `a + b`.
    pub fn add(&mut self, scope: &Scope, a: Tensor, b: Tensor) -> Result<Tensor> {
        self.binary(scope, "Add", a, b)
    }

    /// Adds `a − b`.
    pub fn sub(&mut self, scope: &Scope, a: Tensor, b: Tensor) -> Result<Tensor> {
        self.binary(scope, "Sub", a, b)
    }

    /// Adds `a · b`, element by element.
    pub fn mul(&mut self, scope: &Scope, a: Tensor, b: Tensor) -> Result<Tensor> {
        self.binary(scope, "Mul", a, b)
    }

    /// Adds `a / b`.
    pub fn div(&mut self, scope: &Scope, a: Tensor, b: Tensor) -> Result<Tensor> {
        self.binary(scope, "Div", a, b)
    }

    /// Adds the sigmoid, `1 / (1 + e^−x)`.
    pub fn sigmoid(&mut self, scope: &Scope, x: Tensor) -> Result<Tensor> {
        self.unary(scope, "Sigmoid", x, &[])
    }

    /// Adds `tanh(x)`.
    pub fn tanh(&mut self, scope: &Scope, x: Tensor) -> Result<Tensor> {
        self.unary(scope, "Tanh", x, &[])
    }

    /// Adds `max(x, 0)`.
    pub fn relu(&mut self, scope: &Scope, x: Tensor) -> Result<Tensor> {
        self.unary(scope, "Relu", x, &[])
    }

    /// Adds the softplus, `ln(1 + e^x)`.
    pub fn softplus(&mut self, scope: &Scope, x: Tensor) -> Result<Tensor> {
        self.unary(scope, "Softplus", x, &[])
    }

    /// Adds the square root of `x`.
    pub fn sqrt(&mut self, scope: &Scope, x: Tensor) -> Result<Tensor> {
        self.unary(scope, "Sqrt", x, &[])
    }

    /// Adds `x`, limited to the range between two scalars.
    pub fn clip(&mut self, scope: &Scope, x: Tensor, least: Tensor, most: Tensor) -> Result<Tensor> {
        let [kind, low, high] = self.types(scope, "Clip", [x, least, most])?;
        let scalar = TensorType::new(kind.dtype, &[]);
        if !is_float(kind.dtype) || low != scalar || high != scalar {
            let expected = "floating point and two scalars of the same element type";
            return Err(mismatch(scope, "Clip", expected, &[&kind, &low, &high]));
        }
        Ok(self.onnx(scope, "Clip", &[x, least, most], &[], kind))
    }

    /// Adds the sums of the elements along an axis up to each one.
    pub fn cumulative_sum(&mut self, scope: &Scope, x: Tensor, axis: usize) -> Result<Tensor> {
        let [kind] = self.types(scope, "CumSum", [x])?;
        if axis >= kind.shape.len() {
            return Err(mismatch(scope, "CumSum", format!("an axis {axis}"), &[&kind]));
        }
        let axis = self.ints(&[], &[axis as i64]);
        Ok(self.onnx(scope, "CumSum", &[x, axis], &[], kind))
    }

    /// Adds GELU; `approximate`: `none` or `tanh`.
    pub fn gelu(&mut self, scope: &Scope, x: Tensor, approximate: &str) -> Result<Tensor> {
        self.unary(scope, "Gelu", x, &[("approximate", Attribute::String(approximate.to_owned()))])
    }

    /// Adds softmax over the last axis.
    pub fn softmax(&mut self, scope: &Scope, x: Tensor) -> Result<Tensor> {
        self.unary(scope, "Softmax", x, &[("axis", Attribute::Int(-1))])
    }

    /// Adds `x` divided by its Euclidean length over the last axis.
    pub fn unit_length(&mut self, scope: &Scope, x: Tensor) -> Result<Tensor> {
        self.unary(scope, "LpNormalization", x, &[("axis", Attribute::Int(-1)), ("p", Attribute::Int(2))])
    }

    /// Adds an `Identity`, which gives `x` another name.
    pub fn identity(&mut self, scope: &Scope, x: Tensor) -> Result<Tensor> {
        self.unary(scope, "Identity", x, &[])
    }

    /// Adds a cast of `x` to another element type.
    pub fn cast(&mut self, scope: &Scope, x: Tensor, to: DType) -> Result<Tensor> {
        let [kind] = self.types(scope, "Cast", [x])?;
        let code = i64::from(Element::from(to).code());
        let kind = TensorType { dtype: to, ..kind };
        Ok(self.onnx(scope, "Cast", &[x], &[("to", Attribute::Int(code))], kind))
    }

    fn unary(
        &mut self,
        scope: &Scope,
        op: &'static str,
        x: Tensor,
        attributes: &[(&'static str, Attribute)],
    ) -> Result<Tensor> {
        let [kind] = self.types(scope, op, [x])?;
        if !is_float(kind.dtype) {
            return Err(mismatch(scope, op, "floating point", &[&kind]));
        }
        Ok(self.onnx(scope, op, &[x], attributes, kind))
    }

    fn binary(&mut self, scope: &Scope, op: &'static str, a: Tensor, b: Tensor) -> Result<Tensor> {
        let [x, y] = self.types(scope, op, [a, b])?;
        let shape = broadcast(&x.shape, &y.shape).filter(|_| x.dtype == y.dtype);
        let Some(shape) = shape else {
            return Err(mismatch(scope, op, "one element type and shapes that broadcast", &[&x, &y]));
        };
        Ok(self.onnx(scope, op, &[a, b], &[], TensorType { dtype: x.dtype, shape }))
    }

    /// Adds a checked node of ONNX's own domain.
    pub(super) fn onnx(
        &mut self,
        scope: &Scope,
        op: &'static str,
        inputs: &[Tensor],
        attributes: &[(&'static str, Attribute)],
        kind: TensorType,
    ) -> Tensor {
        let inputs: Vec<Option<Tensor>> = inputs.iter().copied().map(Some).collect();
        self.add_node(&CheckedNode { scope, op, domain: "", inputs: &inputs, attributes }, kind)
    }
}

/// Products, reductions and norms.
impl TypedBuilder {
    /// Adds the matrix product over the last two axes; the other axes broadcast.
    pub fn mat_mul(&mut self, scope: &Scope, a: Tensor, b: Tensor) -> Result<Tensor> {
        let [x, y] = self.types(scope, "MatMul", [a, b])?;
        let Some(shape) = product_shape(&x, &y) else {
            return Err(mismatch(
                scope,
                "MatMul",
                "[.., m, k] and [.., k, n] of one element type",
                &[&x, &y],
            ));
        };
        Ok(self.onnx(scope, "MatMul", &[a, b], &[], TensorType { dtype: x.dtype, shape }))
    }

    /// Adds the product of `x [m, k]` with a transposed weight `[n, k]`: `[m, n]`.
    pub fn gemm_transposed(&mut self, scope: &Scope, x: Tensor, weight: Tensor) -> Result<Tensor> {
        let [a, b] = self.types(scope, "Gemm", [x, weight])?;
        let ([rows, inner], [cols, other_inner]) = (&a.shape[..], &b.shape[..]) else {
            return Err(mismatch(scope, "Gemm", "two matrices", &[&a, &b]));
        };
        if a.dtype != b.dtype || inner != other_inner {
            return Err(mismatch(scope, "Gemm", "[m, k] and [n, k] of one element type", &[&a, &b]));
        }
        let kind = TensorType::new(a.dtype, &[rows.clone(), cols.clone()]);
        Ok(self.onnx(scope, "Gemm", &[x, weight], &[("transB", Attribute::Int(1))], kind))
    }

    /// Adds a convolution over the last axis, `[batch, outputs, ⌈length / stride⌉]`. The kernel has an odd length.
    pub fn conv_1d(&mut self, scope: &Scope, conv: &Conv1d) -> Result<Tensor> {
        const OP: &str = "Conv";
        let &Conv1d { x, weight, bias, stride } = conv;
        let [kind, weight_kind, bias_kind] = self.types(scope, OP, [x, weight, bias])?;
        let ([batch, channels, length], [outputs, inner, Dim::Fixed(kernel)]) =
            (&kind.shape[..], &weight_kind.shape[..])
        else {
            let expected = "[batch, channels, length] and [outputs, channels, kernel]";
            return Err(mismatch(scope, OP, expected, &[&kind, &weight_kind]));
        };
        let biases = TensorType::new(kind.dtype, std::slice::from_ref(outputs));
        let fits = channels == inner && kind.dtype == weight_kind.dtype && bias_kind == biases;
        let windows = windows(length, kernel.saturating_sub(1), *kernel, stride as u64);
        let Some(windows) = windows.filter(|_| fits && kernel % 2 == 1) else {
            let expected =
                "channels and biases that fit, an odd kernel, and a stride that divides a named length";
            return Err(mismatch(scope, OP, expected, &[&kind, &weight_kind, &bias_kind]));
        };

        let margin = (*kernel / 2) as i64;
        let attributes = [
            ("pads", Attribute::Ints(vec![margin, margin])),
            ("strides", Attribute::Ints(vec![stride as i64])),
        ];
        let out = [batch.clone(), outputs.clone(), windows];
        let kind = TensorType::new(kind.dtype, &out);
        Ok(self.onnx(scope, OP, &[x, weight, bias], &attributes, kind))
    }

    /// Adds a convolution over patches, `[batch, outputs, rows, columns]`.
    pub fn patch_conv(&mut self, scope: &Scope, conv: &PatchConv) -> Result<Tensor> {
        const OP: &str = "Conv";
        let &PatchConv { x, weight, bias } = conv;
        let [kind, weight_kind, bias_kind] = self.types(scope, OP, [x, weight, bias])?;
        let (
            [batch, channels, Dim::Fixed(height), Dim::Fixed(width)],
            [outputs, inner, Dim::Fixed(rows), Dim::Fixed(columns)],
        ) = (&kind.shape[..], &weight_kind.shape[..])
        else {
            let expected = "[batch, channels, height, width] and [outputs, channels, height, width]";
            return Err(mismatch(scope, OP, expected, &[&kind, &weight_kind]));
        };
        let biases = TensorType::new(kind.dtype, std::slice::from_ref(outputs));
        let fits = channels == inner && kind.dtype == weight_kind.dtype && bias_kind == biases;
        let divides = *rows > 0 && *columns > 0 && height % rows == 0 && width % columns == 0;
        if !fits || !divides {
            let expected = "channels and biases that fit, and patches that divide the input";
            return Err(mismatch(scope, OP, expected, &[&kind, &weight_kind, &bias_kind]));
        }

        let strides = Attribute::Ints(vec![*rows as i64, *columns as i64]);
        let out = [batch.clone(), outputs.clone(), Dim::Fixed(height / rows), Dim::Fixed(width / columns)];
        let kind = TensorType::new(kind.dtype, &out);
        Ok(self.onnx(scope, OP, &[x, weight, bias], &[("strides", strides)], kind))
    }

    /// Adds a convolution over two axes, `[batch, outputs, ⌈height / stride⌉, ⌈width / stride⌉]`.
    pub fn conv_2d(&mut self, scope: &Scope, conv: &Conv2d) -> Result<Tensor> {
        const OP: &str = "Conv";
        let &Conv2d { x, weight, bias, stride, groups } = conv;
        let [kind, weight_kind] = self.types(scope, OP, [x, weight])?;
        let ([_, _, Dim::Fixed(height), Dim::Fixed(width)], [_, _, Dim::Fixed(rows), Dim::Fixed(columns)]) =
            (&kind.shape[..], &weight_kind.shape[..])
        else {
            let expected = "[batch, channels, height, width] and [outputs, channels, height, width]";
            return Err(mismatch(scope, OP, expected, &[&kind, &weight_kind]));
        };
        let distance = stride.max(1) as u64;
        let zeros = [(height, rows), (width, columns)].map(|(&extent, &kernel)| {
            ((extent.div_ceil(distance).max(1) - 1) * distance + kernel).saturating_sub(extent) as usize
        });
        let before = zeros.map(|zeros| zeros / 2);
        let after = zeros.map(|zeros| zeros - zeros / 2);
        self.padded_conv(scope, &PaddedConv { x, weight, bias, strides: [stride; 2], before, after, groups })
    }

    /// Adds a convolution over two axes, `[batch, outputs, windows of the height, windows of the width]`.
    pub fn padded_conv(&mut self, scope: &Scope, conv: &PaddedConv) -> Result<Tensor> {
        const OP: &str = "Conv";
        let &PaddedConv { x, weight, bias, strides, before, after, groups } = conv;
        let [kind, weight_kind] = self.types(scope, OP, [x, weight])?;
        let (
            [batch, Dim::Fixed(channels), height, width],
            [Dim::Fixed(outputs), Dim::Fixed(inner), Dim::Fixed(rows), Dim::Fixed(columns)],
        ) = (&kind.shape[..], &weight_kind.shape[..])
        else {
            let expected = "[batch, channels, height, width] and [outputs, channels, height, width]";
            return Err(mismatch(scope, OP, expected, &[&kind, &weight_kind]));
        };
        let count = groups as u64;
        let is_grouped = count > 0 && inner.checked_mul(count) == Some(*channels) && outputs % count == 0;
        let axes = [(height, *rows), (width, *columns)];
        let windows: Option<Vec<Dim>> = (0..2)
            .map(|axis| {
                let (extent, kernel) = axes[axis];
                windows(extent, (before[axis] + after[axis]) as u64, kernel, strides[axis] as u64)
            })
            .collect();
        let Some(windows) = windows.filter(|_| is_grouped && kind.dtype == weight_kind.dtype) else {
            let expected = format!("{groups} groups of channels, one element type and windows that fit");
            return Err(mismatch(scope, OP, expected, &[&kind, &weight_kind]));
        };
        if let Some(bias) = bias {
            let [found] = self.types(scope, OP, [bias])?;
            if found != TensorType::new(kind.dtype, &[Dim::Fixed(*outputs)]) {
                return Err(mismatch(scope, OP, "a bias of the outputs", &[&weight_kind, &found]));
            }
        }

        let out = [batch.clone(), Dim::Fixed(*outputs)].into_iter().chain(windows);
        let out = TensorType::new(kind.dtype, &out.collect::<Vec<_>>());
        let pads = before.into_iter().chain(after).map(|zeros| zeros as i64).collect();
        let attributes = [
            ("group", Attribute::from(groups)),
            ("pads", Attribute::Ints(pads)),
            ("strides", Attribute::Ints(strides.map(|stride| stride as i64).to_vec())),
        ];
        let inputs: Vec<Tensor> = [x, weight].into_iter().chain(bias).collect();
        Ok(self.onnx(scope, OP, &inputs, &attributes, out))
    }

    /// Adds the largest elements of each row, in descending order: `[.., count]`.
    pub fn largest(&mut self, scope: &Scope, x: Tensor, count: usize) -> Result<Tensor> {
        const OP: &str = "TopK";
        let [kind] = self.types(scope, OP, [x])?;
        if !matches!(kind.last(), Some(Dim::Fixed(width)) if count as u64 <= *width) {
            return Err(mismatch(scope, OP, format!("rows of at least {count} elements"), &[&kind]));
        }
        let k = self.ints(&[1], &[count as i64]);
        let node = CheckedNode { scope, op: OP, domain: "", inputs: &[Some(x), Some(k)], attributes: &[] };
        let [values, indices] = ["values", "indices"].map(|name| scope.node(&format!("{OP}/{name}")));
        self.write(&node, &[&values, &indices]);
        Ok(self.value(values, kind.with_last(Dim::from(count))))
    }

    /// Adds a reduction of one axis, which keeps the axis with extent 1.
    pub fn reduce(&mut self, scope: &Scope, reduction: Reduction, x: Tensor, axis: i64) -> Result<Tensor> {
        self.reduced(scope, reduction, x, axis, true)
    }

    /// Adds a reduction of one axis, which removes the axis.
    pub fn reduce_away(
        &mut self,
        scope: &Scope,
        reduction: Reduction,
        x: Tensor,
        axis: i64,
    ) -> Result<Tensor> {
        self.reduced(scope, reduction, x, axis, false)
    }

    fn reduced(
        &mut self,
        scope: &Scope,
        reduction: Reduction,
        x: Tensor,
        axis: i64,
        keep: bool,
    ) -> Result<Tensor> {
        let op = match reduction {
            Reduction::Mean => "ReduceMean",
            Reduction::Sum => "ReduceSum",
            Reduction::Max => "ReduceMax",
        };
        let [mut kind] = self.types(scope, op, [x])?;
        let Some(place) = axis_of(axis, kind.shape.len()) else {
            return Err(mismatch(scope, op, format!("an axis {axis}"), &[&kind]));
        };

        if keep {
            kind.shape[place] = Dim::Fixed(1);
        } else {
            kind.shape.remove(place);
        }

        let axes = self.ints(&[1], &[axis]);
        let attributes: &[(&'static str, Attribute)] =
            if keep { &[] } else { &[("keepdims", Attribute::Int(0))] };
        Ok(self.onnx(scope, op, &[x, axes], attributes, kind))
    }

    /// Adds layer norm over the last axis (Ba et al. 2016, arXiv:1607.06450).
    pub fn layer_norm(
        &mut self,
        scope: &Scope,
        x: Tensor,
        gain: Tensor,
        bias: Option<Tensor>,
        epsilon: f32,
    ) -> Result<Tensor> {
        let vectors: Vec<Tensor> = std::iter::once(gain).chain(bias).collect();
        self.norm(scope, "LayerNormalization", x, &vectors, epsilon)
    }

    /// Adds RMS norm over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467).
    pub fn rms_norm(&mut self, scope: &Scope, x: Tensor, gain: Tensor, epsilon: f32) -> Result<Tensor> {
        self.norm(scope, "SimplifiedLayerNormalization", x, &[gain], epsilon)
    }

    fn norm(
        &mut self,
        scope: &Scope,
        op: &'static str,
        x: Tensor,
        vectors: &[Tensor],
        epsilon: f32,
    ) -> Result<Tensor> {
        let [kind] = self.types(scope, op, [x])?;
        for &vector in vectors {
            self.check_vector(scope, op, &kind, vector)?;
        }
        let inputs: Vec<Tensor> = std::iter::once(x).chain(vectors.iter().copied()).collect();
        let attributes = [("axis", Attribute::Int(-1)), ("epsilon", epsilon.into())];
        Ok(self.onnx(scope, op, &inputs, &attributes, kind))
    }
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}

/// Returns the number of windows of a padded axis, if they fit.
fn windows(extent: &Dim, zeros: u64, kernel: u64, stride: u64) -> Option<Dim> {
    match extent {
        Dim::Fixed(extent) if kernel > 0 => {
            let steps = extent.checked_add(zeros)?.checked_sub(kernel)?.checked_div(stride)?;
            Some(Dim::Fixed(steps + 1))
        }
        Dim::Symbol(_) if kernel > 0 && zeros == kernel - 1 => divided(extent, stride),
        _ => None,
    }
}

/// Returns the shape of the matrix product of two tensors, if they have one.
fn product_shape(x: &TensorType, y: &TensorType) -> Option<Vec<Dim>> {
    let [front @ .., rows, inner] = &x.shape[..] else { return None };
    let [other_front @ .., other_inner, columns] = &y.shape[..] else { return None };
    let mut shape = broadcast(front, other_front)?;
    shape.extend([rows.clone(), columns.clone()]);
    (x.dtype == y.dtype && inner == other_inner).then_some(shape)
}
