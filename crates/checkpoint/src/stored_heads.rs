//! Order of the elements of the heads of queries and keys in a file, and in the canonical form.

use crate::{
    error::{CheckpointError, Result},
    weight::Weight,
};

/// Pairing of the rotated elements of a head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum RopePairs {
    /// An element of the first half with one of the second.
    #[default]
    Halves,
    /// Two adjacent elements.
    Interleaved,
}

/// Rotated elements of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RotatedElements {
    /// Elements that are paired, the first of a head.
    pub(crate) dims: usize,
    /// Pairs that rotate, the first ones.
    pub(crate) rotating: usize,
    /// Pairs in the canonical order, with others that do not rotate.
    pub(crate) pairs: usize,
}

/// Order of the elements of each head in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredHeads {
    /// Elements of a head.
    pub(crate) size: usize,
    pub(crate) pairs: RopePairs,
    pub(crate) rotated: RotatedElements,
}

impl StoredHeads {
    /// Reorders the elements of each head in a weight of q or k to the canonical order.
    pub(crate) fn to_half_split(self, weight: Weight<'_>) -> Result<Weight<'_>> {
        let size = self.size;
        let by_rows = weight.name.ends_with("_proj.weight");
        let count = if by_rows { weight.rows_len() } else { weight.rows_len() * weight.cols() };
        if size == 0 || !count.is_multiple_of(size) {
            let mut expected = weight.shape.clone();
            expected.iter_mut().take(1).for_each(|rows| *rows = rows.next_multiple_of(size.max(1)));
            return Err(CheckpointError::WrongShape { name: weight.name, expected, found: weight.shape });
        }
        let order = self.order(count);
        if by_rows {
            // A part cut out of a fused weight keeps its row indices, which are in the file's order.
            return weight.with_rows(order);
        }
        let values = weight.to_f32();
        let moved: Vec<f32> =
            order.iter().map(|&from| values.get(from as usize).copied().unwrap_or(0.0)).collect();
        Weight::of_values(weight.name, weight.shape, &moved)
    }

    /// Returns, for each of `count` elements in the canonical order, its index in the file. Heads have `size` elements.
    ///
    /// In the canonical order, the first elements of the pairs come first, then their second ones, then all others. The
    /// product of queries and keys does not depend on the order of elements that are not rotated.
    pub(crate) fn order(self, count: usize) -> Vec<u32> {
        let Self { size, pairs: stored, rotated: RotatedElements { dims, rotating, pairs } } = self;
        let [first, second]: [Vec<usize>; 2] = std::array::from_fn(|half| {
            let element = |pair| match stored {
                RopePairs::Halves => pair + half * (dims / 2),
                RopePairs::Interleaved => 2 * pair + half,
            };
            (0..rotating).map(element).collect()
        });
        let mut others = (0..size).filter(|element| !first.contains(element) && !second.contains(element));
        let mut head = Vec::with_capacity(size);
        for elements in [&first, &second] {
            head.extend(elements);
            head.extend(others.by_ref().take(pairs - rotating));
        }
        head.extend(others);

        (0..count).map(|element| (element - element % size + head[element % size]) as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotated_elements_come_first_in_halves() {
        let check = |size, stored, [dims, rotating, pairs]: [usize; 3], expect: &[u32]| {
            let rotated = RotatedElements { dims, rotating, pairs };
            let order = StoredHeads { size, pairs: stored, rotated }.order(expect.len());
            assert_eq!(order, expect, "{stored:?} {rotated:?} of {size}");
        };
        check(4, RopePairs::Interleaved, [4, 2, 2], &[0, 2, 1, 3, 4, 6, 5, 7]);
        check(6, RopePairs::Interleaved, [4, 2, 2], &[0, 2, 1, 3, 4, 5]);
        check(6, RopePairs::Halves, [4, 2, 2], &[0, 1, 2, 3, 4, 5]);
        check(8, RopePairs::Halves, [8, 1, 1], &[0, 4, 1, 2, 3, 5, 6, 7]);
        // Pairs that do not rotate complete the tables.
        check(8, RopePairs::Halves, [8, 1, 3], &[0, 1, 2, 4, 3, 5, 6, 7]);
        check(6, RopePairs::Halves, [4, 2, 3], &[0, 1, 4, 2, 3, 5]);
        check(3, RopePairs::Interleaved, [2, 1, 1], &[0, 1, 2]);
    }
}
