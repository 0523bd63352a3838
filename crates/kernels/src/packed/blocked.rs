//! Weights in the format of graphs, and their conversion to the order of kernels.

use half::f16;

use super::layout::{Bits, Layout, Parts};
use crate::{aligned::LINE, error::KernelError, simd::LANES};

/// Scales of blocks.
#[derive(Debug, Clone, Copy)]
pub enum Scales<'a> {
    /// Half precision.
    F16(&'a [f16]),
    /// Single precision.
    F32(&'a [f32]),
}

/// Weights in the format of `MatMulNBits`. Each row is an output and is divided into blocks of inputs; the last block
/// is padded. Two four-bit integers share a byte, the first in its low half. A weight is `(q - zero) * scale + offset`.
#[derive(Debug, Clone, Copy)]
pub struct BlockedWeights<'a> {
    /// Number of outputs.
    pub outputs: usize,
    /// Number of inputs.
    pub inputs: usize,
    /// Number of inputs in a block: 16, 32, 64 or 128.
    pub block: usize,
    /// Width of a weight.
    pub bits: Bits,
    /// Integers, `[outputs, blocks, block * bits / 8]`.
    pub quants: &'a [u8],
    /// Scales, `[outputs, blocks]`.
    pub scales: Scales<'a>,
    /// Zero points, `[outputs, ceil(blocks * bits / 8)]`.
    pub zeros: Option<&'a [u8]>,
    /// Numbers that are added to all weights of a block, `[outputs, blocks]`. They are also added to the padding of the
    /// last block, whose activations are 0.
    pub offsets: Option<&'a [f16]>,
}

impl BlockedWeights<'_> {
    /// Returns the number of bytes of the packed matrix, a multiple of 64. It depends only on the shape and on the
    /// kinds of scales, zero points and offsets.
    ///
    /// # Errors
    /// Returns an error if blocks have no kernel.
    pub fn packed_bytes(&self) -> Result<usize, KernelError> {
        Ok(self.layout()?.length())
    }

    pub(super) fn layout(&self) -> Result<Layout, KernelError> {
        let parts = Parts {
            single: matches!(self.scales, Scales::F32(_)),
            zeros: self.zeros.is_some(),
            offsets: self.offsets.is_some(),
        };
        Layout::new(self.outputs, self.inputs, self.block, self.bits, parts)
    }

    /// Packs the weights into zeroed bytes with this layout.
    pub(super) fn pack(&self, layout: &Layout, out: &mut [u8]) -> Result<(), KernelError> {
        check_lengths(self)?;
        if out.len() != layout.length() {
            let expected = layout.length();
            let found = out.len();
            return Err(KernelError::Length { what: "packed bytes", expected, found });
        }
        out[..LINE].copy_from_slice(&layout.header());
        pack_quants(self, &mut out[layout.quants.clone()]);
        pack_zeros(self, &mut out[layout.zeros.clone()]);
        pack_scales(self, &mut out[layout.scales.clone()]);
        if let Some(offsets) = self.offsets {
            pack_halves(self, offsets, &mut out[layout.offsets.clone()]);
        }
        Ok(())
    }

    /// Returns one zero point. The zero points of each output start at a new byte.
    fn zero(&self, zeros: &[u8], output: usize, block: usize) -> u8 {
        let row = (self.inputs.div_ceil(self.block) * self.bits.count()).div_ceil(8);
        integer(&zeros[output * row..][..row], self.bits, block)
    }
}

fn integer(bytes: &[u8], bits: Bits, index: usize) -> u8 {
    match bits {
        Bits::Eight => bytes[index],
        Bits::Four => bytes[index / 2] >> (4 * (index % 2)) & 15,
    }
}

fn check_lengths(weights: &BlockedWeights<'_>) -> Result<(), KernelError> {
    let blocks = weights.inputs.div_ceil(weights.block);
    let check = |what, found: usize, row: usize| {
        let expected = weights.outputs.saturating_mul(row);
        if found == expected { Ok(()) } else { Err(KernelError::Length { what, expected, found }) }
    };
    check("quants", weights.quants.len(), blocks * weights.block * weights.bits.count() / 8)?;
    match weights.scales {
        Scales::F16(scales) => check("scales", scales.len(), blocks)?,
        Scales::F32(scales) => check("scales", scales.len(), blocks)?,
    }
    if let Some(zeros) = weights.zeros {
        check("zero points", zeros.len(), (blocks * weights.bits.count()).div_ceil(8))?;
    }
    weights.offsets.map_or(Ok(()), |offsets| check("offsets", offsets.len(), blocks))
}

fn pack_quants(weights: &BlockedWeights<'_>, out: &mut [u8]) {
    let row = weights.inputs.next_multiple_of(weights.block) * weights.bits.count() / 8;
    // Each line contains four bytes of a row.
    let lines = row / 4;
    if lines == 0 {
        return;
    }
    for (rows, out) in weights.quants.chunks(LANES * row).zip(out.chunks_exact_mut(lines * LINE)) {
        for (lane, row) in rows.chunks_exact(row).enumerate() {
            let places = out.chunks_exact_mut(LINE).map(|line| &mut line[lane * 4..][..4]);
            for (bytes, place) in row.as_chunks::<4>().0.iter().zip(places) {
                place.copy_from_slice(&match weights.bits {
                    Bits::Eight => *bytes,
                    Bits::Four => interleave_nibbles(*bytes),
                });
            }
        }
    }
}

/// Moves the last four of eight integers into the high halves of the bytes, and the first four into the low halves.
fn interleave_nibbles([a, b, c, d]: [u8; 4]) -> [u8; 4] {
    [a & 15 | c << 4, a >> 4 | c & 0xf0, b & 15 | d << 4, b >> 4 | d & 0xf0]
}

fn pack_zeros(weights: &BlockedWeights<'_>, out: &mut [u8]) {
    let Some(zeros) = weights.zeros else { return };
    let blocks = weights.inputs.div_ceil(weights.block);
    for output in 0..weights.outputs {
        for block in 0..blocks {
            out[place(output, block, blocks)] = weights.zero(zeros, output, block);
        }
    }
}

fn pack_scales(weights: &BlockedWeights<'_>, out: &mut [u8]) {
    let scales = match weights.scales {
        Scales::F16(scales) => return pack_halves(weights, scales, out),
        Scales::F32(scales) => scales,
    };
    let blocks = weights.inputs.div_ceil(weights.block);
    for output in 0..weights.outputs {
        for block in 0..blocks {
            let scale = scales[output * blocks + block];
            out[place(output, block, blocks) * 4..][..4].copy_from_slice(&scale.to_le_bytes());
        }
    }
}

/// Packs one number for each block of each output.
fn pack_halves(weights: &BlockedWeights<'_>, numbers: &[f16], out: &mut [u8]) {
    let blocks = weights.inputs.div_ceil(weights.block);
    for output in 0..weights.outputs {
        for block in 0..blocks {
            let number = numbers[output * blocks + block];
            out[place(output, block, blocks) * 2..][..2].copy_from_slice(&number.to_le_bytes());
        }
    }
}

/// Returns the index of an output's block in the scales, zero points and offsets.
fn place(output: usize, block: usize, blocks: usize) -> usize {
    (output / LANES * blocks + block) * LANES + output % LANES
}
