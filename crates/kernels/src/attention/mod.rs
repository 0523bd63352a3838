//! Attention of the heads that share one key and value head, over a cache of keys and values.
//!
//! Keys are processed in blocks of 64 with a running maximum and a running sum (the streaming softmax of flash
//! attention), so that only the scores of one block are stored at a time. [`many_queries`] converts the values of each block
//! once for all queries; [`few_queries`] reads directly from the cache, for one or a few tokens. Products with keys of eight
//! bits are integers. Scales of integers are factors of the scores and of the weights.
//!
//! Blocks start at multiples of 64 positions, and the sums of every 128 keys are merged in the order of the keys. Both
//! modules add in the same order. A query's result therefore has the same bits for any set of queries computed with it,
//! any division of a prompt into chunks, and any number of threads that share the keys.

mod cache;
mod few_queries;
mod integer_scores;
mod many_queries;
mod part;
mod scores;
mod split_queries;
mod state;
mod visible_keys;
mod weighted_sum;

use std::ops::Range;

pub use cache::{CacheRows, KeyValues};
pub use part::AttentionPart;
pub(crate) use part::Join;
pub(crate) use state::{Buffers, Sums};

use crate::{
    float::MAX_ROWS,
    simd::{LANES, Operation, Simd},
    view::{MatrixMut, MatrixRef},
};

/// Number of keys in a block.
pub(crate) const BLOCK: usize = 64;

/// Maximum number of queries for which values are read directly from the cache. They fit into one panel.
const MAX_FEW_QUERIES: usize = 8;
const _: () = assert!(MAX_FEW_QUERIES <= MAX_ROWS && AttentionPart::KEYS.is_multiple_of(BLOCK));

/// Keys that a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// All keys.
    Full,
    /// Keys up to the query's own position.
    Causal,
    /// The last keys up to the query's own position. The number is the width of the window.
    Window(usize),
    /// The last keys up to the query's own position, and all later keys. The number is the width of the window without the
    /// later keys.
    WindowAndLater(usize),
}

/// Settings of an attention layer.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// Number of elements of a query, key or value.
    pub head_size: usize,
    /// Factor of the scores, usually `1 / sqrt(head_size)`.
    pub scale: f32,
    /// Limit of the scores: each becomes `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// Keys that a query sees.
    pub mask: Mask,
}

/// Queries of the heads that share one key and value head.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// Matrix with one row for each token. A row contains the heads, one after another.
    pub rows: MatrixRef<'a>,
    /// Index of the first token's own key. The keys of the other tokens follow.
    pub first_position: usize,
    /// One more score for each head in a row, whose value is zeros (Xiao et al. 2023, arXiv:2309.17453); empty if there are
    /// none.
    pub sinks: &'a [f32],
}

/// Operation that computes the attention of some queries.
pub(crate) struct Attend<'a> {
    pub(crate) attention: &'a Attention,
    pub(crate) queries: Queries<'a>,
    pub(crate) cache: KeyValues<'a>,
    /// Keys to attend to. All other keys are invisible to every query.
    pub(crate) keys: Range<usize>,
    pub(crate) buffers: &'a mut Buffers,
    pub(crate) out: AttentionOutput<'a>,
}

/// Destination of the results.
pub(crate) enum AttentionOutput<'a> {
    /// Final results, in the queries' shape.
    Whole(MatrixMut<'a>),
    /// Partial sums, to be joined with those of other keys.
    Part(&'a mut AttentionPart),
}

impl Attend<'_> {
    /// Returns the number of heads in a row.
    fn group(&self) -> usize {
        self.queries.rows.columns() / self.attention.head_size
    }

    /// Returns the keys of a block that a token sees, relative to the block. The end may be before the start.
    #[inline(always)]
    fn visible_in(&self, token: usize, block: &Range<usize>) -> Range<usize> {
        let visible = self.visible(token);
        let of_block = |key: usize| key.clamp(block.start, block.end) - block.start;
        of_block(visible.start)..of_block(visible.end)
    }

    /// Returns the keys that a token sees.
    fn visible(&self, token: usize) -> Range<usize> {
        let next = self.queries.first_position + token + 1;
        let Range { start, end } = self.keys.clone();
        let (first, last) = match self.attention.mask {
            Mask::Full => (start, end),
            Mask::Causal => (start, end.min(next)),
            Mask::Window(width) => (start.max(next.saturating_sub(width)), end.min(next)),
            Mask::WindowAndLater(width) => (start.max(next.saturating_sub(width)), end),
        };
        first.min(last)..last
    }

    /// Returns whether all tokens from `first` to `last` see every key of a block.
    fn see_all(&self, first: usize, last: usize, block: &Range<usize>) -> bool {
        self.visible(last).start <= block.start && block.end <= self.visible(first).end
    }

    fn query(&self, index: usize) -> &[f32] {
        let group = self.group();
        let size = self.attention.head_size;
        &self.queries.rows.row(index / group)[index % group * size..][..size]
    }

    /// Returns the parts of the keys that some query sees.
    fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        const KEYS: usize = AttentionPart::KEYS;
        let Range { start, end } = self.keys.clone();
        let first = self.visible(0).start.max(start) / KEYS * KEYS;
        (first..end).step_by(KEYS).map(move |part| part.max(start)..end.min(part + KEYS))
    }

    /// Returns the blocks with at least one key that some query sees.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let tokens = self.queries.rows.rows();
        let start = self.visible(0).start.max(self.keys.start);
        let end = self.visible(tokens.saturating_sub(1)).end;
        (start / BLOCK * BLOCK..end).step_by(BLOCK).map(move |start| start..end.min(start + BLOCK))
    }
}

impl Operation for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let mut buffers = std::mem::take(self.buffers);
        let size = self.attention.head_size;
        let count = self.queries.rows.rows() * self.group();
        let padded = size.next_multiple_of(LANES);
        let few = count <= MAX_FEW_QUERIES && padded == size;
        buffers.reset(s, &self, padded, if few { MAX_FEW_QUERIES } else { S::FLOAT_ROWS });

        let mut is_first = true;
        for keys in self.parts() {
            self.keys = keys;
            buffers.part.reset(count, padded);
            if few {
                few_queries::run(s, &self, &mut buffers);
            } else {
                many_queries::run(s, &self, &mut buffers);
            }
            if std::mem::take(&mut is_first) {
                std::mem::swap(&mut buffers.sums, &mut buffers.part);
            } else {
                buffers.sums.merge(s, &buffers.part);
            }
        }

        if is_first {
            buffers.sums.reset(count, padded);
        }

        match &mut self.out {
            AttentionOutput::Whole(out) => buffers.sums.write(s, size, self.queries.sinks, out),
            AttentionOutput::Part(part) => part.swap(&mut buffers.sums, size),
        }
        *self.buffers = buffers;
    }
}
