//! Layout of a packed matrix, and the header that describes it.

use std::ops::Range;

use crate::{aligned::LINE, error::KernelError, simd::LANES};

/// Width of a quantised weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    /// 4 bits. Without zero points, 8 represents 0.
    Four,
    /// 8 bits. Without zero points, 128 represents 0.
    Eight,
}

impl Bits {
    /// Returns the number of bits.
    pub fn count(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// Returns the number of groups of four inputs in 64 bytes.
    pub(super) fn groups_per_line(self) -> usize {
        8 / self.count()
    }
}

/// Properties of weights on which the layout of activations depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightFormat {
    /// Number of inputs that share a scale.
    pub block: usize,
    /// Width of a weight.
    pub bits: Bits,
}

/// First bytes of a packed matrix; the last is the version of the layout.
const MAGIC: [u8; 8] = *b"NARXPAK\x01";

/// Positions of the parts of a packed matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) block: usize,
    pub(super) bits: Bits,
    /// Scales are in single precision.
    pub(super) single: bool,
    pub(super) quants: Range<usize>,
    pub(super) zeros: Range<usize>,
    pub(super) scales: Range<usize>,
    pub(super) offsets: Range<usize>,
}

impl Layout {
    pub(super) fn new(
        outputs: usize,
        inputs: usize,
        block: usize,
        bits: Bits,
        parts: Parts,
    ) -> Result<Self, KernelError> {
        if ![16, 32, 64, 128].contains(&block) {
            return Err(KernelError::Block { found: block });
        }
        let size = KernelError::Size { outputs, inputs };
        let Some(blocks) = outputs.div_ceil(LANES).checked_mul(inputs.div_ceil(block)) else {
            return Err(size);
        };
        let Some(quants) = section(LINE, blocks, LANES * block * bits.count() / 8) else { return Err(size) };
        let Some(zeros) = section(quants.end, blocks, if parts.zeros { LANES } else { 0 }) else {
            return Err(size);
        };
        let Some(scales) = section(zeros.end, blocks, LANES * if parts.single { 4 } else { 2 }) else {
            return Err(size);
        };
        let Some(offsets) = section(scales.end, blocks, if parts.offsets { LANES * 2 } else { 0 }) else {
            return Err(size);
        };
        Ok(Self { outputs, inputs, block, bits, single: parts.single, quants, zeros, scales, offsets })
    }

    /// Returns the number of bytes of a matrix with this layout, a multiple of 64.
    pub(super) fn length(&self) -> usize {
        self.offsets.end
    }

    /// Returns the header of a matrix with this layout.
    pub(super) fn header(&self) -> [u8; LINE] {
        let mut header = [0; LINE];
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&(self.outputs as u64).to_le_bytes());
        header[16..24].copy_from_slice(&(self.inputs as u64).to_le_bytes());
        header[24] = self.block as u8;
        header[25] = self.bits.count() as u8;
        header[26] = u8::from(self.single);
        header[27] = u8::from(!self.zeros.is_empty());
        header[28] = u8::from(!self.offsets.is_empty());
        header
    }

    /// Returns the layout that the header of `bytes` describes, if the rest of `bytes` has the length that follows from
    /// it.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, KernelError> {
        let format = |reason| KernelError::Format { reason };
        let header = bytes.first_chunk::<LINE>().ok_or(format("shorter than a header"))?;
        let (words, _) = header.as_chunks::<8>();
        if words[0] != MAGIC {
            return Err(format("other magic or version"));
        }
        let bits = match header[25] {
            4 => Bits::Four,
            8 => Bits::Eight,
            _ => return Err(format("number of bits")),
        };
        let parts = Parts { single: header[26] != 0, zeros: header[27] != 0, offsets: header[28] != 0 };
        let layout =
            Self::new(dimension(words[1])?, dimension(words[2])?, usize::from(header[24]), bits, parts)?;
        if layout.header() != *header {
            return Err(format("unknown fields"));
        }
        if layout.length() != bytes.len() {
            return Err(format("length"));
        }
        Ok(layout)
    }
}

/// Returns the bytes of a section that starts at `start` and has `bytes` bytes for each block, or `None` if they are too
/// many.
fn section(start: usize, blocks: usize, bytes: usize) -> Option<Range<usize>> {
    let end = start.checked_add(blocks.checked_mul(bytes)?)?.checked_next_multiple_of(LINE)?;
    (end <= isize::MAX as usize).then_some(start..end)
}

/// Reads a number of outputs or inputs in a header.
fn dimension(word: [u8; 8]) -> Result<usize, KernelError> {
    usize::try_from(u64::from_le_bytes(word)).map_err(|_| KernelError::Format { reason: "size" })
}

/// Optional parts of a packed matrix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    /// Scales are in single precision.
    pub(super) single: bool,
    /// The matrix has zero points.
    pub(super) zeros: bool,
    /// The matrix has offsets.
    pub(super) offsets: bool,
}
