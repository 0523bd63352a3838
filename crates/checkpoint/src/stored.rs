//! Locations of tensors in the files of a checkpoint.

use std::ops::Range;

use crate::Encoding;

/// Encoding of a tensor's elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TensorEncoding {
    /// A type that is decoded.
    Known(Encoding),
    /// Integers of AMD Quark, with their scales and zero points.
    PackedTensor(Box<PackedTensor>),
    /// The format's name of one that is not; an error only when the tensor is asked for.
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
    /// Its bytes in that file; checked against the file's length by the reader.
    pub(super) bytes: Range<usize>,
}

/// The tensors beside a packed weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PackedTensor {
    /// `[in / group, out]`.
    pub(super) scales: StoredTensor,
    /// `[in / group, out / 8]`.
    pub(super) zeros: StoredTensor,
    /// Columns of a group.
    pub(super) group: usize,
}
