//! ONNX Runtime's contributed operators.

use narthex_spec::{DType, dtype::Dim};

use super::{CheckedNode, Result, Scope, Tensor, TensorType, TypedBuilder, mismatch};
use crate::graph::{Attribute, MICROSOFT};

/// Operands of a product with a weight `[rows, cols]` in blocks of integers.
#[derive(Debug, Clone, Copy)]
pub struct MatMulNBits {
    /// Input `[.., cols]`.
    pub x: Tensor,
    /// Integers, `[rows, blocks, block · bits / 8]`.
    pub quants: Tensor,
    /// Scale of each block, `[rows, blocks]`, in the element type of `x`.
    pub scales: Tensor,
    /// Zero point of each block, packed in the same way as the integers.
    pub zeros: Option<Tensor>,
    /// Bias that is added to the product, `[rows]`.
    pub bias: Option<Tensor>,
    /// Number of outputs.
    pub rows: usize,
    /// Number of inputs.
    pub cols: usize,
    /// Number of bits of an integer.
    pub bits: usize,
    /// Number of inputs that share a scale.
    pub block: usize,
    /// Precision to which activations may be rounded, as ONNX Runtime's `accuracy_level`.
    pub accuracy_level: Option<i64>,
}

/// Keys and values of attention.
#[derive(Debug, Clone, Copy)]
pub struct KeyValue {
    /// Keys.
    pub key: Tensor,
    /// Values.
    pub value: Tensor,
}

/// Operands and attributes of grouped-query attention over a cache that is updated in place.
#[derive(Debug, Clone, Copy)]
pub struct GroupQueryAttention {
    /// Queries `[batch, sequence, heads · size]`, or queries, keys and values concatenated.
    pub query: Tensor,
    /// Keys and values `[batch, sequence, kv_heads · size]`; `None` if they are concatenated with the queries.
    pub key_value: Option<KeyValue>,
    /// Past keys and values, `[batch, kv_heads, capacity, size]`.
    pub past: KeyValue,
    /// Number of tokens of each sequence minus one, `[batch]`.
    pub seqlens_k: Tensor,
    /// Number of tokens of the longest sequence.
    pub total_length: Tensor,
    /// Cosines and sines `[positions, size / 2]`; `None` for attention without RoPE.
    pub rotary: Option<[Tensor; 2]>,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key/value heads.
    pub kv_heads: usize,
    /// Maximum number of tokens that a token attends to.
    pub window: Option<usize>,
    /// Factor of the scores; `None` is `1 / √size`.
    pub scale: Option<f32>,
    /// Soft cap of the scores.
    pub softcap: Option<f32>,
    /// One more score for each head, `[heads]`, whose value is zeros.
    pub sinks: Option<Tensor>,
}

/// Norm of a sum: layer norm if it has a bias, otherwise RMS norm.
#[derive(Debug, Clone, Copy)]
pub struct SkipNorm {
    /// Residual stream.
    pub residual: Tensor,
    /// Branch that is added to the residual stream, of the same type.
    pub branch: Tensor,
    /// Factor of the normed sum.
    pub gain: Tensor,
    /// Bias that is added to the normed sum.
    pub bias: Option<Tensor>,
    /// Epsilon that is added to the variance.
    pub epsilon: f32,
}

impl TypedBuilder {
    /// Adds a product with a quantised weight, `[.., rows]`.
    pub fn mat_mul_n_bits(&mut self, scope: &Scope, product: &MatMulNBits) -> Result<Tensor> {
        const OP: &str = "MatMulNBits";
        let &MatMulNBits { x, quants, scales, zeros, bias, rows, cols, bits, block, .. } = product;
        let [kind, quants_kind, scales_kind] = self.types(scope, OP, [x, quants, scales])?;
        let blocks = cols.div_ceil(block.max(1));
        let quants_shape = [rows, blocks, block * bits / 8].map(Dim::from);
        if kind.last() != Some(&Dim::from(cols)) || quants_kind != TensorType::new(DType::U8, &quants_shape) {
            let expected = format!("[.., {cols}] and {}", TensorType::new(DType::U8, &quants_shape));
            return Err(mismatch(scope, OP, expected, &[&kind, &quants_kind]));
        }

        let expected = TensorType::new(kind.dtype, &[rows, blocks].map(Dim::from));
        if scales_kind != expected {
            return Err(mismatch(scope, OP, format!("scales {expected}"), &[&scales_kind]));
        }

        let out = kind.with_last(Dim::from(rows));
        if let Some(bias) = bias {
            self.check_vector(scope, OP, &out, bias)?;
        }
        let mut attributes = vec![
            ("K", Attribute::from(cols)),
            ("N", rows.into()),
            ("bits", bits.into()),
            ("block_size", block.into()),
        ];

        attributes.extend(product.accuracy_level.map(|level| ("accuracy_level", level.into())));
        let mut inputs = vec![Some(x), Some(quants), Some(scales)];
        inputs.extend((zeros.is_some() || bias.is_some()).then_some(zeros));
        inputs.extend(bias.map(|bias| [None, Some(bias)]).into_iter().flatten());
        Ok(self.microsoft(scope, OP, &inputs, &attributes, out))
    }

    /// Adds causal attention (Ainslie et al. 2023, arXiv:2305.13245). Returns `[batch, sequence, heads · size]` and the
    /// updated keys and values.
    pub fn group_query_attention(
        &mut self,
        scope: &Scope,
        attention: &GroupQueryAttention,
    ) -> Result<(Tensor, KeyValue)> {
        const OP: &str = "GroupQueryAttention";
        let GroupQueryAttention { query, key_value, past, rotary, heads, kv_heads, .. } = *attention;
        let [kind, past_key, past_value] = self.types(scope, OP, [query, past.key, past.value])?;
        let [batch, heads_dim, _, Dim::Fixed(size)] = &past_key.shape[..] else {
            return Err(mismatch(scope, OP, "a past [batch, kv_heads, capacity, size]", &[&past_key]));
        };

        let size = *size as usize;
        if past_value != past_key || *heads_dim != Dim::from(kv_heads) {
            let expected = format!("keys and values of {kv_heads} heads");
            return Err(mismatch(scope, OP, expected, &[&past_key, &past_value]));
        }

        let packed = if key_value.is_some() { heads } else { heads + 2 * kv_heads };
        if kind.last() != Some(&Dim::from(packed * size)) || kind.shape.first() != Some(batch) {
            let expected = format!("queries [{batch}, sequence, {}]", packed * size);
            return Err(mismatch(scope, OP, expected, &[&kind]));
        }

        if let Some(key_value) = key_value {
            let expected = kind.with_last(Dim::from(kv_heads * size));
            let [key, value] = self.types(scope, OP, [key_value.key, key_value.value])?;
            if key != expected || value != expected {
                return Err(mismatch(scope, OP, format!("keys and values {expected}"), &[&key, &value]));
            }
        }

        let [seqlens, total] = self.types(scope, OP, [attention.seqlens_k, attention.total_length])?;
        let lengths = TensorType::new(DType::I32, std::slice::from_ref(batch));
        if seqlens != lengths || total != TensorType::new(DType::I32, &[]) {
            return Err(mismatch(scope, OP, format!("lengths {lengths} and i32 []"), &[&seqlens, &total]));
        }

        if let Some(rotary) = rotary {
            let [cos, sin] = self.types(scope, OP, rotary)?;
            let fits =
                matches!(cos.last(), Some(&Dim::Fixed(pairs)) if pairs > 0 && 2 * pairs as usize <= size);
            if cos != sin || cos.dtype != kind.dtype || !fits {
                let expected = format!("cosines and sines [positions, pairs] of at most {} pairs", size / 2);
                return Err(mismatch(scope, OP, expected, &[&cos, &sin]));
            }
        }

        if let Some(sinks) = attention.sinks {
            self.check_vector(scope, OP, &kind.with_last(Dim::from(heads)), sinks)?;
        }

        let mut inputs = vec![Some(query)];
        inputs.extend(key_value.map_or([None; 2], |new| [Some(new.key), Some(new.value)]));
        inputs.extend([past.key, past.value, attention.seqlens_k, attention.total_length].map(Some));
        match attention.sinks {
            // Positions and a bias of the scores are the inputs between.
            Some(sinks) => {
                inputs.extend(rotary.map_or([None; 2], |angles| angles.map(Some)));
                inputs.extend([None, None, Some(sinks)]);
            }
            None => inputs.extend(rotary.into_iter().flatten().map(Some)),
        }
        let attributes = attention.attributes();
        let node = CheckedNode { scope, op: OP, domain: MICROSOFT, inputs: &inputs, attributes: &attributes };
        let names = ["out", "present_key", "present_value"].map(|name| scope.node(&format!("{OP}/{name}")));
        self.write(&node, &names.each_ref().map(String::as_str));
        let out = kind.with_last(Dim::from(heads * size));
        let [name, key, value] = names;
        let present = KeyValue { key: self.value(key, past_key), value: self.value(value, past_value) };
        Ok((self.value(name, out), present))
    }

    /// Rotates the two halves of each head in rows `[batch, sequence, heads · size]` (Su et al. 2021, arXiv:2104.09864) by
    /// the angles of their `positions`, i64 `[batch, sequence]`. `angles` are cosines and sines `[positions, size / 2]`.
    pub fn rotary_embedding(
        &mut self,
        scope: &Scope,
        x: Tensor,
        positions: Tensor,
        angles: [Tensor; 2],
    ) -> Result<Tensor> {
        const OP: &str = "RotaryEmbedding";
        let [kind, places] = self.types(scope, OP, [x, positions])?;
        let [cos, sin] = self.types(scope, OP, angles)?;
        let (&[_, _, Dim::Fixed(width)], &[_, Dim::Fixed(pairs)]) = (&kind.shape[..], &cos.shape[..]) else {
            return Err(mismatch(scope, OP, "rows [batch, sequence, width] and angles", &[&kind, &cos]));
        };
        if cos != sin || cos.dtype != kind.dtype || pairs == 0 || width % (2 * pairs) != 0 {
            let expected = format!("cosines and sines of heads of {width} elements");
            return Err(mismatch(scope, OP, expected, &[&cos, &sin]));
        }
        if places != TensorType::new(DType::I64, &kind.shape[..2]) {
            return Err(mismatch(scope, OP, "positions i64 [batch, sequence]", &[&places]));
        }
        let [cos, sin] = angles;
        Ok(self.microsoft(scope, OP, &[x, positions, cos, sin].map(Some), &[], kind))
    }

    /// Adds attention of every query to every key (Vaswani et al. 2017, arXiv:1706.03762), in `heads` heads:
    /// `[batch, sequence, heads · size]`. Keys and values are `[batch, keys, heads · size]` or
    /// `[batch, heads, keys, size]`.
    pub fn multi_head_attention(
        &mut self,
        scope: &Scope,
        query: Tensor,
        key_value: KeyValue,
        heads: usize,
    ) -> Result<Tensor> {
        const OP: &str = "MultiHeadAttention";
        let [kind, key, value] = self.types(scope, OP, [query, key_value.key, key_value.value])?;
        let width = match (kind.shape.as_slice(), kind.last()) {
            ([_, _, _], Some(Dim::Fixed(width))) if heads > 0 && *width % heads as u64 == 0 => *width,
            _ => {
                let expected = format!("queries [batch, sequence, width] of {heads} heads");
                return Err(mismatch(scope, OP, expected, &[&kind]));
            }
        };
        let fits = key == value
            && key.dtype == kind.dtype
            && key.shape.first() == kind.shape.first()
            && match key.shape.as_slice() {
                [_, _, last] => *last == Dim::Fixed(width),
                [_, of, _, size] => *of == Dim::from(heads) && *size == Dim::Fixed(width / heads as u64),
                _ => false,
            };
        if !fits {
            let expected = format!("keys and values of {heads} heads");
            return Err(mismatch(scope, OP, expected, &[&key, &value]));
        }
        let inputs = [query, key_value.key, key_value.value].map(Some);
        Ok(self.microsoft(scope, OP, &inputs, &[("num_heads", heads.into())], kind))
    }

    /// Adds the norm of a sum as one operator.
    pub fn skip_norm(&mut self, scope: &Scope, norm: &SkipNorm) -> Result<Tensor> {
        let (node, kind) = self.checked_skip_norm(scope, norm)?;
        let attributes = [("epsilon", norm.epsilon.into())];
        Ok(self.microsoft(scope, node, &norm.inputs(), &attributes, kind))
    }

    /// Adds the norm of a sum. Returns the norm and the sum.
    pub fn skip_norm_with_sum(&mut self, scope: &Scope, norm: &SkipNorm) -> Result<(Tensor, Tensor)> {
        let (op, kind) = self.checked_skip_norm(scope, norm)?;
        let inputs = norm.inputs();
        let attributes = [("epsilon", norm.epsilon.into())];
        let node = CheckedNode { scope, op, domain: MICROSOFT, inputs: &inputs, attributes: &attributes };
        let [out, sum] = ["out", "sum"].map(|name| scope.node(&format!("{op}/{name}")));
        self.write(&node, &[&out, "", "", &sum]);
        Ok((self.value(out, kind.clone()), self.value(sum, kind)))
    }

    /// Returns the operator of such a norm, and the type of its output.
    fn checked_skip_norm(&self, scope: &Scope, norm: &SkipNorm) -> Result<(&'static str, TensorType)> {
        let op = match norm.bias {
            Some(_) => "SkipLayerNormalization",
            None => "SkipSimplifiedLayerNormalization",
        };
        let [residual, branch] = self.types(scope, op, [norm.residual, norm.branch])?;
        if residual != branch {
            return Err(mismatch(scope, op, "a residual and a branch of one type", &[&residual, &branch]));
        }
        for vector in [norm.gain].into_iter().chain(norm.bias) {
            self.check_vector(scope, op, &residual, vector)?;
        }
        Ok((op, residual))
    }

    fn microsoft(
        &mut self,
        scope: &Scope,
        op: &'static str,
        inputs: &[Option<Tensor>],
        attributes: &[(&'static str, Attribute)],
        kind: TensorType,
    ) -> Tensor {
        self.add_node(&CheckedNode { scope, op, domain: MICROSOFT, inputs, attributes }, kind)
    }
}

impl GroupQueryAttention {
    fn attributes(&self) -> Vec<(&'static str, Attribute)> {
        let mut attributes = vec![
            ("num_heads", Attribute::from(self.heads)),
            ("kv_num_heads", self.kv_heads.into()),
            ("do_rotary", i64::from(self.rotary.is_some()).into()),
            ("rotary_interleaved", 0i64.into()),
        ];
        attributes.extend(self.window.map(|window| ("local_window_size", window.into())));
        attributes.extend(self.scale.map(|scale| ("scale", scale.into())));
        attributes.extend(self.softcap.map(|cap| ("softcap", cap.into())));
        attributes
    }
}

impl SkipNorm {
    fn inputs(&self) -> Vec<Option<Tensor>> {
        [self.residual, self.branch, self.gain].into_iter().chain(self.bias).map(Some).collect()
    }
}
