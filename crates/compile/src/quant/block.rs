//! Block quantisation as ONNX Runtime's `MatMulNBits` reads it: round to nearest, one f16 scale per block of a row.
//!
//! A block of `w8` is `x ≈ (q - 128) · s`, one of `w4` is `x ≈ (q - z) · s` with a 4-bit zero point `z`. The last
//! block of a row is padded with the zero point. Two 4-bit values share a byte, the first in its low half.

use half::f16;

/// One row of quantised blocks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuantRow {
    /// Packed quants.
    pub quants: Vec<u8>,
    /// One scale per block.
    pub scales: Vec<f16>,
    /// Packed 4-bit zero points; empty for `w8`.
    pub zeros: Vec<u8>,
}

/// The 8-bit zero point that `MatMulNBits` assumes when none is given.
const ZERO_8: f32 = 128.0;

/// Largest magnitude of a symmetric 8-bit quant.
const MAX_8: f32 = 127.0;

/// Shares of a block's range that are tried as the 4-bit range; a narrower one clips outliers to gain resolution.
const RANGES_4: [f32; 9] = [1.0, 1.05, 0.975, 0.95, 0.925, 0.9, 0.85, 0.8, 0.75];

/// Quantises a row to 8 bits.
pub fn quantize_w8(row: &[f32], block: usize) -> QuantRow {
    let mut out = QuantRow::default();
    for values in row.chunks(block) {
        let peak = values.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
        let scale = f16::from_f32(peak / MAX_8);
        let inverse = inverse_of(scale);
        out.scales.push(scale);
        out.quants.extend(values.iter().map(|x| (x * inverse).round().clamp(-MAX_8, MAX_8) + ZERO_8).map(|q| q as u8));
        out.quants.resize(out.quants.len().next_multiple_of(block), ZERO_8 as u8);
    }
    out
}

/// Quantises a row to 4 bits, each block with the scale and zero point of least squared error among a few.
pub fn quantize_w4(row: &[f32], block: usize) -> QuantRow {
    let mut out = QuantRow::default();
    let mut zeros = Vec::new();
    for values in row.chunks(block) {
        let (scale, zero) = best_w4(values);
        let inverse = inverse_of(scale);
        let mut quants: Vec<u8> = values.iter().map(|x| quant_4(*x, inverse, zero) as u8).collect();
        quants.resize(block, zero as u8);
        out.quants.extend(quants.chunks(2).map(pack_pair));
        out.scales.push(scale);
        zeros.push(zero as u8);
    }
    out.zeros = zeros.chunks(2).map(pack_pair).collect();
    out
}

fn pack_pair(pair: &[u8]) -> u8 {
    pair[0] | pair.get(1).copied().unwrap_or(0) << 4
}

fn inverse_of(scale: f16) -> f32 {
    let scale = scale.to_f32();
    if scale > 0.0 { 1.0 / scale } else { 0.0 }
}

fn quant_4(x: f32, inverse: f32, zero: f32) -> f32 {
    (x * inverse + zero).round().clamp(0.0, 15.0)
}

fn best_w4(values: &[f32]) -> (f16, f32) {
    let low = values.iter().fold(0.0f32, |low, x| low.min(*x));
    let high = values.iter().fold(0.0f32, |high, x| high.max(*x));
    let mut best = (f16::ZERO, 8.0, f32::INFINITY);
    for share in RANGES_4 {
        let scale = f16::from_f32((high - low) * share / 15.0);
        let inverse = inverse_of(scale);
        let ideal = (-low * share * inverse).round();
        for zero in [ideal - 1.0, ideal, ideal + 1.0] {
            let zero = zero.clamp(0.0, 15.0);
            let error = error_4(values, scale.to_f32(), inverse, zero);
            if error < best.2 {
                best = (scale, zero, error);
            }
        }
    }
    (best.0, best.1)
}

fn error_4(values: &[f32], scale: f32, inverse: f32, zero: f32) -> f32 {
    values.iter().map(|x| ((quant_4(*x, inverse, zero) - zero) * scale - x).powi(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize) -> Vec<f32> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next() + 0.1).collect()
    }

    fn decode(row: &QuantRow, block: usize, n: usize) -> Vec<f32> {
        (0..n)
            .map(|i| {
                let scale = row.scales[i / block].to_f32();
                if row.zeros.is_empty() {
                    return (f32::from(row.quants[i]) - 128.0) * scale;
                }
                let nibble = |bytes: &[u8], i: usize| f32::from(bytes[i / 2] >> (4 * (i % 2)) & 15);
                (nibble(&row.quants, i) - nibble(&row.zeros, i / block)) * scale
            })
            .collect()
    }

    #[test]
    fn errors_stay_within_half_a_step() {
        let values = noise(32 * 5 + 7);
        let w8 = quantize_w8(&values, 32);
        assert_eq!((w8.quants.len(), w8.scales.len(), w8.zeros.len()), (192, 6, 0));
        for (i, (x, y)) in values.iter().zip(decode(&w8, 32, values.len())).enumerate() {
            assert!((x - y).abs() <= w8.scales[i / 32].to_f32() * 0.56, "{i}: {x} {y}");
        }
        let w4 = quantize_w4(&values, 32);
        assert_eq!((w4.quants.len(), w4.scales.len(), w4.zeros.len()), (96, 6, 3));
        let error: f32 = values.iter().zip(decode(&w4, 32, values.len())).map(|(x, y)| (x - y).powi(2)).sum();
        let power: f32 = values.iter().map(|x| x * x).sum();
        assert!((error / power).sqrt() < 0.09, "{}", (error / power).sqrt());
    }

    #[test]
    fn representable_rows_are_exact() {
        // What a Q8_0 block holds comes back to the bit: its scale is f16 and some quant reaches 127.
        let scale = f16::from_f32(0.0123).to_f32();
        let q8: Vec<f32> = (0..32).map(|i| (i as f32 * 8.0 - 121.0) * scale).collect();
        assert_eq!(decode(&quantize_w8(&q8, 32), 32, 32), q8);
        let q4: Vec<f32> = (0..32).map(|i| ((i % 16) as f32 - 5.0) * 0.25).collect();
        assert_eq!(decode(&quantize_w4(&q4, 32), 32, 32), q4);
        for zero in [quantize_w8(&[0.0; 32], 32), quantize_w4(&[0.0; 32], 32)] {
            assert_eq!(decode(&zero, 32, 32), [0.0; 32]);
        }
    }
}
