//! Narthex's CPU kernels as operators of ONNX Runtime's CPU provider.
//!
//! [`OwnOperators::of`] rewrites a graph when it is loaded for the CPU; packages are not changed, because they serve
//! every device. The weights of rewritten nodes are packed for this processor and passed to the operators directly, so
//! that ONNX Runtime does not load them. `rewrite` finds the nodes, `offsets` merges
//! offsets of blocks into products, and `weights` packs the weights. `linear`,
//! `gated`, `experts` and `attention` compute. `encoder` has the operators of encoders. `fuse` makes consecutive nodes one node,
//! which `chain` computes in one parallel `region`. `cache` has the element types of the KV cache. `call` and
//! `node_kernel` are the interface to ONNX Runtime, on whose threads the operators run.

mod attention;
mod attention_step;
mod attributes;
mod cache;
mod call;
mod chain;
mod constants;
mod encoder;
mod expert_nodes;
mod experts;
mod fuse;
mod gated;
mod input_rows;
mod linear;
mod linear_constants;
mod links;
mod node_kernel;
mod offsets;
mod region;
mod rewrite;
mod values;
mod weights;

use std::{
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use half::f16;
use narthex_files::map;
use narthex_graph::{Bytes, Graph};
use narthex_kernels::{AttentionPart, Kernels, QuantizedRows, Scratch};
use narthex_spec::KvPrecision;
use ort::operator::OperatorDomain;
use parking_lot::Mutex;

use attention::AttentionKernel;
use chain::{Chain, ChainOperator};
use encoder::{BidirectionalAttentionKernel, PoolRowsKernel, ProjectionsKernel, ResidualMlpKernel};
pub(crate) use encoder::{PaddedInputs, ROW_OFFSETS};
use experts::ExpertsKernel;
use gated::GatedMlpKernel;
use linear::LinearKernel;
use node_kernel::NodeOperator;
use weights::{Linear, LinearLayers};

use crate::{packed_weights::PackedWeights, placement::ChainNode};

/// Domain of the operators.
const DOMAIN: &str = "narthex";

/// Version of the domain.
const VERSION: i64 = 1;

/// Maximum size of a graph without its data files, which is Protobuf's limit for a message.
const MAX_GRAPH_BYTES: usize = 2 << 30;

/// A graph that uses Narthex's operators, and these operators.
pub(crate) struct OwnOperators {
    /// The graph as the bytes of an ONNX file. Its data files are those of the original.
    pub(crate) graph: Vec<u8>,
    /// The operators, with the weights that were removed from the graph.
    pub(crate) domain: OperatorDomain,
    /// These weights, if there are any.
    pub(crate) packed: Option<PackedWeights>,
    /// Nodes of the graph that compute several nodes.
    pub(crate) chains: Vec<ChainNode>,
    /// The texts of a batch are packed: the graph has the input [`ROW_OFFSETS`].
    pub(crate) packs_rows: bool,
    /// Switch of the attention over a cache, if operators of Narthex compute all of it.
    pub(crate) bidirectional: Option<AttentionSwitch>,
}

/// Switch of the attention of a graph's new tokens. While it is on, they attend to each other in both directions.
#[derive(Debug, Clone, Default)]
pub(crate) struct AttentionSwitch(Arc<AtomicBool>);

impl AttentionSwitch {
    /// Turns the switch on or off for the next runs.
    pub(crate) fn set(&self, bidirectional: bool) {
        self.0.store(bidirectional, Ordering::Relaxed);
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Options of a graph's rewriting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RewriteOptions<'a> {
    /// Folder with packed weights of an earlier load.
    pub(crate) stored: Option<&'a Path>,
    pub(crate) threads: usize,
    /// Precision of the cache of attention, if all nodes that read it are replaced.
    pub(crate) cache: KvPrecision,
    /// Inputs of an encoder whose padding is removed if possible.
    pub(crate) padded: Option<PaddedInputs<'a>>,
}

impl OwnOperators {
    /// Rewrites the graph of a file for the CPU. Its weights come from the folder with stored ones if it has them, and
    /// are otherwise packed on all threads. Returns `None` if no node can be replaced. Also returns `None` if the graph
    /// cannot be read, because ONNX Runtime then reports the error.
    pub(crate) fn of(model: &Path, options: RewriteOptions<'_>) -> Option<Self> {
        let RewriteOptions { stored, threads, cache, padded } = options;
        let mut graph = read_graph(model)?;
        let sources = rewrite::rewrite(&mut graph, cache);
        encoder::merge_residuals(&mut graph);
        let packs_rows = padded.is_some_and(|inputs| packs_rows(&mut graph, inputs, model));
        if sources.is_none() && !packs_rows {
            return None;
        }

        let sources = sources.unwrap_or_default();
        graph.opsets.push((DOMAIN.to_owned(), VERSION));
        let LinearLayers { linears, packed } = weights::load(&sources, model, stored, threads)?;
        let is_own = rewrite::has_own_attention(&graph);
        let chains = fuse::fuse(&mut graph);
        let placed = chains.iter().map(placed_chain).collect();
        let buffers = BufferPool::new(threads);
        let bidirectional = AttentionSwitch::default();
        let switch = bidirectional.clone();
        let shared = Arc::new(OperatorContext {
            kernels: kernels(),
            linears,
            chains,
            threads,
            buffers,
            bidirectional,
        });
        let domain = OperatorDomain::new(DOMAIN)
            .and_then(|domain| domain.add(NodeOperator::<LinearKernel>::new(&shared)))
            .and_then(|domain| domain.add(NodeOperator::<GatedMlpKernel>::new(&shared)))
            .and_then(|domain| domain.add(NodeOperator::<ExpertsKernel>::new(&shared)))
            .and_then(|domain| domain.add(NodeOperator::<ResidualMlpKernel>::new(&shared)))
            .and_then(|domain| domain.add(NodeOperator::<ProjectionsKernel>::new(&shared)))
            .and_then(|domain| domain.add(NodeOperator::<BidirectionalAttentionKernel>::new(&shared)))
            .and_then(|domain| domain.add(NodeOperator::<PoolRowsKernel>::new(&shared)))
            .and_then(|domain| domain.add(NodeOperator::<AttentionKernel<f32>>::new(&shared)))
            .and_then(|domain| domain.add(NodeOperator::<AttentionKernel<f16>>::new(&shared)))
            .and_then(|domain| domain.add(NodeOperator::<AttentionKernel<i8>>::new(&shared)))
            .and_then(|domain| domain.add(ChainOperator::<f32>::new(Arc::clone(&shared))))
            .and_then(|domain| domain.add(ChainOperator::<f16>::new(Arc::clone(&shared))))
            .and_then(|domain| domain.add(ChainOperator::<i8>::new(shared)));
        let bidirectional = is_own.then_some(switch);
        Some(Self {
            graph: graph.encode(),
            domain: domain.ok()?,
            packed,
            chains: placed,
            packs_rows,
            bidirectional,
        })
    }
}

/// Returns the graph of a file; `None` if it cannot be read.
pub(crate) fn read_graph(model: &Path) -> Option<Graph> {
    let mapped = map(model).ok().filter(|bytes| bytes.len() <= MAX_GRAPH_BYTES)?;
    Graph::decode_shared(Bytes::from_owner(mapped)).ok()
}

/// Removes the padding of an encoder's texts, and returns whether that was possible.
fn packs_rows(graph: &mut Graph, inputs: PaddedInputs<'_>, model: &Path) -> bool {
    let packed = encoder::pack(graph, inputs);
    if let Err(reason) = &packed {
        tracing::debug!("batches of {} are padded: {reason}", model.display());
    }
    packed.is_ok()
}

/// Returns the nodes that a chain consists of.
fn placed_chain(chain: &Chain) -> ChainNode {
    let nodes = chain.links.iter().map(|link| (link.node.op.clone(), link.node.name.clone()));
    ChainNode { name: chain.name.clone(), nodes: nodes.collect() }
}

/// Returns the kernels of this processor, which are selected by a measurement once per process.
pub(crate) fn kernels() -> Kernels {
    static KERNELS: OnceLock<Kernels> = OnceLock::new();
    *KERNELS.get_or_init(Kernels::measured)
}

/// State that the operators of one graph share.
struct OperatorContext {
    kernels: Kernels,
    linears: Vec<Linear>,
    chains: Vec<Chain>,
    threads: usize,
    buffers: BufferPool,
    bidirectional: AttentionSwitch,
}

/// Buffers that no task uses at present, in slots that threads prefer. A thread usually finds the buffers that it used
/// last, and waits for no other thread.
struct BufferPool(Vec<BufferSlot>);

/// Unused buffers of some threads. The alignment keeps the locks of two slots on separate cache lines.
#[repr(align(64))]
#[derive(Default)]
struct BufferSlot(
    #[expect(clippy::vec_box, reason = "moving them takes longer than a small task")]
    Mutex<Vec<Box<Buffers>>>,
);

impl BufferPool {
    fn new(threads: usize) -> Self {
        // Threads have consecutive numbers if no other model's threads started between them.
        Self((0..2 * threads.max(1)).map(|_| BufferSlot::default()).collect())
    }

    /// Returns the slot of the current thread.
    fn slot(&self) -> &BufferSlot {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed));
        &self.0[NUMBER.with(|number| number % self.0.len())]
    }
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
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Rows of several experts, and their results.
    expert_inputs: Vec<f32>,
    expert_results: Vec<f32>,
    /// Parts of the attention of single tokens.
    parts: Vec<AttentionPart>,
}

/// Returns the first `length` elements of a buffer, which is extended if necessary. Their values are unspecified.
fn at_least(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if buffer.len() < length {
        buffer.resize(length, 0.0);
    }
    &mut buffer[..length]
}

impl OperatorContext {
    /// Calls `use_buffers` with buffers that no other task uses.
    fn with_buffers<T>(&self, use_buffers: impl FnOnce(&mut Buffers) -> T) -> T {
        let BufferSlot(free) = self.buffers.slot();
        let unused = free.lock().pop();
        let mut buffers = unused.unwrap_or_default();
        let result = use_buffers(&mut buffers);
        free.lock().push(buffers);
        result
    }
}
