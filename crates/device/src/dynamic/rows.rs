//! Rows of a cache, `[heads, capacity, head_size]`. The tokens of each head are contiguous.

use std::ops::Range;

/// Keys or values of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KvPart {
    Key = 0,
    Value = 1,
}

impl KvPart {
    pub(super) const BOTH: [Self; 2] = [Self::Key, Self::Value];
}

/// A tensor of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KvTensor {
    pub(super) layer: usize,
    pub(super) part: KvPart,
}

/// Extents of a row, in units of the data that is moved: elements or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowShape {
    pub(super) heads: usize,
    /// Number of tokens for which there is room.
    pub(super) capacity: usize,
    /// Number of units for one token of one head.
    pub(super) head_size: usize,
}

impl RowShape {
    /// Returns the number of units in a row.
    pub(super) fn len(self) -> usize {
        self.heads * self.capacity * self.head_size
    }

    /// Returns the index of the first unit of a head's token.
    fn at(self, head: usize, token: usize) -> usize {
        (head * self.capacity + token) * self.head_size
    }

    /// Copies the first `tokens` tokens of a row to a row of another capacity.
    pub(super) fn copy<T: Copy>(self, from: &[T], to_shape: Self, to: &mut [T], tokens: usize) {
        let used = tokens * self.head_size;
        for head in 0..self.heads {
            let from_at = self.at(head, 0);
            let to_at = to_shape.at(head, 0);
            to[to_at..to_at + used].copy_from_slice(&from[from_at..from_at + used]);
        }
    }

    /// Copies some tokens of row `from` to the same positions in row `to`.
    pub(super) fn copy_within<T: Copy>(self, rows: &mut [T], from: usize, to: usize, tokens: &Range<usize>) {
        let [from, to] = [from, to].map(|row| row * self.len());
        for head in 0..self.heads {
            let range = self.at(head, tokens.start)..self.at(head, tokens.end);
            rows.copy_within(from + range.start..from + range.end, to + range.start);
        }
    }

    /// Returns some tokens of a row as `[tokens, heads, head_size]`.
    pub(super) fn read<T: Copy>(self, row: &[T], range: Range<usize>) -> Vec<T> {
        let mut out = Vec::with_capacity(range.len() * self.heads * self.head_size);
        for token in range {
            for head in 0..self.heads {
                out.extend_from_slice(&row[self.at(head, token)..][..self.head_size]);
            }
        }
        out
    }

    /// Writes `[tokens, heads, head_size]` to a row, starting at token `at`.
    pub(super) fn write<T: Copy>(self, row: &mut [T], at: usize, values: &[T]) {
        for (index, vector) in values.chunks_exact(self.head_size.max(1)).enumerate() {
            let place = self.at(index % self.heads, at + index / self.heads);
            row[place..][..self.head_size].copy_from_slice(vector);
        }
    }

    /// Writes `[heads, tokens, head_size]` to a row, at these tokens.
    pub(super) fn place<T: Copy>(self, row: &mut [T], tokens: Range<usize>, values: &[T]) {
        let length = tokens.len() * self.head_size;
        for (head, values) in values.chunks_exact(length.max(1)).enumerate() {
            row[self.at(head, tokens.start)..][..length].copy_from_slice(values);
        }
    }

    /// Swaps the first `tokens` tokens of two rows.
    pub(super) fn swap<T>(self, a: &mut [T], b: &mut [T], tokens: usize) {
        let used = tokens * self.head_size;
        for head in 0..self.heads {
            let at = self.at(head, 0);
            a[at..at + used].swap_with_slice(&mut b[at..at + used]);
        }
    }
}
