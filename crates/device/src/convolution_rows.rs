//! Rows that short convolutions read: for each slot and each convolution, the inputs of all its tokens in the host's
//! memory. A step reads the last rows before its first token.
//!
//! The rows of all tokens are kept, so that a sequence can be cut back to any of them, like keys and values.

use std::ops::Range;

use narthex_engine::executor::{KvCopy, StepError};
use narthex_spec::{
    SlotId,
    manifest::{KvContent, KvLayout},
};

/// Rows of elements of type `T` of all slots.
pub(crate) struct ConvolutionRows<T> {
    shapes: Vec<Shape>,
    /// For each slot, the rows of each convolution.
    slots: Vec<Vec<Vec<T>>>,
}

/// Shape of one convolution.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Entry of the cache.
    entry: usize,
    /// Elements of a row.
    width: usize,
    /// Number of rows that a step reads.
    past: usize,
}

impl<T: Copy + Default> ConvolutionRows<T> {
    /// Creates the rows of the convolutions among the entries of a cache.
    pub(crate) fn new(layouts: &[KvLayout], slots: usize) -> Self {
        let convolutions =
            layouts.iter().enumerate().filter(|(_, layout)| layout.content == KvContent::ConvolutionInputs);
        let shapes: Vec<Shape> = convolutions
            .map(|(entry, layout)| Shape {
                entry,
                width: layout.heads.saturating_mul(layout.head_size).saturating_mul(2),
                past: layout.window.unwrap_or(0),
            })
            .collect();
        let slots = (0..slots).map(|_| shapes.iter().map(|_| Vec::new()).collect()).collect();
        Self { shapes, slots }
    }

    /// Returns the index of the convolution of an entry of the cache; `None` for keys and values.
    pub(crate) fn index(&self, entry: usize) -> Option<usize> {
        self.shapes.iter().position(|shape| shape.entry == entry)
    }

    /// Returns the number of elements of a row of a convolution, and the number of rows that a step reads.
    pub(crate) fn shape(&self, index: usize) -> [usize; 2] {
        [self.shapes[index].width, self.shapes[index].past]
    }

    /// Returns the number of elements that a step reads of one sequence.
    pub(crate) fn past_elements(&self, index: usize) -> usize {
        let Shape { width, past, .. } = self.shapes[index];
        width * past
    }

    /// Copies the rows that a step reads whose first token is `at`. Rows before the start of the sequence are zero.
    pub(crate) fn read_past(&self, slot: SlotId, index: usize, at: usize, out: &mut [T]) {
        let Shape { width, past, .. } = self.shapes[index];
        let held = &self.slots[slot.index()][index];
        let missing = past.saturating_sub(at) * width;
        let rows = (at.saturating_sub(past) * width)..at * width;
        out[..missing].fill(T::default());
        out[missing..].copy_from_slice(&held[rows]);
    }

    /// Writes rows from token `at` on. The slot has all rows before it.
    ///
    /// # Errors
    /// [`StepError::OutOfMemory`] leaves the slot unchanged.
    pub(crate) fn write(
        &mut self,
        slot: SlotId,
        index: usize,
        at: usize,
        rows: &[T],
    ) -> Result<(), StepError> {
        let width = self.shapes[index].width;
        let held = &mut self.slots[slot.index()][index];
        let start = at * width;
        let end = start + rows.len();
        if end > held.len() {
            held.try_reserve(end - held.len()).map_err(|_| StepError::OutOfMemory {
                rows: 1,
                capacity: end / width,
                wanted: end * size_of::<T>(),
            })?;
            held.resize(end, T::default());
        }
        held[start..end].copy_from_slice(rows);
        Ok(())
    }

    /// Returns the first and the second half of the rows of some tokens.
    pub(crate) fn read_halves(&self, slot: SlotId, index: usize, tokens: Range<usize>) -> [Vec<T>; 2] {
        let width = self.shapes[index].width;
        let rows = &self.slots[slot.index()][index][tokens.start * width..tokens.end * width];
        let mut halves = [(), ()].map(|()| Vec::with_capacity(rows.len() / 2));
        for row in rows.chunks_exact(width) {
            let (first, second) = row.split_at(width / 2);
            halves[0].extend_from_slice(first);
            halves[1].extend_from_slice(second);
        }
        halves
    }

    /// Writes rows as [`Self::write`], from their halves.
    pub(crate) fn write_halves(
        &mut self,
        slot: SlotId,
        index: usize,
        at: usize,
        [first, second]: [&[T]; 2],
    ) -> Result<(), StepError> {
        let half = (self.shapes[index].width / 2).max(1);
        let mut rows = Vec::with_capacity(2 * first.len());
        for (first, second) in first.chunks_exact(half).zip(second.chunks_exact(half)) {
            rows.extend_from_slice(first);
            rows.extend_from_slice(second);
        }
        self.write(slot, index, at, &rows)
    }

    /// Copies the rows of some tokens to another slot, which has all rows before them.
    pub(crate) fn copy(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        for index in 0..self.shapes.len() {
            let width = self.shapes[index].width;
            let rows = &self.slots[copy.from.index()][index];
            let rows = rows[copy.tokens.start * width..copy.tokens.end * width].to_vec();
            self.write(copy.to, index, copy.tokens.start, &rows)?;
        }
        Ok(())
    }

    /// Keeps the first `length` tokens of a slot. The memory of an empty slot is released.
    pub(crate) fn truncate(&mut self, slot: SlotId, length: usize) {
        for (shape, rows) in self.shapes.iter().zip(&mut self.slots[slot.index()]) {
            rows.truncate(length * shape.width);
            if length == 0 {
                *rows = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::DType;

    use super::*;

    fn rows() -> ConvolutionRows<f32> {
        let layouts = [KvLayout::plain(2, 3), KvLayout::convolution(4, 3, DType::F32)];
        ConvolutionRows::new(&layouts, 2)
    }

    fn numbers(count: usize) -> Vec<f32> {
        (1..=count).map(|number| number as f32).collect()
    }

    #[test]
    fn a_step_reads_the_last_rows_or_zeros() {
        let mut rows = rows();
        assert_eq!((rows.index(0), rows.index(1), rows.shape(0)), (None, Some(0), [4, 2]));
        rows.write(SlotId(1), 0, 0, &numbers(12)).unwrap();
        let past = |at| {
            let mut out = [9.0; 8];
            rows.read_past(SlotId(1), 0, at, &mut out);
            out
        };
        assert_eq!(past(0), [0.0; 8]);
        assert_eq!(past(1), [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(past(3), [5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0]);
    }

    #[test]
    fn rows_are_cut_back_copied_and_handed_over() {
        let mut rows = rows();
        let [from, to] = [SlotId(0), SlotId(1)];
        rows.write(from, 0, 0, &numbers(12)).unwrap();
        rows.truncate(from, 2);
        rows.write(from, 0, 2, &[0.5; 4]).unwrap();
        let [first, second] = rows.read_halves(from, 0, 1..3);
        assert_eq!((&first[..], &second[..]), (&[5.0, 6.0, 0.5, 0.5][..], &[7.0, 8.0, 0.5, 0.5][..]));
        rows.copy(&KvCopy { from, to, tokens: 0..1 }).unwrap();
        rows.write_halves(to, 0, 1, [&first, &second]).unwrap();
        assert_eq!(rows.slots[0], rows.slots[1]);
        rows.truncate(to, 0);
        assert_eq!(rows.slots[1][0].capacity(), 0);
    }
}
