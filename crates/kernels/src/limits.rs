//! Measurements of this machine's limits, for comparison with kernels.

use std::hint::black_box;

use crate::simd::{LANES, Operation, Simd};

/// Operation that multiplies weights and activations in registers.
pub(crate) struct Dots {
    pub(crate) rounds: usize,
}

impl Operation for Dots {
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u64 {
        // There are as many independent sums as registers hold, and enough to hide the latency of an instruction.
        if S::TILES == 2 { dots::<S, 12>(s, self.rounds) } else { dots::<S, 5>(s, self.rounds) }
    }
}

#[inline(always)]
fn dots<S: Simd, const CHAINS: usize>(s: S, rounds: usize) -> u64 {
    let weights = s.load_bytes(black_box(&[3; 64]));
    let mut acc = [s.splat_int(0); CHAINS];
    for _ in 0..rounds {
        // Where a product takes several instructions, they depend on the activations and must be executed for each.
        for acc in &mut acc {
            *acc = s.dot_bytes(*acc, weights, s.splat_quad(black_box(&[1, 2, 3, 4])));
        }
    }
    let mut lanes = [0; LANES];
    for acc in acc {
        s.store_ints(acc, black_box(&mut lanes));
    }
    (rounds * CHAINS * 64) as u64
}

/// Operation that computes fused multiply-adds of numbers in registers.
pub(crate) struct MulAdds {
    pub(crate) rounds: usize,
}

impl Operation for MulAdds {
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u64 {
        if S::TILES == 2 { mul_adds::<S, 12>(s, self.rounds) } else { mul_adds::<S, 5>(s, self.rounds) }
    }
}

#[inline(always)]
fn mul_adds<S: Simd, const CHAINS: usize>(s: S, rounds: usize) -> u64 {
    let (a, b) = (s.splat(black_box(0.5)), s.splat(black_box(1.0)));
    let mut acc = [s.splat(black_box(1.0)); CHAINS];
    for _ in 0..rounds {
        for acc in &mut acc {
            *acc = s.mul_add(*acc, a, b);
        }
    }
    let mut lanes = [0.0; LANES];
    for acc in acc {
        s.store(acc, black_box(&mut lanes));
    }
    (rounds * CHAINS * LANES) as u64
}

/// Operation that reads memory sequentially.
pub(crate) struct Reads<'a> {
    pub(crate) bytes: &'a [u8],
}

impl Operation for Reads<'_> {
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u64 {
        let mut acc = [s.splat_int(0); 4];
        let (lines, _) = self.bytes.as_chunks::<64>();
        for lines in lines.as_chunks::<4>().0 {
            for (acc, line) in acc.iter_mut().zip(lines) {
                *acc = s.max_magnitude(*acc, s.load_le(line));
            }
        }
        let mut lanes = [0; LANES];
        for acc in acc {
            s.store_ints(acc, black_box(&mut lanes));
        }
        self.bytes.len() as u64
    }
}
