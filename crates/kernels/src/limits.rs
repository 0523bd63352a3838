//! Measurements of this machine's limits, for comparison with kernels.

use std::hint::black_box;

use crate::{
    packed::Bits,
    simd::{LANES, Operation, Simd},
};

/// Operation that multiplies weights and activations in registers.
pub(crate) struct Dots {
    /// Width of the weights.
    pub(crate) bits: Bits,
    pub(crate) rounds: usize,
}

impl Operation for Dots {
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u64 {
        // There are as many independent sums as registers hold, and enough to hide the latency of an instruction.
        let Self { bits, rounds } = self;
        if S::TILES == 2 { dots::<S, 12>(s, bits, rounds) } else { dots::<S, 5>(s, bits, rounds) }
    }
}

#[inline(always)]
fn dots<S: Simd, const CHAINS: usize>(s: S, bits: Bits, rounds: usize) -> u64 {
    let (line, wide) = (black_box(&[3; 64]), black_box(&[[3; 64]; 2]));
    let mut acc = [s.splat_int(0); CHAINS];
    let mut done = 0;
    for _ in 0..rounds {
        // Where a product takes several instructions, they depend on the activations and must be executed for each.
        match bits {
            Bits::Eight if S::WIDENS => {
                let quads = black_box(&[[1, 2, 3, 4]; CHAINS]);
                for (acc, quad) in acc.iter_mut().zip(quads) {
                    *acc = s.dot_wide(*acc, wide, quad);
                }
                done += CHAINS;
            }
            Bits::Eight => {
                let (weights, quads) = (s.load_bytes(line), black_box(&[[1, 2, 3, 4]; CHAINS]));
                for (acc, quad) in acc.iter_mut().zip(quads) {
                    *acc = s.dot_bytes(*acc, weights, s.splat_quad(quad));
                }
                done += CHAINS;
            }
            Bits::Four => {
                let (weights, quads) = (s.load_nibbles(line), black_box(&[[[1, 2, 3, 4]; 4]; CHAINS]));
                for (acc, quads) in acc.iter_mut().zip(quads) {
                    let mut step = s.begin_step(*acc);
                    for quad in quads {
                        step = s.dot_centered(step, weights, s.splat_quad(quad));
                    }
                    *acc = s.finish_step(*acc, step);
                }
                done += 4 * CHAINS;
            }
        }
    }
    let mut lanes = [0; LANES];
    for acc in acc {
        s.store_ints(acc, black_box(&mut lanes));
    }
    (done * 64) as u64
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
