//! Attention over some of the keys, so that several threads can share the keys of one query.

use super::Buffers;
use crate::{
    math::{exp, load_part, store_part},
    simd::{LANES, Operation, Simd},
    view::MatrixMut,
};

/// Sums over some keys for some queries, reusable from call to call.
#[derive(Debug, Default)]
pub struct AttentionPart {
    size: usize,
    /// Greatest score of each query.
    peaks: Vec<f32>,
    /// Sum of the exponentials of each query's distances to its greatest score.
    totals: Vec<f32>,
    /// Values weighted with these exponentials: a row for each query.
    sums: Vec<f32>,
}

impl AttentionPart {
    /// Takes over the sums of all queries.
    pub(super) fn take(&mut self, buffers: &Buffers, size: usize) {
        let (peaks, totals) = buffers.peaks_and_totals();
        self.size = size;
        self.peaks.clear();
        self.peaks.extend_from_slice(peaks);
        self.totals.clear();
        self.totals.extend_from_slice(totals);
        self.sums.clear();
        let rows = buffers.sums.chunks_exact(buffers.padded.max(1)).take(peaks.len());
        rows.for_each(|row| self.sums.extend_from_slice(&row[..size]));
    }

    /// Number of queries, and size of a head.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.peaks.len(), self.size)
    }
}

/// Results of queries from their sums over all parts of their keys.
pub(crate) struct Join<'a> {
    pub(crate) parts: &'a [AttentionPart],
    pub(crate) out: MatrixMut<'a>,
}

impl Operation for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Some((queries, size)) = self.parts.first().map(AttentionPart::shape) else { return };
        let group = self.out.columns() / size;
        for query in 0..queries {
            let seen = || self.parts.iter().filter(move |part| part.totals[query] != 0.0);
            // A part whose scores are NaN has the lowest peak and a total that is NaN, which stays.
            let peak = seen().fold(f32::NEG_INFINITY, |peak, part| peak.max(part.peaks[query]));
            let out = &mut self.out.row_mut(query / group)[query % group * size..][..size];
            out.fill(0.0);
            let mut total = 0.0;
            for part in seen() {
                let mut factor = [0.0; LANES];
                s.store(exp(s, s.splat(part.peaks[query] - peak)), &mut factor);
                total += factor[0] * part.totals[query];
                let factor = s.splat(factor[0]);
                let sums = &part.sums[query * size..][..size];
                for (sum, out) in sums.chunks(LANES).zip(out.chunks_mut(LANES)) {
                    let more = s.mul_add(load_part(s, sum, 0.0), factor, load_part(s, out, 0.0));
                    store_part(s, more, out);
                }
            }
            if total != 0.0 {
                let total = s.splat(total);
                for out in out.chunks_mut(LANES) {
                    store_part(s, s.div(load_part(s, out, 0.0), total), out);
                }
            }
        }
    }
}
