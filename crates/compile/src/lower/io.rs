//! Inputs and outputs of a graph, declared in the graph and in the manifest together.

use narthex_graph::typed::{Tensor, TensorType};
use narthex_spec::{
    DType, Variant,
    dtype::Dim,
    manifest::{Binding, GraphEntry, KeyOrder, KvLayout, Part, Slot},
};

use crate::{emit::Emitter, error::Result};

/// Returns a half-precision type with a fixed shape.
pub(super) fn f16<const RANK: usize>(shape: [usize; RANK]) -> TensorType {
    TensorType::new(DType::F16, &shape.map(Dim::from))
}

/// Returns the layout of a layer's keys and values in graphs with fixed shapes.
pub(super) fn static_layout(heads: usize, size: usize) -> KvLayout {
    KvLayout { dtype: DType::F16, order: KeyOrder::Transposed, ..KvLayout::plain(heads, size) }
}

/// Bindings and cache entries of a graph, collected while they are declared.
#[derive(Default)]
pub(crate) struct GraphIo {
    inputs: Vec<Binding>,
    outputs: Vec<Binding>,
    kv: Vec<KvLayout>,
}

impl GraphIo {
    /// Begins the graph of a head for one row, and returns the row's hidden states.
    pub(crate) fn head(e: &mut Emitter<'_>, hidden: usize) -> (Self, Tensor) {
        e.begin_graph("head");
        let mut io = Self::default();
        let hidden = io.input(e, Slot::Hidden, "hidden", f16([1, 1, hidden]));
        (io, hidden)
    }

    /// Declares an input.
    pub(crate) fn input(&mut self, e: &mut Emitter<'_>, slot: Slot, name: &str, kind: TensorType) -> Tensor {
        self.inputs.push(binding(slot, name, &kind));
        e.graph.input(name, kind)
    }

    /// Declares a tensor as an output with this name.
    ///
    /// # Errors
    /// [`CompileError::Build`](crate::CompileError::Build) if the tensor has another type.
    pub(crate) fn output(
        &mut self,
        e: &mut Emitter<'_>,
        slot: Slot,
        name: &str,
        tensor: Tensor,
        kind: &TensorType,
    ) -> Result<()> {
        self.outputs.push(binding(slot, name, kind));
        Ok(e.graph.output(name, tensor, kind)?)
    }

    /// Adds an entry of the cache after those before it.
    pub(crate) fn cache_entry(&mut self, layout: KvLayout) {
        self.kv.push(layout);
    }

    /// Returns the manifest's entry of the graph.
    pub(crate) fn entry(self, file: &str, variant: Variant, part: Part) -> GraphEntry {
        let Self { inputs, outputs, kv } = self;
        GraphEntry { file: file.to_owned(), variant, part, inputs, outputs, kv }
    }
}

fn binding(slot: Slot, name: &str, kind: &TensorType) -> Binding {
    Binding { slot, name: name.to_owned(), dtype: kind.dtype, shape: kind.shape.clone() }
}
