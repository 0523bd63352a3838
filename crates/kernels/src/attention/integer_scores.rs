//! Products of queries with keys of eight bits. The products of their digits are exact integers, so that a product has the
//! same bits for any number of queries.

use std::ops::Range;

use super::{
    BLOCK, Buffers,
    cache::CacheRows,
    scores::store,
    split_queries::{BASE, PanelDigits, SplitPanel, SplitQueries},
};
use crate::{
    aligned::LINE,
    simd::{LANES, Simd},
};

/// Number that is added to keys, so that they are unsigned.
const OFFSET: i32 = 128;

/// Number of elements of a key in a line.
const GROUP: usize = LINE / LANES;

/// Arranges the keys of a block in lines: for each sixteen keys, and for each four elements, the four elements of each of
/// the keys, in the order of [`Simd::widen`] if there are two lines. The bytes for keys after the last one are unspecified.
#[inline(always)]
pub(super) fn load_keys<S: Simd>(
    s: S,
    keys: &[i8],
    size: usize,
    block: &Range<usize>,
    lines: &mut [[u8; LINE]],
) {
    let width = size + CacheRows::SCALE_BYTES;
    let keys = keys[block.start * width..block.end * width].chunks(LANES * width);
    let padded = size.next_multiple_of(LANES);
    let per_group = SplitQueries::lines_per_group::<S>(padded);

    for (keys, lines) in keys.zip(lines.chunks_exact_mut(padded / GROUP * per_group)) {
        for (part, lines) in lines.chunks_mut(LANES * per_group).enumerate() {
            let mut tile = [s.splat(0.0); LANES];
            for (row, slot) in keys.chunks_exact(width).zip(&mut tile) {
                *slot = s.load_le(&to_unsigned(&row[part * LINE..size]));
            }
            let columns = s.transpose(tile).into_iter();
            if per_group == 2 {
                let mut line = [0; LINE];
                for (column, pair) in columns.zip(lines.as_chunks_mut().0) {
                    s.store_le(column, &mut line);
                    s.widen(&line, s.splat_int(OFFSET), pair);
                }
            } else {
                columns.zip(lines).for_each(|(column, line)| s.store_le(column, line));
            }
        }
    }
}

/// Returns up to 64 elements of a key, with [`OFFSET`] added. The bytes after them are unspecified.
#[inline(always)]
fn to_unsigned(key: &[i8]) -> [u8; LINE] {
    let mut elements = [0; LINE];
    match key.first_chunk() {
        Some(first) => elements = *first,
        None => elements[..key.len()].copy_from_slice(key),
    }
    elements.map(|x| x.cast_unsigned() ^ OFFSET as u8)
}

/// Computes the products of a panel with the first `count` keys of a block, without the scales of the keys, at a distance of
/// 64 for each query. The numbers after them are unspecified.
#[inline(always)]
pub(super) fn score<S: Simd, const R: usize>(
    s: S,
    buffers: &mut Buffers,
    panel: &Range<usize>,
    count: usize,
) {
    let queries = buffers.split_queries.panel(panel);
    let lines = buffers.padded / GROUP * SplitQueries::lines_per_group::<S>(buffers.padded);
    for first in (0..count).step_by(LANES * S::TILES) {
        let lines = &buffers.key_lines[first / LANES * lines..];
        let scores = &mut buffers.scores[first..];
        if !queries.integers.is_empty() {
            score_integers::<S, R>(s, queries, lines, scores);
        } else if S::TILES == 2 {
            score_tiles::<S, R, 2>(s, queries, lines, scores);
        } else {
            score_tiles::<S, R, 1>(s, queries, lines, scores);
        }
    }
}

/// Computes the products of a panel with sixteen keys, whose elements have sixteen bits. They have the bits of
/// [`score_tiles`], because both round the exact products once.
#[inline(always)]
fn score_integers<S: Simd, const R: usize>(
    s: S,
    queries: SplitPanel<'_>,
    lines: &[[u8; LINE]],
    scores: &mut [f32],
) {
    let mut sums = [s.splat_int(0); R];
    let (groups, _) = queries.integers.as_chunks::<R>();
    for (queries, keys) in groups.iter().zip(lines.as_chunks().0) {
        for r in 0..R {
            sums[r] = s.dot_wide(sums[r], keys, &queries[r]);
        }
    }
    let mut products = [[s.splat(0.0)]; R];
    for (r, scale) in queries.scales.iter().enumerate().take(R) {
        products[r] = [s.mul(s.to_floats(sums[r]), s.splat(*scale))];
    }
    store::<S, R, 1>(s, &products, BLOCK, scores);
}

/// Computes the products of a panel with `V` times sixteen keys.
#[inline(always)]
fn score_tiles<S: Simd, const R: usize, const V: usize>(
    s: S,
    queries: SplitPanel<'_>,
    lines: &[[u8; LINE]],
    scores: &mut [f32],
) {
    let high = multiply::<S, R, V>(s, queries.high, lines);
    let low = multiply::<S, R, V>(s, queries.low, lines);
    let mut products = [[s.splat(0.0); V]; R];
    for (r, scale) in queries.scales.iter().enumerate().take(R) {
        for v in 0..V {
            let product = s.mul_add(s.to_floats(high[r][v]), s.splat(BASE), s.to_floats(low[r][v]));
            products[r][v] = s.mul(product, s.splat(*scale));
        }
    }
    store::<S, R, V>(s, &products, BLOCK, scores);
}

/// Multiplies digits by `V` times sixteen keys.
#[inline(always)]
fn multiply<S: Simd, const R: usize, const V: usize>(
    s: S,
    digits: PanelDigits<'_>,
    lines: &[[u8; LINE]],
) -> [[S::Ints; V]; R] {
    let (groups, _) = digits.groups.as_chunks::<R>();
    let mut sums = [[s.splat_int(0); V]; R];
    for r in 0..R {
        sums[r] = [s.splat_int((S::BYTE_OFFSET - OFFSET) * digits.sums[r]); V];
    }
    let lines: [&[[u8; LINE]]; V] = std::array::from_fn(|v| &lines[v * groups.len()..][..groups.len()]);
    for (group, queries) in groups.iter().enumerate() {
        let mut keys = [s.load_bytes(&lines[0][group]); V];
        for v in 1..V {
            keys[v] = s.load_bytes(&lines[v][group]);
        }
        for r in 0..R {
            let query = s.splat_quad(&queries[r]);
            for v in 0..V {
                sums[r][v] = s.dot_bytes(sums[r][v], keys[v], query);
            }
        }
    }
    sums
}
