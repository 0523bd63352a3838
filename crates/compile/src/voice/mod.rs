//! Imports of voices as packages. The graphs are not compiled.
//!
//! Each family has a file with its layout: [`hibari`]. [`english`] has the files of the English pronunciation.

mod english;
mod hibari;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use narthex_graph::{
    Graph, Value,
    onnx::files::{OnnxFile, OnnxFileError, open_files},
};
use narthex_spec::{
    DType, ModelName, Recipe, Scheme, Variant,
    arch::{ImportedVoice, Structure},
    manifest::{
        Binding, FORMAT, GraphEntry, Manifest, Part, Prompts, Provenance, PublishedSampling, Slot, VoiceEntry,
    },
};

use crate::{
    error::Result,
    import::refused,
    package::{GRAPH_FILE, PackageWriter},
};

/// Maximum size in bytes of a file that is read or decompressed.
const MAX_BYTES: u64 = 64 << 20;

/// Name of an input or output of a graph, with its meaning and element type.
type NamedSlot = (&'static str, Slot, DType);

/// A voice to import.
#[derive(Debug, Clone)]
pub struct VoiceJob<'a> {
    /// Folder of the voice.
    pub folder: &'a Path,
    /// Name of the graph's file, if it is not that of the first speaker.
    pub file: Option<&'a str>,
    /// Name of the package.
    pub name: ModelName,
    /// An empty folder; on success it contains the package.
    pub out: &'a Path,
    /// Origin of the voice.
    pub provenance: Provenance,
}

/// What a family states about a voice whose files are written.
struct VoiceParts {
    voice: ImportedVoice,
    entry: VoiceEntry,
    graph: GraphEntry,
    /// Maximum number of phonemes that the graph reads at once.
    max_phonemes: usize,
}

/// Returns whether a folder holds a voice.
pub fn is_voice(folder: &Path) -> bool {
    hibari::is_layout(folder)
}

/// Writes the package of a voice.
///
/// # Errors
/// [`CompileError::Open`](crate::CompileError::Open) for files that cannot be read,
/// [`CompileError::Foreign`](crate::CompileError::Foreign) for a voice of another kind,
/// [`CompileError::Write`](crate::CompileError::Write), [`CompileError::Cancelled`](crate::CompileError::Cancelled).
pub fn import(job: VoiceJob<'_>, cancel: &AtomicBool) -> Result<Manifest> {
    let package = PackageWriter::new(job.out);
    let parts = hibari::write(job.folder, job.file, &package, cancel)?;
    let mut manifest = Manifest {
        format: FORMAT,
        name: job.name,
        architecture: Structure::ImportedVoice(parts.voice),
        recipe: Recipe::new(Scheme::W8),
        max_length: parts.max_phonemes,
        graphs: vec![parts.graph],
        contexts: Vec::new(),
        bound: None,
        tables: Vec::new(),
        kept_tokens: None,
        tokenizer: None,
        chat: None,
        speech: None,
        vision: None,
        audio: None,
        voice: Some(parts.entry),
        sampling: PublishedSampling::default(),
        prompts: Prompts::default(),
        source_weights: Vec::new(),
        layer_widths: Vec::new(),
        quality: None,
        loss: None,
        certificate: None,
        files: BTreeMap::new(),
        provenance: job.provenance,
    };
    package.finish(&mut manifest)?;
    Ok(manifest)
}

/// Reads a graph without data files.
fn read_graph(path: &Path) -> Result<Graph> {
    let mut files = open_files(&[path.to_owned()])?;
    let what = || path.display().to_string();
    match files.pop() {
        Some(OnnxFile { graph, data_files, .. }) if data_files.is_empty() => Ok(graph),
        Some(file) => {
            let names: Vec<&str> = file.data_files.keys().map(String::as_str).collect();
            Err(refused(what(), "a graph in one file", names.join(", ")))
        }
        None => Err(refused(what(), "a graph", "none")),
    }
}

/// Returns the entry of a graph with all of these inputs and outputs.
fn graph_entry(graph: &Graph, file: &str, names: &[NamedSlot]) -> Result<GraphEntry> {
    let inputs = bindings(&graph.inputs, names);
    let outputs = bindings(&graph.outputs, names);
    if inputs.len() != graph.inputs.len() || inputs.len() + outputs.len() != names.len() {
        let found = graph.inputs.iter().chain(&graph.outputs).map(|value| value.name.as_str());
        let expected: Vec<&str> = names.iter().map(|(name, ..)| *name).collect();
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
fn bindings(values: &[Value], names: &[NamedSlot]) -> Vec<Binding> {
    let known = values.iter().filter_map(|value| {
        let (_, slot, dtype) = names.iter().find(|(name, ..)| *name == value.name)?;
        (value.dtype.dtype() == Some(*dtype)).then(|| Binding {
            slot: *slot,
            name: value.name.clone(),
            dtype: *dtype,
            shape: value.shape.clone(),
        })
    });
    known.collect()
}

fn read(folder: &Path, file: &str) -> Result<Vec<u8>> {
    let path: PathBuf = folder.join(file);
    Ok(narthex_files::read(&path, MAX_BYTES).map_err(|source| OnnxFileError::Read { path, source })?)
}
