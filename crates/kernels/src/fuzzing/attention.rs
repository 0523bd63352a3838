//! Attention over caches of every element type.

use half::f16;

use super::{
    input::{Input, TooShort},
    output::{agree, assert_same, written},
};
use crate::{
    attention::{Attention, AttentionPart, CacheRows, KeyValues, Mask, Queries},
    kernels::Kernels,
    matmul::Scratch,
    view::MatrixRef,
};

/// Maximum number of multiply-accumulates of queries and earlier keys. It bounds the time of an input.
const MAX_PRODUCTS: usize = 1 << 20;

/// Owned rows of a cache.
enum CacheContents {
    F32(Vec<f32>),
    F16(Vec<f16>),
    I8(Vec<i8>),
}

impl CacheContents {
    fn read(input: &mut Input<'_>, rows: usize, size: usize) -> Result<Self, TooShort> {
        Ok(match input.pick(&[0, 1, 2])? {
            0 => Self::F32(input.floats(rows * size)?),
            1 => Self::F16(input.halves(rows * size)),
            _ => {
                let integers = input.bytes(rows * size);
                let rows = integers.chunks(size).zip(input.floats(rows)?);
                let bytes = rows.flat_map(|(row, scale)| [row, scale.to_ne_bytes().as_slice()].concat());
                Self::I8(bytes.map(u8::cast_signed).collect())
            }
        })
    }

    fn view(&self) -> CacheRows<'_> {
        match self {
            Self::F32(rows) => CacheRows::F32(rows),
            Self::F16(rows) => CacheRows::F16(rows),
            Self::I8(rows) => CacheRows::I8(rows),
        }
    }
}

struct Layer {
    attention: Attention,
    group: usize,
    first_position: usize,
    count: usize,
    queries: Vec<f32>,
    sinks: Vec<f32>,
    keys: CacheContents,
    values: CacheContents,
}

impl Layer {
    fn read(input: &mut Input<'_>) -> Result<Self, TooShort> {
        let (head_size, group) = (input.number(1, 80)?, input.number(1, 9)?);
        let (tokens, first_position) = (input.number(0, 20)?, input.number(0, 600)?);
        let more = input.number(0, 9)?;
        let tokens = tokens.min(MAX_PRODUCTS / (group * head_size * (first_position + more + 1)));
        let width = input.number(1, 300)?;
        let attention = Attention {
            head_size,
            scale: input.pick(&[1.0 / (head_size as f32).sqrt(), 1.0, 30.0, 1e-3])?,
            soft_cap: input.pick(&[None, Some(50.0), Some(2.0), Some(1e-3)])?,
            mask: input.pick(&[
                Mask::Causal,
                Mask::Full,
                Mask::Window(width),
                Mask::WindowAndLater(width),
            ])?,
        };
        let count = first_position + tokens + more;
        Ok(Self {
            attention,
            group,
            first_position,
            count,
            queries: input.floats(tokens * group * head_size)?,
            keys: CacheContents::read(input, count, head_size)?,
            values: CacheContents::read(input, count, head_size)?,
            sinks: input.pick(&[0, group]).and_then(|sinks| input.floats(sinks))?,
        })
    }

    fn columns(&self) -> usize {
        self.group * self.attention.head_size
    }

    fn cache(&self) -> KeyValues<'_> {
        KeyValues { keys: self.keys.view(), values: self.values.view() }
    }

    /// Returns the results of some tokens.
    fn attend(&self, kernels: &Kernels, tokens: std::ops::Range<usize>, scratch: &mut Scratch) -> Vec<f32> {
        let (columns, count) = (self.columns(), tokens.len());
        let rows = &self.queries[tokens.start * columns..tokens.end * columns];
        let rows = MatrixRef::new(rows, columns);
        let queries =
            Queries { rows, first_position: self.first_position + tokens.start, sinks: &self.sinks };
        written(count, columns, |out| kernels.attend(&self.attention, queries, self.cache(), scratch, out))
    }

    /// Returns the results of all tokens, joined from parts of the keys.
    fn attend_in_parts(&self, kernels: &Kernels, scratch: &mut Scratch) -> Vec<f32> {
        let rows = MatrixRef::new(&self.queries, self.columns());
        let queries = Queries { rows, first_position: self.first_position, sinks: &self.sinks };
        let part = |start: usize| {
            let keys = start..self.count.min(start + AttentionPart::KEYS);
            let mut part = AttentionPart::of(keys);
            kernels.attend_part(&self.attention, queries, self.cache(), scratch, &mut part);
            part
        };
        let mut parts: Vec<_> = (0..self.count.max(1)).step_by(AttentionPart::KEYS).map(part).collect();
        written(rows.rows(), self.columns(), |out| kernels.join_attention(&mut parts, &self.sinks, out))
    }
}

/// Compares the attention of all tokens, of single tokens and of parts of the keys. They use the same buffers.
pub(super) fn compare(input: &mut Input<'_>) -> Result<(), TooShort> {
    let layer = Layer::read(input)?;
    let tokens = layer.queries.len() / layer.columns();
    agree("attention", |kernels| {
        let mut scratch = Scratch::default();
        let whole = layer.attend(kernels, 0..tokens, &mut scratch);
        let single = |token| layer.attend(kernels, token..token + 1, &mut scratch);
        let by_token: Vec<f32> = (0..tokens).flat_map(single).collect();
        assert_same("attention by token", &by_token, &whole);
        assert_same("attention in parts", &layer.attend_in_parts(kernels, &mut scratch), &whole);
        whole
    });
    Ok(())
}
