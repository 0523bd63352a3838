//! Quantised weights in the order in which kernels read them.
//!
//! A packed matrix is made once, and its bytes can be stored and mapped again on any machine. They start with a header
//! of 64 bytes; then come the integers, the zero points and the scales, each in the order tile of 16 outputs, block,
//! output. Within a block, 64 bytes hold four inputs of each of 16 outputs; with four bits, the low halves hold the
//! first four of eight inputs and the high halves the others.

use std::{ops::Range, sync::Arc};

use half::f16;

use crate::{
    aligned::{AlignedBytes, LINE},
    error::KernelError,
    simd::LANES,
};

/// Width of a quantised weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    /// 4 bits; without zero points, 8 stands for 0.
    Four,
    /// 8 bits; without zero points, 128 stands for 0.
    Eight,
}

impl Bits {
    /// Number of bits.
    pub fn count(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// Number of groups of four inputs in 64 bytes.
    fn groups_per_line(self) -> usize {
        8 / self.count()
    }
}

/// Scales of blocks.
#[derive(Debug, Clone, Copy)]
pub enum Scales<'a> {
    /// Half precision.
    F16(&'a [f16]),
    /// Single precision.
    F32(&'a [f32]),
}

/// Weights as `MatMulNBits` stores them: each row is an output, cut into blocks of inputs, the last of which is padded.
/// Four-bit integers share a byte, the first in its low half.
#[derive(Debug, Clone, Copy)]
pub struct BlockedWeights<'a> {
    /// Number of outputs.
    pub outputs: usize,
    /// Number of inputs.
    pub inputs: usize,
    /// Number of inputs in a block: 16, 32, 64 or 128.
    pub block: usize,
    /// Width of a weight.
    pub bits: Bits,
    /// Integers, `[outputs, blocks, block * bits / 8]`.
    pub quants: &'a [u8],
    /// Scales, `[outputs, blocks]`.
    pub scales: Scales<'a>,
    /// Zero points, `[outputs, ceil(blocks * bits / 8)]`.
    pub zeros: Option<&'a [u8]>,
}

impl BlockedWeights<'_> {
    /// Number of bytes of the packed matrix, from the shape and the kind of scales and zero points alone; a multiple
    /// of 64.
    ///
    /// # Errors
    /// If blocks have no kernel.
    pub fn packed_bytes(&self) -> Result<usize, KernelError> {
        Ok(self.layout()?.scales.end)
    }

    fn layout(&self) -> Result<Layout, KernelError> {
        let parts = Parts { single: matches!(self.scales, Scales::F32(_)), zeros: self.zeros.is_some() };
        Layout::new(self.outputs, self.inputs, self.block, self.bits, parts)
    }

    /// One zero point; each output's start at a byte.
    fn zero(&self, zeros: &[u8], output: usize, block: usize) -> u8 {
        let row = (self.inputs.div_ceil(self.block) * self.bits.count()).div_ceil(8);
        integer(&zeros[output * row..][..row], self.bits, block)
    }
}

/// The integer at an index.
fn integer(bytes: &[u8], bits: Bits, index: usize) -> u8 {
    match bits {
        Bits::Eight => bytes[index],
        Bits::Four => bytes[index / 2] >> (4 * (index % 2)) & 15,
    }
}

/// First bytes of a packed matrix; the last is the version of the layout.
const MAGIC: [u8; 8] = *b"NARXPAK\x01";

/// Places of the parts of a packed matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Layout {
    outputs: usize,
    inputs: usize,
    block: usize,
    bits: Bits,
    single: bool,
    quants: Range<usize>,
    zeros: Range<usize>,
    scales: Range<usize>,
}

impl Layout {
    fn new(
        outputs: usize,
        inputs: usize,
        block: usize,
        bits: Bits,
        parts: Parts,
    ) -> Result<Self, KernelError> {
        if ![16, 32, 64, 128].contains(&block) {
            return Err(KernelError::Block { found: block });
        }
        let sizes = || {
            let blocks = outputs.div_ceil(LANES).checked_mul(inputs.div_ceil(block))?;
            let section = |start: usize, each: usize| {
                let end = start.checked_add(blocks.checked_mul(each)?)?.checked_next_multiple_of(LINE)?;
                (end <= isize::MAX as usize).then_some(start..end)
            };
            let quants = section(LINE, LANES * block * bits.count() / 8)?;
            let zeros = section(quants.end, if parts.zeros { LANES } else { 0 })?;
            let scales = section(zeros.end, LANES * if parts.single { 4 } else { 2 })?;
            Some((quants, zeros, scales))
        };
        let (quants, zeros, scales) = sizes().ok_or(KernelError::Size { outputs, inputs })?;
        Ok(Self { outputs, inputs, block, bits, single: parts.single, quants, zeros, scales })
    }

    fn header(&self) -> [u8; LINE] {
        let mut header = [0; LINE];
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&(self.outputs as u64).to_le_bytes());
        header[16..24].copy_from_slice(&(self.inputs as u64).to_le_bytes());
        header[24] = self.block as u8;
        header[25] = self.bits.count() as u8;
        header[26] = u8::from(self.single);
        header[27] = u8::from(!self.zeros.is_empty());
        header
    }

    /// Packs weights of this layout into bytes that are all zeros.
    fn pack(&self, weights: &BlockedWeights<'_>, out: &mut [u8]) -> Result<(), KernelError> {
        check_lengths(weights)?;
        if out.len() != self.scales.end {
            let (expected, found) = (self.scales.end, out.len());
            return Err(KernelError::Length { what: "packed bytes", expected, found });
        }
        out[..LINE].copy_from_slice(&self.header());
        pack_quants(weights, &mut out[self.quants.clone()]);
        pack_zeros(weights, &mut out[self.zeros.clone()]);
        pack_scales(weights, &mut out[self.scales.clone()]);
        Ok(())
    }

    fn parse(bytes: &[u8]) -> Result<Self, KernelError> {
        let format = |reason| KernelError::Format { reason };
        let header = bytes.first_chunk::<LINE>().ok_or(format("shorter than a header"))?;
        let (words, _) = header.as_chunks::<8>();
        if words[0] != MAGIC {
            return Err(format("other magic or version"));
        }
        let size = |word: [u8; 8]| usize::try_from(u64::from_le_bytes(word)).map_err(|_| format("size"));
        let bits = match header[25] {
            4 => Bits::Four,
            8 => Bits::Eight,
            _ => return Err(format("number of bits")),
        };
        let parts = Parts { single: header[26] != 0, zeros: header[27] != 0 };
        let layout = Self::new(size(words[1])?, size(words[2])?, usize::from(header[24]), bits, parts)?;
        if layout.header() != *header {
            return Err(format("unknown fields"));
        }
        if layout.scales.end != bytes.len() {
            return Err(format("length"));
        }
        Ok(layout)
    }
}

/// Optional parts of a packed matrix.
#[derive(Debug, Clone, Copy)]
struct Parts {
    /// Scales in single precision.
    single: bool,
    /// Zero points.
    zeros: bool,
}

/// Bytes that somebody else owns, such as a mapped file.
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
    /// If blocks have no kernel, or a slice contradicts the shape.
    pub fn pack(weights: &BlockedWeights<'_>) -> Result<Self, KernelError> {
        let layout = weights.layout()?;
        let mut bytes = AlignedBytes::zeros(layout.scales.end);
        layout.pack(weights, bytes.as_mut_slice())?;
        Ok(Self { layout, store: Store::Owned(bytes) })
    }

    /// Packs weights into bytes that are all zeros, as many as [`BlockedWeights::packed_bytes`] states.
    ///
    /// # Errors
    /// As [`Self::pack`], and for another number of bytes.
    pub fn pack_into(weights: &BlockedWeights<'_>, bytes: &mut [u8]) -> Result<(), KernelError> {
        weights.layout()?.pack(weights, bytes)
    }

    /// A packed matrix in somebody else's bytes, which start a multiple of 64 bytes into a page for full speed.
    ///
    /// # Errors
    /// If the bytes are no packed matrix, or lie outside their owner's.
    pub fn from_bytes(bytes: SharedBytes, range: Range<usize>) -> Result<Self, KernelError> {
        let part = (*bytes).as_ref().get(range.clone()).ok_or(KernelError::Format { reason: "range" })?;
        let layout = Layout::parse(part)?;
        Ok(Self { layout, store: Store::Shared(bytes, range) })
    }

    /// The bytes to store.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.store {
            Store::Owned(bytes) => bytes.as_slice(),
            // `AsRef` may answer differently from call to call, so the range is checked every time.
            Store::Shared(bytes, range) => &(**bytes).as_ref()[range.clone()],
        }
    }

    /// Number of outputs: columns of the product.
    pub fn outputs(&self) -> usize {
        self.layout.outputs
    }

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.layout.inputs
    }

    /// Number of inputs that share a scale.
    pub fn block(&self) -> usize {
        self.layout.block
    }

    /// Width of a weight.
    pub fn bits(&self) -> Bits {
        self.layout.bits
    }

    /// Tiles of sixteen outputs.
    pub(crate) fn tiles(&self) -> Tiles<'_> {
        let (bytes, layout) = (self.as_bytes(), &self.layout);
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
            blocks,
            lines: blocks * layout.block / 4 / layout.bits.groups_per_line(),
        }
    }
}

/// Parts of tiles.
#[derive(Clone, Copy)]
pub(crate) struct Tiles<'a> {
    quants: &'a [[u8; LINE]],
    zeros: Option<&'a [[u8; LANES]]>,
    scales: TileScales<'a>,
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

/// Sixteen outputs.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    pub(crate) quants: &'a [[u8; LINE]],
    pub(crate) zeros: Option<&'a [[u8; LANES]]>,
    pub(crate) scales: TileScales<'a>,
}

impl<'a> Tiles<'a> {
    /// One tile.
    pub(crate) fn tile(&self, index: usize) -> Tile<'a> {
        let blocks = index * self.blocks..(index + 1) * self.blocks;
        Tile {
            quants: &self.quants[index * self.lines..][..self.lines],
            zeros: self.zeros.map(|zeros| &zeros[blocks.clone()]),
            scales: match self.scales {
                TileScales::F16(scales) => TileScales::F16(&scales[blocks]),
                TileScales::F32(scales) => TileScales::F32(&scales[blocks]),
            },
        }
    }
}

fn check_lengths(weights: &BlockedWeights<'_>) -> Result<(), KernelError> {
    let blocks = weights.inputs.div_ceil(weights.block);
    let check = |what, found: usize, row: usize| {
        let expected = weights.outputs.saturating_mul(row);
        if found == expected { Ok(()) } else { Err(KernelError::Length { what, expected, found }) }
    };
    check("quants", weights.quants.len(), blocks * weights.block * weights.bits.count() / 8)?;
    match weights.scales {
        Scales::F16(scales) => check("scales", scales.len(), blocks)?,
        Scales::F32(scales) => check("scales", scales.len(), blocks)?,
    }
    weights.zeros.map_or(Ok(()), |zeros| {
        check("zero points", zeros.len(), (blocks * weights.bits.count()).div_ceil(8))
    })
}

fn pack_quants(weights: &BlockedWeights<'_>, out: &mut [u8]) {
    let row = weights.inputs.next_multiple_of(weights.block) * weights.bits.count() / 8;
    // Four bytes of a row go into each line.
    let lines = row / 4;
    if lines == 0 {
        return;
    }
    for (rows, out) in weights.quants.chunks(LANES * row).zip(out.chunks_exact_mut(lines * LINE)) {
        for (lane, row) in rows.chunks_exact(row).enumerate() {
            let places = out.chunks_exact_mut(LINE).map(|line| &mut line[lane * 4..][..4]);
            for (bytes, place) in row.as_chunks::<4>().0.iter().zip(places) {
                place.copy_from_slice(&match weights.bits {
                    Bits::Eight => *bytes,
                    Bits::Four => interleave_nibbles(*bytes),
                });
            }
        }
    }
}

/// Puts the last four of eight integers into the high halves of the bytes of the first four.
fn interleave_nibbles([a, b, c, d]: [u8; 4]) -> [u8; 4] {
    [a & 15 | c << 4, a >> 4 | c & 0xf0, b & 15 | d << 4, b >> 4 | d & 0xf0]
}

fn pack_zeros(weights: &BlockedWeights<'_>, out: &mut [u8]) {
    let Some(zeros) = weights.zeros else { return };
    let blocks = weights.inputs.div_ceil(weights.block);
    for output in 0..weights.outputs {
        for block in 0..blocks {
            out[place(output, block, blocks)] = weights.zero(zeros, output, block);
        }
    }
}

fn pack_scales(weights: &BlockedWeights<'_>, out: &mut [u8]) {
    let blocks = weights.inputs.div_ceil(weights.block);
    for output in 0..weights.outputs {
        for block in 0..blocks {
            let (from, to) = (output * blocks + block, place(output, block, blocks));
            match weights.scales {
                Scales::F16(scales) => out[to * 2..][..2].copy_from_slice(&scales[from].to_le_bytes()),
                Scales::F32(scales) => out[to * 4..][..4].copy_from_slice(&scales[from].to_le_bytes()),
            }
        }
    }
}

/// Index of an output's block among scales and zero points.
fn place(output: usize, block: usize, blocks: usize) -> usize {
    (output / LANES * blocks + block) * LANES + output % LANES
}
