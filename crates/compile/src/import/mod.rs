//! Imports of existing ONNX exports as packages. Neither the graph's computation nor any weight is changed.
//!
//! [`open`] recognises an export by its files: decoders of onnxruntime-genai (`genai`), Optimum or transformers.js
//! (`selection`, `merge`), encoders (`encoder`), and bundles for one kind of device, to which the package is then bound
//! (`device_bundle`, `ryzen`). `adapter` connects the graph to the manifest's slots with nodes before and after it;
//! [`Import::write`] writes the package.

mod adapter;
mod chunk;
mod decoder;
mod device_bundle;
mod encoder;
mod genai;
mod graphs;
mod head;
mod merge;
mod names;
mod pipeline;
mod rotary;
mod ryzen;
mod selection;
mod settings;
mod write;

use std::{
    fmt::Display,
    path::{Path, PathBuf},
};

use narthex_checkpoint::hf::{
    CONFIG, classifier,
    folder::Folder,
    pooling, prompts,
    tokenizer::{self, FolderTokenizer, Vocab},
};
use narthex_files::FileWatch;
use narthex_graph::{
    Graph,
    onnx::files::{OnnxFile, OnnxFileError, open_files},
};
use narthex_spec::{
    BlockSize, Recipe, Scheme,
    arch::{EncoderHead, Pooling, Structure},
    manifest::{self, BoundDevice, ClassifierEntry, GraphEntry, Prompts},
};

use crate::{
    error::{CompileError, Result},
    package::TOKENIZER_FILE,
};
use decoder::{Decoder, decoder};
use names::TensorNames;
use pipeline::JoinedPipeline;
use selection::{Composition, GraphSelection};
use settings::{GENAI_CONFIG, Settings};

pub use write::ImportJob;

/// An export that was read and can be written as a package.
pub struct Import {
    /// Folder of the graph's data files.
    data: PathBuf,
    /// Files that were read.
    files: Vec<PathBuf>,
    /// Watches on the files with the graphs.
    watches: Vec<(PathBuf, FileWatch)>,
    graphs: Vec<(Graph, GraphEntry)>,
    /// Kind of device that the import is bound to, if any.
    bound: Option<BoundDevice>,
    /// Name of a weight file that only the graph's own operators read.
    operator_weights: Option<String>,
    structure: Structure,
    /// Maximum sequence length, in tokens.
    max_length: usize,
    recipe: Recipe,
    text: FolderTokenizer,
    prompts: Prompts,
    classifier: Option<ClassifierEntry>,
    license: Option<String>,
    /// Name of the exporter.
    exporter: &'static str,
    notes: Vec<String>,
}

impl Import {
    /// Storage scheme of the graph's weights.
    pub fn scheme(&self) -> Scheme {
        self.recipe.scheme
    }

    /// Returns the kind of device that the import is bound to, if any.
    pub fn bound(&self) -> Option<&BoundDevice> {
        self.bound.as_ref()
    }

    /// Notes for the user, in sentences.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// Reads the export at `path`: a folder, or an `.onnx` file in it. Configuration and tokenizer may be in the folder
/// above, as with `onnx/model.onnx`. `file` selects one of several exports by the name of its graph; the default is the
/// graph without a suffix (`model.onnx`, `decoder_model_merged.onnx`). `pooling` replaces that of an embedding model whose
/// graph returns a row for each token.
///
/// # Errors
/// [`CompileError::Open`] for graphs that cannot be read, [`CompileError::Foreign`] for models that cannot be imported,
/// [`CompileError::Bound`] for graphs that run on only one kind of device.
pub fn open(path: &Path, file: Option<&str>, pooling: Option<Pooling>) -> Result<Import> {
    let (root, named) = locate(path);
    let file = file.or(named.as_deref());
    let mut folder = Folder::new(&root);
    if folder.has(GENAI_CONFIG) {
        refuse_pooling(pooling, "a chat model")?;
        return onnxruntime_genai(folder, file);
    }
    if let Some(error) = device_bundle::genie(&mut folder) {
        return Err(error);
    }
    let GraphSelection { files, form } = selection::choose(&folder, file)?;
    let parts = read(&files)?;
    let settings = Settings::read(&mut folder)?;
    let names = TensorNames::default();
    if parts.iter().any(|part| names.match_decoder(&part.graph)) {
        refuse_pooling(pooling, "a chat model")?;
        let opened = DecoderExport { parts, names, settings, form, bound: None };
        return import_decoder(folder, opened, "Optimum or transformers.js");
    }
    import_encoder(folder, parts, settings, pooling)
}

/// Returns the folder of the export that [`open`] reads at `path`.
pub fn folder(path: &Path) -> PathBuf {
    locate(path).0
}

/// Returns the folder of an export, and the name of the graph if `path` is a file. The folder is the nearest one with a
/// configuration: that of the file, or the one above.
fn locate(path: &Path) -> (PathBuf, Option<String>) {
    if !path.is_file() {
        return (path.to_owned(), None);
    }
    let Some(own) = path.parent() else { return (path.to_owned(), None) };
    // Resolves `.` and symbolic links, which hide the name of the folder.
    let own = if own.as_os_str().is_empty() { Path::new(".") } else { own };
    let whole = narthex_files::canonicalize(own).unwrap_or_else(|_| own.to_owned());
    let root = [Some(own), whole.parent()]
        .into_iter()
        .flatten()
        .find(|folder| CONFIG_FILES.iter().any(|file| folder.join(file).is_file()))
        .unwrap_or(own);
    let folder = whole.file_name().filter(|_| root != own);
    let named = folder.map_or_else(PathBuf::new, PathBuf::from).join(path.file_name().unwrap_or_default());
    (root.to_owned(), Some(named.to_string_lossy().into_owned()))
}

/// Configuration files that describe a graph in the same folder or in one below.
const CONFIG_FILES: [&str; 3] = [GENAI_CONFIG, CONFIG, TOKENIZER_FILE];

/// Reads a folder of onnxruntime-genai: the graphs of its configuration, or `file` in place of its only graph.
fn onnxruntime_genai(mut folder: Folder, file: Option<&str>) -> Result<Import> {
    let genai = genai::read(&mut folder, file)?;
    let files: Vec<PathBuf> = genai.graphs.iter().map(|graph| folder.file(graph)).collect();
    let parts = read(&files);
    let graphs = parts.as_ref().ok().map(|parts| parts.iter().map(|part| &part.graph));
    let amd = ryzen::bound(folder.path(), &genai.options, graphs)?;
    let parts = parts?;
    let operator_weights = amd.as_ref().and_then(|_| ryzen::weights(&genai.options));
    let bound =
        match genai.pipeline.filter(|_| parts.iter().any(|part| device_bundle::is_compiled(&part.graph))) {
            Some(pipeline) => Some(device_bundle::pipeline(folder.path(), &pipeline, &parts)?),
            None => amd,
        };
    let opened =
        DecoderExport { parts, names: genai.names, settings: genai.settings, form: genai.form, bound };
    let import = import_decoder(folder, opened, "onnxruntime-genai")?;
    Ok(Import { operator_weights, ..import })
}

/// Reads graphs and sorts their nodes.
fn read(files: &[PathBuf]) -> Result<Vec<OnnxFile>, OnnxFileError> {
    let mut parts = open_files(files)?;
    parts.iter_mut().for_each(|part| part.graph.sort_nodes());
    Ok(parts)
}

/// The graphs of a decoder with their configuration.
struct DecoderExport {
    parts: Vec<OnnxFile>,
    names: TensorNames,
    settings: Settings,
    form: Composition,
    bound: Option<BoundDevice>,
}

/// Returns the folder of the graphs' data, and a name for messages. Compiled contexts without a bundle are refused.
fn origin(parts: &[OnnxFile], bound: Option<&BoundDevice>) -> Result<(PathBuf, String)> {
    for part in parts.iter().filter(|_| bound.is_none()) {
        if let Some(error) = device_bundle::compiled(&part.folder.join(&part.name), &part.graph) {
            return Err(error);
        }
    }
    let part = parts.first().ok_or_else(|| refused("the export", "a graph", "none"))?;
    if let Some(other) = parts.iter().find(|other| other.folder != part.folder) {
        return Err(refused("graphs of one model", "in one folder", other.folder.display()));
    }
    Ok((part.folder.clone(), part.name.clone()))
}

/// Returns the watches on the files of graphs.
fn watches(parts: &[OnnxFile]) -> Vec<(PathBuf, FileWatch)> {
    parts.iter().map(|part| (part.folder.join(&part.name), part.watch.clone())).collect()
}

fn import_decoder(
    mut folder: Folder,
    DecoderExport { parts, names, settings, form, bound }: DecoderExport,
    exporter: &'static str,
) -> Result<Import> {
    let (data, file) = origin(&parts, bound.as_ref())?;
    let files = parts.iter().map(|part| part.folder.join(&part.name)).collect();
    let watches = watches(&parts);
    let mut recipe = recipe(parts.iter().map(|part| &part.graph));
    let mut graphs = parts.into_iter().map(|part| part.graph);
    let mut next = || graphs.next().ok_or_else(|| refused("the export", "another graph", "none"));
    let unified = match form {
        Composition::Single => JoinedPipeline::One(Box::new(next()?)),
        Composition::Embedded => JoinedPipeline::One(Box::new(merge::prepend_embedding(next()?, next()?)?)),
        Composition::Branches => JoinedPipeline::One(Box::new(merge::merge_branches(next()?, next()?)?)),
        Composition::Stages(stages) => pipeline::join(&stages, graphs.collect(), &names, &data)?,
    };

    let decoders = match unified {
        JoinedPipeline::One(graph) => vec![decoder(&file, *graph, &names, &settings)?],
        JoinedPipeline::Chunks(graphs) => graphs
            .into_iter()
            .map(|graph| chunk::chunk(CHUNKS, graph, &names, &settings))
            .collect::<Result<_, _>>()?,
    };

    let first = decoders.first().ok_or_else(|| refused("the export", "a decoder", "none"))?;
    let imported = first.imported.clone();
    let max_length = first.max_length;
    let text = tokenizer::read(&mut folder, &settings.ids, Vocab::Decoder(imported.vocab, None))?;
    let compiled = decoders.iter().any(|decoder| decoder.entry.part != manifest::Part::Whole);
    let notes = decoders.iter().take(1).filter_map(|decoder| note(decoder, &settings, compiled)).collect();
    recipe.scheme = scheme(&first.graph);
    let license = folder.license()?;

    Ok(Import {
        data,
        files: [folder.files, files].concat(),
        watches,
        graphs: decoders.into_iter().map(|decoder| (decoder.graph, decoder.entry)).collect(),
        bound,
        operator_weights: None,
        structure: Structure::ImportedDecoder(imported),
        max_length,
        recipe,
        text,
        prompts: Prompts::default(),
        classifier: None,
        license,
        exporter,
        notes,
    })
}

/// Name in messages for graphs of fixed shapes that were merged from several stages.
const CHUNKS: &str = "the pipeline";

/// Returns a note for the user if sequences are shorter than the model's context.
fn note(decoder: &Decoder, settings: &Settings, compiled: bool) -> Option<String> {
    let length = decoder.max_length;
    let shorter = settings.context.is_some_and(|context| length < context);
    let why = if compiled {
        "its cache has no more positions"
    } else {
        "the graph then changes its rotary factors"
    };
    shorter.then(|| format!("Sequences are limited to {length} tokens, because {why}."))
}

/// Refuses a pooling that the user states for another model than `found`.
fn refuse_pooling(pooling: Option<Pooling>, found: &str) -> Result<()> {
    let expected = "a graph that returns a row for each token; leave out --pooling";
    pooling.map_or(Ok(()), |_| Err(refused("pooling", expected, found)))
}

fn import_encoder(
    mut folder: Folder,
    parts: Vec<OnnxFile>,
    settings: Settings,
    pooling: Option<Pooling>,
) -> Result<Import> {
    let (data, file) = origin(&parts, None)?;
    let files = parts.iter().map(|part| part.folder.join(&part.name)).collect();
    let watches = watches(&parts);
    let [part] = <[OnnxFile; 1]>::try_from(parts)
        .map_err(|parts| refused("graphs of an encoder", "one", parts.len()))?;
    let sentence = pooling::read(&mut folder)?.requested(pooling);
    let mut recipe = recipe([&part.graph]);
    recipe.scheme = scheme(&part.graph);
    let (graph, entry, imported) = encoder::encoder(&file, part.graph, &settings, &sentence)?;
    let is_pooled = matches!(imported.head, EncoderHead::Embedding { .. }) && !imported.pooled_by_graph;
    if !is_pooled {
        refuse_pooling(pooling, &format!("a graph that returns {}", imported.head.gives(imported.width)))?;
    }
    let longest = tokenizer::max_length(&mut folder, &sentence)?;
    let max_length =
        settings.stated("the longest text", longest.into_iter().chain(settings.context).min())?;
    let text = tokenizer::read(&mut folder, &settings.ids, Vocab::Encoder(imported.vocab))?;
    let masked = matches!(imported.head, EncoderHead::MaskedLm { .. });
    if masked && !text.special.texts.contains_key("mask_token") {
        return Err(refused("mask_token of the tokenizer", "the token that stands for a masked one", "none"));
    }

    let embeds = matches!(imported.head, EncoderHead::Embedding { .. });
    let prompts = if embeds { prompts::read(&mut folder)? } else { Prompts::default() };
    let classifier = settings.config.as_ref().zip(imported.head.labels());
    let classifier = classifier.map(|(config, labels)| classifier::read(config, labels)).transpose()?;
    let license = folder.license()?;

    Ok(Import {
        data,
        files: [folder.files, files].concat(),
        watches,
        graphs: vec![(graph, entry)],
        bound: None,
        operator_weights: None,
        structure: Structure::ImportedEncoder(imported),
        max_length,
        recipe,
        text,
        prompts,
        classifier,
        license,
        exporter: "sentence-transformers or Optimum",
        notes: is_pooled.then(|| sentence.source.note(sentence.pooling)).flatten().into_iter().collect(),
    })
}

/// Returns a recipe with the block size and accuracy level of the first quantised product; the scheme is set later.
fn recipe<'a>(graphs: impl IntoIterator<Item = &'a Graph>) -> Recipe {
    let mut recipe = Recipe::new(Scheme::F32);
    let mut found = None;
    for graph in graphs {
        graph.for_each_node(&mut |node| {
            if found.is_none() && node.op == "MatMulNBits" {
                found = Some((node.int("block_size"), node.int("accuracy_level")));
            }
        });
    }
    if let Some((block, level)) = found {
        let block = block.and_then(|block| usize::try_from(block).ok());
        recipe.block = block.map_or(recipe.block, BlockSize::Elements);
        recipe.accuracy_level = level.and_then(|level| u8::try_from(level).ok()).unwrap_or(0);
    }
    recipe
}

/// Returns the scheme nearest to the storage of a graph's weights, judged by its operators.
fn scheme(graph: &Graph) -> Scheme {
    let mut four = false;
    let mut eight = false;
    graph.for_each_node(&mut |node| match (node.op.as_str(), node.int("bits")) {
        ("MatMulNBits" | "GatherBlockQuantized", Some(4) | None) | ("MatMulBnb4", _) => four = true,
        ("MatMulNBits" | "GatherBlockQuantized", Some(_))
        | ("MatMulInteger" | "DynamicQuantizeMatMul" | "QLinearMatMul" | "DequantizeLinear", _) => {
            eight = true
        }
        _ => {}
    });
    match (four, eight) {
        (true, _) => Scheme::W4,
        (false, true) => Scheme::W8,
        (false, false) => Scheme::F32,
    }
}

/// Returns an error for well-formed content that cannot be imported or exported.
pub(crate) fn refused(
    what: impl Into<String>,
    expected: impl Into<String>,
    found: impl Display,
) -> CompileError {
    CompileError::Foreign { what: what.into(), expected: expected.into(), found: found.to_string() }
}

#[cfg(test)]
mod tests;
