//! Elements of packed weights, by row and column.

use super::BLOCK;
use crate::{
    encoding::Encoding,
    stored_tensor::{PackedLayout, PackedTensor, StoredTensor, TensorEncoding},
};

/// Position of each of eight rows among the nibbles of a packed 32-bit word, counted from the lowest. Nibble `i` is row
/// `[0, 2, 4, 6, 1, 3, 5, 7][i]`; Quark calls this `reorder` (`Pack_4_bits` in `quark/torch/utils/pack.py`), and AutoAWQ
/// has the same order (`AWQ_ORDER` in `awq/utils/packing_utils.py`).
pub const PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The tensors of a packed weight in memory.
pub(super) struct PackedElements<'a> {
    layout: PackedLayout,
    quants: &'a [u8],
    zeros: Option<&'a [u8]>,
    scales: Vec<f32>,
    /// Group of each column, if groups are not consecutive columns.
    groups: Option<Vec<usize>>,
    rows: usize,
    cols: usize,
    /// Number of rows and of columns that share a scale.
    tile: [usize; 2],
}

impl<'a> PackedElements<'a> {
    /// Returns the elements. Fails with the type of the scales if they are not floats.
    pub(super) fn new(
        located: &StoredTensor,
        packed: &PackedTensor,
        [rows, cols]: [usize; 2],
        bytes: impl Fn(&StoredTensor) -> &'a [u8],
    ) -> Result<Self, TensorEncoding> {
        let kind = &packed.scales.kind;
        let scales = singles(kind, bytes(&packed.scales)).ok_or_else(|| kind.clone())?;
        let groups = packed.groups.as_ref().map(|groups| {
            let words = bytes(groups).as_chunks().0;
            words.iter().map(|word| u32::from_le_bytes(*word) as usize).collect()
        });
        Ok(Self {
            layout: packed.layout,
            quants: bytes(located),
            zeros: packed.zeros.as_ref().map(&bytes),
            scales,
            groups,
            rows,
            cols,
            tile: packed.tile,
        })
    }

    /// Writes the blocks of a row of 4-bit integers.
    pub(super) fn write_blocks(&self, row: usize, out: &mut [u8]) {
        for (index, block) in out.chunks_exact_mut(Encoding::Uint4.block_bytes()).enumerate() {
            let first = index * BLOCK;
            let group = self.group(first);
            block[..4].copy_from_slice(&self.scale(row, group).to_le_bytes());
            block[4] = self.zero(row, group) as u8;
            for (at, pair) in block[5..].iter_mut().enumerate() {
                let [low, high] = [at, at + BLOCK / 2].map(|col| self.quant(row, first + col) as u8);
                *pair = low | high << 4;
            }
        }
    }

    /// Writes the values of a row in single precision.
    pub(super) fn write_singles(&self, row: usize, out: &mut [u8]) {
        for (col, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let group = self.group(col);
            let value = match self.layout {
                PackedLayout::Float8 => float8(self.byte(row, col)),
                _ => (self.quant(row, col) - self.zero(row, group)) as f32,
            };
            *out = (value * self.scale(row, group)).to_le_bytes();
        }
    }

    /// Returns the group of a column.
    fn group(&self, col: usize) -> usize {
        match &self.groups {
            Some(groups) => groups.get(col).copied().unwrap_or_default(),
            None => col / self.tile[1],
        }
    }

    /// Returns the number of groups in a row.
    fn group_count(&self) -> usize {
        self.cols.div_ceil(self.tile[1])
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        let index = match self.layout {
            PackedLayout::Interleaved | PackedLayout::Columns { .. } => group * self.rows + row,
            _ => row / self.tile[0] * self.group_count() + group,
        };
        self.scales.get(index).copied().unwrap_or_default()
    }

    /// Returns an integer of the weight, from 0 for layouts without a sign.
    fn quant(&self, row: usize, col: usize) -> i32 {
        match self.layout {
            PackedLayout::Interleaved => self.interleaved(self.quants, col, row),
            PackedLayout::Columns { bits, .. } => {
                let per_word = 32 / bits as usize;
                field(word(self.quants, col / per_word * self.rows + row), bits, col % per_word)
            }
            PackedLayout::Rows { bits } => {
                let per_word = 32 / bits as usize;
                let words = self.cols.div_ceil(per_word);
                field(word(self.quants, row * words + col / per_word), bits, col % per_word)
            }
            PackedLayout::Bytes | PackedLayout::Float8 | PackedLayout::Mxfp4 => {
                i32::from(self.byte(row, col) as i8)
            }
        }
    }

    fn byte(&self, row: usize, col: usize) -> u8 {
        self.quants.get(row * self.cols + col).copied().unwrap_or_default()
    }

    /// Returns the zero point of a group: the middle of the range for symmetric weights.
    fn zero(&self, row: usize, group: usize) -> i32 {
        match (self.layout, self.zeros) {
            (PackedLayout::Interleaved, Some(zeros)) => self.interleaved(zeros, group, row),
            (PackedLayout::Columns { bits, zero_offset }, Some(zeros)) => {
                let per_word = 32 / bits as usize;
                let words = self.rows.div_ceil(per_word);
                let stored = field(word(zeros, group * words + row / per_word), bits, row % per_word);
                // A program that stores the zero point minus one stores 0 as the largest integer.
                (stored + zero_offset as i32) & ((1 << bits) - 1)
            }
            (PackedLayout::Rows { bits }, Some(zeros)) => {
                let per_word = 32 / bits as usize;
                let index = row / per_word * self.group_count() + group;
                field(word(zeros, index), bits, row % per_word)
            }
            (PackedLayout::Bytes, Some(zeros)) => {
                let index = row / self.tile[0] * self.group_count() + group;
                zeros.get(index).map_or(0, |zero| i32::from(*zero as i8))
            }
            (PackedLayout::Interleaved, None) => 8,
            (PackedLayout::Columns { bits, .. } | PackedLayout::Rows { bits }, None) => 1 << (bits - 1),
            (PackedLayout::Bytes, None) | (PackedLayout::Float8 | PackedLayout::Mxfp4, _) => 0,
        }
    }

    /// Returns the nibble of a row in line `line` of interleaved words.
    fn interleaved(&self, words: &[u8], line: usize, row: usize) -> i32 {
        field(word(words, line * self.rows.div_ceil(8) + row / 8), 4, PLACES[row % 8])
    }
}

/// Returns a word of 32 bits.
fn word(bytes: &[u8], index: usize) -> u32 {
    bytes.as_chunks().0.get(index).map_or(0, |word| u32::from_le_bytes(*word))
}

/// Returns one of the unsigned integers of a word, counted from the lowest bits.
fn field(word: u32, bits: u32, index: usize) -> i32 {
    (word >> (bits * index as u32) & ((1 << bits) - 1)) as i32
}

/// Returns the value of a float with one bit for the sign, 4 for the exponent and 3 for the mantissa, without infinities
/// (Micikevicius et al. 2022, arXiv:2209.05433).
fn float8(bits: u8) -> f32 {
    let exponent = i32::from(bits >> 3 & 15);
    let mantissa = f32::from(bits & 7);
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2.0_f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2.0_f32.powi(exponent - 7),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Converts the elements of a floating-point tensor to `f32`.
fn singles(kind: &TensorEncoding, bytes: &[u8]) -> Option<Vec<f32>> {
    let TensorEncoding::Known(encoding @ (Encoding::F32 | Encoding::F16 | Encoding::Bf16)) = kind else {
        return None;
    };
    let mut singles = vec![0.0; bytes.len() / encoding.block_bytes()];
    encoding.decode(bytes, &mut singles);
    Some(singles)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_of_eight_bits_are_those_of_their_specification() {
        let check = |bits: u8, expect: f32| assert_eq!(float8(bits), expect, "{bits:#04x}");
        check(0x00, 0.0);
        check(0x01, 2.0_f32.powi(-9));
        check(0x07, 0.875 * 2.0_f32.powi(-6));
        check(0x08, 2.0_f32.powi(-6));
        check(0x38, 1.0);
        check(0x7e, 448.0);
        check(0xb9, -1.125);
        assert!(float8(0x7f).is_nan() && float8(0xff).is_nan());
    }
}
