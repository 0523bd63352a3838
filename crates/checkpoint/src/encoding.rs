//! Encodings of weights, and decoding of rows to `f32`, exactly as ggml does it.
//!
//! This module only computes on bytes; `tensors` locates them in files. The block layouts follow `ggml-common.h`, and
//! the order of the floating-point operations follows `ggml-quants.c` without fused multiply-add.

use half::{bf16, f16};

/// Number of elements in a K-quant super-block.
const SUPER_BLOCK: usize = 256;

/// Encoding of a weight's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// Brain float.
    Bf16,
    /// 4-bit blocks of 32 with scale. This and the following are GGUF block formats as ggml defines them.
    Q4_0,
    /// 4-bit blocks of 32 with scale and minimum.
    Q4_1,
    /// 5-bit blocks of 32 with scale.
    Q5_0,
    /// 5-bit blocks of 32 with scale and minimum.
    Q5_1,
    /// 8-bit blocks of 32 with scale.
    Q8_0,
    /// 4-bit super-blocks of 256.
    Q4K,
    /// 5-bit super-blocks of 256.
    Q5K,
    /// 6-bit super-blocks of 256.
    Q6K,
    /// Floats of 4 bits (E2M1) in blocks of 32 with a power of two as scale, as the OCP's specification of microscaling
    /// formats and GGUF define it.
    Mxfp4,
    /// 4-bit blocks of 32 with a scale in single precision and a zero point. Groups of AMD Quark are converted to it.
    Uint4,
}

/// Integers of a row in blocks of 32. An element is `quant · scale + minimum`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IntegerBlocks {
    /// One integer for each element.
    pub quants: Vec<u8>,
    /// One scale for each block.
    pub scales: Vec<f32>,
    /// Value of the integer 0, for each block.
    pub minimums: Vec<f32>,
}

impl IntegerBlocks {
    /// Number of elements in a block.
    pub const ELEMENTS: usize = 32;

    fn clear(&mut self) {
        self.quants.clear();
        self.scales.clear();
        self.minimums.clear();
    }

    fn push(&mut self, quants: [u8; Self::ELEMENTS], scale: f32, minimum: f32) {
        self.quants.extend(quants);
        self.scales.push(scale);
        self.minimums.push(minimum);
    }
}

impl Encoding {
    /// Returns the name in GGUF files and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Mxfp4 => "MXFP4",
            Self::Uint4 => "UINT4",
        }
    }

    /// Returns the width of an element: of its integer, if it has one.
    pub fn bits(self) -> u8 {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::Q4_0 | Self::Q4_1 | Self::Q4K | Self::Mxfp4 | Self::Uint4 => 4,
            Self::Q5_0 | Self::Q5_1 | Self::Q5K => 5,
            Self::Q6K => 6,
            Self::Q8_0 => 8,
        }
    }

    /// Returns the number of elements that are encoded together; 1 for plain types.
    pub fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::Mxfp4 | Self::Uint4 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => SUPER_BLOCK,
        }
    }

    /// Returns the number of bytes in one block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Mxfp4 => 17,
            Self::Uint4 => 21,
        }
    }

    /// Returns the number of bytes that `elements` elements take, or `None` if they are not a whole number of blocks or
    /// the result does not fit a `usize`.
    pub fn bytes(self, elements: usize) -> Option<usize> {
        let block = self.block_elements();
        if !elements.is_multiple_of(block) {
            return None;
        }
        (elements / block).checked_mul(self.block_bytes())
    }

    /// Decodes whole blocks of `bytes` into `out`; stops at the end of the shorter of the two.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => blocks(bytes, out, |b: &[u8; 4], y: &mut [f32; 1]| y[0] = f32::from_le_bytes(*b)),
            Self::F16 => blocks(bytes, out, |b, y: &mut [f32; 1]| y[0] = f16::from_le_bytes(*b).to_f32()),
            Self::Bf16 => blocks(bytes, out, |b, y: &mut [f32; 1]| y[0] = bf16::from_le_bytes(*b).to_f32()),
            Self::Q4_0 => blocks(bytes, out, q4_0),
            Self::Q4_1 => blocks(bytes, out, q4_1),
            Self::Q5_0 => blocks(bytes, out, q5_0),
            Self::Q5_1 => blocks(bytes, out, q5_1),
            Self::Q8_0 => blocks(bytes, out, q8_0),
            Self::Q4K => blocks(bytes, out, q4_k),
            Self::Q5K => blocks(bytes, out, q5_k),
            Self::Q6K => blocks(bytes, out, q6_k),
            Self::Mxfp4 => blocks(bytes, out, mxfp4),
            Self::Uint4 => blocks(bytes, out, uint4),
        }
    }
}

impl Encoding {
    /// Appends the integers of whole blocks. Returns false, and appends nothing, if the elements are not integers in blocks
    /// of 32 with one scale.
    fn push_integers(self, bytes: &[u8], out: &mut IntegerBlocks) -> bool {
        match self {
            Self::Q4_0 => bytes.as_chunks::<18>().0.iter().for_each(|b| {
                let d = half_at(b, 0);
                out.push(nibbles(&b[2..]), d, -8.0 * d);
            }),
            Self::Q4_1 => bytes.as_chunks::<20>().0.iter().for_each(|b| {
                out.push(nibbles(&b[4..]), half_at(b, 0), half_at(b, 2));
            }),
            Self::Q5_0 => bytes.as_chunks::<22>().0.iter().for_each(|b| {
                let d = half_at(b, 0);
                out.push(with_fifth_bits(nibbles(&b[6..]), fifth_bits(b, 2)), d, -16.0 * d);
            }),
            Self::Q5_1 => bytes.as_chunks::<24>().0.iter().for_each(|b| {
                let quants = with_fifth_bits(nibbles(&b[8..]), fifth_bits(b, 4));
                out.push(quants, half_at(b, 0), half_at(b, 2));
            }),
            Self::Q8_0 => bytes.as_chunks::<34>().0.iter().for_each(|b| {
                let d = half_at(b, 0);
                out.push(std::array::from_fn(|j| b[2 + j] ^ 0x80), d, -128.0 * d);
            }),
            Self::Q4K => bytes.as_chunks::<144>().0.iter().for_each(|b| {
                for (pair, quants) in b[16..].chunks_exact(32).enumerate() {
                    for (half, (scale, min)) in scale_min_pair(pair, b).into_iter().enumerate() {
                        out.push(std::array::from_fn(|l| quants[l] >> (4 * half) & 15), scale, -min);
                    }
                }
            }),
            Self::Q5K => bytes.as_chunks::<176>().0.iter().for_each(|b| {
                let high = &b[16..48];
                for (pair, quants) in b[48..].chunks_exact(32).enumerate() {
                    for (half, (scale, min)) in scale_min_pair(pair, b).into_iter().enumerate() {
                        let quants = std::array::from_fn(|l| {
                            quants[l] >> (4 * half) & 15 | (high[l] >> (2 * pair + half) & 1) << 4
                        });
                        out.push(quants, scale, -min);
                    }
                }
            }),
            Self::Uint4 => bytes.as_chunks::<21>().0.iter().for_each(|b| {
                let scale = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                out.push(nibbles(&b[5..]), scale, -f32::from(b[4]) * scale);
            }),
            Self::F32 | Self::F16 | Self::Bf16 | Self::Q6K | Self::Mxfp4 => return false,
        }

        true
    }

    /// Replaces `out` by the integers of the parts of a row. Returns false if the elements are not integers in blocks of 32
    /// with one scale.
    pub(crate) fn integers<'a>(
        self,
        parts: impl IntoIterator<Item = &'a [u8]>,
        out: &mut IntegerBlocks,
    ) -> bool {
        out.clear();
        parts.into_iter().all(|part| self.push_integers(part, out))
    }
}

/// Returns the low halves of sixteen bytes, and then the high halves.
fn nibbles(bytes: &[u8]) -> [u8; IntegerBlocks::ELEMENTS] {
    std::array::from_fn(|j| bytes[j % 16] >> (4 * (j / 16)) & 15)
}

fn with_fifth_bits(quants: [u8; IntegerBlocks::ELEMENTS], bits: u32) -> [u8; IntegerBlocks::ELEMENTS] {
    std::array::from_fn(|j| quants[j] | ((bits >> j & 1) as u8) << 4)
}

/// Applies `decode` to each block of `B` bytes and its `N` elements.
fn blocks<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; B], &mut [f32; N]),
) {
    for (block, elements) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        decode(block, elements);
    }
}

/// Returns the half-precision number at byte `at`.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Returns the fifth bits of a block's elements, one bit per element.
fn fifth_bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn uint4(b: &[u8; 21], y: &mut [f32; 32]) {
    let scale = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let zero = i16::from(b[4]);
    for (j, &q) in b[5..].iter().enumerate() {
        y[j] = f32::from(i16::from(q & 15) - zero) * scale;
        y[j + 16] = f32::from(i16::from(q >> 4) - zero) * scale;
    }
}

/// Twice the values of floats of 4 bits.
const DOUBLED_E2M1: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

fn mxfp4(b: &[u8; 17], y: &mut [f32; 32]) {
    // Half of the scale, since the values are doubled.
    let bits = if b[0] < 2 { 0x0020_0000 << b[0] } else { u32::from(b[0] - 1) << 23 };
    let scale = f32::from_bits(bits);
    for (j, &q) in b[1..].iter().enumerate() {
        y[j] = scale * DOUBLED_E2M1[usize::from(q & 15)];
        y[j + 16] = scale * DOUBLED_E2M1[usize::from(q >> 4)];
    }
}

fn q4_0(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for (j, &q) in b[2..].iter().enumerate() {
        y[j] = f32::from(i16::from(q & 15) - 8) * d;
        y[j + 16] = f32::from(i16::from(q >> 4) - 8) * d;
    }
}

fn q4_1(b: &[u8; 20], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    let m = half_at(b, 2);
    for (j, &q) in b[4..].iter().enumerate() {
        y[j] = f32::from(q & 15) * d + m;
        y[j + 16] = f32::from(q >> 4) * d + m;
    }
}

fn q5_0(b: &[u8; 22], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    let high = fifth_bits(b, 2);
    for (j, &q) in b[6..].iter().enumerate() {
        let [low_bit, high_bit] = [high >> j & 1, high >> (j + 16) & 1].map(|bit| (bit as i16) << 4);
        y[j] = f32::from((i16::from(q & 15) | low_bit) - 16) * d;
        y[j + 16] = f32::from((i16::from(q >> 4) | high_bit) - 16) * d;
    }
}

fn q5_1(b: &[u8; 24], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    let m = half_at(b, 2);
    let high = fifth_bits(b, 4);
    for (j, &q) in b[8..].iter().enumerate() {
        let [low_bit, high_bit] = [high >> j & 1, high >> (j + 16) & 1].map(|bit| (bit as u8) << 4);
        y[j] = f32::from(q & 15 | low_bit) * d + m;
        y[j + 16] = f32::from(q >> 4 | high_bit) * d + m;
    }
}

fn q8_0(b: &[u8; 34], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for (y, &q) in y.iter_mut().zip(&b[2..]) {
        *y = f32::from(q as i8) * d;
    }
}

/// Returns the scale and minimum of sub-block `j`. `packed` is 12 bytes with eight of each, 6 bits apiece.
fn scale_min(j: usize, packed: &[u8]) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// Returns the scales and minima of a pair of sub-blocks of a super-block.
fn scale_min_pair(pair: usize, b: &[u8]) -> [(f32, f32); 2] {
    let d = half_at(b, 0);
    let dmin = half_at(b, 2);
    [2 * pair, 2 * pair + 1].map(|j| {
        let (scale, min) = scale_min(j, &b[4..16]);
        (d * scale, dmin * min)
    })
}

fn q4_k(b: &[u8; 144], y: &mut [f32; SUPER_BLOCK]) {
    for (pair, (quants, y)) in b[16..].chunks_exact(32).zip(y.chunks_exact_mut(64)).enumerate() {
        let [(d1, m1), (d2, m2)] = scale_min_pair(pair, b);
        for (l, &q) in quants.iter().enumerate() {
            y[l] = d1 * f32::from(q & 15) - m1;
            y[l + 32] = d2 * f32::from(q >> 4) - m2;
        }
    }
}

fn q5_k(b: &[u8; 176], y: &mut [f32; SUPER_BLOCK]) {
    let high = &b[16..48];
    for (pair, (quants, y)) in b[48..].chunks_exact(32).zip(y.chunks_exact_mut(64)).enumerate() {
        let [(d1, m1), (d2, m2)] = scale_min_pair(pair, b);
        for (l, (&q, &h)) in quants.iter().zip(high).enumerate() {
            let bits = h >> (2 * pair);
            y[l] = d1 * f32::from((q & 15) + ((bits & 1) << 4)) - m1;
            y[l + 32] = d2 * f32::from((q >> 4) + ((bits >> 1 & 1) << 4)) - m2;
        }
    }
}

fn q6_k(b: &[u8; 210], y: &mut [f32; SUPER_BLOCK]) {
    let d = half_at(b, 208);
    for (half, y) in y.chunks_exact_mut(128).enumerate() {
        let low = &b[64 * half..][..64];
        let high = &b[128 + 32 * half..][..32];
        let scales = &b[192 + 8 * half..][..8];
        for l in 0..32 {
            let quarters = [low[l] & 15, low[l + 32] & 15, low[l] >> 4, low[l + 32] >> 4];
            for (quarter, &q) in quarters.iter().enumerate() {
                let bits = high[l] >> (2 * quarter) & 3;
                let scale = d * f32::from(scales[2 * quarter + l / 16] as i8);
                y[32 * quarter + l] = scale * f32::from(i16::from(q | bits << 4) - 32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of `type encoded-bytes decoded-f32-bytes`; both byte strings are hexadecimal.
    const GOLDENS: &str = include_str!("../tests/goldens/dequantize.txt");

    const ALL: [(&str, Encoding); 12] = [
        ("F32", Encoding::F32),
        ("F16", Encoding::F16),
        ("BF16", Encoding::Bf16),
        ("Q4_0", Encoding::Q4_0),
        ("Q4_1", Encoding::Q4_1),
        ("Q5_0", Encoding::Q5_0),
        ("Q5_1", Encoding::Q5_1),
        ("Q8_0", Encoding::Q8_0),
        ("Q4_K", Encoding::Q4K),
        ("Q5_K", Encoding::Q5K),
        ("Q6_K", Encoding::Q6K),
        ("MXFP4", Encoding::Mxfp4),
    ];

    fn unhex(text: &str) -> Vec<u8> {
        assert!(text.len().is_multiple_of(2));
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn every_encoding_decodes_to_the_reference_bits() {
        let mut seen = Vec::new();
        for line in GOLDENS.lines().filter(|line| !line.starts_with('#')) {
            let [name, encoded, decoded] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
            let (_, encoding) = *ALL.iter().find(|(known, _)| *known == name).unwrap();
            let (encoded, decoded) = (unhex(encoded), unhex(decoded));
            assert_eq!(encoding.bytes(decoded.len() / 4), Some(encoded.len()), "{name}");
            let mut out = vec![0.0; decoded.len() / 4];
            encoding.decode(&encoded, &mut out);
            let found: Vec<u8> = out.iter().flat_map(|x| x.to_le_bytes()).collect();
            assert!(found == decoded, "{name} differs from the reference");
            seen.push(name);
        }
        assert_eq!(seen, ALL.map(|(name, _)| name));
    }

    #[test]
    fn integers_with_scales_and_minimums_are_the_elements() {
        let mut seen = 0;
        for line in GOLDENS.lines().filter(|line| !line.starts_with('#')) {
            let [name, encoded, decoded] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
            let (_, encoding) = *ALL.iter().find(|(known, _)| *known == name).unwrap();
            assert_eq!(encoding.name(), name);
            let mut blocks = IntegerBlocks::default();
            let (encoded, decoded) = (unhex(encoded), unhex(decoded));
            let (first, second) =
                encoded.split_at(encoded.len() / encoding.block_bytes() / 2 * encoding.block_bytes());
            if !encoding.integers([first, second], &mut blocks) {
                let is_float = encoding == Encoding::Mxfp4;
                assert!(is_float || matches!(encoding.bits(), 6 | 16 | 32), "{name}");
                continue;
            }
            let expected: Vec<f32> = decoded.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
            assert_eq!(blocks.quants.len(), expected.len(), "{name}");
            for (index, (quant, expected)) in blocks.quants.iter().zip(expected).enumerate() {
                let (scale, minimum) = (blocks.scales[index / 32], blocks.minimums[index / 32]);
                let found = f32::from(*quant) * scale + minimum;
                // The terms may be larger than their sum.
                let size = (f32::from(*quant) * scale).abs() + minimum.abs();
                assert!(
                    (found - expected).abs() <= size * f32::EPSILON,
                    "{name}: {found} instead of {expected}"
                );
                assert!(u32::from(*quant) < 1 << encoding.bits(), "{name}");
            }
            seen += 1;
        }
        assert_eq!(seen, 7);
        let mut blocks = IntegerBlocks::default();
        let bytes = [&0.5f32.to_le_bytes()[..], &[3], &[0x52; 16]].concat();
        assert!(Encoding::Uint4.integers([&bytes[..]], &mut blocks));
        assert_eq!((blocks.quants[0], blocks.quants[16]), (2, 5));
        assert_eq!((blocks.scales, blocks.minimums), (vec![0.5], vec![-1.5]));
    }

    #[test]
    fn sizes_are_whole_blocks() {
        assert_eq!(Encoding::Q4_0.bytes(64), Some(36));
        assert_eq!(Encoding::Q4_0.bytes(63), None);
        assert_eq!(Encoding::Q6K.bytes(32), None);
        assert_eq!(Encoding::F32.bytes(usize::MAX), None);
    }

    #[test]
    fn a_short_side_ends_the_decoding() {
        let mut out = [7.0; 40];
        Encoding::Q8_0.decode(&[0; 34 + 33], &mut out);
        assert_eq!(out[..32], [0.0; 32]);
        assert_eq!(out[32..], [7.0; 8]);
    }
}
