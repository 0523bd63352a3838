//! KV cache of graphs with fixed shapes: for each slot and layer, keys `[heads, size, past]` and values `[heads, past,
//! size]`, where `size` is the head size and `past` the number of columns.
//!
//! The entry of a short convolution has no such tensors; its rows are in [`ConvolutionRows`].
//!
//! A slot's memory is allocated at its first use, for the longest past, and kept. Tokens start at column 0, and masks
//! hide the unused columns. The number of columns is that of the graphs that run on the slot; when it changes, the
//! tokens are moved.

use std::ops::Range;

use half::f16;
use narthex_engine::executor::{KvCopy, StepError};
use narthex_spec::{
    SlotId,
    manifest::{KvContent, KvLayout},
};

use crate::convolution_rows::ConvolutionRows;

/// Keys and values of all slots.
pub(super) struct StaticKvCache {
    layers: Vec<KvLayout>,
    /// Maximum number of columns.
    past: usize,
    slots: Vec<SlotCache>,
    /// Rows of short convolutions.
    pub(super) convolutions: ConvolutionRows<f16>,
}

#[derive(Default)]
struct SlotCache {
    length: usize,
    /// Number of columns in the present arrangement.
    past: usize,
    /// Keys and values of each layer; empty until the slot is first used.
    layers: Vec<[Vec<f16>; 2]>,
}

/// One layer's new keys `[heads, size, tokens]` and values `[heads, tokens, size]`, of which the last `count` are real.
#[derive(Clone, Copy)]
pub(super) struct NewTokens<'a> {
    pub(super) keys: &'a [f16],
    pub(super) values: &'a [f16],
    pub(super) tokens: usize,
    pub(super) count: usize,
}

impl StaticKvCache {
    pub(super) fn new(layers: &[KvLayout], past: usize, slots: usize) -> Self {
        let convolutions = ConvolutionRows::new(layers, slots);
        let slots = (0..slots).map(|_| SlotCache::default()).collect();
        Self { layers: layers.to_vec(), past, slots, convolutions }
    }

    /// Returns the number of tokens in a slot.
    pub(super) fn length(&self, slot: SlotId) -> usize {
        self.slots[slot.index()].length
    }

    pub(super) fn set_length(&mut self, slot: SlotId, length: usize) {
        self.slots[slot.index()].length = length;
    }

    /// Keeps the first `length` tokens of a slot.
    pub(super) fn truncate(&mut self, slot: SlotId, length: usize) {
        self.set_length(slot, length);
        self.convolutions.truncate(slot, length);
    }

    /// Returns a slot's memory for each layer, allocated at its first use. It is not moved during the cache's lifetime.
    pub(super) fn layers(&mut self, slot: SlotId) -> Result<&mut [[Vec<f16>; 2]], StepError> {
        let layers = &mut self.slots[slot.index()].layers;
        if layers.is_empty() {
            let elements = self.layers.iter().map(|layer| match layer.content {
                KvContent::KeysAndValues => layer.heads * layer.head_size * self.past,
                KvContent::ConvolutionInputs | KvContent::RecurrentState { .. } => 0,
            });
            let lengths: Vec<usize> = elements.collect();
            let mut allocated = Vec::with_capacity(lengths.len());
            for &length in &lengths {
                let (Some(keys), Some(values)) = (zeros(length), zeros(length)) else {
                    let wanted = 4 * lengths.iter().sum::<usize>();
                    return Err(StepError::OutOfMemory { rows: 1, capacity: self.past, wanted });
                };
                allocated.push([keys, values]);
            }
            *layers = allocated;
        }
        Ok(layers)
    }

    /// Rearranges a slot for `past` columns and keeps its first `held` tokens.
    pub(super) fn fit(&mut self, slot: SlotId, past: usize, held: usize) -> Result<(), StepError> {
        self.layers(slot)?;
        let slot = &mut self.slots[slot.index()];
        let from = std::mem::replace(&mut slot.past, past);
        let layers = self.layers.iter().zip(&mut slot.layers);
        for (layout, [key, value]) in layers.filter(|(layout, _)| holds_keys(layout)) {
            let KvLayout { heads, head_size: size, .. } = *layout;
            respace(key, heads * size, from, past, held);
            respace(value, heads, from * size, past * size, held * size);
        }
        Ok(())
    }

    /// Writes a layer's new tokens at column `at`.
    pub(super) fn put(&mut self, slot: SlotId, layer: usize, at: usize, new: NewTokens<'_>) {
        let KvLayout { heads, head_size: size, .. } = self.layers[layer];
        let NewTokens { keys, values, tokens, count } = new;
        let SlotCache { past, layers, .. } = &mut self.slots[slot.index()];
        let past = *past;
        let first = tokens - count;
        let [key, value] = &mut layers[layer];
        for row in 0..heads * size {
            let from = &keys[row * tokens + first..(row + 1) * tokens];
            key[row * past + at..][..count].copy_from_slice(from);
        }
        for head in 0..heads {
            let from = &values[(head * tokens + first) * size..(head + 1) * tokens * size];
            value[(head * past + at) * size..][..count * size].copy_from_slice(from);
        }
    }

    /// Returns a slot's tokens in a layer, as keys and values, each `[tokens, heads, size]`.
    pub(super) fn read(&self, slot: SlotId, layer: usize, range: Range<usize>) -> [Vec<f16>; 2] {
        if let Some(index) = self.convolutions.index(layer) {
            return self.convolutions.read_halves(slot, index, range);
        }
        let KvLayout { heads, head_size: size, .. } = self.layers[layer];
        let SlotCache { past, layers, .. } = &self.slots[slot.index()];
        let [key, value] = &layers[layer];
        let elements = range.len() * heads * size;
        let mut keys = Vec::with_capacity(elements);
        let mut values = Vec::with_capacity(elements);
        for token in range {
            keys.extend((0..heads * size).map(|row| key[row * past + token]));
            for head in 0..heads {
                values.extend_from_slice(&value[(head * past + token) * size..][..size]);
            }
        }
        [keys, values]
    }

    /// Writes a layer's keys and values, each `[tokens, heads, size]`, from column `at` on. The slot's memory must be
    /// allocated.
    pub(super) fn write(
        &mut self,
        slot: SlotId,
        layer: usize,
        at: usize,
        [keys, values]: [&[f16]; 2],
    ) -> Result<(), StepError> {
        if let Some(index) = self.convolutions.index(layer) {
            return self.convolutions.write_halves(slot, index, at, [keys, values]);
        }
        let KvLayout { heads, head_size: size, .. } = self.layers[layer];
        let SlotCache { past, layers, .. } = &mut self.slots[slot.index()];
        let past = *past;
        let [key, value] = &mut layers[layer];
        for (token, line) in (at..).zip(keys.chunks_exact(heads * size)) {
            line.iter().enumerate().for_each(|(row, element)| key[row * past + token] = *element);
        }
        for (token, line) in (at..).zip(values.chunks_exact(heads * size)) {
            for (head, vector) in line.chunks_exact(size).enumerate() {
                value[(head * past + token) * size..][..size].copy_from_slice(vector);
            }
        }
        Ok(())
    }

    /// Copies tokens to the same columns of another slot, which must be arranged for them ([`Self::fit`]).
    pub(super) fn copy(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        let slots = self.slots.get_disjoint_mut([copy.from.index(), copy.to.index()]);
        let [from, to] = slots.map_err(|_| KvCopy::same_slot(copy.from))?;
        let at = copy.tokens.start;
        let count = copy.tokens.len();
        let layers = self.layers.iter().zip(from.layers.iter().zip(&mut to.layers));
        for (layout, (from_layer, to_layer)) in layers.filter(|(layout, _)| holds_keys(layout)) {
            let KvLayout { heads, head_size: size, .. } = *layout;
            for (part, rows, width) in [(0, heads * size, 1), (1, heads, size)] {
                for row in 0..rows {
                    let [source, target] = [from.past, to.past].map(|past| (row * past + at) * width);
                    let values = &from_layer[part][source..][..count * width];
                    to_layer[part][target..][..count * width].copy_from_slice(values);
                }
            }
        }
        self.convolutions.copy(copy)
    }
}

fn holds_keys(layout: &KvLayout) -> bool {
    layout.content == KvContent::KeysAndValues
}

/// Moves `rows` rows from a distance of `from` elements to a distance of `to` elements, and keeps the first `kept`
/// elements of each.
fn respace(elements: &mut [f16], rows: usize, from: usize, to: usize, kept: usize) {
    if to == from {
        return;
    }
    let length = kept.min(from).min(to);
    for index in 0..rows {
        // In this order, no row is overwritten before it has been moved.
        let row = if to > from { rows - 1 - index } else { index };
        elements.copy_within(row * from..row * from + length, row * to);
    }
}

/// Returns this number of zeros, or `None` if there is not enough memory.
fn zeros(length: usize) -> Option<Vec<f16>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(length).ok()?;
    zeros.resize(length, f16::ZERO);
    Some(zeros)
}

#[cfg(test)]
mod tests {
    use narthex_spec::{DType, manifest::KeyOrder};

    use super::*;

    const LAYER: KvLayout =
        KvLayout { dtype: DType::F16, order: KeyOrder::Transposed, ..KvLayout::plain(2, 3) };

    #[test]
    fn new_tokens_lie_where_the_graphs_look_for_them() {
        let (past, tokens, count, at) = (5, 4, 2, 1);
        let mut cache = StaticKvCache::new(&[LAYER], past, 1);
        cache.fit(SlotId(0), past, 0).unwrap();
        // Each element encodes its head, its row and its token.
        let number =
            |head: usize, row: usize, token: usize| f16::from_f32((head * 100 + row * 10 + token) as f32);
        let mut keys = Vec::new();
        let mut values = Vec::new();
        for head in 0..2 {
            keys.extend((0..3).flat_map(|row| (0..tokens).map(move |token| number(head, row, token))));
            values.extend((0..tokens).flat_map(|token| (0..3).map(move |row| number(head, row, token))));
        }
        cache.put(SlotId(0), 0, at, NewTokens { keys: &keys, values: &values, tokens, count });
        let [key, value] = &cache.layers(SlotId(0)).unwrap()[0];
        for (head, row, token) in [(0, 0, 2), (1, 2, 3), (0, 1, 3)] {
            let column = at + token - (tokens - count);
            assert_eq!(key[(head * 3 + row) * past + column], number(head, row, token));
            assert_eq!(value[(head * past + column) * 3 + row], number(head, row, token));
        }
        // Tokens are the first dimension of a block, whatever the order of the keys in the cache.
        let [keys, values] = cache.read(SlotId(0), 0, at..at + count);
        for (head, row, token) in [(0, 0, 2), (1, 2, 3), (0, 1, 3)] {
            let element = ((token - 2) * 2 + head) * 3 + row;
            assert_eq!(keys[element], number(head, row, token));
            assert_eq!(values[element], number(head, row, token));
        }
        let before = cache.layers(SlotId(0)).unwrap().to_vec();
        cache.write(SlotId(0), 0, at, [&keys, &values]).unwrap();
        assert_eq!(cache.layers(SlotId(0)).unwrap(), before);
        cache.write(SlotId(0), 0, at + 1, [&keys, &values]).unwrap();
        assert_eq!(cache.read(SlotId(0), 0, at + 1..at + 3), [keys, values]);
        cache.layers(SlotId(0)).unwrap().clone_from_slice(&before);
        let [key, _] = &cache.layers(SlotId(0)).unwrap()[0];
        let untouched = key.iter().filter(|x| **x == f16::ZERO).count();
        assert_eq!(untouched, key.len() - 2 * 3 * count);
    }

    #[test]
    fn tokens_are_copied_to_slots_of_another_layout() {
        let mut cache = StaticKvCache::new(&[LAYER], 9, 2);
        cache.fit(SlotId(0), 4, 0).unwrap();
        cache.fit(SlotId(1), 7, 0).unwrap();
        let held: [Vec<f16>; 2] =
            [0, 100].map(|first| (first..first + 18).map(|value| f16::from_f32(value as f32)).collect());
        cache.write(SlotId(0), 0, 0, held.each_ref().map(Vec::as_slice)).unwrap();
        cache.copy(&KvCopy { from: SlotId(0), to: SlotId(1), tokens: 0..1 }).unwrap();
        let [key, value] = &cache.slots[1].layers[0];
        let written = |part: &[f16]| part.iter().filter(|element| **element != f16::ZERO).count();
        assert_eq!((written(key), written(value)), (5, 6), "the first of 6 keys is zero");
        cache.copy(&KvCopy { from: SlotId(0), to: SlotId(1), tokens: 1..3 }).unwrap();
        assert_eq!(cache.read(SlotId(1), 0, 0..3), held);
        assert_eq!(cache.read(SlotId(0), 0, 0..3), held);
    }

    #[test]
    fn tokens_move_with_the_columns() {
        let mut cache = StaticKvCache::new(&[LAYER], 9, 2);
        let slot = SlotId(1);
        cache.fit(slot, 4, 0).unwrap();
        let held: [Vec<f16>; 2] =
            [0, 100].map(|first| (first..first + 18).map(|value| f16::from_f32(value as f32)).collect());
        cache.write(slot, 0, 0, held.each_ref().map(Vec::as_slice)).unwrap();
        for past in [9, 5, 5, 3, 7] {
            cache.fit(slot, past, 3).unwrap();
            assert_eq!(cache.read(slot, 0, 0..3), held, "{past} columns");
        }
        // After a truncation, only the remaining tokens have to fit.
        cache.fit(slot, 2, 2).unwrap();
        assert_eq!(cache.read(slot, 0, 0..2), held.map(|part| part[..12].to_vec()));
    }
}
