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
    let products = (rounds * CHAINS * 64) as u64;
    match bits {
        Bits::Eight if S::WIDENS => {
            let weights = black_box(&[[3; 64]; 2]);
            repeat::<S, _, CHAINS>(s, rounds, [1, 2, 3, 4], |acc, quad| s.dot_wide(acc, weights, quad));
            products
        }
        Bits::Eight => {
            let weights = s.load_bytes(black_box(&[3; 64]));
            repeat::<S, _, CHAINS>(s, rounds, [1, 2, 3, 4], |acc, quad: &_| {
                s.dot_bytes(acc, weights, s.splat_quad(quad))
            });
            products
        }
        Bits::Four => {
            let weights = s.load_nibbles(black_box(&[3; 64]));
            repeat::<S, _, CHAINS>(s, rounds, [[1, 2, 3, 4]; 4], |acc, quads| {
                let mut step = s.begin_step(acc);
                for quad in quads {
                    step = s.dot_centered(step, weights, s.splat_quad(quad));
                }
                s.finish_step(acc, step)
            });
            4 * products
        }
    }
}

/// Adds products to each of `CHAINS` sums, again and again.
#[inline(always)]
fn repeat<S: Simd, A: Copy, const CHAINS: usize>(
    s: S,
    rounds: usize,
    activations: A,
    add: impl Fn(S::Ints, &A) -> S::Ints,
) {
    let activations = [activations; CHAINS];
    let mut acc = [s.splat_int(0); CHAINS];
    for _ in 0..rounds {
        // Where a product takes several instructions, they depend on the activations and must be executed for each.
        let activations = black_box(&activations);
        for i in 0..CHAINS {
            acc[i] = add(acc[i], &activations[i]);
        }
    }
    let mut lanes = [0; LANES];
    for acc in acc {
        s.store_ints(acc, black_box(&mut lanes));
    }
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
    let a = s.splat(black_box(0.5));
    let b = s.splat(black_box(1.0));
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
