//! Locations of tensors in the files of a checkpoint.

use std::ops::Range;

use crate::{encoding::Encoding, packed::PackedTensor};

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
