//! Storage of a linear weight.

use narthex_checkpoint::Encoding;
use narthex_spec::DType;
use serde::Serialize;

use super::block::{Form4, Shift};

/// Storage of a linear weight. Blocks with offsets are copied from the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// 8-bit blocks, symmetric around 128: the only quantised form whose rows the host reads.
    W8,
    /// 8-bit blocks with zero points.
    W8Zeros,
    /// 8-bit blocks, symmetric around 128, with the integers of the checkpoint.
    W8Copied,
    /// 8-bit blocks with offsets and the integers of the checkpoint.
    W8Offsets,
    /// 4-bit blocks with zero points.
    W4,
    /// 4-bit blocks with zero points and the integers of the checkpoint.
    W4Copied,
    /// 4-bit blocks, symmetric around 8.
    W4Symmetric,
    /// 4-bit blocks, symmetric around 8, with the integers of the checkpoint.
    W4SymmetricCopied,
    /// 4-bit blocks with offsets and the integers of the checkpoint.
    W4Offsets,
}

impl Storage {
    /// Returns the element type of a weight that is not in blocks.
    pub fn plain(self) -> Option<DType> {
        match self {
            Self::F32 => Some(DType::F32),
            Self::F16 => Some(DType::F16),
            _ => None,
        }
    }

    /// Returns the width of an integer, or of a float of a weight that is not in blocks.
    pub(crate) fn bits(self) -> usize {
        match self {
            Self::F32 => 32,
            Self::F16 => 16,
            Self::W4 | Self::W4Copied | Self::W4Symmetric | Self::W4SymmetricCopied | Self::W4Offsets => 4,
            Self::W8 | Self::W8Zeros | Self::W8Copied | Self::W8Offsets => 8,
        }
    }

    /// Returns what represents 0 in a block.
    pub(crate) fn shift(self) -> Shift {
        match self {
            Self::W8Zeros | Self::W4 | Self::W4Copied => Shift::Zeros,
            Self::W8Offsets | Self::W4Offsets => Shift::Offsets,
            _ => Shift::Middle,
        }
    }

    /// Returns the form of 4-bit blocks that are rounded; `None` for other storage.
    pub(crate) fn form_of_4_bits(self) -> Option<Form4> {
        match self {
            Self::W4 => Some(Form4::Zeros),
            Self::W4Symmetric => Some(Form4::Symmetric),
            _ => None,
        }
    }

    /// Returns true for blocks of integers that are rounded to 4 bits.
    pub(crate) fn is_rounded_to_4_bits(self) -> bool {
        self.form_of_4_bits().is_some()
    }

    /// Returns the 8-bit storage of weights that keep 8 bits in a package of 4 bits.
    pub(crate) fn with_eight_bits(self) -> Self {
        match self {
            Self::W4 => Self::W8Zeros,
            Self::W4Symmetric => Self::W8,
            other => other,
        }
    }

    /// Returns true if blocks have the integers of the checkpoint.
    pub(crate) fn is_copied(self) -> bool {
        use Storage::{W4Copied, W4Offsets, W4SymmetricCopied, W8Copied, W8Offsets};
        matches!(self, W8Copied | W8Offsets | W4Copied | W4SymmetricCopied | W4Offsets)
    }

    /// Returns the storage of a weight in a package with 4 bits, made from a checkpoint with 4 bits. `planned` is the
    /// storage of the scheme. Integers in blocks of 32 are copied; others keep at least as many bits as in the
    /// checkpoint, up to 8.
    pub(super) fn of_source(planned: Self, source: Encoding) -> Self {
        match (planned, source) {
            (Self::W4 | Self::W8Zeros, Encoding::Q4_0) => Self::W4SymmetricCopied,
            (Self::W4 | Self::W8Zeros, Encoding::Q4_1 | Encoding::Q4K) => Self::W4Offsets,
            (Self::W4 | Self::W8Zeros, Encoding::Uint4) => Self::W4Copied,
            (Self::W4 | Self::W8Zeros, Encoding::Q5_0 | Encoding::Q8_0) => Self::W8Copied,
            (Self::W4 | Self::W8Zeros, Encoding::Q5_1 | Encoding::Q5K) => Self::W8Offsets,
            // Scales for 16 elements, and floats.
            (Self::W4, Encoding::Q6K | Encoding::Mxfp4 | Encoding::F32 | Encoding::F16 | Encoding::Bf16) => {
                Self::W8Zeros
            }
            // The host reads the rows of symmetric blocks.
            (Self::W8, Encoding::Q5_0 | Encoding::Q8_0) => Self::W8Copied,
            _ => planned,
        }
    }
}
