//! Attention over some of the keys, so that several threads can share the keys of one query.

use super::Sums;
use crate::{
    simd::{LANES, Operation, Simd},
    view::MatrixMut,
};

/// Sums over some of the keys, for some queries.
#[derive(Debug, Default)]
pub struct AttentionPart {
    /// Number of elements of a head.
    size: usize,
    sums: Sums,
}

impl AttentionPart {
    /// Number of keys in a part. Only the last part may have fewer.
    pub const KEYS: usize = 256;

    /// Takes the sums of all queries.
    pub(super) fn take(&mut self, sums: &mut Sums, size: usize) {
        self.size = size;
        self.sums = std::mem::take(sums);
    }

    /// Returns the number of queries and the size of a head.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.sums.queries(), self.size)
    }
}

/// Operation that computes the results of queries from their sums over all parts of their keys.
pub(crate) struct Join<'a> {
    pub(crate) parts: &'a [AttentionPart],
    pub(crate) out: MatrixMut<'a>,
}

impl Operation for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Some((queries, size)) = self.parts.first().map(AttentionPart::shape) else { return };
        let mut sums = Sums::default();
        sums.reset(queries, size.next_multiple_of(LANES));
        for part in self.parts {
            sums.merge(s, &part.sums);
        }
        sums.write(s, size, &mut self.out);
    }
}
