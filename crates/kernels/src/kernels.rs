//! The kernels of this processor, and the choice of their instruction sets.

use std::ops::Range;

#[cfg(target_arch = "aarch64")]
use crate::simd::neon::Neon;
#[cfg(target_arch = "x86_64")]
use crate::simd::{avx2::Avx2, avx512::Avx512};
use crate::{
    activations::{Arrangement, Granularity, Quantize, QuantizedRows, UNPACK_ROWS},
    attention::{
        Attend, Attention, AttentionOutput, AttentionPart, CacheRows, Join, KeyValues, Mask, Queries,
    },
    elementwise::{ClampedSwiGlu, GateClamp, NormInput, ResidualSum, RmsNorm, Rotate, Softmax, SwiGlu},
    float::{FloatMatMul, FloatMatrix, FloatRows, Interleave},
    matmul::{MatMul, Scratch, Unpack},
    packed::{PackedMatrix, WeightFormat},
    rounding::RoundRow,
    simd::{LANES, Operation, Simd, portable::Portable, tiles::TileUnit},
    tile_matmul::TileMatMul,
    view::{MatrixMut, MatrixRef},
};
#[cfg(feature = "bench")]
use crate::{
    packed::Bits,
    roofline::{Dots, MulAdds, Reads},
};

/// Instruction set of this processor.
#[derive(Debug, Clone, Copy)]
enum InstructionSet {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(Avx2<true>),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2<false>),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

impl InstructionSet {
    /// Returns all instruction sets of this processor, the one expected to be fastest first.
    fn available() -> Vec<Self> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            found.extend(Avx512::detect().map(Self::Avx512));
            found.extend(Avx2::detect().map(Self::AvxVnni));
            found.extend(Avx2::detect().map(Self::Avx2));
        }
        #[cfg(target_arch = "aarch64")]
        found.extend(Neon::detect().map(Self::Neon));
        found.push(Self::Portable(Portable));
        found
    }

    fn name(self) -> &'static str {
        match self {
            Self::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "AVX-512 VNNI",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(_) => "AVX-VNNI",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "AVX2",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "NEON",
        }
    }

    fn run<O: Operation>(self, operation: O) -> O::Output {
        match self {
            Self::Portable(set) => set.run(operation),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(set) => set.run(operation),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(set) => set.run(operation),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(set) => set.run(operation),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(set) => set.run(operation),
        }
    }
}

/// Minimum number of rows for products of tiles. With fewer rows, unpacking the weights takes too much of the time.
const UNIT_ROWS: usize = 32;

/// The kernels, with the instruction sets that run them.
#[derive(Debug, Clone, Copy)]
pub struct Kernels {
    /// Quantised products of one row.
    one_row: InstructionSet,
    /// Quantised products of several rows, and rounding.
    rows: InstructionSet,
    /// Quantised products of at least [`UNIT_ROWS`] rows, where there is a unit for them.
    unit: Option<TileUnit>,
    /// Attention over a cache.
    attention: InstructionSet,
    /// All other kernels.
    floats: InstructionSet,
}

impl Kernels {
    fn on(set: InstructionSet) -> Self {
        Self { one_row: set, rows: set, unit: None, attention: set, floats: set }
    }

    /// Returns the kernels without any instruction set, which are the reference for all others.
    pub fn portable() -> Self {
        Self::on(InstructionSet::Portable(Portable))
    }

    /// Returns the kernels on each instruction set of this processor, those expected to be fastest first. The last are
    /// the portable ones.
    pub fn available() -> Vec<Self> {
        let mut all: Vec<_> = InstructionSet::available().into_iter().map(Self::on).collect();
        if let Some(unit) = TileUnit::detect() {
            all.insert(0, Self { unit: Some(unit), ..all[0] });
        }
        all
    }

    /// Returns the kernels on the instruction set that is expected to be fastest.
    pub fn detect() -> Self {
        Self::available().first().copied().unwrap_or_else(Self::portable)
    }

    /// Combines the kernels of several instruction sets: for one row, for several rows, for attention, and for all
    /// else.
    pub(crate) fn combine(one_row: &Self, rows: &Self, attention: &Self, floats: &Self) -> Self {
        Self {
            one_row: one_row.one_row,
            rows: rows.rows,
            unit: rows.unit,
            attention: attention.attention,
            floats: floats.floats,
        }
    }

    /// Returns the name of the instruction set for quantised products of several rows.
    pub fn name(&self) -> &'static str {
        self.unit.map_or_else(|| self.rows.name(), TileUnit::name)
    }

    /// Rounds activations to eight bits, for products of these kernels with weights of this format. Products with the
    /// other number of bits have the same results, but may take longer.
    ///
    /// # Panics
    /// Panics if the number of inputs in a block is not a multiple of 16.
    pub fn quantize(
        &self,
        input: MatrixRef<'_>,
        weights: WeightFormat,
        granularity: Granularity,
        out: &mut QuantizedRows,
    ) {
        let block = weights.block;
        assert!(block > 0 && block.is_multiple_of(16), "blocks of {block}");
        let by_tiles = self.unit.is_some() && input.rows() >= UNIT_ROWS;
        let arrangement = if by_tiles { Arrangement::Tiles } else { Arrangement::Interleaved };
        self.rows.run(Quantize { input, weights, granularity, arrangement, out });
    }

    /// Multiplies activations by a range of a matrix's columns. The range starts at a multiple of 16, and ends at a
    /// multiple of 16 or at the last column. `out` has the rows of the input and the columns of the range.
    ///
    /// # Panics
    /// Panics if the shapes or the blocks do not match, or the activations were rounded by other kernels.
    pub fn matmul(
        &self,
        input: &QuantizedRows,
        weights: &PackedMatrix,
        columns: Range<usize>,
        scratch: &mut Scratch,
        out: MatrixMut<'_>,
    ) {
        assert_eq!(input.inputs(), weights.inputs(), "inputs of the activations and the weights");
        assert_eq!(input.block(), weights.block(), "blocks of the activations and the weights");
        assert_eq!((out.rows(), out.columns()), (input.rows(), columns.len()), "shape of the output");
        check_columns(&columns, weights.outputs());
        if input.arrangement() == Arrangement::Tiles {
            let Some(unit) = self.unit else { panic!("activations were rounded for tiles") };
            let buffer = &mut scratch.bytes;
            return self.rows.run(TileMatMul { unit, input, weights, columns, buffer, out });
        }
        let unpack = if input.rows() < UNPACK_ROWS { Unpack::Registers } else { Unpack::Buffer };
        let set = if input.rows() == 1 { self.one_row } else { self.rows };
        set.run(MatMul { input, weights, columns, unpack, scratch, out });
    }

    /// Arranges activations for products in single precision.
    pub fn interleave(&self, input: MatrixRef<'_>, out: &mut FloatRows) {
        self.floats.run(Interleave { input, out });
    }

    /// Multiplies activations by a range of a float matrix's columns. The range starts at a multiple of 16, and ends at
    /// a multiple of 16 or at the last column. `out` has the rows of the input and the columns of the range.
    ///
    /// # Panics
    /// Panics if the shapes do not match.
    pub fn matmul_float(
        &self,
        input: &FloatRows,
        weights: &FloatMatrix,
        columns: Range<usize>,
        out: MatrixMut<'_>,
    ) {
        assert_eq!(input.inputs(), weights.inputs(), "inputs of the activations and the weights");
        check_columns(&columns, weights.outputs());
        assert_eq!((out.rows(), out.columns()), (input.rows(), columns.len()), "shape of the output");
        self.floats.run(FloatMatMul { input, weights, columns, out });
    }

    pub(crate) fn run_floats<O: Operation>(&self, operation: O) -> O::Output {
        self.floats.run(operation)
    }

    /// Divides each row by its root mean square, and multiplies it by a gain.
    ///
    /// # Panics
    /// Panics if the shapes do not match.
    pub fn rms_norm(&self, input: MatrixRef<'_>, gain: &[f32], epsilon: f32, out: MatrixMut<'_>) {
        let shape = (input.rows(), input.columns());
        assert_eq!(gain.len(), input.columns(), "length of the gain");
        assert_eq!((out.rows(), out.columns()), shape, "shape of the output");
        self.floats.run(RmsNorm { input: NormInput::Rows(input), gain, epsilon, out });
    }

    /// Adds a branch to the residual stream, and writes the [`Self::rms_norm`] of the sum to `out`.
    ///
    /// # Panics
    /// Panics if the shapes do not match.
    pub fn add_rms_norm(&self, residual: ResidualSum<'_>, gain: &[f32], epsilon: f32, out: MatrixMut<'_>) {
        let ResidualSum { stream, branch, sum } = &residual;
        let shape = (stream.rows(), stream.columns());
        assert_eq!(gain.len(), stream.columns(), "length of the gain");
        assert_eq!((branch.rows(), branch.columns()), shape, "shape of the branch");
        assert_eq!((sum.rows(), sum.columns()), shape, "shape of the sum");
        assert_eq!((out.rows(), out.columns()), shape, "shape of the output");
        self.floats.run(RmsNorm { input: NormInput::Sum(residual), gain, epsilon, out });
    }

    /// Writes `silu(gate) * up`.
    ///
    /// # Panics
    /// Panics if lengths differ.
    pub fn swiglu(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        assert!(gate.len() == up.len() && up.len() == out.len(), "lengths of gate, up and output");
        self.floats.run(SwiGlu { gate, up, out });
    }

    /// Writes the product of a gate and an up projection with bounds.
    ///
    /// # Panics
    /// Panics if lengths differ.
    pub fn clamped_swiglu(&self, gate: &[f32], up: &[f32], clamp: GateClamp, out: &mut [f32]) {
        assert!(gate.len() == up.len() && up.len() == out.len(), "lengths of gate, up and output");
        self.floats.run(ClampedSwiGlu { gate, up, clamp, out });
    }

    /// Rotates the heads of one position. Among the first `2 * cos.len()` elements of a head, each element of the first
    /// half is rotated with the element at the same index of the second half.
    ///
    /// # Panics
    /// Panics if `heads` is not a whole number of heads, or the angles exceed a head.
    pub fn rotate(&self, heads: &mut [f32], head_size: usize, cos: &[f32], sin: &[f32]) {
        assert!(head_size > 0 && heads.len().is_multiple_of(head_size), "heads of {head_size}");
        assert!(cos.len() == sin.len() && 2 * cos.len() <= head_size, "{} angles", cos.len());
        self.floats.run(Rotate { heads, head_size, cos, sin });
    }

    /// Replaces a row by its softmax; a row of minus infinities becomes zeros.
    pub fn softmax(&self, row: &mut [f32]) {
        self.floats.run(Softmax { row });
    }

    /// Computes the attention of the heads that share one key and value head. `out` has the queries' shape.
    ///
    /// The result of a query that sees no key is zeros. Queries are rounded to sixteen bits for keys of eight bits. Callers
    /// can divide the work between threads by key and value heads and by tokens.
    ///
    /// # Panics
    /// Panics if the shapes do not match, or a query's own key is not in the cache where the mask is causal.
    pub fn attend(
        &self,
        attention: &Attention,
        queries: Queries<'_>,
        cache: KeyValues<'_>,
        scratch: &mut Scratch,
        out: MatrixMut<'_>,
    ) {
        let shape = (queries.rows.rows(), queries.rows.columns());
        assert_eq!((out.rows(), out.columns()), shape, "shape of the output");
        let keys = check_attention(attention, queries, cache);
        let keys = 0..keys;
        let out = AttentionOutput::Whole(out);
        let buffers = &mut scratch.attention;
        self.attention.run(Attend { attention, queries, cache, keys, buffers, out });
    }

    /// Computes the attention of the heads that share one key and value head over the keys of a part, at most
    /// [`AttentionPart::KEYS`]. [`Self::join_attention`] joins the parts to the results of [`Self::attend`], with the
    /// same bits. The memory of an earlier part is used again.
    ///
    /// # Panics
    /// The conditions of [`Self::attend`] apply. Also panics if there are no such keys, or they are not a part.
    pub fn attend_part(
        &self,
        attention: &Attention,
        queries: Queries<'_>,
        cache: KeyValues<'_>,
        scratch: &mut Scratch,
        part: &mut AttentionPart,
    ) {
        let count = check_attention(attention, queries, cache);
        let keys = part.keys.clone();
        let exist = keys.start <= keys.end && keys.end <= count;
        let whole = keys.start.is_multiple_of(AttentionPart::KEYS) && keys.len() <= AttentionPart::KEYS;
        assert!(exist && whole, "keys {keys:?} of {count}");
        let buffers = &mut scratch.attention;
        let out = AttentionOutput::Part(part);
        self.attention.run(Attend { attention, queries, cache, keys, buffers, out });
    }

    /// Computes the results of queries from the parts of their attention, in the order of their keys, and from the sinks
    /// of their heads ([`Queries::sinks`]). `out` has the queries' shape. The contents of the parts are unspecified afterwards.
    ///
    /// # Panics
    /// Panics if the shapes do not match.
    pub fn join_attention(&self, parts: &mut [AttentionPart], sinks: &[f32], out: MatrixMut<'_>) {
        let Some((queries, size)) = parts.first().map(AttentionPart::shape) else { return };
        assert!(parts.iter().all(|part| part.shape() == (queries, size)), "shapes of the parts");
        let fits = out.columns().is_multiple_of(size) && out.rows() * out.columns() == queries * size;
        assert!(fits, "shape of the output");
        assert!(sinks.is_empty() || sinks.len() * size == out.columns(), "number of the sinks");
        self.attention.run(Join { parts, sinks, out });
    }

    /// Rounds a row of keys or values to eight bits for a cache ([`CacheRows::I8`]), and writes its scale after it. The
    /// scale of a row that is not finite is NaN.
    ///
    /// # Panics
    /// Panics if `out` does not have room for exactly the row and its scale.
    pub fn quantize_cache_row(&self, row: &[f32], out: &mut [i8]) {
        assert_eq!(row.len() + CacheRows::SCALE_BYTES, out.len(), "length of the row");
        let (out, after) = out.split_at_mut(row.len());
        let scale = self.floats.run(RoundRow { row, out });
        after.copy_from_slice(&scale.to_ne_bytes().map(u8::cast_signed));
    }
}

#[cfg(feature = "bench")]
impl Kernels {
    /// Multiplies weights of this width and activations in registers, and returns the number of multiply-accumulates.
    /// This measures the limit of integer products.
    pub fn run_dots(&self, bits: Bits, rounds: usize) -> u64 {
        self.rows.run(Dots { bits, rounds })
    }

    /// Multiplies floats in registers, and returns the number of multiply-accumulates. This measures the limit of float
    /// products.
    pub fn run_mul_adds(&self, rounds: usize) -> u64 {
        self.floats.run(MulAdds { rounds })
    }

    /// Reads bytes sequentially, and returns their number. This measures the limit of kernels that are bound by memory.
    pub fn run_reads(&self, bytes: &[u8]) -> u64 {
        self.floats.run(Reads { bytes })
    }
}

/// Checks that the shapes of attention match, and returns the number of keys.
fn check_attention(attention: &Attention, queries: Queries<'_>, cache: KeyValues<'_>) -> usize {
    let size = attention.head_size;
    let rows = queries.rows;
    assert!(size > 0 && rows.columns().is_multiple_of(size), "heads of {size}");
    let sinks = queries.sinks.len();
    assert!(sinks == 0 || sinks * size == rows.columns(), "{sinks} sinks");
    let keys = cache.keys.rows(size);
    assert!(keys.is_some() && keys == cache.values.rows(size), "shapes of keys and values");
    let keys = keys.unwrap_or(0);
    let positions = queries.first_position.saturating_add(rows.rows());
    assert!(attention.mask == Mask::Full || positions <= keys, "positions up to {positions}");
    keys
}

/// Checks that a range of columns consists of whole tiles.
fn check_columns(columns: &Range<usize>, outputs: usize) {
    let is_ordered = columns.start <= columns.end && columns.end <= outputs;
    let starts_tile = columns.start.is_multiple_of(LANES);
    let ends_tile = columns.end.is_multiple_of(LANES) || columns.end == outputs;
    assert!(is_ordered && starts_tile && ends_tile, "columns {columns:?}");
}
