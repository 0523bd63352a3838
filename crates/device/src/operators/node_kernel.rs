//! Operators of ONNX Runtime in which every node has a kernel of its own.

use std::{marker::PhantomData, sync::Arc};

use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorInput, OperatorOutput};

use super::{OperatorContext, attributes::Attributes, call::Call};

/// Kernel of a node. ONNX Runtime runs it, or a chain that has the node as a member.
pub(super) trait NodeKernel: Sized + Send + 'static {
    /// Operator type.
    const OPERATOR: &'static str;

    /// Returns the inputs of the operator.
    fn inputs() -> impl IntoIterator<Item = OperatorInput>;

    /// Returns the outputs of the operator.
    fn outputs() -> impl IntoIterator<Item = OperatorOutput>;

    /// Returns the kernel of a node with these attributes.
    fn of(shared: &Arc<OperatorContext>, node: &impl Attributes) -> ort::Result<Self>;

    /// Computes the outputs of a call.
    fn run(&self, call: &Call<'_>) -> ort::Result<()>;
}

/// The operator of a kind of kernel.
pub(super) struct NodeOperator<K> {
    shared: Arc<OperatorContext>,
    kernel: PhantomData<fn() -> K>,
}

impl<K> NodeOperator<K> {
    pub(super) fn new(shared: &Arc<OperatorContext>) -> Self {
        Self { shared: Arc::clone(shared), kernel: PhantomData }
    }
}

impl<K: NodeKernel> Operator for NodeOperator<K> {
    type Kernel<'attr> = OrtKernel<K>;

    fn name(&self) -> &str {
        K::OPERATOR
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        K::inputs()
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        K::outputs()
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<OrtKernel<K>> {
        K::of(&self.shared, context).map(OrtKernel)
    }
}

/// A kernel that ONNX Runtime runs.
pub(super) struct OrtKernel<K>(K);

impl<K: NodeKernel> Kernel for OrtKernel<K> {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        Call::run(context, |call| self.0.run(call))
    }
}
