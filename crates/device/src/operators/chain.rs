//! `narthex.Chain`: consecutive nodes with operators of Narthex, which run in one call of ONNX Runtime and in one
//! parallel region.
//!
//! `fuse` finds the nodes and describes them in a [`Chain`], which the node refers to by its index. The inputs are the
//! values that the members read from other nodes. The outputs are [`MAX_ROWS`] optional ones with rows, and after them
//! the caches. As ONNX Runtime requires that such a list has one type, there is an operator for each type of cache.

use std::{marker::PhantomData, sync::Arc};

use narthex_graph::Node;
use ort::{
    operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorInput, OperatorOutput},
    value::TensorElementType,
};

use super::{
    OperatorContext,
    attention::AttentionKernel,
    attributes::Attributes,
    cache::CacheElement,
    call::{Call, Member},
    encoder::{
        BIDIRECTIONAL_ATTENTION, BidirectionalAttentionKernel, POOL_ROWS, PROJECTIONS, PoolRowsKernel,
        ProjectionsKernel, RESIDUAL_MLP, ResidualMlpKernel,
    },
    gated::{GATED_MLP, GatedMlpKernel},
    linear::{LINEAR, LinearKernel},
    node_kernel::NodeKernel,
    values::{MAX_ROWS, ValueLocation, Values},
};

/// Attribute with the index of the chain.
pub(super) const CHAIN: &str = "chain";

/// A chain of a graph.
#[derive(Debug)]
pub(super) struct Chain {
    /// Path of its node.
    pub(super) name: String,
    /// Members, in the order in which they run.
    pub(super) links: Vec<ChainLink>,
    /// Number of buffers for values between members.
    pub(super) buffers: usize,
}

/// A member of a chain.
#[derive(Debug)]
pub(super) struct ChainLink {
    /// The node that it was.
    pub(super) node: Node,
    pub(super) inputs: Vec<ValueLocation>,
    /// Locations of its outputs. They differ from each other and from those of its inputs.
    pub(super) outputs: Vec<ValueLocation>,
}

/// The operator for caches with elements of type `T`.
pub(super) struct ChainOperator<T> {
    shared: Arc<OperatorContext>,
    element: PhantomData<T>,
}

impl<T> ChainOperator<T> {
    pub(super) fn new(shared: Arc<OperatorContext>) -> Self {
        Self { shared, element: PhantomData }
    }
}

impl<T: CacheElement> Operator for ChainOperator<T> {
    type Kernel<'attr> = ChainKernel<T>;

    fn name(&self) -> &str {
        T::CHAIN
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        [OperatorInput::variadic(1)]
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        let rows = (0..MAX_ROWS).map(|_| OperatorOutput::optional(TensorElementType::Float32));
        rows.chain([OperatorOutput::variadic(0).homogenous(T::TYPE)])
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<ChainKernel<T>> {
        let index = Attributes::int(context, CHAIN).and_then(|index| usize::try_from(index).ok());
        let found = index.and_then(|index| Some((index, self.shared.chains.get(index)?)));
        let Some((index, chain)) = found else {
            return Err(ort::Error::new(format!("no chain has the index of the attribute {CHAIN}")));
        };
        let kernels = chain.links.iter().map(|link| MemberKernel::of(&self.shared, &link.node));
        let kernels = kernels.collect::<ort::Result<_>>()?;
        Ok(ChainKernel {
            shared: Arc::clone(&self.shared),
            index,
            kernels,
            values: Values::new(chain.buffers),
        })
    }
}

/// The operator as the kernel of one node.
pub(super) struct ChainKernel<T> {
    shared: Arc<OperatorContext>,
    /// Index of the chain.
    index: usize,
    /// Kernels of the members.
    kernels: Vec<MemberKernel<T>>,
    values: Values,
}

impl<T: CacheElement> Kernel for ChainKernel<T> {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        let Self { shared, index, kernels, values } = self;
        values.clear();
        let links = &shared.chains[*index].links;
        let values = &*values;
        Call::run(context, |call| {
            call.in_region(shared.threads, |leader| {
                links.iter().zip(&*kernels).try_for_each(|(ChainLink { inputs, outputs, .. }, kernel)| {
                    kernel.run(&call.of_member(Member { values, inputs, outputs, leader }))
                })
            })
        })
    }
}

/// The operator of a member.
enum MemberKernel<T> {
    Linear(LinearKernel),
    GatedMlp(GatedMlpKernel),
    Attention(AttentionKernel<T>),
    ResidualMlp(ResidualMlpKernel),
    Projections(ProjectionsKernel),
    BidirectionalAttention(BidirectionalAttentionKernel),
    PoolRows(PoolRowsKernel),
}

impl<T: CacheElement> MemberKernel<T> {
    fn of(shared: &Arc<OperatorContext>, node: &Node) -> ort::Result<Self> {
        match node.op.as_str() {
            LINEAR => LinearKernel::of(shared, node).map(Self::Linear),
            GATED_MLP => GatedMlpKernel::of(shared, node).map(Self::GatedMlp),
            RESIDUAL_MLP => ResidualMlpKernel::of(shared, node).map(Self::ResidualMlp),
            PROJECTIONS => ProjectionsKernel::of(shared, node).map(Self::Projections),
            BIDIRECTIONAL_ATTENTION => {
                BidirectionalAttentionKernel::of(shared, node).map(Self::BidirectionalAttention)
            }
            POOL_ROWS => PoolRowsKernel::of(shared, node).map(Self::PoolRows),
            op if op == T::ATTENTION => AttentionKernel::of(shared, node).map(Self::Attention),
            op => Err(ort::Error::new(format!("expected a member of {}, found {op}", T::CHAIN))),
        }
    }

    fn run(&self, call: &Call<'_>) -> ort::Result<()> {
        match self {
            Self::Linear(kernel) => kernel.run(call),
            Self::GatedMlp(kernel) => kernel.run(call),
            Self::Attention(kernel) => kernel.run(call),
            Self::ResidualMlp(kernel) => kernel.run(call),
            Self::Projections(kernel) => kernel.run(call),
            Self::BidirectionalAttention(kernel) => kernel.run(call),
            Self::PoolRows(kernel) => kernel.run(call),
        }
    }
}
