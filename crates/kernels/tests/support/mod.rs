//! Seeded input for the tests of kernels.

#![allow(dead_code, unreachable_pub, reason = "no test binary needs all of it")]

use half::f16;
use narthex_kernels::{Bits, BlockedWeights, Kernels, PackedMatrix, Scales};

/// Deterministic random numbers (xorshift).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns a number from -1 to 1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.float() * scale).collect()
    }
}

/// Owned weights.
#[derive(Clone)]
pub struct Weights {
    pub outputs: usize,
    pub inputs: usize,
    pub block: usize,
    pub bits: Bits,
    pub quants: Vec<u8>,
    pub half: Vec<f16>,
    pub single: Option<Vec<f32>>,
    pub zeros: Option<Vec<u8>>,
    pub offsets: Option<Vec<f16>>,
}

impl Weights {
    pub fn random(random: &mut Random, (outputs, inputs): (usize, usize), block: usize, bits: Bits) -> Self {
        let blocks = inputs.div_ceil(block);
        let single = random.below(2) == 0;
        // Most weights have zero points or offsets, some have both or neither.
        let zeros = random.below(2) == 0;
        let offsets = random.below(2) == 0;
        let quants = 0..outputs * blocks * block * bits.count() / 8;
        let zero_bytes = outputs * (blocks * bits.count()).div_ceil(8);
        Self {
            outputs,
            inputs,
            block,
            bits,
            quants: quants.map(|_| random.next() as u8).collect(),
            half: (0..outputs * blocks).map(|_| f16::from_f32(random.float() * 0.1)).collect(),
            single: single.then(|| random.floats(outputs * blocks, 0.1)),
            zeros: zeros.then(|| (0..zero_bytes).map(|_| random.next() as u8).collect()),
            offsets: offsets.then(|| (0..outputs * blocks).map(|_| f16::from_f32(random.float())).collect()),
        }
    }

    pub fn view(&self) -> BlockedWeights<'_> {
        BlockedWeights {
            outputs: self.outputs,
            inputs: self.inputs,
            block: self.block,
            bits: self.bits,
            quants: &self.quants,
            scales: self.single.as_deref().map_or(Scales::F16(&self.half), Scales::F32),
            zeros: self.zeros.as_deref(),
            offsets: self.offsets.as_deref(),
        }
    }

    pub fn pack(&self) -> PackedMatrix {
        PackedMatrix::pack(&self.view()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the weight of an output and an input, without its scale and offset, and the scale, by the definition of
    /// `MatMulNBits`.
    pub fn weight(&self, output: usize, input: usize) -> (i32, f64) {
        let blocks = self.inputs.div_ceil(self.block);
        let at = |bytes: &[u8], index: usize| match self.bits {
            Bits::Eight => i32::from(bytes[index]),
            Bits::Four => i32::from(bytes[index / 2] >> (4 * (index % 2)) & 15),
        };
        let block = input / self.block;
        let quant = at(&self.quants, output * blocks * self.block + input);
        let zero = match &self.zeros {
            Some(zeros) => at(&zeros[output * (blocks * self.bits.count()).div_ceil(8)..], block),
            None => 1 << (self.bits.count() - 1),
        };
        let index = output * blocks + block;
        let scale = self.single.as_ref().map_or(self.half[index].to_f64(), |s| f64::from(s[index]));
        (quant - zero, scale)
    }

    /// Returns the offset of the block of an output and an input.
    pub fn offset(&self, output: usize, input: usize) -> f64 {
        let index = output * self.inputs.div_ceil(self.block) + input / self.block;
        self.offsets.as_ref().map_or(0.0, |offsets| offsets[index].to_f64())
    }
}

/// Returns the kernels on every instruction set except the portable ones.
pub fn accelerated() -> Vec<Kernels> {
    let mut all = Kernels::available();
    all.pop();
    all
}

/// Returns whether two results are the same; all NaNs count as equal.
pub fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}
