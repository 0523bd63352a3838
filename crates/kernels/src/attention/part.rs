//! Attention over some of the keys, so that several threads can share the keys of one query.

use std::ops::Range;

use super::Sums;
use crate::{
    simd::{Operation, Simd},
    view::MatrixMut,
};

/// Sums over some of the keys, for some queries.
#[derive(Debug, Default)]
pub struct AttentionPart {
    /// The keys. They start at a multiple of [`Self::KEYS`].
    pub keys: Range<usize>,
    /// Number of elements of a head.
    size: usize,
    sums: Sums,
}

impl AttentionPart {
    /// Number of keys in a part. Only the last part may have fewer.
    pub const KEYS: usize = 128;

    /// Returns a part for these keys, which start at a multiple of [`Self::KEYS`].
    pub fn of(keys: Range<usize>) -> Self {
        Self { keys, ..Self::default() }
    }

    /// Swaps the sums of all queries with earlier ones, whose memory can be used again.
    pub(super) fn swap(&mut self, sums: &mut Sums, size: usize) {
        self.size = size;
        std::mem::swap(&mut self.sums, sums);
    }

    /// Returns the number of queries and the size of a head.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.sums.queries(), self.size)
    }
}

/// Operation that computes the results of queries from their sums over all parts of their keys. The first part receives
/// the sums of all.
pub(crate) struct Join<'a> {
    pub(crate) parts: &'a mut [AttentionPart],
    /// Sinks of the heads, as [`super::Queries::sinks`].
    pub(crate) sinks: &'a [f32],
    pub(crate) out: MatrixMut<'a>,
}

impl Operation for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Some((first, others)) = self.parts.split_first_mut() else { return };
        for part in others {
            first.sums.merge(s, &part.sums);
        }
        first.sums.write(s, first.size, self.sinks, &mut self.out);
    }
}
