//! Queries for keys of eight bits: integers of sixteen bits, also in two digits of eight bits. The products of their digits
//! with keys are exact integers, computed with instructions for products of bytes. Their rounding error is 256 times
//! smaller than that of the keys.

use std::ops::Range;

use super::Attend;
use crate::{
    rounding::{fixed_scale, peak},
    simd::{LANES, Simd},
};

/// Base of the two digits.
pub(super) const BASE: f32 = 255.0;

/// Largest digit. Digits are at least -127, as [`Simd::dot_bytes`] expects.
const TOP_DIGIT: f32 = 127.0;

/// Largest magnitude of an integer.
const TOP: f32 = TOP_DIGIT * BASE + TOP_DIGIT;

/// Largest number of elements for which the sum of the products of integers fits into 32 bits: 512 * 32512 * 128 is less
/// than 2^31.
const MAX_WIDE_ELEMENTS: usize = 512;

/// Queries multiplied by the factor of the scores, in panels. An element is the scale of its query multiplied by
/// `high * 255 + low`.
///
/// The scale of a query is NaN if one of its elements is not finite, so that all of its products are NaN.
#[derive(Debug, Default)]
pub(super) struct SplitQueries {
    high: Digits,
    low: Digits,
    /// For each panel and group of four elements, the integers of each query. Empty if products use the digits.
    integers: Vec<[i16; 4]>,
    /// Scale of each query.
    scales: Vec<f32>,
    /// Elements of one query, padded with zeros.
    row: Vec<[f32; LANES]>,
}

/// The high or the low digits of all queries.
#[derive(Debug, Default)]
struct Digits {
    /// For each panel and group of four elements, the digits of each query.
    groups: Vec<[i8; 4]>,
    /// Sum of the digits of each query.
    sums: Vec<i32>,
    /// Digits of one query, before they are placed in a panel.
    row: Vec<[i8; LANES]>,
}

/// The high or the low digits of a panel.
#[derive(Clone, Copy)]
pub(super) struct PanelDigits<'a> {
    /// For each group of four elements, the digits of each query.
    pub(super) groups: &'a [[i8; 4]],
    /// Sum of the digits of each query.
    pub(super) sums: &'a [i32],
}

/// The queries of a panel.
#[derive(Clone, Copy)]
pub(super) struct SplitPanel<'a> {
    pub(super) high: PanelDigits<'a>,
    pub(super) low: PanelDigits<'a>,
    /// For each group of four elements, the integers of each query. Empty if products use the digits.
    pub(super) integers: &'a [[i16; 4]],
    /// Scale of each query.
    pub(super) scales: &'a [f32],
}

impl SplitQueries {
    /// Returns the number of lines that hold four elements of sixteen keys: one line of bytes, which are multiplied by the
    /// digits of queries, or two lines of 16-bit integers, which are multiplied by the integers of queries.
    pub(super) fn lines_per_group<S: Simd>(padded: usize) -> usize {
        if S::WIDENS && padded <= MAX_WIDE_ELEMENTS { 2 } else { 1 }
    }

    /// Rounds the queries of all panels. They are padded with zeros to a multiple of sixteen elements.
    #[inline(always)]
    pub(super) fn fill<S: Simd>(
        &mut self,
        s: S,
        attend: &Attend<'_>,
        panels: impl Iterator<Item = Range<usize>>,
    ) {
        let count = attend.queries.rows.rows() * attend.group();
        let vectors = attend.attention.head_size.div_ceil(LANES);
        self.row.clear();
        self.row.resize(vectors, [0.0; LANES]);
        self.scales.resize(count, 0.0);

        for digits in [&mut self.high, &mut self.low] {
            digits.row.resize(vectors, [0; LANES]);
            digits.groups.resize(count * vectors * LANES / 4, [0; 4]);
            digits.sums.resize(count, 0);
        }

        for panel in panels {
            for query in panel.clone() {
                for (slot, x) in self.row.as_flattened_mut().iter_mut().zip(attend.query(query)) {
                    *slot = x * attend.attention.scale;
                }
                self.scales[query] = self.round(s);
                self.high.place(&panel, query);
                self.low.place(&panel, query);
            }
        }

        self.integers.clear();
        if Self::lines_per_group::<S>(vectors * LANES) == 2 {
            let digits = self.high.groups.iter().zip(&self.low.groups);
            self.integers.extend(digits.map(|(high, low)| {
                std::array::from_fn(|i| i16::from(high[i]) * BASE as i16 + i16::from(low[i]))
            }));
        }
    }

    /// Rounds the elements in `row`, and returns their scale.
    #[inline(always)]
    fn round<S: Simd>(&mut self, s: S) -> f32 {
        let peak = peak(s, &self.row, &[]);
        let digits = self.high.row.iter_mut().zip(&mut self.low.row);
        if let Some(fixed) = fixed_scale(peak) {
            digits.for_each(|(high, low)| (*high, *low) = ([0; LANES], [0; LANES]));
            return fixed;
        }
        let inverse = s.splat(TOP / peak);
        let least = s.splat(-TOP_DIGIT);
        let top = s.splat(TOP_DIGIT);
        for (x, (high, low)) in self.row.iter().zip(digits) {
            let x = s.mul(s.load(x), inverse);
            s.round_to_i8(s.mul(x, s.splat(1.0 / BASE)), high);
            let rest = s.mul_add(s.load_i8(high), s.splat(-BASE), x);
            s.round_to_i8(s.max(least, s.min(top, rest)), low);
        }
        peak / TOP
    }

    /// Returns the queries of a panel.
    pub(super) fn panel(&self, panel: &Range<usize>) -> SplitPanel<'_> {
        let integers = if self.integers.is_empty() { &[] } else { &self.integers[self.high.places(panel)] };
        SplitPanel {
            integers,
            high: self.high.panel(panel),
            low: self.low.panel(panel),
            scales: &self.scales[panel.clone()],
        }
    }
}

impl Digits {
    /// Returns the places of a panel in `groups`.
    fn places(&self, panel: &Range<usize>) -> Range<usize> {
        let width = self.row.len() * LANES / 4;
        panel.start * width..panel.end * width
    }

    /// Places the digits of a query in its panel.
    fn place(&mut self, panel: &Range<usize>, query: usize) {
        let digits = self.row.as_flattened();
        let places = self.places(panel);
        self.sums[query] = digits.iter().map(|digit| i32::from(*digit)).sum();
        let places = self.groups[places].iter_mut().skip(query - panel.start).step_by(panel.len());
        for (place, group) in places.zip(digits.as_chunks().0) {
            *place = *group;
        }
    }

    fn panel(&self, panel: &Range<usize>) -> PanelDigits<'_> {
        PanelDigits { groups: &self.groups[self.places(panel)], sums: &self.sums[panel.clone()] }
    }
}
