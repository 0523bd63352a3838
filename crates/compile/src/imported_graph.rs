//! Parts of the imports of voices and of models that transcribe speech, whose graphs are taken as they are.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use narthex_graph::{Graph, Value, onnx::files::OnnxFileError};
use narthex_spec::{
    DType, ModelName, Recipe, Scheme, Variant,
    arch::Structure,
    manifest::{Binding, FORMAT, GraphEntry, Manifest, Part, Prompts, Provenance, PublishedSampling, Slot},
};

use crate::{
    error::{CompileError, Result},
    import::refused,
    package::GRAPH_FILE,
};

/// Maximum size in bytes of a file that is read or decompressed.
pub(crate) const MAX_BYTES: u64 = 64 << 20;

/// Name of an input or output of a graph, with its meaning and element type.
pub(crate) type NamedSlot<'a> = (&'a str, Slot, DType);

/// Returns the manifest of a package with imported graphs, which states nothing else.
pub(crate) fn imported_manifest(
    name: ModelName,
    architecture: Structure,
    graphs: Vec<GraphEntry>,
    provenance: Provenance,
) -> Manifest {
    Manifest {
        format: FORMAT,
        name,
        architecture,
        recipe: Recipe::new(Scheme::W8),
        max_length: 0,
        graphs,
        contexts: Vec::new(),
        bound: None,
        tables: Vec::new(),
        kept_tokens: None,
        tokenizer: None,
        chat: None,
        speech: None,
        vision: None,
        audio: None,
        voice: None,
        transcriber: None,
        sampling: PublishedSampling::default(),
        prompts: Prompts::default(),
        classifier: None,
        pairs: None,
        source_weights: Vec::new(),
        layer_widths: Vec::new(),
        quality: None,
        loss: None,
        certificate: None,
        files: BTreeMap::new(),
        provenance,
    }
}

/// Returns the entry of the graph in [`GRAPH_FILE`]. All of its inputs and `count` inputs and outputs together must have
/// these names.
pub(crate) fn graph_entry(
    graph: &Graph,
    file: &str,
    names: &[NamedSlot<'_>],
    count: usize,
) -> Result<GraphEntry> {
    let inputs = bindings(&graph.inputs, names);
    let outputs = bindings(&graph.outputs, names);
    if inputs.len() + outputs.len() != count || inputs.len() != graph.inputs.len() {
        let found = graph.inputs.iter().chain(&graph.outputs).map(|value| value.name.as_str());
        let expected: Vec<String> =
            names.iter().map(|(name, _, dtype)| format!("{name} ({dtype:?})")).collect();
        let found = found.collect::<Vec<_>>().join(", ");
        return Err(refused(format!("tensors of {file}"), expected.join(", "), found));
    }
    Ok(GraphEntry {
        file: GRAPH_FILE.to_owned(),
        variant: Variant::Dynamic,
        part: Part::Whole,
        inputs,
        outputs,
        kv: Vec::new(),
    })
}

/// Returns the bindings of the values with a known name and type.
fn bindings(values: &[Value], names: &[NamedSlot<'_>]) -> Vec<Binding> {
    let known = values.iter().filter_map(|value| {
        let dtype = value.dtype.dtype()?;
        let (_, slot, _) = names.iter().find(|(name, _, known)| *name == value.name && *known == dtype)?;
        Some(Binding { slot: *slot, name: value.name.clone(), dtype, shape: value.shape.clone() })
    });
    known.collect()
}

/// Returns the size of some files together.
pub(crate) fn total_bytes(paths: &[PathBuf]) -> Result<u64> {
    paths.iter().try_fold(0u64, |sum, path| {
        let bytes = path.metadata().map_err(unreadable(path))?.len();
        Ok(sum.saturating_add(bytes))
    })
}

/// Reads a file of at most [`MAX_BYTES`].
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>> {
    narthex_files::read(path, MAX_BYTES).map_err(unreadable(path))
}

/// Returns a function that converts the system's error for a file that cannot be read.
pub(crate) fn unreadable(path: &Path) -> impl Fn(std::io::Error) -> CompileError {
    move |source| OnnxFileError::Read { path: path.to_owned(), source }.into()
}
