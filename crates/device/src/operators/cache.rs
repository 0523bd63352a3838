//! Element types of the cache that `narthex.Attention` reads and writes, and the graphs in which they can be replaced.

use std::collections::HashSet;

use half::{f16, slice::HalfFloatSliceExt};
use narthex_graph::{Element as GraphElement, Graph};
use narthex_kernels::{CacheRows, Kernels};
use narthex_spec::{DType, KvPrecision, dtype::Dim, manifest::KvLayout};
use ort::value::TensorElementType;

use super::call::Element;

/// Element type of a cache.
pub(super) trait CacheElement: Element + Send + Sync + 'static {
    /// Operator type of attention over such a cache.
    const ATTENTION: &'static str;

    /// Operator type of a chain with such attention.
    const CHAIN: &'static str;

    /// Type of the tensors.
    const TYPE: TensorElementType;

    /// Number of elements after each row.
    const AFTER_ROW: usize = 0;

    /// Returns the rows of one head in the form that kernels read.
    fn rows(elements: &[Self]) -> CacheRows<'_>;

    /// Writes a row of keys or values, and what follows it.
    fn store(kernels: &Kernels, row: &mut [f32], out: &mut [Self]);
}

impl CacheElement for f32 {
    const ATTENTION: &'static str = "Attention";
    const CHAIN: &'static str = "Chain";
    const TYPE: TensorElementType = TensorElementType::Float32;

    fn rows(elements: &[Self]) -> CacheRows<'_> {
        CacheRows::F32(elements)
    }

    fn store(_: &Kernels, row: &mut [f32], out: &mut [Self]) {
        out.copy_from_slice(row);
    }
}

impl CacheElement for f16 {
    const ATTENTION: &'static str = "HalfCacheAttention";
    const CHAIN: &'static str = "HalfCacheChain";
    const TYPE: TensorElementType = TensorElementType::Float16;

    fn rows(elements: &[Self]) -> CacheRows<'_> {
        CacheRows::F16(elements)
    }

    /// Limits numbers to the range of half precision, because an infinity would turn every later result into NaN.
    fn store(_: &Kernels, row: &mut [f32], out: &mut [Self]) {
        const MAX_HALF: f32 = 65504.0;
        // Without branches, so that the compiler uses vector instructions. NaN stays NaN.
        row.iter_mut().for_each(|x| *x = if x.is_infinite() { *x } else { x.clamp(-MAX_HALF, MAX_HALF) });
        out.convert_from_f32_slice(row);
    }
}

impl CacheElement for i8 {
    const ATTENTION: &'static str = "IntegerCacheAttention";
    const CHAIN: &'static str = "IntegerCacheChain";
    const TYPE: TensorElementType = TensorElementType::Int8;
    const AFTER_ROW: usize = CacheRows::SCALE_BYTES;

    fn rows(elements: &[Self]) -> CacheRows<'_> {
        CacheRows::I8(elements)
    }

    fn store(kernels: &Kernels, row: &mut [f32], out: &mut [Self]) {
        kernels.quantize_cache_row(row, out);
    }
}

// Executors read and write the scales in caches, so both definitions must agree.
const _: () = assert!(CacheRows::SCALE_BYTES == KvLayout::SCALE_BYTES);

/// Returns the operator type of attention over a cache of this precision.
pub(super) fn attention_of(precision: KvPrecision) -> &'static str {
    match precision {
        KvPrecision::I8 => i8::ATTENTION,
        KvPrecision::F16 => f16::ATTENTION,
        KvPrecision::F32 => f32::ATTENTION,
    }
}

/// Returns the operator type of a chain with attention of this operator type; `None` for other operator types.
pub(super) fn chain_of(attention: &str) -> Option<&'static str> {
    let all = [(i8::ATTENTION, i8::CHAIN), (f16::ATTENTION, f16::CHAIN), (f32::ATTENTION, f32::CHAIN)];
    all.into_iter().find_map(|(op, chain)| (op == attention).then_some(chain))
}

/// Changes the element type of a graph's cache from single precision to `precision`.
pub(super) fn convert(graph: &mut Graph, cache: &HashSet<String>, precision: KvPrecision) {
    let (dtype, after_row) = match precision {
        KvPrecision::I8 => (DType::I8, i8::AFTER_ROW),
        KvPrecision::F16 => (DType::F16, f16::AFTER_ROW),
        KvPrecision::F32 => return,
    };
    let values = graph.inputs.iter_mut().chain(&mut graph.outputs);
    for value in values.filter(|value| cache.contains(&value.name)) {
        value.dtype = GraphElement::from(dtype);
        if let Some(Dim::Fixed(size)) = value.shape.last_mut() {
            *size += after_row as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_keeps_what_it_can() {
        let mut row = [0.1, -2.0, 1e6, -70000.0, f32::INFINITY, f32::NAN, 1e-9];
        let mut out = [f16::ZERO; 7];
        f16::store(&Kernels::portable(), &mut row, &mut out);
        let found = out.map(f16::to_f32);
        assert_eq!(found[..5], [f16::from_f32(0.1).to_f32(), -2.0, 65504.0, -65504.0, f32::INFINITY]);
        assert!(found[5].is_nan() && found[6] == 0.0, "{found:?}");
    }
}
