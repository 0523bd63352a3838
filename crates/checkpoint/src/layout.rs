//! Layouts of weights in files, and their conversion to the canonical layout.
//!
//! Rows of fused weights are selected and reordered by index, without decoding. Elements are changed only if a file
//! stores them transposed or, for small vectors, permuted or shifted.

use std::{borrow::Cow, ops::Range};

use narthex_spec::arch::{Attention, DecoderArch, DecoderLayer, FeedForward, Recurrence};

use crate::{
    error::{CheckpointError, Result},
    names::{TensorPart, inside_layer},
    stored_heads::{RopePairs, RotatedElements, StoredHeads},
    weight::Weight,
};

/// Prefix of a vision tower's weights. Its norms store the gain itself, and not the gain minus one.
const TOWER: &str = "vision.";

/// End of the name of the gain after a gated delta rule, which stores the gain itself too.
const DELTA_NORM: &str = ".delta.norm.weight";

/// End of the name of the logarithms of a recurrence's decays.
const DECAY_LOG: &str = ".decay_log.weight";

/// Ends of the names of vectors of a Mamba-2 layer that files may store with two dimensions.
const MAMBA_VECTORS: [&str; 3] = [".mamba.decay_log.weight", ".mamba.skip.weight", ".mamba.norm.weight"];

/// Prefixes of weights of linear layers that files store as convolutions with a kernel of 1 × 1.
const CONVOLUTIONS: [&str; 2] = ["vision.blocks.", "vision.fusion."];

/// Layout of weights in a file; the canonical layout by default.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Layout {
    /// Pairing of the elements that RoPE rotates.
    pub(super) pairs: RopePairs,
    /// Orientation of linear weights inside layers.
    pub(super) orientation: Orientation,
    /// Orientation of the weights of experts.
    pub(super) experts: Orientation,
    /// Canonical modules whose linear weight is `[in, out]` in any orientation of the layers.
    pub(super) transposed: &'static [&'static str],
    /// Storage of the gains of norms.
    pub(super) gains: NormGains,
    /// Storage of the decays of recurrences.
    pub(super) decays: Decays,
    /// Factors of individual weights.
    pub(super) scales: Vec<WeightScale>,
    layers: Vec<DecoderLayer>,
    /// Rotated elements of the heads of each layer; `None` if no head is rotated.
    rotated: Vec<Option<RotatedElements>>,
}

/// A factor that replaces a multiplication in the model, such as that of a part's output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct WeightScale {
    /// Canonical module, relative to its layer if it is in one. A `#` stands for the number of an expert.
    pub(super) module: &'static str,
    /// Factor of its weight and bias.
    pub(super) factor: f32,
}

/// Orientation of linear weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Orientation {
    /// `[out, in]`.
    #[default]
    Rows,
    /// `[in, out]`.
    Columns,
}

/// Storage of the gains of norms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum NormGains {
    /// The gains themselves.
    #[default]
    Plain,
    /// The gains minus one: a stored zero is the identity.
    MinusOne,
}

/// Storage of the decays of recurrences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Decays {
    /// Logarithms of the positive decays.
    #[default]
    Logarithms,
    /// The decays themselves, negative.
    Negative,
}

impl Layout {
    /// Returns the canonical layout for a decoder.
    pub(super) fn of(arch: &DecoderArch) -> Self {
        let rotated_of = |layer: &DecoderLayer| {
            let attention = layer.attention()?;
            let own = arch.rope_of(attention.rotation);
            let rope = own.or(arch.rope.as_ref()).or(arch.local_rope.as_ref())?;
            let [rotating, pairs] = [rope.rotating_pairs(), rope.pairs(attention.head_size)];
            Some(RotatedElements { dims: rope.dims, rotating, pairs })
        };
        let rotated = arch.layers.iter().map(rotated_of).collect();
        Self { layers: arch.layers.clone(), rotated, ..Self::default() }
    }

    /// Returns whether a file has the columns of a weight as rows.
    fn is_transposed(&self, canonical: &str) -> bool {
        let orientation = if canonical.contains(".mlp.experts.") { self.experts } else { self.orientation };
        let is_projection = orientation == Orientation::Columns && canonical.ends_with("_proj.weight");
        is_projection
            || canonical.strip_suffix(".weight").is_some_and(|module| self.transposed.contains(&module))
    }

    fn layer(&self, canonical: &str) -> Option<&DecoderLayer> {
        self.layers.get(layer_number(canonical)?)
    }

    /// Returns the order of the heads of a weight of q or k in the file; `None` if it is the canonical one.
    fn stored_heads(&self, canonical: &str) -> Option<StoredHeads> {
        let number = layer_number(canonical).filter(|_| is_rotated(canonical))?;
        let size = self.layers.get(number)?.attention()?.head_size;
        let rotated = (*self.rotated.get(number)?)?;
        let RotatedElements { dims, rotating, pairs } = rotated;
        let is_canonical = self.pairs == RopePairs::Halves && rotating == pairs && 2 * pairs == dims;
        (!is_canonical).then_some(StoredHeads { size, pairs: self.pairs, rotated })
    }

    /// Returns the number of heads of a weight of `q` or `k`.
    pub(super) fn heads_of(&self, canonical: &str) -> usize {
        let Some(attention) = self.layer(canonical).and_then(DecoderLayer::attention) else { return 0 };
        if canonical.contains(".k_") { attention.kv_heads } else { attention.heads }
    }

    /// Converts a stored weight, or its part `part`, to the canonical form.
    pub(super) fn canonical<'a>(
        &self,
        mut weight: Weight<'a>,
        part: Option<TensorPart>,
    ) -> Result<Weight<'a>> {
        if self.is_transposed(&weight.name) {
            weight = transposed(weight)?;
        }
        self.canonical_rows(weight, part)
    }

    /// Converts a stored weight, or its part `part`, whose rows are outputs in any orientation.
    pub(super) fn canonical_rows<'a>(
        &self,
        mut weight: Weight<'a>,
        part: Option<TensorPart>,
    ) -> Result<Weight<'a>> {
        if let Some(TensorPart::Matrix(number) | TensorPart::MatrixHalf(number, _)) = part {
            weight = matrix(weight, number)?;
        }
        if let Some(TensorPart::MatrixHalf(_, half)) = part {
            let rows = weight.shape.first().map_or(0, |rows| rows / 2);
            weight = cut(weight, &[rows; 2], half)?;
        }

        if let Some(TensorPart::Alternate(number)) = part {
            let pairs = weight.shape.first().map_or(0, |rows| rows / 2);
            weight = head_half(weight, pairs, number)?;
        }

        if let Some(TensorPart::Third(number)) = part {
            let rows = weight.shape.first().map_or(0, |rows| rows / 3);
            weight = cut(weight, &[rows; 3], number)?;
        }

        if let Some(TensorPart::HeadHalf(number)) = part {
            let heads = self.heads_of(&weight.name);
            weight = head_half(weight, heads, number)?;
        }

        if let (Some(layer), Some(part)) = (self.layer(&weight.name), part) {
            weight = match sizes(layer, part) {
                Some((sizes, index)) => cut(weight, &sizes, index)?,
                None => weight,
            };
        }

        if is_pointwise(&weight.name, &weight.shape) {
            weight.shape.truncate(2);
        }
        if is_depthwise(&weight.name, &weight.shape) {
            weight.shape.remove(1);
        }
        if self.gains == NormGains::MinusOne && is_gain_minus_one(&weight.name) {
            let gains: Vec<f32> = weight.to_f32().iter().map(|gain| gain + 1.0).collect();
            weight = Weight::of_values(weight.name, weight.shape, &gains)?;
        }
        if is_flat(&weight.name, &weight.shape) {
            weight.shape = vec![elements(&weight.shape)];
        }
        if self.decays == Decays::Negative && weight.name.ends_with(DECAY_LOG) {
            let logarithms: Vec<f32> = weight.to_f32().iter().map(|decay| (-decay).ln()).collect();
            weight = Weight::of_values(weight.name, weight.shape, &logarithms)?;
        }

        weight = match self.stored_heads(&weight.name) {
            Some(heads) => heads.to_half_split(weight)?,
            None => weight,
        };

        let factor = self.scale_of(&weight.name);
        Ok(weight.scaled(factor))
    }

    /// Returns the factor of a weight; 1 if it has none.
    fn scale_of(&self, canonical: &str) -> f32 {
        let module = canonical.rsplit_once('.').map_or(canonical, |(module, _)| module);
        let module = inside_layer(module).map_or(module, |(_, module)| module);
        self.scales.iter().find(|scale| is_module(module, scale.module)).map_or(1.0, |scale| scale.factor)
    }

    /// Returns the shape in the file of a weight, or of each of its tensors, with the canonical shape `shape`. A stack
    /// may have more matrices than are read, and a linear layer may be a convolution; `found` is the shape of the file.
    pub(super) fn stored_shape(
        &self,
        canonical: &str,
        part: Option<TensorPart>,
        shape: &[usize],
        found: &[usize],
    ) -> Vec<usize> {
        let mut stored = shape.to_vec();
        match (part, self.layer(canonical)) {
            (Some(TensorPart::PerHead), _) => stored = stored.into_iter().skip(1).collect(),
            (Some(TensorPart::Matrix(number)), _) => {
                stored.insert(0, found.first().map_or(0, |&matrices| matrices).max(number + 1));
            }
            (Some(TensorPart::MatrixHalf(number, _)), _) => {
                stored.iter_mut().take(1).for_each(|rows| *rows *= 2);
                stored.insert(0, found.first().map_or(0, |&matrices| matrices).max(number + 1));
            }
            (Some(TensorPart::Third(_)), _) => stored.iter_mut().take(1).for_each(|rows| *rows *= 3),
            (Some(TensorPart::HeadHalf(_) | TensorPart::Alternate(_)), _) => {
                stored.iter_mut().take(1).for_each(|rows| *rows *= 2)
            }
            (Some(part), Some(layer)) => {
                if let (Some(rows), Some((sizes, _))) = (stored.first_mut(), sizes(layer, part)) {
                    *rows = sizes.iter().sum();
                }
            }
            _ => {}
        }

        if self.is_transposed(canonical) {
            stored.reverse();
        }
        if is_pointwise(canonical, found) && stored.len() == 2 {
            stored.extend([1, 1]);
        }
        if is_depthwise(canonical, found) && stored.len() == 2 {
            stored.insert(1, 1);
        }
        if is_flat(canonical, found) && elements(found) == elements(&stored) {
            stored = found.to_vec();
        }
        stored
    }

    /// Returns, for each row of a weight in the file, its row in the canonical form; `None` if both orders are the
    /// same.
    pub(super) fn stored_rows(&self, canonical: &str, rows: usize) -> Option<Vec<u32>> {
        let heads = self.stored_heads(canonical).filter(|heads| heads.size > 0)?;
        let mut stored = vec![0; rows];
        for (place, from) in heads.order(rows).into_iter().enumerate() {
            stored.iter_mut().skip(from as usize).take(1).for_each(|row| *row = place as u32);
        }
        Some(stored)
    }
}

/// Returns the number of the layer of a weight.
fn layer_number(canonical: &str) -> Option<usize> {
    inside_layer(canonical)?.0.parse().ok()
}

/// Returns whether `module` is one of those that `pattern` names.
fn is_module(module: &str, pattern: &str) -> bool {
    let Some((start, end)) = pattern.split_once('#') else { return module == pattern };
    let number = module.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
    number.is_some_and(|number| number.parse::<usize>().is_ok())
}

/// Returns whether `name` is the gain of a norm that files may store minus one.
fn is_gain_minus_one(name: &str) -> bool {
    name.ends_with("norm.weight") && !name.starts_with(TOWER) && !name.ends_with(DELTA_NORM)
}

/// Returns whether a weight of this stored shape is that of a linear layer, stored as a convolution.
fn is_pointwise(name: &str, stored: &[usize]) -> bool {
    matches!(stored, [_, _, 1, 1]) && CONVOLUTIONS.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns whether a weight of this stored shape is that of a short convolution with an input channel for each output
/// channel.
fn is_depthwise(name: &str, stored: &[usize]) -> bool {
    matches!(stored, [_, 1, _]) && name.starts_with("layers.") && name.ends_with(".conv.weight")
}

fn elements(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Returns whether a weight of this stored shape is a vector with two dimensions.
fn is_flat(name: &str, stored: &[usize]) -> bool {
    stored.len() == 2 && MAMBA_VECTORS.iter().any(|end| name.ends_with(end))
}

/// Returns whether `name` is a weight or bias of q or k, or a gain of their norm.
fn is_rotated(name: &str) -> bool {
    [".attn.q_", ".attn.k_"].iter().any(|part| name.contains(part))
}

/// Returns the sizes of a fused weight's parts in rows, and the index of `part` among them.
fn sizes(layer: &DecoderLayer, part: TensorPart) -> Option<(Vec<usize>, usize)> {
    let projections = |attention: &Attention| {
        [attention.heads, attention.kv_heads, attention.kv_heads].map(|heads| heads * attention.head_size)
    };
    match part {
        TensorPart::Query => Some((projections(layer.attention()?).to_vec(), 0)),
        TensorPart::Key => Some((projections(layer.attention()?).to_vec(), 1)),
        TensorPart::Value => Some((projections(layer.attention()?).to_vec(), 2)),
        TensorPart::Gate => Some((vec![dense_inner(layer)?; 2], 0)),
        TensorPart::Up => Some((vec![dense_inner(layer)?; 2], 1)),
        TensorPart::Mamba(number) => match layer.recurrence()? {
            Recurrence::Mamba2(mamba) => Some((vec![mamba.inner(), mamba.width(), mamba.heads], number)),
            Recurrence::DeltaRule(_) => None,
        },
        TensorPart::PerHead
        | TensorPart::Matrix(_)
        | TensorPart::MatrixHalf(..)
        | TensorPart::Third(_)
        | TensorPart::HeadHalf(_)
        | TensorPart::Alternate(_) => None,
    }
}

/// Returns the inner width of a layer's dense network, which may be beside experts.
fn dense_inner(layer: &DecoderLayer) -> Option<usize> {
    match &layer.feed_forward {
        FeedForward::Dense(mlp) => Some(mlp.inner),
        FeedForward::Experts(experts) => experts.shared,
    }
}

/// Cuts one part out of a fused weight or bias. `sizes` are the numbers of rows, or of elements of a bias, of all
/// parts.
fn cut<'a>(weight: Weight<'a>, sizes: &[usize], index: usize) -> Result<Weight<'a>> {
    let Weight { name, mut shape, encoding, bytes, .. } = weight;
    let all: usize = sizes.iter().sum();
    if shape.first() != Some(&all) || shape.len() > 2 {
        let mut expected = shape.clone();
        expected.iter_mut().take(1).for_each(|rows| *rows = all);
        return Err(CheckpointError::WrongShape { name, expected, found: shape });
    }
    let row: usize = shape[1..].iter().product();
    let start: usize = sizes[..index].iter().sum();
    let [start, end] = [start, start + sizes[index]]
        .map(|rows| rows * row / encoding.block_elements() * encoding.block_bytes());
    shape[0] = sizes[index];
    Weight::new(name, shape, encoding, sliced(bytes, start..end))
}

/// Returns half of the rows of each of `heads` heads.
fn head_half(weight: Weight<'_>, heads: usize, number: usize) -> Result<Weight<'_>> {
    let Weight { name, mut shape, encoding, bytes, .. } = weight;
    let parts = 2 * heads.max(1);
    let rows = shape.first().copied().unwrap_or(0);
    if !rows.is_multiple_of(parts) || shape.len() > 2 {
        let mut expected = shape.clone();
        expected.iter_mut().take(1).for_each(|rows| *rows = rows.next_multiple_of(parts));
        return Err(CheckpointError::WrongShape { name, expected, found: shape });
    }
    let row: usize = shape[1..].iter().product();
    let size = rows / parts * row / encoding.block_elements() * encoding.block_bytes();
    let halves = bytes.chunks_exact(size.max(1)).skip(number).step_by(2);
    let picked: Vec<u8> = halves.flatten().copied().collect();
    shape[0] = rows / 2;
    Weight::new(name, shape, encoding, picked)
}

/// Returns one matrix of a stack `[matrices, rows, cols]`, or one vector of a stack of biases, `[vectors, elements]`.
fn matrix<'a>(weight: Weight<'a>, number: usize) -> Result<Weight<'a>> {
    let Weight { name, shape, encoding, bytes, .. } = weight;
    match shape[..] {
        [matrices, rows, cols] if number < matrices => {
            let size = rows * cols / encoding.block_elements() * encoding.block_bytes();
            Weight::new(name, vec![rows, cols], encoding, sliced(bytes, number * size..(number + 1) * size))
        }
        [vectors, elements] if number < vectors && name.ends_with(".bias") => {
            let size = elements / encoding.block_elements() * encoding.block_bytes();
            Weight::new(name, vec![elements], encoding, sliced(bytes, number * size..(number + 1) * size))
        }
        _ => {
            let expected = [vec![number + 1], shape.iter().rev().take(2).rev().copied().collect()].concat();
            Err(CheckpointError::WrongShape { name, expected, found: shape })
        }
    }
}

fn sliced(bytes: Cow<'_, [u8]>, range: Range<usize>) -> Cow<'_, [u8]> {
    match bytes {
        Cow::Borrowed(bytes) => Cow::Borrowed(bytes.get(range).unwrap_or(&[])),
        Cow::Owned(bytes) => Cow::Owned(bytes.get(range).unwrap_or(&[]).to_vec()),
    }
}

/// Transposes `[in, out]` to `[out, in]`.
fn transposed(weight: Weight<'_>) -> Result<Weight<'_>> {
    let (&[rows, cols], 1) = (&weight.shape[..], weight.encoding.block_elements()) else {
        let expected = weight.shape.iter().rev().copied().take(2).collect();
        return Err(CheckpointError::WrongShape { name: weight.name, expected, found: weight.shape });
    };
    let size = weight.encoding.block_bytes();
    let mut bytes = Vec::with_capacity(weight.bytes.len());
    for col in 0..cols {
        for row in 0..rows {
            bytes.extend_from_slice(&weight.bytes[(row * cols + col) * size..][..size]);
        }
    }
    Weight::new(weight.name, vec![cols, rows], weight.encoding, bytes)
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::{Activation, Attention, Mamba2, Mixer, Mlp};

    use super::*;
    use crate::encoding::Encoding;

    /// Returns a layout of two heads of four elements, one key/value head, and an inner width of two.
    fn layout() -> Layout {
        let mlp = Mlp { inner: 2, activation: Activation::Silu, gated: true, bias: true, cutoff: None };
        let attention = Attention::plain(2, 1, 4);
        let layer = DecoderLayer::dense(attention, mlp);
        let rotated = vec![Some(RotatedElements { dims: 4, rotating: 2, pairs: 2 })];
        Layout { layers: vec![layer], rotated, ..Layout::default() }
    }

    #[test]
    fn halves_of_matrices_of_experts_are_scaled() {
        let scale = WeightScale { module: "mlp.experts.#.up_proj", factor: 2.0 };
        let layout = Layout { scales: vec![scale], ..layout() };
        let name = |part: &str| format!("layers.0.mlp.experts.1.{part}_proj.weight");
        let part = |half| Some(TensorPart::MatrixHalf(1, half));
        check(&layout, &name("gate"), &[2, 4, 1], part(0), &[4.0, 5.0]);
        check(&layout, &name("up"), &[2, 4, 1], part(1), &[12.0, 14.0]);
        assert_eq!(layout.stored_shape(&name("up"), part(1), &[2, 1], &[3, 4, 1]), [3, 4, 1]);
        check(&layout, "layers.0.mlp.experts.up_proj.weight", &[1, 2], None, &[0.0, 1.0]);
    }

    #[test]
    fn parts_and_vectors_of_mamba_layers_are_converted() {
        let mamba = Mamba2 { heads: 2, head_size: 1, groups: 1, state_size: 1, kernel: 2, bias: true };
        let layer = DecoderLayer { mixer: Mixer::Mamba2(mamba), ..layout().layers[0].clone() };
        let layout = Layout { layers: vec![layer], decays: Decays::Negative, ..Layout::default() };
        // A gate of two rows, four channels and two time steps.
        for (number, rows) in [(0, 0..2), (1, 2..6), (2, 6..8)] {
            let part = Some(TensorPart::Mamba(number));
            let expected: Vec<f32> = rows.map(|row| row as f32).collect();
            check(&layout, "layers.0.mamba.in_proj.weight", &[8, 1], part, &expected);
            let stored = layout.stored_shape("layers.0.mamba.in_proj.weight", part, &[4, 1], &[8, 1]);
            assert_eq!(stored, [8, 1]);
        }
        let decays =
            Weight::of_values("layers.0.mamba.decay_log.weight".to_owned(), vec![2, 1], &[-1.0, -2.0]);
        let logarithms = layout.canonical(decays.unwrap(), None).unwrap();
        assert_eq!((&logarithms.shape[..], logarithms.to_f32()), (&[2][..], vec![0.0, 2.0f32.ln()]));
        assert_eq!(layout.stored_shape("layers.0.mamba.norm.weight", None, &[6], &[2, 3]), [2, 3]);
        assert_eq!(layout.stored_shape("layers.0.mamba.norm.weight", None, &[6], &[2, 4]), [6]);
    }

    /// Returns a weight with the elements 0, 1, 2, ….
    fn counting(name: &str, shape: &[usize]) -> Weight<'static> {
        let count: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..count).flat_map(|x| (x as f32).to_le_bytes()).collect();
        Weight::new(name, shape.to_vec(), Encoding::F32, bytes).unwrap()
    }

    fn check(layout: &Layout, name: &str, shape: &[usize], part: Option<TensorPart>, expect: &[f32]) {
        let found = layout.canonical(counting(name, shape), part).unwrap();
        assert_eq!(found.to_f32(), expect, "{name} {part:?}");
    }

    #[test]
    fn weights_biases_and_gains_of_q_and_k_are_permuted() {
        let layout = Layout { pairs: RopePairs::Interleaved, ..layout() };
        let expect = [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0];
        check(&layout, "layers.0.attn.q_proj.weight", &[8, 1], None, &expect);
        check(&layout, "layers.0.attn.q_proj.bias", &[8], None, &expect);
        check(&layout, "layers.0.attn.q_norm.weight", &[2, 4], None, &expect);
        check(&layout, "layers.0.attn.k_norm.weight", &[4], None, &expect[..4]);
        check(&layout, "layers.0.attn.v_proj.weight", &[4, 1], None, &[0.0, 1.0, 2.0, 3.0]);
        let odd = layout.canonical(counting("layers.0.attn.q_proj.weight", &[6, 1]), None);
        let error = odd.unwrap_err().to_string();
        assert!(error.ends_with("wrong shape: expected [8, 1], found [6, 1]"), "{error}");
    }

    #[test]
    fn parts_are_cut_out_of_fused_weights() {
        let layout = layout();
        let numbers = |range: Range<usize>| range.map(|x| x as f32).collect::<Vec<_>>();
        let name = |part: &str| format!("layers.0.{part}.weight");
        for (part, module, range) in [
            (TensorPart::Query, "attn.q_proj", 0..16),
            (TensorPart::Key, "attn.k_proj", 16..24),
            (TensorPart::Value, "attn.v_proj", 24..32),
        ] {
            check(&layout, &name(module), &[16, 2], Some(part), &numbers(range));
        }
        check(&layout, "layers.0.attn.k_proj.bias", &[16], Some(TensorPart::Key), &numbers(8..12));
        let halves = [[0..8, 16..24], [8..16, 24..32]];
        for (number, module) in ["attn.q_proj", "attn.gate_proj"].into_iter().enumerate() {
            let expected: Vec<f32> = halves[number].iter().cloned().flat_map(numbers).collect();
            check(&layout, &name(module), &[16, 2], Some(TensorPart::HeadHalf(number)), &expected);
        }
        check(&layout, &name("mlp.up_proj"), &[4, 3], Some(TensorPart::Up), &numbers(6..12));
        let expert = |leaf: &str| format!("layers.0.mlp.experts.1.up_proj.{leaf}");
        check(&layout, &expert("weight"), &[4, 2], Some(TensorPart::Alternate(1)), &[2.0, 3.0, 6.0, 7.0]);
        check(&layout, &expert("bias"), &[4], Some(TensorPart::Alternate(0)), &[0.0, 2.0]);
        check(&layout, &expert("bias"), &[2, 3], Some(TensorPart::Matrix(1)), &[3.0, 4.0, 5.0]);
        let columns = Layout { experts: Orientation::Columns, ..layout.clone() };
        check(&columns, &expert("weight"), &[2, 4], Some(TensorPart::Alternate(1)), &[1.0, 5.0, 3.0, 7.0]);
        let neighbours = Layout { pairs: RopePairs::Interleaved, ..layout.clone() };
        check(&neighbours, &name("attn.k_proj"), &[16, 1], Some(TensorPart::Key), &[8.0, 10.0, 9.0, 11.0]);
        let wrong = layout.canonical(counting(&name("attn.k_proj"), &[15, 2]), Some(TensorPart::Key));
        let error = wrong.unwrap_err().to_string();
        assert!(error.ends_with("wrong shape: expected [16, 2], found [15, 2]"), "{error}");
    }

    #[test]
    fn errors_state_shapes_as_in_the_file() {
        let layout = Layout { orientation: Orientation::Columns, ..layout() };
        let check = |name: &str, part, shape: &[usize], found: &[usize], expect: &[usize]| {
            assert_eq!(layout.stored_shape(name, part, shape, found), expect, "{name} {part:?}");
        };
        check("layers.0.mlp.down_proj.weight", None, &[8, 2], &[], &[2, 8]);
        check("layers.0.attn.k_proj.weight", Some(TensorPart::Key), &[4, 8], &[8, 12], &[8, 16]);
        check("layers.0.attn.k_proj.bias", Some(TensorPart::Key), &[4], &[16], &[16]);
        check("layers.0.attn.q_norm.weight", Some(TensorPart::PerHead), &[2, 4], &[4], &[4]);
        check("layers.0.attn.q_norm.weight", Some(TensorPart::HeadHalf(1)), &[8, 4], &[], &[16, 4]);
        check("altup.proj.1.weight", Some(TensorPart::Matrix(1)), &[8, 8], &[3, 8, 8], &[3, 8, 8]);
        check("altup.proj.1.weight", Some(TensorPart::Matrix(1)), &[8, 8], &[1, 8, 8], &[2, 8, 8]);
    }

    #[test]
    fn columns_become_rows_and_gains_become_whole() {
        let layout = Layout { orientation: Orientation::Columns, gains: NormGains::MinusOne, ..layout() };
        check(&layout, "layers.0.mlp.down_proj.weight", &[2, 3], None, &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        check(&layout, "layers.0.attn_norm.weight", &[3], None, &[1.0, 2.0, 3.0]);
        check(&layout, "layers.0.delta.norm.weight", &[3], None, &[0.0, 1.0, 2.0]);
        check(&layout, "layers.0.mlp.down_proj.bias", &[3], None, &[0.0, 1.0, 2.0]);
        check(&layout, "embed.weight", &[2, 2], None, &[0.0, 1.0, 2.0, 3.0]);
    }

    #[test]
    fn linear_layers_may_be_stored_as_convolutions() {
        let layout = Layout::default();
        let name = "vision.blocks.0.0.linear.weight";
        let weight = layout.canonical(counting(name, &[2, 3, 1, 1]), None).unwrap();
        assert_eq!((weight.shape.as_slice(), weight.cols()), (&[2, 3][..], 3));
        assert_eq!(layout.stored_shape(name, None, &[2, 3], &[2, 4, 1, 1]), [2, 3, 1, 1]);
        let kernel = layout.canonical(counting("vision.patch.weight", &[2, 3, 1, 1]), None).unwrap();
        assert_eq!(kernel.shape, [2, 3, 1, 1]);
    }

    #[test]
    fn weights_are_multiplied_with_their_modules_factors() {
        let scales = vec![
            WeightScale { module: "attn.o_proj", factor: 0.5 },
            WeightScale { module: "norm", factor: 4.0 },
        ];
        let layout = Layout { scales, ..Layout::default() };
        for (name, expect) in [
            ("layers.3.attn.o_proj.weight", 0.5),
            ("layers.3.attn.o_proj.bias", 0.5),
            ("layers.3.attn_norm.weight", 1.0),
            ("norm.weight", 4.0),
        ] {
            let weight = layout.canonical(counting(name, &[4]), None).unwrap();
            assert_eq!(weight.to_f32(), [0.0, 1.0, 2.0, 3.0].map(|x| x * expect), "{name}");
        }
    }
}
