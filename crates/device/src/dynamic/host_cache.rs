//! The KV cache in the host's memory. Each layer has two buffers `[rows, heads, capacity, head_size]` in single
//! precision, half precision or integers, which hold both the past and the present. Integers are followed by their scale.
//!
//! A slot has a row from its first token until it is emptied. All rows have the same capacity. When it grows, the rows
//! are moved to larger buffers, without gaps from emptied slots. Pages of unused rows are never touched and take no
//! memory. When slots are emptied and few tokens remain, the rows are moved to smaller buffers.

use std::ops::Range;

use bytemuck::Pod;
use narthex_engine::executor::{KvCopy, KvRows, Limits, StepError};
use narthex_kernels::Kernels;
use narthex_spec::{DType, SlotId, manifest::KvLayout};

use super::{
    growth::{Growth, max_capacity},
    rows::{KvPart, KvTensor, RowShape},
};
use crate::memory::Buffer;

/// The cache shrinks once it has touched this many times the memory that its slots need. The factor is large enough
/// that copying is rare.
const SHRINK_FACTOR: usize = 4;

/// The cache of one executor.
pub(super) struct HostKvCache {
    layers: Vec<Layer>,
    limits: Limits,
    growth: Growth,
    rows: usize,
    capacity: usize,
    /// Number of rows, counted from the first, that slots have used since the last layout.
    touched: usize,
    /// Number of tokens in each slot.
    lengths: Vec<usize>,
    /// Row of each slot.
    row_of: Vec<Option<usize>>,
    /// Number that changes whenever rows move in memory.
    generation: u64,
}

struct Layer {
    layout: KvLayout,
    /// Keys and values.
    buffers: [Buffer; 2],
}

impl Layer {
    /// Returns the shape of a row in elements.
    fn row(&self, capacity: usize) -> RowShape {
        RowShape { heads: self.layout.heads, capacity, head_size: self.layout.row_elements() }
    }

    fn row_bytes(&self, capacity: usize) -> RowShape {
        let row = self.row(capacity);
        RowShape { head_size: row.head_size * self.layout.dtype.size(), ..row }
    }

    /// Returns the elements of a row, whose type must be `T`.
    fn elements<T: Pod>(&self, part: KvPart, row: usize, capacity: usize) -> &[T] {
        let length = self.row(capacity).len();
        &self.buffers[part as usize].as_slice()[row * length..][..length]
    }

    /// Returns the elements of a row for writing. Their type must be `T`.
    fn elements_mut<T: Pod>(&mut self, part: KvPart, row: usize, capacity: usize) -> &mut [T] {
        let length = self.row(capacity).len();
        &mut self.buffers[part as usize].as_mut_slice()[row * length..][..length]
    }
}

/// A slot's row that moves to the next free place.
struct Move {
    slot: usize,
    from: usize,
    /// Number of tokens in the slot.
    length: usize,
}

impl HostKvCache {
    pub(super) fn new(layouts: &[KvLayout], limits: &Limits, growth: Growth) -> Self {
        Self {
            layers: layouts
                .iter()
                .map(|layout| Layer { layout: layout.clone(), buffers: [(), ()].map(|()| Buffer::EMPTY) })
                .collect(),
            limits: limits.clone(),
            growth,
            rows: 0,
            capacity: 0,
            touched: 0,
            lengths: vec![0; limits.slots],
            row_of: vec![None; limits.slots],
            generation: 0,
        }
    }

    /// Returns the number of tokens in a slot.
    pub(super) fn length(&self, slot: SlotId) -> usize {
        self.lengths[slot.index()]
    }

    /// Sets the number of tokens in a slot.
    pub(super) fn set_length(&mut self, slot: SlotId, length: usize) {
        self.lengths[slot.index()] = length;
    }

    /// Returns the row of a slot, which must be reserved.
    pub(super) fn row(&self, slot: SlotId) -> usize {
        self.row_of[slot.index()].unwrap_or(0)
    }

    /// Returns the capacity of a row in tokens.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns a number that changes whenever rows move in memory.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the shape and the element type of a layer.
    pub(super) fn layout(&self, layer: usize) -> &KvLayout {
        &self.layers[layer].layout
    }

    /// Returns the bytes of some rows of a tensor.
    pub(super) fn rows_mut(&mut self, tensor: KvTensor, rows: Range<usize>) -> &mut [u8] {
        let layer = &mut self.layers[tensor.layer];
        let row = layer.row_bytes(self.capacity).len();
        &mut layer.buffers[tensor.part as usize].as_mut_slice()[rows.start * row..rows.end * row]
    }

    /// Writes `[heads, tokens, head_size]` to a row of a cache in single precision, at these tokens.
    pub(super) fn place(&mut self, tensor: KvTensor, row: usize, tokens: Range<usize>, values: &[f32]) {
        let layer = &mut self.layers[tensor.layer];
        let shape = layer.row(self.capacity);
        shape.place(layer.elements_mut(tensor.part, row, self.capacity), tokens, values);
    }

    /// Returns some of a slot's tokens in a tensor, as `[tokens, heads, head_size]`.
    pub(super) fn read(&self, tensor: KvTensor, slot: SlotId, range: Range<usize>) -> KvRows {
        let layer = &self.layers[tensor.layer];
        let row = self.row(slot);
        let shape = layer.row(self.capacity);
        let size = layer.layout.head_size;
        match layer.layout.dtype {
            DType::F16 => KvRows::F16(shape.read(layer.elements(tensor.part, row, self.capacity), range)),
            DType::I8 => {
                split_scales(&shape.read(layer.elements(tensor.part, row, self.capacity), range), size)
            }
            _ => KvRows::F32(shape.read(layer.elements(tensor.part, row, self.capacity), range)),
        }
    }

    /// Writes `[tokens, heads, head_size]` to a reserved row, starting at token `at`.
    ///
    /// # Errors
    /// [`StepError::Device`] for an element that the cache's type cannot hold.
    pub(super) fn write(
        &mut self,
        tensor: KvTensor,
        slot: SlotId,
        at: usize,
        rows: &KvRows,
    ) -> Result<(), StepError> {
        let row = self.row(slot);
        let capacity = self.capacity;
        let layer = &mut self.layers[tensor.layer];
        let shape = layer.row(capacity);
        match (layer.layout.dtype, rows) {
            (DType::F16, KvRows::F16(values)) => {
                shape.write(layer.elements_mut(tensor.part, row, capacity), at, values);
            }
            (DType::F16, _) => {
                let values = rows.to_f16()?;
                shape.write(layer.elements_mut(tensor.part, row, capacity), at, &values);
            }
            (DType::I8, _) => {
                let values = with_scales(rows, layer.layout.head_size);
                shape.write(layer.elements_mut(tensor.part, row, capacity), at, &values);
            }
            (_, KvRows::F32(values)) => {
                shape.write(layer.elements_mut(tensor.part, row, capacity), at, values);
            }
            _ => shape.write(layer.elements_mut(tensor.part, row, capacity), at, &rows.to_f32()),
        }
        Ok(())
    }

    /// Copies tokens to the row of another slot, which must be reserved.
    pub(super) fn copy(&mut self, copy: &KvCopy) {
        let from = self.row(copy.from);
        let to = self.row(copy.to);
        for layer in &mut self.layers {
            let shape = layer.row_bytes(self.capacity);
            for buffer in &mut layer.buffers {
                shape.copy_within::<u8>(buffer.as_mut_slice(), from, to, &copy.tokens);
            }
        }
    }

    /// Keeps the first `length` tokens. An empty slot has no row, and a cache without rows takes no memory.
    pub(super) fn truncate(&mut self, slot: SlotId, length: usize) {
        self.lengths[slot.index()] = length;
        if length == 0 {
            self.row_of[slot.index()] = None;
            self.shrink();
        }
    }

    /// Shrinks the cache if its capacity is far above the slots' needs.
    fn shrink(&mut self) {
        let occupied = self.row_of.iter().flatten().count();
        if occupied == 0 {
            if self.rows > 0 {
                self.layers.iter_mut().for_each(|layer| layer.buffers = [(), ()].map(|()| Buffer::EMPTY));
                (self.rows, self.capacity, self.touched) = (0, 0, 0);
                self.generation += 1;
            }
            return;
        }
        let longest = self.lengths.iter().copied().max().unwrap_or(0);
        let capacity = self.limits.kv.capacity_for(longest, self.limits.context);
        if self.touched * self.capacity >= SHRINK_FACTOR * occupied * capacity {
            // A failure leaves the cache unchanged.
            let _ = self.relocate(occupied, capacity);
        }
    }

    /// Assigns each slot a row with room for its length.
    pub(super) fn reserve(
        &mut self,
        wanted: impl Iterator<Item = (SlotId, usize)> + Clone,
    ) -> Result<(), StepError> {
        let named = |slot: usize| wanted.clone().any(|(id, _)| id.index() == slot);
        let occupied =
            (0..self.limits.slots).filter(|&slot| self.row_of[slot].is_some() || named(slot)).count();
        let lengths = wanted.clone().map(|(_, length)| length).chain(self.lengths.iter().copied());
        let longest = lengths.max().unwrap_or(0);
        if longest > self.capacity || occupied > self.rows {
            let most = max_capacity(&self.limits, self.limits.kv.budget, occupied);
            let capacity = if longest > self.capacity {
                self.growth.capacity(&self.limits, self.capacity, longest, most)
            } else {
                self.capacity.min(most).max(self.limits.kv.capacity_for(longest, self.limits.context))
            };
            self.relocate(occupied, capacity)?;
        }

        for (slot, _) in wanted {
            if self.row_of[slot.index()].is_none() {
                let free = (0..self.rows).find(|row| !self.row_of.contains(&Some(*row)));
                self.row_of[slot.index()] = free;
                self.touched = self.touched.max(free.map_or(0, |row| row + 1));
            }
        }
        Ok(())
    }

    /// Moves the rows in use to new buffers for `occupied` slots. If the budget allows, the buffers have spare rows,
    /// since untouched rows take no memory. An error leaves the cache unchanged.
    fn relocate(&mut self, occupied: usize, capacity: usize) -> Result<(), StepError> {
        let kv = self.limits.kv;
        let error = StepError::OutOfMemory { rows: occupied, capacity, wanted: kv.bytes(occupied, capacity) };
        if kv.bytes(occupied, capacity) > kv.budget {
            return Err(error);
        }

        let within = kv.budget.checked_div(kv.bytes(1, capacity)).unwrap_or(usize::MAX);
        let rows = within.min(self.limits.slots).max(occupied);
        let mut fresh = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let length = rows * layer.row_bytes(capacity).len();
            let allocate = || Buffer::zeroed(length).ok_or_else(|| error.clone());
            fresh.push([allocate()?, allocate()?]);
        }

        let mut moves: Vec<Move> = (self.row_of.iter().zip(&self.lengths).enumerate())
            .filter_map(|(slot, (row, &length))| Some(Move { slot, from: (*row)?, length }))
            .collect();
        moves.sort_by_key(|row| row.from);

        for (layer, mut buffers) in self.layers.iter_mut().zip(fresh) {
            let old_row = layer.row_bytes(self.capacity);
            let new_row = layer.row_bytes(capacity);
            for (old, new) in layer.buffers.iter().zip(&mut buffers) {
                let places = new.as_mut_slice().chunks_exact_mut(new_row.len().max(1));
                for (row, place) in moves.iter().zip(places) {
                    let old = &old.as_slice::<u8>()[row.from * old_row.len()..];
                    old_row.copy(old, new_row, place, row.length);
                }
            }
            layer.buffers = buffers;
        }

        for (to, row) in moves.iter().enumerate() {
            self.row_of[row.slot] = Some(to);
        }
        (self.rows, self.capacity, self.touched) = (rows, capacity, moves.len());
        self.generation += 1;
        Ok(())
    }

    /// Moves the rows of these slots next to each other and returns the first of them. Rows that are already in place
    /// are not moved.
    pub(super) fn gather(&mut self, slots: &[SlotId]) -> usize {
        let rows = || slots.iter().map(|slot| self.row(*slot));
        let first = rows().min().unwrap_or(0);
        let last = rows().max().unwrap_or(0);
        if last - first + 1 == slots.len() {
            return first;
        }
        let first = first.min(self.rows - slots.len());
        for row in first..first + slots.len() {
            if slots.iter().any(|slot| self.row(*slot) == row) {
                continue;
            }
            if let Some(slot) =
                slots.iter().find(|slot| !(first..first + slots.len()).contains(&self.row(**slot)))
            {
                self.swap_rows(self.row(*slot), row);
            }
        }
        first
    }

    fn swap_rows(&mut self, a: usize, b: usize) {
        let at = |row: usize| self.row_of.iter().position(|other| *other == Some(row));
        let slot_a = at(a);
        let slot_b = at(b);
        let used = [slot_a, slot_b].into_iter().flatten().map(|slot| self.lengths[slot]).max().unwrap_or(0);
        for layer in &mut self.layers {
            let shape = layer.row_bytes(self.capacity);
            for buffer in &mut layer.buffers {
                let (before, after) = buffer.as_mut_slice::<u8>().split_at_mut(a.max(b) * shape.len());
                shape.swap(&mut before[a.min(b) * shape.len()..], after, used);
            }
        }
        if let Some(slot) = slot_a {
            self.row_of[slot] = Some(b);
        }
        if let Some(slot) = slot_b {
            self.row_of[slot] = Some(a);
        }
    }
}

/// Separates rows of `size` integers from the scales after them.
fn split_scales(rows: &[i8], size: usize) -> KvRows {
    let width = size + KvLayout::SCALE_BYTES;
    let count = rows.len() / width;
    let mut integers = Vec::with_capacity(count * size);
    let mut scales = Vec::with_capacity(count);
    for row in rows.chunks_exact(width) {
        let (values, scale) = row.split_at(size);
        integers.extend_from_slice(values);
        let scale = scale.first_chunk().map(|&bytes| f32::from_ne_bytes(bytes.map(i8::cast_unsigned)));
        scales.extend(scale);
    }
    KvRows::I8 { integers, scales }
}

/// Returns rows of `size` integers, each followed by its scale. Other numbers are rounded to integers.
fn with_scales(rows: &KvRows, size: usize) -> Vec<i8> {
    let width = size + KvLayout::SCALE_BYTES;
    if let KvRows::I8 { integers, scales } = rows {
        let mut out = Vec::with_capacity(scales.len() * width);
        for (row, scale) in integers.chunks_exact(size).zip(scales) {
            out.extend_from_slice(row);
            out.extend_from_slice(&scale.to_ne_bytes().map(u8::cast_signed));
        }
        return out;
    }

    let values = rows.to_f32();
    let kernels = Kernels::portable();
    let mut out = vec![0; values.len() / size * width];
    for (row, out) in values.chunks_exact(size).zip(out.chunks_exact_mut(width)) {
        kernels.quantize_cache_row(row, out);
    }
    out
}

#[cfg(test)]
mod tests {
    use half::f16;
    use narthex_engine::executor::KvLimits;

    use super::*;

    fn cache(dtype: DType, slots: usize, budget: usize) -> HostKvCache {
        let layout = KvLayout { dtype, ..KvLayout::plain(2, 3) };
        let kv = KvLimits { bytes_per_token: layout.bytes_per_token(), bytes_per_slot: 0, step: 4, budget };
        let limits = Limits { slots, context: 64, chunk: 16, batch: slots, vocab: 8, kv };
        HostKvCache::new(&[layout], &limits, Growth::Double)
    }

    /// Fills a slot with numbers that identify slot, head and position.
    fn fill(cache: &mut HostKvCache, slot: u32, length: usize) {
        let id = SlotId(slot);
        cache.reserve([(id, length)].into_iter()).unwrap();
        let (row, capacity) = (cache.row(id), cache.capacity());
        for part in [KvPart::Key, KvPart::Value] {
            let (dtype, width) = (cache.layout(0).dtype, cache.layout(0).row_elements());
            let data = cache.rows_mut(KvTensor { layer: 0, part }, row..row + 1);
            for head in 0..2 {
                for position in 0..length {
                    let (at, x) = ((head * capacity + position) * width, content(slot, part, head, position));
                    match dtype {
                        DType::F16 => bytemuck::cast_slice_mut(data)[at] = f16::from_f32(x),
                        DType::I8 => {
                            data[at] = 1;
                            data[at + 3..at + width].copy_from_slice(&x.to_ne_bytes());
                        }
                        _ => bytemuck::cast_slice_mut(data)[at] = x,
                    }
                }
            }
        }
        cache.set_length(id, length);
    }

    /// Returns a number below 2048, which half precision represents exactly.
    fn content(slot: u32, part: KvPart, head: usize, position: usize) -> f32 {
        (slot as usize * 300 + part as usize * 150 + head * 75 + position) as f32
    }

    fn check(cache: &mut HostKvCache, slot: u32) {
        let id = SlotId(slot);
        let (row, capacity, length) = (cache.row(id), cache.capacity(), cache.length(id));
        for part in [KvPart::Key, KvPart::Value] {
            let (dtype, width) = (cache.layout(0).dtype, cache.layout(0).row_elements());
            let data = cache.rows_mut(KvTensor { layer: 0, part }, row..row + 1);
            for head in 0..2 {
                for position in 0..length {
                    let at = (head * capacity + position) * width;
                    let found = match dtype {
                        DType::F16 => bytemuck::cast_slice::<u8, f16>(data)[at].to_f32(),
                        DType::I8 => {
                            let scale = f32::from_ne_bytes(*data[at + 3..].first_chunk().unwrap());
                            f32::from(data[at].cast_signed()) * scale
                        }
                        _ => bytemuck::cast_slice(data)[at],
                    };
                    assert_eq!(
                        found,
                        content(slot, part, head, position),
                        "slot {slot}, head {head}, {position}"
                    );
                }
            }
        }
    }

    /// The element types of a cache.
    const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::I8];

    #[test]
    fn growth_and_gathering_keep_what_slots_hold() {
        for dtype in DTYPES {
            let mut c = cache(dtype, 5, 1 << 20);
            for slot in 0..5 {
                fill(&mut c, slot, 2 + slot as usize);
            }
            fill(&mut c, 0, 30);
            c.truncate(SlotId(1), 0);
            let first = c.gather(&[SlotId(4), SlotId(0), SlotId(2)]);
            let mut rows = [4, 0, 2].map(|slot| c.row(SlotId(slot)) - first);
            rows.sort_unstable();
            assert_eq!(rows, [0, 1, 2]);
            for slot in [0, 2, 3, 4] {
                check(&mut c, slot);
            }
        }
    }

    #[test]
    fn what_is_written_is_what_is_read_and_lies_where_the_graph_looks() {
        for dtype in DTYPES {
            let mut c = cache(dtype, 3, 1 << 20);
            fill(&mut c, 0, 3);
            fill(&mut c, 1, 6);
            for part in [KvPart::Key, KvPart::Value] {
                let block = c.read(KvTensor { layer: 0, part }, SlotId(1), 2..5);
                let found = match block {
                    KvRows::F32(_) => DType::F32,
                    KvRows::F16(_) => DType::F16,
                    KvRows::I8 { .. } => DType::I8,
                };
                assert_eq!((block.len(), found), (3 * 2 * 3, dtype));
                assert_eq!(block.to_f32()[(2 * 2 + 1) * 3], content(1, part, 1, 4));
                // The cache accepts blocks of every type. Integers and their scales are kept, other numbers are rounded.
                let others = [KvRows::F32(block.to_f32()), KvRows::F16(block.to_f16().unwrap())];
                for rows in others.into_iter().chain([block.clone()]) {
                    c.write(KvTensor { layer: 0, part }, SlotId(1), 2, &rows).unwrap();
                    let read = c.read(KvTensor { layer: 0, part }, SlotId(1), 2..5);
                    let pairs = read.f32s().zip(block.f32s());
                    let near = pairs.into_iter().all(|(x, y)| (x - y).abs() <= 1e-6 * y.abs());
                    assert!(near && (read == block || dtype == DType::I8), "{read:?}");
                }
                assert_eq!(c.read(KvTensor { layer: 0, part }, SlotId(1), 2..5), block);
            }
            // The slot's other tokens and the other slots are unchanged.
            check(&mut c, 0);
            check(&mut c, 1);
            let value = KvTensor { layer: 0, part: KvPart::Value };
            c.write(value, SlotId(1), 4, &KvRows::F32(vec![7.0; 6])).unwrap();
            assert_eq!(c.read(value, SlotId(1), 4..5).to_f32(), [7.0; 6]);
            assert_eq!(c.read(value, SlotId(1), 5..6).to_f32()[3], content(1, KvPart::Value, 1, 5));
        }
    }

    #[test]
    fn half_precision_refuses_what_it_cannot_hold() {
        for (dtype, fits) in [(DType::F32, true), (DType::F16, false), (DType::I8, true)] {
            let mut c = cache(dtype, 1, 1 << 20);
            fill(&mut c, 0, 2);
            let value = KvTensor { layer: 0, part: KvPart::Value };
            assert_eq!(c.write(value, SlotId(0), 1, &KvRows::F32(vec![1e6; 6])).is_ok(), fits, "{dtype:?}");
        }
    }

    #[test]
    fn types_of_fewer_bits_take_less_memory() {
        let bytes = DTYPES.map(|dtype| {
            let mut c = cache(dtype, 2, 1 << 20);
            fill(&mut c, 0, 9);
            let key = KvTensor { layer: 0, part: KvPart::Key };
            c.rows_mut(key, 0..1).len()
        });
        assert_eq!(bytes, [2 * 12 * 3 * 4, 2 * 12 * 3 * 2, 2 * 12 * (3 + 4)]);
    }

    #[test]
    fn a_copy_gives_another_slot_the_same_tokens_and_changes_no_other() {
        for dtype in DTYPES {
            let mut c = cache(dtype, 4, 1 << 20);
            for (slot, length) in [(0, 9), (1, 3), (2, 5)] {
                fill(&mut c, slot, length);
            }
            for (to, tokens) in [(3, 0..7), (1, 3..9)] {
                c.reserve([(SlotId(to), tokens.end)].into_iter()).unwrap();
                c.copy(&KvCopy { from: SlotId(0), to: SlotId(to), tokens: tokens.clone() });
                for part in [KvPart::Key, KvPart::Value] {
                    let read = |slot| c.read(KvTensor { layer: 0, part }, SlotId(slot), tokens.clone());
                    assert_eq!(read(to), read(0));
                }
            }
            for slot in [0, 1, 2] {
                check(&mut c, slot);
            }
        }
    }

    #[test]
    fn little_that_is_left_takes_little() {
        let mut c = cache(DType::F16, 4, 1 << 20);
        for (slot, length) in [(0, 60), (1, 3), (2, 5), (3, 60)] {
            fill(&mut c, slot, length);
        }
        c.truncate(SlotId(0), 0);
        assert_eq!(c.capacity(), 60);
        c.truncate(SlotId(3), 0);
        assert_eq!(c.capacity(), 8);
        for slot in [1, 2] {
            check(&mut c, slot);
        }
        fill(&mut c, 3, 20);
        for slot in [1, 2, 3] {
            check(&mut c, slot);
        }
    }

    #[test]
    fn what_growth_copies_is_in_proportion_to_what_is_held() {
        let copied = |budget: usize| {
            let (mut c, mut copied) = (cache(DType::F32, 1, budget), 0);
            for length in 1..=64 {
                let before = (c.generation(), c.length(SlotId(0)));
                if c.reserve([(SlotId(0), length)].into_iter()).is_err() {
                    return (length - 1, copied);
                }
                copied += if c.generation() == before.0 { 0 } else { before.1 };
                c.set_length(SlotId(0), length);
            }
            (64, copied)
        };
        // The cache grows at lengths of 4, 8, 16 and 32.
        assert_eq!(copied(1 << 20), (64, 60));
        // The last growth is limited by the rest of the budget.
        assert_eq!(copied(48 * 40), (40, 60));
    }

    #[test]
    fn the_budget_holds_and_a_failure_changes_nothing() {
        let per_token = 48;
        let mut c = cache(DType::F32, 3, per_token * 16);
        fill(&mut c, 0, 4);
        fill(&mut c, 1, 8);
        let error = c.reserve([(SlotId(1), 9)].into_iter()).unwrap_err();
        assert_eq!(error, StepError::OutOfMemory { rows: 2, capacity: 12, wanted: per_token * 24 });
        check(&mut c, 0);
        check(&mut c, 1);
        c.truncate(SlotId(0), 0);
        c.reserve([(SlotId(1), 16)].into_iter()).unwrap();
        check(&mut c, 1);
        c.truncate(SlotId(1), 0);
        assert_eq!(c.capacity(), 0);
    }
}
