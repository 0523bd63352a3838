//! `narthex.Attention`: one operator that rotates queries and keys, updates the cache and computes attention over it.
//! It replaces `GroupQueryAttention` and has the same inputs and outputs; the sinks follow the sines.
//!
//! This file reads and checks the inputs of a call; `attention_step` computes the outputs.

use std::{fmt, marker::PhantomData, sync::Arc};

use narthex_kernels::{Attention, Mask, MatrixRef};
use ort::{
    operator::{OperatorInput, OperatorOutput},
    value::TensorElementType,
};

use super::{
    OperatorContext,
    attention_step::{Angles, AttentionStep, Heads, Pasts, PresentCache},
    attributes::Attributes,
    cache::CacheElement,
    call::{Call, Input},
    node_kernel::NodeKernel,
};

/// Attributes, with the names that they have in `GroupQueryAttention`.
pub(super) const HEADS: &str = "num_heads";
pub(super) const KV_HEADS: &str = "kv_num_heads";
pub(super) const SCALE: &str = "scale";
pub(super) const SOFT_CAP: &str = "softcap";
pub(super) const WINDOW: &str = "local_window_size";
pub(super) const ROTATES: &str = "do_rotary";

/// The operator as the kernel of one node.
pub(super) struct AttentionKernel<T> {
    shared: Arc<OperatorContext>,
    heads: Heads,
    scale: Option<f32>,
    soft_cap: Option<f32>,
    mask: Mask,
    rotates: bool,
    element: PhantomData<T>,
}

impl<T: CacheElement> NodeKernel for AttentionKernel<T> {
    const OPERATOR: &'static str = T::ATTENTION;

    fn inputs() -> impl IntoIterator<Item = OperatorInput> {
        use TensorElementType::{Float32, Int32};
        let required = OperatorInput::required;
        let optional = OperatorInput::optional;
        [
            required(Float32),
            optional(Float32),
            optional(Float32),
            required(T::TYPE),
            required(T::TYPE),
            required(Int32),
            required(Int32),
            optional(Float32),
            optional(Float32),
            optional(Float32),
        ]
    }

    fn outputs() -> impl IntoIterator<Item = OperatorOutput> {
        [TensorElementType::Float32, T::TYPE, T::TYPE].map(OperatorOutput::required)
    }

    fn of(shared: &Arc<OperatorContext>, node: &impl Attributes) -> ort::Result<Self> {
        let Some((heads, kv_heads)) = size(node, HEADS).zip(size(node, KV_HEADS)) else {
            return Err(ort::Error::new("expected numbers of heads, found none"));
        };
        if !heads.is_multiple_of(kv_heads) {
            return Err(ort::Error::new(format!("{heads} heads cannot share {kv_heads} heads of keys")));
        }
        Ok(Self {
            shared: Arc::clone(shared),
            heads: Heads { kv: kv_heads, group: heads / kv_heads },
            scale: node.float(SCALE).filter(|&scale| scale != 0.0),
            soft_cap: node.float(SOFT_CAP).filter(|&cap| cap != 0.0),
            mask: size(node, WINDOW).map_or(Mask::Causal, Mask::Window),
            rotates: node.int(ROTATES) == Some(1),
            element: PhantomData,
        })
    }

    fn run(&self, call: &Call<'_>) -> ort::Result<()> {
        let (step, shape) = self.step(call)?;
        let rows = [shape.batch, shape.sequence, self.heads.kv * self.heads.group * shape.size];
        let out = call.output(0, &rows.map(|extent| extent as i64))?;
        let row = shape.size + T::AFTER_ROW;
        let present = [shape.batch, self.heads.kv, step.capacity, row].map(|extent| extent as i64);
        let keys: &mut [T] = call.output(1, &present)?;
        let values: &mut [T] = call.output(2, &present)?;
        let past = [call.unless_in_place(3, keys)?, call.unless_in_place(4, values)?];
        step.run(call, PresentCache { keys, values, past, held: shape.held }, out)
    }
}

fn unexpected(expected: impl fmt::Display, found: impl fmt::Debug) -> ort::Error {
    ort::Error::new(format!("attention expected {expected}, found {found:?}"))
}

/// Extents of a call's tensors.
#[derive(Clone, Copy)]
struct CallShape {
    batch: usize,
    /// Number of new tokens in each sequence.
    sequence: usize,
    /// Number of tokens for which the past has room.
    held: usize,
    /// Number of elements in a head.
    size: usize,
}

impl CallShape {
    /// Returns the rows of an input, of which each new token has one with `width` elements.
    fn rows<'a>(self, input: Input<'a, f32>, width: usize) -> ort::Result<MatrixRef<'a>> {
        let expected = [self.batch, self.sequence, width].map(|extent| extent as i64);
        if width == 0 || input.shape != expected {
            return Err(unexpected(width, input.shape));
        }
        Ok(MatrixRef::new(input.data, width))
    }
}

/// Returns a positive attribute.
fn size(node: &impl Attributes, name: &str) -> Option<usize> {
    usize::try_from(node.int(name)?).ok().filter(|&size| size > 0)
}

impl<T: CacheElement> AttentionKernel<T> {
    /// Returns a call's inputs except the past, after checking that they match.
    fn step<'a>(&'a self, call: &Call<'a>) -> ort::Result<(AttentionStep<'a>, CallShape)> {
        let query: Input<'a, f32> = call.input(0)?;
        let shape = self.shape(call, &query)?;
        let [query, key, value] = self.new_rows(call, query, shape)?;
        let angles = match (self.rotates, call.optional(7)?, call.optional(8)?) {
            (false, ..) => None,
            (true, Some(cos), Some(sin)) => Some(angles(&cos, &sin, shape.size)?),
            _ => return Err(unexpected("cosines and sines", "none")),
        };
        let heads = self.heads.kv * self.heads.group;
        let sinks = match call.optional(9)? {
            None => &[],
            Some(Input { data, .. }) if data.len() == heads => data,
            Some(Input { shape, .. }) => return Err(unexpected(format!("sinks of {heads} heads"), shape)),
        };
        let (pasts, total) = pasts(call, shape, angles.as_ref())?;
        let scale = self.scale.unwrap_or_else(|| 1.0 / (shape.size as f32).sqrt());
        let mask = match self.mask {
            mask if !self.shared.bidirectional.is_on() => mask,
            Mask::Window(width) => Mask::WindowAndLater(width),
            _ => Mask::Full,
        };
        let attention = Attention { head_size: shape.size, scale, soft_cap: self.soft_cap, mask };
        let step = AttentionStep {
            shared: &self.shared,
            attention,
            heads: self.heads,
            query,
            key,
            value,
            sequence: shape.sequence,
            angles,
            sinks,
            pasts,
            capacity: shape.held.max(total),
        };
        Ok((step, shape))
    }

    fn shape(&self, call: &Call<'_>, query: &Input<'_, f32>) -> ort::Result<CallShape> {
        let keys = call.shape(3)?;
        let values = call.shape(4)?;
        let (&[batch, sequence, _], &[_, kv_heads, held, row]) = (query.shape, keys) else {
            return Err(unexpected("queries of three axes and keys of four", [query.shape, keys]));
        };
        let size = row - T::AFTER_ROW as i64;
        let fits = keys == values && keys[0] == batch && kv_heads as usize == self.heads.kv && size > 0;
        if !fits || keys.iter().any(|&extent| extent < 0) {
            let expected = format!("past keys and values [{batch}, {}, tokens, size]", self.heads.kv);
            return Err(unexpected(expected, [keys, values]));
        }
        let [batch, sequence, held, size] = [batch, sequence, held, size].map(|extent| extent as usize);
        Ok(CallShape { batch, sequence, held, size })
    }

    /// Returns the queries, keys and values of the new tokens, which may be columns of one input.
    fn new_rows<'a>(
        &self,
        call: &Call<'a>,
        query: Input<'a, f32>,
        shape: CallShape,
    ) -> ort::Result<[MatrixRef<'a>; 3]> {
        let kv = self.heads.kv * shape.size;
        let queries = kv * self.heads.group;
        match (call.optional(1)?, call.optional(2)?) {
            (Some(key), Some(value)) => {
                Ok([shape.rows(query, queries)?, shape.rows(key, kv)?, shape.rows(value, kv)?])
            }
            (None, None) => {
                let all = shape.rows(query, queries + 2 * kv)?;
                let parts = [0..queries, queries..queries + kv, queries + kv..queries + 2 * kv];
                Ok(parts.map(|columns| all.columns_in(columns)))
            }
            _ => Err(unexpected("keys and values", "one of them")),
        }
    }
}

fn angles<'a>(cos: &Input<'a, f32>, sin: &Input<'a, f32>, size: usize) -> ort::Result<Angles<'a>> {
    match *cos.shape {
        [_, pairs] if cos.shape == sin.shape && pairs > 0 && 2 * pairs as usize <= size => {
            Ok(Angles { cos: cos.data, sin: sin.data, pairs: pairs as usize })
        }
        _ => Err(unexpected(format!("angles of up to {} pairs", size / 2), [cos.shape, sin.shape])),
    }
}

/// Returns the number of past tokens of each sequence, and the length of the longest sequence with its new tokens.
fn pasts<'a>(
    call: &Call<'a>,
    shape: CallShape,
    angles: Option<&Angles<'_>>,
) -> ort::Result<(Pasts<'a>, usize)> {
    let lengths: Input<'a, i32> = call.input(5)?;
    let total: Input<'_, i32> = call.input(6)?;
    let new = shape.sequence;
    let held = shape.held;
    let total = match *total.data {
        [total] => usize::try_from(total).ok().filter(|&total| total >= new),
        _ => None,
    };

    let total = total.ok_or_else(|| unexpected(format!("a length from {new} on"), "another"))?;
    // If no sequence has a past, the sequences may be padded.
    let none = total == new;
    if lengths.data.len() != shape.batch
        || !lengths.data.iter().all(|&length| {
            let past = usize::try_from(length).ok().and_then(|length| (length + 1).checked_sub(new));
            let past = if none { Some(0) } else { past };
            past.is_some_and(|past| {
                let all = past + new;
                past <= held && all <= total && angles.is_none_or(|angles| all <= angles.positions())
            })
        })
    {
        let expected = format!("{} lengths within {total} tokens", shape.batch);
        return Err(unexpected(expected, lengths.data));
    }
    Ok((Pasts { lengths: lengths.data, new, none }, total))
}
