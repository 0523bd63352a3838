//! A graph's inputs and outputs, declared to the graph and to the manifest at once.

use narthex_spec::{
    DType, Variant,
    dtype::Dim,
    manifest::{Binding, GraphEntry, KvLayout, Part, Slot},
};

use crate::emit::Emitter;

/// Collects the bindings of a graph while its inputs and outputs are declared.
#[derive(Default)]
pub(crate) struct Io {
    inputs: Vec<Binding>,
    outputs: Vec<Binding>,
}

impl Io {
    pub(crate) fn input(
        &mut self,
        e: &mut Emitter<'_>,
        slot: Slot,
        name: &str,
        dtype: DType,
        shape: &[Dim],
    ) -> String {
        self.inputs.push(Binding { slot, name: name.to_owned(), dtype, shape: shape.to_vec() });
        e.graph.input(name, dtype, shape)
    }

    pub(crate) fn output(
        &mut self,
        e: &mut Emitter<'_>,
        slot: Slot,
        name: &str,
        dtype: DType,
        shape: &[Dim],
    ) {
        self.outputs.push(Binding { slot, name: name.to_owned(), dtype, shape: shape.to_vec() });
        e.graph.output(name, dtype, shape);
    }

    pub(crate) fn entry(self, file: &str, variant: Variant, part: Part, kv: Vec<KvLayout>) -> GraphEntry {
        GraphEntry { file: file.to_owned(), variant, part, inputs: self.inputs, outputs: self.outputs, kv }
    }
}
