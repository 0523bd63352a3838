//! Locations of tensors in the files of a checkpoint.

use std::ops::Range;

use crate::encoding::Encoding;

/// Encoding of a tensor's elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TensorEncoding {
    /// An encoding that can be decoded.
    Known(Encoding),
    /// Elements of a quantised checkpoint, with their scales and zero points.
    PackedTensor(Box<PackedTensor>),
    /// The format's name of an unsupported encoding. It causes an error only if the tensor is read.
    Other(String),
}

/// Location of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredTensor {
    /// Row-major shape.
    pub(super) shape: Vec<usize>,
    /// Element type.
    pub(super) kind: TensorEncoding,
    /// Index of the file.
    pub(super) file: usize,
    /// Byte range in that file. The reader has checked it against the file's length.
    pub(super) bytes: Range<usize>,
}

/// Layout of a weight's integers, scales and zero points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PackedLayout {
    /// AMD Quark and AutoAWQ: 4-bit integers `[in, out / 8]`, eight rows in a word in the order of [`PLACES`](crate::packed::PLACES); scales
    /// `[groups, out]`, zero points as the integers, `[groups, out / 8]`.
    Interleaved,
    /// GPTQ: integers `[in · bits / 32, out]`, consecutive columns in a word from the lowest bits on; scales `[groups, out]`;
    /// zero points minus `zero_offset`, `[groups, out · bits / 32]`.
    Columns {
        /// Width of an integer.
        bits: u32,
        /// Difference between a zero point and its stored integer.
        zero_offset: u32,
    },
    /// compressed-tensors: integers plus half of their range, `[out, in · bits / 32]`, consecutive columns in a word; scales
    /// `[out, groups]`; zero points in the same form, `[out · bits / 32, groups]`.
    Rows {
        /// Width of an integer.
        bits: u32,
    },
    /// compressed-tensors: signed bytes `[out, in]`; scales `[out, groups]` or one; signed zero points of the same shape.
    Bytes,
    /// Floats of 8 bits with 4 bits of exponent (`F8_E4M3`), `[out, in]`; scales `[out blocks, in blocks]` or one.
    Float8,
}

/// The additional tensors of a packed weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PackedTensor {
    pub(super) layout: PackedLayout,
    /// Scales, in half or single precision.
    pub(super) scales: StoredTensor,
    /// Zero points; `None` for symmetric weights.
    pub(super) zeros: Option<StoredTensor>,
    /// Group of each column, if groups are not consecutive columns.
    pub(super) groups: Option<StoredTensor>,
    /// Number of rows and of columns that share a scale.
    pub(super) tile: [usize; 2],
}
