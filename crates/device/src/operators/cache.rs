//! Element types of the cache that `narthex.Attention` reads and writes, and the graphs in which they can be replaced.

use std::collections::{HashMap, HashSet};

use half::{f16, slice::HalfFloatSliceExt};
use narthex_graph::{Element as GraphElement, Graph, Node};
use narthex_kernels::{CacheRows, Kernels};
use narthex_spec::{DType, KvPrecision, dtype::Dim, manifest::KvLayout};
use ort::value::TensorElementType;

use super::call::Element;

/// Indices of the inputs of attention with past keys and values.
pub(super) const PAST: [usize; 2] = [3, 4];

/// Indices of the outputs of attention with present keys and values.
pub(super) const PRESENT: [usize; 2] = [1, 2];

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

/// Returns the inputs and outputs that contain keys and values, if only these attention nodes read and write them.
/// `reads` has the number of reads of each value.
pub(super) fn cache_values<'a>(
    graph: &Graph,
    attention: &[&'a Node],
    reads: &HashMap<String, usize>,
) -> Option<HashSet<&'a str>> {
    let mut own: HashMap<&str, usize> = HashMap::new();
    for node in attention {
        let past = PAST.iter().filter_map(|&at| node.input(at));
        past.for_each(|name| *own.entry(name).or_default() += 1);
    }
    let present = || attention.iter().flat_map(|node| PRESENT.iter().filter_map(|&at| node.outputs.get(at)));
    let only_here = own.iter().all(|(name, count)| reads.get(*name) == Some(count));
    let only_returned = present()
        .all(|name| reads.get(name) == Some(&1) && graph.outputs.iter().any(|output| output.name == *name));
    let fits = !attention.is_empty() && only_here && only_returned;
    fits.then(|| own.into_keys().chain(present().map(String::as_str)).collect())
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
    use narthex_graph::{Builder, graph::MICROSOFT};

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

    /// Returns attention whose cache is the input `name`.
    fn attention(name: &str) -> Node {
        let inputs = ["query", "key", "value"].map(str::to_owned).into_iter();
        let past = ["key", "value"].map(|part| format!("past.{name}.{part}"));
        Node {
            name: name.to_owned(),
            op: "GroupQueryAttention".to_owned(),
            domain: MICROSOFT.to_owned(),
            inputs: inputs.chain(past).collect(),
            outputs: vec![name.to_owned(), format!("present.{name}.key"), format!("present.{name}.value")],
            attributes: Vec::new(),
        }
    }

    #[test]
    fn a_cache_that_other_nodes_read_keeps_its_type() {
        let names = ["past.a.key", "past.a.value", "present.a.key", "present.a.value"];
        let check = |reads: [usize; 4], returned: usize, fits: bool| {
            let mut builder = Builder::new("g", &[("", 21)]);
            for name in names.iter().skip(2).take(returned) {
                builder.output(name, DType::F32, &[]);
            }
            let graph = builder.finish();
            let reads = names.iter().zip(reads).map(|(name, count)| ((*name).to_owned(), count)).collect();
            let node = attention("a");
            let found = cache_values(&graph, &[&node], &reads);
            let expected = fits.then(|| names.into_iter().collect());
            assert_eq!(found, expected, "{reads:?}, {returned} returned");
        };
        check([1, 1, 1, 1], 2, true);
        check([2, 1, 1, 1], 2, false);
        check([1, 2, 1, 1], 2, false);
        check([1, 1, 2, 1], 2, false);
        check([1, 1, 1, 1], 1, false);
        check([1, 1, 0, 0], 0, false);
        assert_eq!(cache_values(&Builder::new("g", &[]).finish(), &[], &HashMap::new()), None);
    }
}
