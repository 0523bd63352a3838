//! Keys and values that are handed over between executors: plain values, and conversions of their type.
//!
//! The module is independent of devices: every executor converts between this form and the form of its graphs.

use std::ops::Range;

use half::f16;
use narthex_spec::manifest::KvLayout;

use super::StepError;

/// Keys and values of consecutive tokens of one slot, in all layers.
#[derive(Debug, Clone, PartialEq)]
pub struct KvBlock {
    tokens: usize,
    layers: Vec<KvLayer>,
}

/// Consecutive tokens of a block.
#[derive(Debug, Clone)]
pub struct KvSlice<'a> {
    /// The block.
    pub block: &'a KvBlock,
    /// Tokens of the block.
    pub tokens: Range<usize>,
}

/// Keys and values of one layer in a [`KvBlock`].
#[derive(Debug, Clone, PartialEq)]
pub struct KvLayer {
    /// Number of key and value heads.
    pub heads: usize,
    /// Number of elements in a head.
    pub head_size: usize,
    /// Keys `[tokens, heads, head_size]`, after their rotation.
    pub keys: KvRows,
    /// Values `[tokens, heads, head_size]`.
    pub values: KvRows,
}

/// Rows of keys or values in the element type of a device.
#[derive(Debug, Clone, PartialEq)]
pub enum KvRows {
    /// Single precision.
    F32(Vec<f32>),
    /// Half precision.
    F16(Vec<f16>),
    /// Integers with a scale for each key or value of each head.
    I8 {
        /// Integers.
        integers: Vec<i8>,
        /// Scales `[tokens, heads]`.
        scales: Vec<f32>,
    },
}

impl KvRows {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::I8 { integers, .. } => integers.len(),
        }
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements in single precision. They are exact, except that products of integers and scales are
    /// rounded.
    pub fn f32s(&self) -> impl Iterator<Item = f32> {
        let (mut single, mut half, mut rows, mut row_scales): (&[f32], &[f16], &[i8], &[f32]) =
            Default::default();
        match self {
            Self::F32(values) => single = values,
            Self::F16(values) => half = values,
            Self::I8 { integers, scales } => (rows, row_scales) = (integers, scales),
        }
        let row = rows.len().checked_div(row_scales.len()).unwrap_or(0).max(1);
        let scaled = rows.chunks(row).zip(row_scales);
        let scaled =
            scaled.flat_map(|(row, scale)| row.iter().map(move |&integer| f32::from(integer) * scale));
        single.iter().copied().chain(half.iter().map(|value| value.to_f32())).chain(scaled)
    }

    /// Returns the elements in single precision.
    pub fn to_f32(&self) -> Vec<f32> {
        self.f32s().collect()
    }

    /// Returns whether these are `rows` rows of `elements` elements in total.
    fn fits(&self, rows: usize, elements: usize) -> bool {
        let scales = match self {
            Self::F32(_) | Self::F16(_) => rows,
            Self::I8 { scales, .. } => scales.len(),
        };
        (scales, self.len()) == (rows, elements)
    }

    /// Returns the rows of several tensors of one type, one after the other. `None` for several types, or for a range
    /// that does not exist.
    fn join<'a>(parts: impl Iterator<Item = RowSlice<'a>> + Clone) -> Option<Self> {
        match parts.clone().next()?.rows {
            Self::F32(_) => Some(Self::F32(joined(parts.map(|part| match part.rows {
                Self::F32(values) => values.get(part.elements()),
                _ => None,
            }))?)),
            Self::F16(_) => Some(Self::F16(joined(parts.map(|part| match part.rows {
                Self::F16(values) => values.get(part.elements()),
                _ => None,
            }))?)),
            Self::I8 { .. } => {
                let integers = joined(parts.clone().map(|part| match part.rows {
                    Self::I8 { integers, .. } => integers.get(part.elements()),
                    _ => None,
                }))?;
                let scales = joined(parts.map(|part| match part.rows {
                    Self::I8 { scales, .. } => scales.get(part.vectors()),
                    _ => None,
                }))?;
                Some(Self::I8 { integers, scales })
            }
        }
    }

    /// Returns the elements in half precision, rounded to nearest.
    ///
    /// # Errors
    /// [`StepError::Device`] for a finite element that is too large for half precision.
    pub fn to_f16(&self) -> Result<Vec<f16>, StepError> {
        if let Self::F16(values) = self {
            return Ok(values.clone());
        }
        self.f32s()
            .map(|value| {
                let half = f16::from_f32(value);
                let lost = value.is_finite() && !half.is_finite();
                if lost {
                    let message = format!("expected keys and values within half precision, found {value}");
                    return Err(StepError::Device { message });
                }
                Ok(half)
            })
            .collect()
    }
}

/// Keys or values of some tokens.
struct RowSlice<'a> {
    rows: &'a KvRows,
    heads: usize,
    head_size: usize,
    tokens: Range<usize>,
}

impl<'a> RowSlice<'a> {
    fn new(layer: &KvLayer, rows: &'a KvRows, tokens: Range<usize>) -> Self {
        Self { rows, heads: layer.heads, head_size: layer.head_size, tokens }
    }

    /// Returns the range of its vectors. Each token has one for each head.
    fn vectors(&self) -> Range<usize> {
        self.tokens.start * self.heads..self.tokens.end * self.heads
    }

    /// Returns the range of its elements.
    fn elements(&self) -> Range<usize> {
        let vectors = self.vectors();
        vectors.start * self.head_size..vectors.end * self.head_size
    }
}

/// Returns the elements of all parts, or `None` if one is missing.
fn joined<'a, T: Copy + 'a>(parts: impl Iterator<Item = Option<&'a [T]>> + Clone) -> Option<Vec<T>> {
    let mut out = Vec::with_capacity(parts.clone().map(|part| part.map_or(0, <[T]>::len)).sum());
    for part in parts {
        out.extend_from_slice(part?);
    }
    Some(out)
}

impl KvBlock {
    /// Creates a block of `tokens` tokens.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] for a layer whose keys or values do not have `tokens × heads × head_size` elements, or
    /// whose integers do not have `tokens × heads` scales.
    pub fn new(tokens: usize, layers: Vec<KvLayer>) -> Result<Self, StepError> {
        for (index, layer) in layers.iter().enumerate() {
            let rows = tokens.checked_mul(layer.heads);
            let shape = rows.and_then(|rows| Some((rows, rows.checked_mul(layer.head_size)?)));
            let fits = |part: &KvRows| shape.is_some_and(|(rows, elements)| part.fits(rows, elements));
            if !fits(&layer.keys) || !fits(&layer.values) {
                let found = format!("{} keys and {} values", layer.keys.len(), layer.values.len());
                let shape = format!("{tokens} x {} x {}", layer.heads, layer.head_size);
                return Err(StepError::bad_plan(format!(
                    "layer {index}: expected {shape} elements each, found {found}"
                )));
            }
        }
        Ok(Self { tokens, layers })
    }

    /// Creates a block without tokens.
    pub const fn empty() -> Self {
        Self { tokens: 0, layers: Vec::new() }
    }

    /// Creates a block of `tokens` tokens from a cache with these layers. `read` returns the keys and values of one
    /// layer.
    ///
    /// # Errors
    /// The errors of [`Self::new`] and of `read`.
    pub fn read(
        tokens: usize,
        layouts: &[KvLayout],
        read: impl Fn(usize) -> Result<[KvRows; 2], StepError>,
    ) -> Result<Self, StepError> {
        let mut layers = Vec::with_capacity(layouts.len());
        for (index, layout) in layouts.iter().enumerate() {
            let [keys, values] = read(index)?;
            layers.push(KvLayer { heads: layout.heads, head_size: layout.head_size, keys, values });
        }
        Self::new(tokens, layers)
    }

    /// Joins slices of blocks of one cache. The elements are copied unchanged.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] for slices of different layers or types, for tokens that a block does not have, and for no
    /// slices.
    pub fn join(slices: &[KvSlice<'_>]) -> Result<Self, StepError> {
        let layers = Self::join_layers(slices).ok_or_else(|| {
            StepError::bad_plan("expected keys and values of one cache, found those of several or none")
        })?;
        Self::new(slices.iter().map(|slice| slice.tokens.len()).sum(), layers)
    }

    fn join_layers(slices: &[KvSlice<'_>]) -> Option<Vec<KvLayer>> {
        let count = slices.first()?.block.layers.len();
        (0..count)
            .map(|index| {
                let &KvLayer { heads, head_size, .. } = slices[0].block.layers.get(index)?;
                let layers = slices.iter().map(|slice| slice.block.layers.get(index));
                let layers = layers.collect::<Option<Vec<&KvLayer>>>()?;
                if layers.iter().any(|layer| (layer.heads, layer.head_size) != (heads, head_size)) {
                    return None;
                }
                let parts = layers.iter().zip(slices).map(|(layer, slice)| (*layer, slice.tokens.clone()));
                let keys = parts.clone().map(|(layer, tokens)| RowSlice::new(layer, &layer.keys, tokens));
                let values = parts.map(|(layer, tokens)| RowSlice::new(layer, &layer.values, tokens));
                Some(KvLayer { heads, head_size, keys: KvRows::join(keys)?, values: KvRows::join(values)? })
            })
            .collect()
    }

    /// Returns the keys and values of some of its tokens.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] for tokens that the block does not have.
    pub fn slice(&self, tokens: Range<usize>) -> Result<Self, StepError> {
        Self::join(&[KvSlice { block: self, tokens }])
    }

    /// Returns the number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns all layers, starting with the first.
    pub fn layers(&self) -> &[KvLayer] {
        &self.layers
    }

    /// Checks that a cache with these layers can store the block at token `at` of a slot that has `held` tokens, within
    /// `context` tokens.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] with the expected and the found value.
    pub fn check(
        &self,
        layouts: &[KvLayout],
        at: usize,
        held: usize,
        context: usize,
    ) -> Result<(), StepError> {
        if self.tokens == 0 || at > held || self.tokens > context.saturating_sub(at) {
            let fits = format!("1 to {} tokens at 0 to {held}", context.saturating_sub(at));
            return Err(StepError::bad_plan(format!("expected {fits}, found {} at {at}", self.tokens)));
        }
        if self.layers.len() != layouts.len() {
            let expected = layouts.len();
            let found = self.layers.len();
            return Err(StepError::bad_plan(format!(
                "expected {expected} layers of keys and values, found {found}"
            )));
        }

        for (index, (layer, layout)) in self.layers.iter().zip(layouts).enumerate() {
            let shape = (layout.heads, layout.head_size);
            if shape != (layer.heads, layer.head_size) {
                let found = format!("{} of {}", layer.heads, layer.head_size);
                let expected = format!("{} heads of {} elements", shape.0, shape.1);
                return Err(StepError::bad_plan(format!(
                    "layer {index}: expected {expected}, found {found}"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(heads: usize, head_size: usize, elements: usize) -> KvLayer {
        let rows = KvRows::F32(vec![0.5; elements]);
        KvLayer { heads, head_size, keys: rows.clone(), values: rows }
    }

    #[test]
    fn types_are_converted_and_what_does_not_fit_is_refused() {
        let single = KvRows::F32(vec![0.1, -65504.0, 2.0]);
        let half = KvRows::F16(single.to_f16().unwrap());
        assert_eq!(half.to_f32(), [f16::from_f32(0.1).to_f32(), -65504.0, 2.0]);
        assert_eq!(KvRows::F16(half.to_f16().unwrap()), half);
        let error = KvRows::F32(vec![1.0, 70000.0]).to_f16().unwrap_err().to_string();
        assert!(error.contains("70000"), "{error}");
    }

    #[test]
    fn blocks_that_do_not_fit_are_refused_in_words() {
        let layout = KvLayout::plain(2, 3);
        let check = |layers: Vec<KvLayer>, at: (usize, usize), expect: &str| {
            let outcome = KvBlock::new(4, layers)
                .and_then(|block| block.check(std::slice::from_ref(&layout), at.0, at.1, 10));
            let found = format!("{:?}", outcome.map_err(|error| error.to_string()));
            assert!(found.contains(expect), "{found}");
        };
        let good = || layer(2, 3, 24);
        check(vec![good()], (6, 6), "Ok");
        check(vec![good()], (7, 7), "expected 1 to 3 tokens at 0 to 7, found 4 at 7");
        check(vec![good()], (3, 2), "found 4 at 3");
        check(vec![good(), good()], (0, 0), "expected 1 layers of keys and values, found 2");
        check(vec![layer(3, 2, 24)], (0, 0), "expected 2 heads of 3 elements, found 3 of 2");
        check(vec![layer(2, 3, 23)], (0, 0), "found 23 keys");
    }

    #[test]
    fn slices_of_blocks_are_joined_unchanged() {
        let floats = |from: u8, to: u8| (from..to).map(f32::from);
        let check = |rows: &dyn Fn(u8, u8) -> KvRows| {
            // Each token has two heads of three elements.
            let block = |from: u8, to: u8| {
                let layer = KvLayer {
                    heads: 2,
                    head_size: 3,
                    keys: rows(6 * from, 6 * to),
                    values: rows(0, 6 * (to - from)),
                };
                KvBlock::new(usize::from(to - from), vec![layer]).unwrap()
            };
            let (first, second) = (block(0, 5), block(5, 9));
            let slices = [KvSlice { block: &first, tokens: 3..5 }, KvSlice { block: &second, tokens: 0..3 }];
            assert_eq!(KvBlock::join(&slices).unwrap().layers()[0].keys, rows(18, 48));
            assert_eq!(first.slice(1..4).unwrap().layers()[0].keys, rows(6, 24));
            assert!(first.slice(4..6).is_err() && KvBlock::join(&[]).is_err());
            let other = KvBlock::new(5, vec![layer(2, 3, 30), layer(2, 3, 30)]).unwrap();
            let other = other.slice(0..5).unwrap();
            let mixed = [KvSlice { block: &other, tokens: 0..1 }, KvSlice { block: &first, tokens: 0..1 }];
            assert!(KvBlock::join(&mixed).is_err());
        };
        check(&|from, to| KvRows::F32(floats(from, to).collect()));
        check(&|from, to| KvRows::F16(floats(from, to).map(f16::from_f32).collect()));
        check(&|from, to| KvRows::I8 {
            integers: (from..to).map(u8::cast_signed).collect(),
            scales: floats(from / 3, to / 3).collect(),
        });
    }

    #[test]
    fn integers_have_a_scale_for_each_row() {
        let integers = vec![1, -2, 3, 4, 5, 6];
        let rows = |scales| KvRows::I8 { integers: integers.clone(), scales };
        assert_eq!(rows(vec![0.5, 2.0]).to_f32(), [0.5, -1.0, 1.5, 8.0, 10.0, 12.0]);
        let block = |scales| {
            let (keys, values) = (rows(scales), rows(vec![1.0, 1.0]));
            KvBlock::new(2, vec![KvLayer { heads: 1, head_size: 3, keys, values }])
        };
        assert!(block(vec![0.5, 2.0]).is_ok());
        assert!(matches!(block(vec![0.5]), Err(StepError::BadPlan { .. })));
    }
}
