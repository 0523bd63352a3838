//! Imports of models that transcribe speech as packages. Their graphs are copied as they are.
//!
//! `nemo` has the layout of onnx-asr for models of NeMo, such as Parakeet, and `moonshine` that of Moonshine.

mod moonshine;
mod nemo;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use narthex_graph::{
    Graph,
    onnx::{
        files::{MAX_FILE_BYTES, OnnxFileError, open_files},
        find_reference,
    },
};
use narthex_spec::{
    ModelName,
    arch::{ImportedTranscriber, Structure},
    dtype::Dim,
    manifest::{GraphEntry, Manifest, Part, Provenance, Slot, TokenizerEntry, TranscriberEntry, check_path},
};

use crate::{
    error::Result,
    import::refused,
    imported_graph::{NamedSlot, graph_entry, imported_manifest, total_bytes, unreadable},
    package::PackageWriter,
};

pub use self::{moonshine::MoonshineFiles, nemo::NemoFiles};

/// Maximum number of data files of a graph.
const MAX_DATA_FILES: usize = 1024;

/// A model that transcribes speech, to import.
#[derive(Debug, Clone)]
pub struct TranscriberJob<'a> {
    /// Files of the model.
    pub files: &'a TranscriberFiles,
    /// Name of the package.
    pub name: ModelName,
    /// An empty folder; on success it contains the package.
    pub out: &'a Path,
    /// Origin of the model.
    pub provenance: Provenance,
}

/// Files of a model that transcribes speech, by its layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TranscriberFiles {
    /// A model of NeMo.
    Nemo(NemoFiles),
    /// Moonshine.
    Moonshine(MoonshineFiles),
}

impl TranscriberFiles {
    /// Returns the files of a model in a folder, or beside a graph of it; `None` for other files. `file` is the name of the
    /// encoder's graph, or of the only one, if the folder has several precisions.
    pub fn find(path: &Path, file: Option<&str>) -> Option<Self> {
        let named = path.file_name().filter(|_| path.is_file()).map(|name| name.to_string_lossy());
        let folder = if named.is_some() { path.parent()? } else { path };
        let file = file.or(named.as_deref());
        let nemo = NemoFiles::find(folder, file).map(Self::Nemo);
        nemo.or_else(|| MoonshineFiles::find(folder, file).map(Self::Moonshine))
    }
}

/// Parts of the manifest that a layout states.
struct TranscriberParts {
    model: ImportedTranscriber,
    entry: TranscriberEntry,
    graphs: Vec<GraphEntry>,
    tokenizer: Option<TokenizerEntry>,
    /// Maximum number of rows or tokens of a window.
    max_length: usize,
}

/// Writes the package of a model.
///
/// # Errors
/// [`CompileError::Open`](crate::CompileError::Open) for files that cannot be read,
/// [`CompileError::Foreign`](crate::CompileError::Foreign) for a model of another kind, and for one whose files are missing
/// or contradict each other, [`CompileError::Tokenizer`](crate::CompileError::Tokenizer),
/// [`CompileError::Write`](crate::CompileError::Write), [`CompileError::Cancelled`](crate::CompileError::Cancelled).
pub fn import(job: TranscriberJob<'_>, cancel: &AtomicBool) -> Result<Manifest> {
    let package = PackageWriter::new(job.out);
    let parts = match job.files {
        TranscriberFiles::Nemo(files) => files.write(&package, cancel)?,
        TranscriberFiles::Moonshine(files) => files.write(&package, cancel)?,
    };

    let structure = Structure::ImportedTranscriber(parts.model);
    let mut manifest = Manifest {
        max_length: parts.max_length,
        transcriber: Some(parts.entry),
        tokenizer: parts.tokenizer,
        ..imported_manifest(job.name, structure, parts.graphs, job.provenance)
    };
    package.finish(&mut manifest)?;
    Ok(manifest)
}

/// A graph of a model.
struct ModelGraph {
    path: PathBuf,
    graph: Graph,
    /// Names of its data files, which are beside it.
    data_files: BTreeSet<String>,
}

impl ModelGraph {
    fn open(path: PathBuf) -> Result<Self> {
        let mut files = open_files(std::slice::from_ref(&path))?;
        let Some(file) = files.pop() else {
            return Err(refused(path.display().to_string(), "a graph", "none"));
        };
        // The bodies of nodes have constants too, so that all references are read.
        let bytes = narthex_files::read(&path, MAX_FILE_BYTES).map_err(unreadable(&path))?;
        let mut data_files = BTreeSet::new();
        while let Some(name) = find_reference(&bytes, &|name| !data_files.contains(name))
            .map_err(|source| OnnxFileError::Decode { path: path.clone(), source })?
        {
            let plain = name.strip_prefix("./").unwrap_or(&name);
            if check_path(plain).is_err() || plain.contains('/') || data_files.len() >= MAX_DATA_FILES {
                return Err(refused(path.display().to_string(), "data files beside the graph", name));
            }
            data_files.insert(name);
        }
        file.check_unchanged()?;
        Ok(Self { path, graph: file.graph, data_files })
    }

    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn has_input(&self, name: &str) -> bool {
        self.graph.inputs.iter().any(|input| input.name == name)
    }

    /// Returns the paths of its data files.
    fn data_paths(&self) -> impl Iterator<Item = PathBuf> {
        self.data_files.iter().map(|name| self.path.with_file_name(name))
    }

    /// Returns the entry of the graph of a part, of which `count` inputs and outputs have these names.
    fn entry(&self, part: Part, names: &[NamedSlot<'_>], count: usize) -> Result<GraphEntry> {
        let entry = graph_entry(&self.graph, &self.path.display().to_string(), names, count)?;
        Ok(GraphEntry { file: self.name(), part, ..entry })
    }
}

/// Copies graphs with their data files.
fn copy_graphs(graphs: &[&ModelGraph], package: &PackageWriter, cancel: &AtomicBool) -> Result<()> {
    let data: BTreeSet<PathBuf> = graphs.iter().flat_map(|graph| graph.data_paths()).collect();
    let paths: Vec<PathBuf> = graphs.iter().map(|graph| graph.path.clone()).chain(data).collect();
    package.check_space(total_bytes(&paths)?)?;
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        package.copy(&name, &path, cancel)?;
    }
    Ok(())
}

/// Returns the text between `stem` and `.onnx` in the names of a folder's graphs, in order.
fn variants(folder: &Path, stem: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(std::result::Result::ok);
    let names = entries.filter(|entry| entry.path().is_file()).map(|entry| entry.file_name());
    let mut variants: Vec<String> = names
        .filter_map(|name| Some(name.to_string_lossy().strip_prefix(stem)?.strip_suffix(".onnx")?.to_owned()))
        .filter(|variant| variant.is_empty() || variant.starts_with(['.', '_', '-']))
        .collect();
    variants.sort();
    variants
}

/// Returns the variant of the graph that `file` names, or else the plain one or the only one.
fn choose(folder: &Path, stem: &str, file: Option<&str>) -> Result<String> {
    let variants = variants(folder, stem);
    let chosen = match file {
        Some(file) => variants.iter().find(|variant| format!("{stem}{variant}.onnx") == file),
        None if variants.len() == 1 => variants.first(),
        None => variants.iter().find(|variant| variant.is_empty()),
    };
    chosen.cloned().ok_or_else(|| {
        let expected = match file {
            Some(file) => format!("{stem}.onnx or a variant of it with the name {file}"),
            None => format!("{stem}.onnx, or one variant of it; choose it with --file"),
        };
        let names: Vec<String> = variants.iter().map(|variant| format!("{stem}{variant}.onnx")).collect();
        let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        refused(format!("graphs of {}", folder.display()), expected, found)
    })
}

/// Opens a graph beside another one.
fn open_beside(folder: &Path, name: &str, other: &str) -> Result<ModelGraph> {
    let path = folder.join(name);
    if !path.is_file() {
        let expected = format!("{name} beside {other}");
        return Err(refused(format!("graphs of {}", folder.display()), expected, "none"));
    }
    ModelGraph::open(path)
}

/// Returns the extent of a dimension of an input or output, if the graph states it.
fn extent(entry: &GraphEntry, slot: Slot, dimension: usize) -> Option<usize> {
    let binding = entry.input(slot).or_else(|| entry.output(slot))?;
    match binding.shape.get(dimension)? {
        Dim::Fixed(extent) => usize::try_from(*extent).ok(),
        Dim::Symbol(_) => None,
    }
}

#[cfg(test)]
mod tests;
