//! Narthex's CPU kernels as operators of ONNX Runtime's CPU provider.
//!
//! [`OwnOperators::of`] rewrites a graph when it is loaded for the CPU, because packages never change and serve every
//! device. The weights of rewritten nodes are packed for this processor and handed to the operators directly; ONNX
//! Runtime does not see them. `rewrite` finds the nodes, `weights` packs, `linear`, `gated` and `attention` compute,
//! `cache` has the element types of the KV cache,
//! and `call` is the border to ONNX Runtime, whose threads run all of it.

mod attention;
mod attention_step;
mod cache;
mod call;
mod gated;
mod linear;
mod normed;
mod rewrite;
mod weights;

use std::{
    path::Path,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use half::f16;
use narthex_graph::{Bytes, Graph};
use narthex_kernels::{Kernels, QuantizedRows, Scratch};
use narthex_mmap::map;
use narthex_spec::KvPrecision;
use ort::operator::OperatorDomain;

use attention::AttentionOperator;
use gated::GatedMlpOperator;
use linear::LinearOperator;
use weights::Linear;

/// Domain of the operators.
const DOMAIN: &str = "narthex";

/// Version of the domain.
const VERSION: i64 = 1;

/// Largest graph that is read, without its data files: Protobuf's limit on a message.
const MAX_GRAPH_BYTES: usize = 2 << 30;

/// A graph that uses operators of Narthex, and these operators.
pub(crate) struct OwnOperators {
    /// The graph as the bytes of an ONNX file, whose data files are those of the original.
    pub(crate) graph: Vec<u8>,
    /// The operators, with the weights that the graph lacks.
    pub(crate) domain: OperatorDomain,
}

impl OwnOperators {
    /// Rewrites the graph of a file for the CPU; `threads` pack its weights. Attention keeps its cache in the given
    /// precision, if all nodes that read it were replaced. `None` if it has no node to replace, or cannot be read, which
    /// is for ONNX Runtime to report.
    pub(crate) fn of(model: &Path, threads: usize, cache: KvPrecision) -> Option<Self> {
        let mapped = map(model).ok().filter(|bytes| bytes.len() <= MAX_GRAPH_BYTES)?;
        let mut graph = Graph::decode_shared(Bytes::from_owner(mapped)).ok()?;
        let sources = rewrite::rewrite(&mut graph, cache)?;
        let linears = weights::pack(&sources, model.parent()?, threads)?;
        let shared = Arc::new(Shared { kernels: kernels(), linears, threads, buffers: Mutex::default() });
        let domain = OperatorDomain::new(DOMAIN)
            .and_then(|domain| domain.add(LinearOperator { shared: Arc::clone(&shared) }))
            .and_then(|domain| domain.add(GatedMlpOperator { shared: Arc::clone(&shared) }))
            .and_then(|domain| domain.add(AttentionOperator::<f32>::new(Arc::clone(&shared))))
            .and_then(|domain| domain.add(AttentionOperator::<f16>::new(shared)));
        Some(Self { graph: graph.encode(), domain: domain.ok()? })
    }
}

/// The kernels of this processor, chosen by a measurement once per process.
fn kernels() -> Kernels {
    static KERNELS: OnceLock<Kernels> = OnceLock::new();
    *KERNELS.get_or_init(Kernels::measured)
}

/// State that the operators of one graph share.
struct Shared {
    kernels: Kernels,
    linears: Vec<Linear>,
    threads: usize,
    /// Buffers that no task uses now: as many as tasks ran at once.
    buffers: Mutex<Vec<Buffers>>,
}

/// Buffers of one task.
#[derive(Default)]
struct Buffers {
    rows: QuantizedRows,
    scratch: Scratch,
    gate: Vec<f32>,
    up: Vec<f32>,
    hidden: Vec<f32>,
    queries: Vec<f32>,
    normed: Vec<f32>,
    new_row: Vec<f32>,
}

/// The first `length` elements of a buffer, which grows if it must; their values are unspecified.
fn at_least(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if buffer.len() < length {
        buffer.resize(length, 0.0);
    }
    &mut buffer[..length]
}

impl Shared {
    /// Calls `use_buffers` with buffers that no other task uses.
    fn with_buffers<T>(&self, use_buffers: impl FnOnce(&mut Buffers) -> T) -> T {
        let free = || self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffers = free().pop().unwrap_or_default();
        let result = use_buffers(&mut buffers);
        free().push(buffers);
        result
    }
}
