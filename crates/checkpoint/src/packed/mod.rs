//! Linear weights that other programs quantised: integers of several rows or columns in one word, or floats of 8 bits, with
//! their scales and zero points in tensors of their own.
//!
//! `PackedFormat` decides which settings are supported, `gather` combines the tensors of each weight, and `weight`
//! reads it. Weights in 4 bits with whole groups of 32 columns keep their integers, and floats of 4 bits their blocks
//! (`mxfp4`); others are reconstructed.

mod elements;
mod format;
mod mxfp4;

use std::borrow::Cow;

use rayon::prelude::*;

pub use elements::PLACES;
pub(super) use format::{PackedFormat, gather};

use crate::{
    encoding::Encoding,
    error::{CheckpointError, Result},
    limits::unsupported,
    stored_tensor::{PackedLayout, PackedTensor, StoredTensor},
    weight::Weight,
};
use elements::PackedElements;

/// Elements of a block of [`Encoding::Uint4`]. A group consists of several blocks.
const BLOCK: usize = 32;

/// Returns whether a weight becomes blocks of [`Encoding::Uint4`].
fn keeps_integers(packed: &PackedTensor) -> bool {
    let bits = match packed.layout {
        PackedLayout::Interleaved => 4,
        PackedLayout::Columns { bits, .. } | PackedLayout::Rows { bits } => bits,
        PackedLayout::Bytes | PackedLayout::Float8 | PackedLayout::Mxfp4 => 8,
    };
    bits == 4 && packed.groups.is_none() && packed.tile[1].is_multiple_of(BLOCK)
}

/// Choice between reading a weight's elements and only its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Elements {
    Read,
    /// Reads only the shape; all elements are zero.
    Unread,
}

/// Returns a packed weight: in row-major blocks of [`Encoding::Uint4`] if it has 4 bits and whole groups of 32 columns, or
/// else reconstructed in single precision. `bytes` returns the bytes of a stored tensor.
pub(super) fn weight<'a>(
    name: &str,
    located: &StoredTensor,
    packed: &PackedTensor,
    elements: Elements,
    bytes: impl Fn(&StoredTensor) -> &'a [u8],
) -> Result<Weight<'static>> {
    let shape = located.shape.clone();
    let &[rows, cols] = &shape[..] else {
        return Err(CheckpointError::WrongShape {
            name: name.to_owned(),
            expected: vec![0, 0],
            found: shape,
        });
    };

    if packed.layout == PackedLayout::Mxfp4 {
        return mxfp4::weight(name, [rows, cols], elements, [bytes(located), bytes(&packed.scales)]);
    }
    let encoding = if keeps_integers(packed) { Encoding::Uint4 } else { Encoding::F32 };
    let row_bytes = cols / encoding.block_elements() * encoding.block_bytes();
    let mut out = vec![0; rows * row_bytes];
    if elements == Elements::Read {
        let read = PackedElements::new(located, packed, [rows, cols], bytes).map_err(|kind| {
            let expected = "f32, f16 or bf16; export the model again";
            unsupported(format!("type of the scales of {name}"), expected, format!("{kind:?}"))
        })?;
        out.par_chunks_mut(row_bytes.max(1)).enumerate().for_each(|(row, out)| match encoding {
            Encoding::Uint4 => read.write_blocks(row, out),
            _ => read.write_singles(row, out),
        });
    }
    Weight::new(name, shape, encoding, Cow::Owned(out))
}
