//! Selection of instruction sets by a short measurement.
//!
//! All instruction sets give the same bits, so the selection affects only the speed. The processor's flags are not
//! sufficient for it: some processors run wide vectors at a lower clock or in two halves.

use std::time::{Duration, Instant};

use half::f16;

use crate::{
    activations::{Granularity, QuantizedRows},
    attention::{Attention, CacheRows, KeyValues, Mask, Queries},
    float::{FloatMatrix, FloatRows, FloatWeights},
    kernels::Kernels,
    matmul::Scratch,
    packed::{Bits, BlockedWeights, PackedMatrix, Scales},
    view::{MatrixMut, MatrixRef},
};

/// Shape of the multiplied matrices.
const OUTPUTS: usize = 256;
const INPUTS: usize = 512;

/// Number of keys, and number of elements in a head.
const KEYS: usize = 256;
const HEAD: usize = 64;

/// Number of rows in the measurement of products of several rows.
const ROWS: usize = 48;

/// Number of repetitions. The shortest time counts.
const REPEATS: usize = 5;

/// Ratio of times below which another candidate is preferred to the one that is expected to be fastest.
const MARGIN: f64 = 0.95;

impl Kernels {
    /// Returns the kernels on the instruction sets that are fastest in a measurement of a few milliseconds.
    pub fn measured() -> Self {
        let mut candidates = Self::available();
        // The portable kernels come last and are never the fastest.
        candidates.pop();
        if candidates.len() < 2 {
            return Self::detect();
        }
        let times = candidates.into_iter().filter_map(|kernels| Some((kernels, Times::measure(&kernels)?)));
        let times: Vec<_> = times.collect();
        Self::fastest_of(&times).unwrap_or_else(Self::detect)
    }

    /// Returns the fastest kernels of each kind, or `None` if nothing was measured.
    fn fastest_of(times: &[(Self, Times)]) -> Option<Self> {
        let one_row = choose(times, |times| times.one_row)?;
        let rows = choose(times, |times| times.rows)?;
        let attention = choose(times, |times| times.attention)?;
        let floats = choose(times, |times| times.floats)?;
        Some(Self::combine(&one_row, &rows, &attention, &floats))
    }
}

/// Times of the kinds of kernels on one instruction set.
#[derive(Debug, Clone, Copy)]
struct Times {
    one_row: Duration,
    rows: Duration,
    attention: Duration,
    floats: Duration,
}

impl Times {
    /// Measures products of small matrices, and attention over a short cache. Returns `None` if the matrices cannot be
    /// packed. Norms, rotations and activation functions take too little time to be worth a measurement; they use the
    /// instruction set of single-precision products.
    fn measure(kernels: &Kernels) -> Option<Self> {
        let floats = vec![0.5; OUTPUTS * INPUTS];
        let packed = PackedMatrix::pack(&BlockedWeights {
            outputs: OUTPUTS,
            inputs: INPUTS,
            block: 32,
            bits: Bits::Four,
            quants: &vec![0x5a; OUTPUTS * INPUTS / 2],
            scales: Scales::F16(&vec![f16::ONE; OUTPUTS * INPUTS / 32]),
            zeros: None,
            offsets: None,
        });

        let packed = packed.ok()?;
        let weights = FloatMatrix::pack(OUTPUTS, INPUTS, FloatWeights::F32(&floats)).ok()?;
        let mut scratch = Scratch::default();
        let mut out = vec![0.0; ROWS * OUTPUTS];
        let mut quantized = |rows: usize| {
            let mut input = QuantizedRows::default();
            let mut scratch = std::mem::take(&mut scratch);
            kernels.quantize(
                MatrixRef::new(&floats[..rows * INPUTS], INPUTS),
                packed.format(),
                Granularity::Block,
                &mut input,
            );
            let out = &mut out[..rows * OUTPUTS];
            fastest(|| {
                kernels.matmul(&input, &packed, 0..OUTPUTS, &mut scratch, MatrixMut::new(out, OUTPUTS))
            })
        };

        let one_row = quantized(1);
        let rows = quantized(ROWS);
        let mut input = FloatRows::default();
        kernels.interleave(MatrixRef::new(&floats[..ROWS * INPUTS], INPUTS), &mut input);
        let floats =
            fastest(|| kernels.matmul_float(&input, &weights, 0..OUTPUTS, MatrixMut::new(&mut out, OUTPUTS)));
        Some(Self { one_row, rows, attention: attention(kernels), floats })
    }
}

/// Measures the attention of one token over keys and values in half precision, which fit into the cache of a core.
fn attention(kernels: &Kernels) -> Duration {
    const GROUP: usize = 3;
    let attention = Attention { head_size: HEAD, scale: 0.125, soft_cap: None, mask: Mask::Causal };
    let cache = vec![f16::ONE; KEYS * HEAD];
    let cache = KeyValues { keys: CacheRows::F16(&cache), values: CacheRows::F16(&cache) };
    let rows = [0.5; GROUP * HEAD];
    let mut out = [0.0; GROUP * HEAD];
    let queries = Queries { rows: MatrixRef::new(&rows, GROUP * HEAD), first_position: KEYS - 1, sinks: &[] };
    let mut scratch = Scratch::default();
    fastest(|| {
        let out = MatrixMut::new(&mut out, GROUP * HEAD);
        kernels.attend(&attention, queries, cache, &mut scratch, out);
    })
}

fn fastest(mut call: impl FnMut()) -> Duration {
    let times = (0..REPEATS).map(|_| {
        let start = Instant::now();
        call();
        start.elapsed()
    });
    times.min().unwrap_or_default()
}

/// Returns the candidate with the shortest time, or the first candidate if no other one is clearly faster.
fn choose<T: Copy>(candidates: &[(T, Times)], time: impl Fn(&Times) -> Duration) -> Option<T> {
    let (first, rest) = candidates.split_first()?;
    let limit = time(&first.1).mul_f64(MARGIN);
    let best = rest.iter().min_by_key(|(_, times)| time(times)).filter(|(_, times)| time(times) < limit);
    Some(best.unwrap_or(first).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_candidate_must_be_clearly_faster() {
        let check = |times: &[u64], expect: Option<usize>| {
            let times = times.iter().map(|time| Duration::from_micros(*time));
            let candidates: Vec<_> = times
                .map(|time| Times { one_row: time, rows: time, attention: time, floats: time })
                .enumerate()
                .collect();
            assert_eq!(choose(&candidates, |times| times.rows), expect);
        };
        check(&[], None);
        check(&[100], Some(0));
        check(&[100, 96, 120], Some(0));
        check(&[100, 90, 80], Some(2));
    }
}
