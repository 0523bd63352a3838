//! Quantised weights in the order in which kernels read them.
//!
//! A matrix is packed once. Its bytes can be stored, and mapped again on any machine. They start with a header of 64
//! bytes. The integers, the zero points, the scales and the offsets follow, each ordered by tile of 16 outputs, then by
//! block, then by output. Within a block, 64 bytes hold four inputs of each of 16 outputs. With four bits, the low halves of these
//! bytes hold the first four of eight inputs, and the high halves the others.

mod blocked;
mod layout;

use std::{ops::Range, sync::Arc};

use crate::{
    aligned::{AlignedBytes, LINE},
    error::KernelError,
    simd::{LANES, Simd},
};

pub use blocked::{BlockedWeights, Scales};
use layout::Layout;
pub use layout::{Bits, WeightFormat};

/// Bytes with another owner, such as a mapped file.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

enum Store {
    Owned(AlignedBytes),
    Shared(SharedBytes, Range<usize>),
}

/// Quantised weights in the order in which kernels read them.
pub struct PackedMatrix {
    layout: Layout,
    store: Store,
}

impl std::fmt::Debug for PackedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedMatrix").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl PackedMatrix {
    /// Packs weights.
    ///
    /// # Errors
    /// Returns an error if blocks have no kernel, or a slice contradicts the shape.
    pub fn pack(weights: &BlockedWeights<'_>) -> Result<Self, KernelError> {
        let layout = weights.layout()?;
        let mut bytes = AlignedBytes::zeros(layout.length());
        weights.pack(&layout, bytes.as_mut_slice())?;
        Ok(Self { layout, store: Store::Owned(bytes) })
    }

    /// Packs weights into zeroed bytes, whose number must be [`BlockedWeights::packed_bytes`].
    ///
    /// # Errors
    /// The errors of [`Self::pack`], and an error for another number of bytes.
    pub fn pack_into(weights: &BlockedWeights<'_>, bytes: &mut [u8]) -> Result<(), KernelError> {
        weights.pack(&weights.layout()?, bytes)
    }

    /// Creates a packed matrix over shared bytes. For full speed, they should start at a multiple of 64 bytes in
    /// memory.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a packed matrix, or lie outside their owner's.
    pub fn from_bytes(bytes: SharedBytes, range: Range<usize>) -> Result<Self, KernelError> {
        let part = (*bytes).as_ref().get(range.clone()).ok_or(KernelError::Format { reason: "range" })?;
        let layout = Layout::parse(part)?;
        Ok(Self { layout, store: Store::Shared(bytes, range) })
    }

    /// Returns the bytes to store.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.store {
            Store::Owned(bytes) => bytes.as_slice(),
            // `AsRef` may return different bytes at each call, so the range is checked every time.
            Store::Shared(bytes, range) => &(**bytes).as_ref()[range.clone()],
        }
    }

    /// Returns the number of outputs, which are the columns of the product.
    pub fn outputs(&self) -> usize {
        self.layout.outputs
    }

    /// Returns the number of inputs.
    pub fn inputs(&self) -> usize {
        self.layout.inputs
    }

    /// Returns the number of inputs that share a scale.
    pub fn block(&self) -> usize {
        self.layout.block
    }

    /// Returns the width of a weight.
    pub fn bits(&self) -> Bits {
        self.layout.bits
    }

    /// Returns the format for which activations are rounded.
    pub fn format(&self) -> WeightFormat {
        WeightFormat { block: self.block(), bits: self.bits() }
    }

    /// Returns the tiles of sixteen outputs.
    pub(crate) fn tiles(&self) -> Tiles<'_> {
        let bytes = self.as_bytes();
        let layout = &self.layout;
        let part = |range: &Range<usize>| &bytes[range.clone()];
        let blocks = layout.inputs.div_ceil(layout.block);
        Tiles {
            quants: part(&layout.quants).as_chunks().0,
            zeros: (!layout.zeros.is_empty()).then(|| part(&layout.zeros).as_chunks().0),
            scales: if layout.single {
                TileScales::F32(part(&layout.scales).as_chunks().0)
            } else {
                TileScales::F16(part(&layout.scales).as_chunks().0)
            },
            offsets: (!layout.offsets.is_empty()).then(|| part(&layout.offsets).as_chunks().0),
            blocks,
            lines: blocks * layout.block / 4 / layout.bits.groups_per_line(),
        }
    }
}

/// Data of all tiles.
#[derive(Clone, Copy)]
pub(crate) struct Tiles<'a> {
    quants: &'a [[u8; LINE]],
    zeros: Option<&'a [[u8; LANES]]>,
    scales: TileScales<'a>,
    offsets: Option<&'a [[u8; LANES * 2]]>,
    blocks: usize,
    /// Number of lines of integers in a tile.
    lines: usize,
}

/// Scales of blocks of sixteen outputs, in little-endian bytes.
#[derive(Clone, Copy)]
pub(crate) enum TileScales<'a> {
    F16(&'a [[u8; LANES * 2]]),
    F32(&'a [[u8; LANES * 4]]),
}

impl TileScales<'_> {
    /// Returns the scales of a block.
    #[inline(always)]
    pub(crate) fn load<S: Simd>(&self, s: S, block: usize) -> S::Floats {
        match self {
            Self::F16(scales) => s.load_f16_le(&scales[block]),
            Self::F32(scales) => s.load_le(&scales[block]),
        }
    }
}

/// Data of sixteen outputs.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    pub(crate) quants: &'a [[u8; LINE]],
    pub(crate) zeros: Option<&'a [[u8; LANES]]>,
    pub(crate) scales: TileScales<'a>,
    /// Offsets of blocks in half precision, in little-endian bytes.
    pub(crate) offsets: Option<&'a [[u8; LANES * 2]]>,
}

impl Tile<'_> {
    /// Returns the offsets of a block, if the matrix has offsets.
    #[inline(always)]
    pub(crate) fn load_offsets<S: Simd>(&self, s: S, block: usize) -> Option<S::Floats> {
        self.offsets.map(|offsets| s.load_f16_le(&offsets[block]))
    }
}

impl<'a> Tiles<'a> {
    pub(crate) fn tile(&self, index: usize) -> Tile<'a> {
        let blocks = index * self.blocks..(index + 1) * self.blocks;
        Tile {
            quants: &self.quants[index * self.lines..][..self.lines],
            zeros: self.zeros.map(|zeros| &zeros[blocks.clone()]),
            scales: match self.scales {
                TileScales::F16(scales) => TileScales::F16(&scales[blocks.clone()]),
                TileScales::F32(scales) => TileScales::F32(&scales[blocks.clone()]),
            },
            offsets: self.offsets.map(|offsets| &offsets[blocks]),
        }
    }
}
