//! Keys and values in the element types of caches.

use std::ops::Range;

use half::f16;

use super::BLOCK;
use crate::simd::{LANES, Simd};

/// Keys or values of one head, with one row for each position.
#[derive(Debug, Clone, Copy)]
pub enum CacheRows<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// Integers. Each row is followed by the [`Self::SCALE_BYTES`] bytes of its scale, a number in single precision
    /// in the byte order of the machine. [`Kernels::quantize_cache_row`](crate::Kernels::quantize_cache_row) writes
    /// such rows.
    I8(&'a [i8]),
}

/// Scales of the keys or values of a block.
pub(super) type BlockScales = [[f32; LANES]; BLOCK / LANES];

/// Keys and values of one head.
#[derive(Debug, Clone, Copy)]
pub struct KeyValues<'a> {
    /// Keys.
    pub keys: CacheRows<'a>,
    /// Values. There are as many as keys.
    pub values: CacheRows<'a>,
}

impl CacheRows<'_> {
    /// Number of bytes of a row's scale.
    pub const SCALE_BYTES: usize = size_of::<f32>();

    /// Returns the number of rows, or `None` if the length is not a whole number of rows.
    pub(crate) fn rows(&self, head_size: usize) -> Option<usize> {
        let (elements, row) = match self {
            Self::F32(rows) => (rows.len(), head_size),
            Self::F16(rows) => (rows.len(), head_size),
            Self::I8(rows) => (rows.len(), head_size.checked_add(Self::SCALE_BYTES)?),
        };
        let rows = elements.checked_div(row)?;
        (rows * row == elements).then_some(rows)
    }

    /// Writes a row in single precision, without its scale.
    #[inline(always)]
    pub(super) fn convert<S: Simd>(&self, s: S, row: usize, out: &mut [f32]) {
        match self {
            Self::F32(rows) => convert(s, rows, row, out),
            Self::F16(rows) => convert(s, rows, row, out),
            Self::I8(rows) => convert(s, rows, row, out),
        }
    }

    /// Returns the scales of the rows of a block, if the rows have scales.
    #[inline(always)]
    pub(super) fn scales(&self, head_size: usize, block: &Range<usize>) -> Option<BlockScales> {
        let Self::I8(rows) = self else { return None };
        let mut scales = BlockScales::default();
        let width = head_size + Self::SCALE_BYTES;
        let rows = rows[block.start * width..block.end * width].chunks_exact(width);
        for (row, scale) in rows.zip(scales.as_flattened_mut()) {
            if let Some(bytes) = row.last_chunk() {
                *scale = f32::from_ne_bytes(bytes.map(i8::cast_unsigned));
            }
        }
        Some(scales)
    }
}

/// Element of a cache.
pub(super) trait Element: Copy {
    /// Zero.
    const ZERO: Self;

    /// Number of elements after each row.
    const AFTER_ROW: usize = 0;

    /// Loads sixteen elements.
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::Floats;
}

impl Element for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::Floats {
        s.load(x)
    }
}

impl Element for f16 {
    const ZERO: Self = f16::ZERO;

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::Floats {
        s.load_f16(x)
    }
}

impl Element for i8 {
    const ZERO: Self = 0;
    const AFTER_ROW: usize = CacheRows::SCALE_BYTES;

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::Floats {
        s.load_i8(x)
    }
}

#[inline(always)]
fn convert<S: Simd, T: Element>(s: S, rows: &[T], row: usize, out: &mut [f32]) {
    let row = &rows[row * (out.len() + T::AFTER_ROW)..][..out.len()];
    let (whole, rest) = row.as_chunks::<LANES>();
    let (whole_out, rest_out) = out.as_chunks_mut::<LANES>();
    for (x, out) in whole.iter().zip(whole_out) {
        s.store(T::load(s, x), out);
    }
    let mut tail = [T::ZERO; LANES];
    let mut lanes = [0.0; LANES];
    tail[..rest.len()].copy_from_slice(rest);
    s.store(T::load(s, &tail), &mut lanes);
    rest_out.copy_from_slice(&lanes[..rest.len()]);
}
