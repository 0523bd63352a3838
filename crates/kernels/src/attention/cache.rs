//! Keys and values in the element types of caches.

use half::f16;

use crate::simd::{LANES, Simd};

/// Keys or values of one head, with one row for each position.
#[derive(Debug, Clone, Copy)]
pub enum CacheRows<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// Integers with one scale for each row.
    I8 {
        /// Elements.
        integers: &'a [i8],
        /// Scales of the rows.
        scales: &'a [f32],
    },
}

/// Keys and values of one head.
#[derive(Debug, Clone, Copy)]
pub struct KeyValues<'a> {
    /// Keys.
    pub keys: CacheRows<'a>,
    /// Values. There are as many as keys.
    pub values: CacheRows<'a>,
}

impl CacheRows<'_> {
    /// Returns the number of rows, or `None` if the length is not a whole number of rows.
    pub(crate) fn rows(&self, head_size: usize) -> Option<usize> {
        let (elements, scales) = match self {
            Self::F32(rows) => (rows.len(), None),
            Self::F16(rows) => (rows.len(), None),
            Self::I8 { integers, scales } => (integers.len(), Some(scales.len())),
        };
        let rows = elements.checked_div(head_size)?;
        (rows * head_size == elements && scales.is_none_or(|scales| scales == rows)).then_some(rows)
    }

    /// Writes a row in single precision.
    #[inline(always)]
    pub(super) fn convert<S: Simd>(&self, s: S, row: usize, out: &mut [f32]) {
        match self {
            Self::F32(rows) => convert(s, rows, row, 1.0, out),
            Self::F16(rows) => convert(s, rows, row, 1.0, out),
            Self::I8 { integers, scales } => convert(s, integers, row, scales[row], out),
        }
    }
}

/// Element of a cache.
pub(super) trait Element: Copy {
    /// Zero.
    const ZERO: Self;

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

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::Floats {
        s.load_i8(x)
    }
}

#[inline(always)]
fn convert<S: Simd, T: Element>(s: S, rows: &[T], row: usize, scale: f32, out: &mut [f32]) {
    let row = &rows[row * out.len()..][..out.len()];
    let (scale, (whole, rest)) = (s.splat(scale), row.as_chunks::<LANES>());
    let (whole_out, rest_out) = out.as_chunks_mut::<LANES>();
    for (x, out) in whole.iter().zip(whole_out) {
        s.store(s.mul(T::load(s, x), scale), out);
    }
    let (mut tail, mut lanes) = ([T::ZERO; LANES], [0.0; LANES]);
    tail[..rest.len()].copy_from_slice(rest);
    s.store(s.mul(T::load(s, &tail), scale), &mut lanes);
    rest_out.copy_from_slice(&lanes[..rest.len()]);
}
