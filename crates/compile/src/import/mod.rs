//! Existing ONNX exports become packages: the graph stays what somebody else made, and gets the slots that executors know.
//!
//! [`open`] finds out by its files what a folder holds: onnxruntime-genai's ([`genai`]), Optimum's or transformers.js'
//! decoders ([`choice`], [`merge`]), an encoder ([`encoder`]), or a bundle for one kind of device, which its package is bound
//! to ([`bound`], [`ryzen`]). [`glue`] puts nodes before and behind the graph; [`Import::write`] writes the package. No weight is changed.

mod bound;
mod choice;
mod chunk;
mod decoder;
mod encoder;
mod genai;
mod glue;
mod head;
mod merge;
mod pipeline;
mod rotary;
mod ryzen;
mod settings;
mod write;

use std::{
    fmt::Display,
    path::{Path, PathBuf},
};

use narthex_checkpoint::hf::{
    CONFIG,
    folder::Folder,
    pooling, prompts,
    text::{self, Text, Vocab},
};
use narthex_graph::{
    Attribute, Graph, Node, Value,
    onnx::files::{OnnxFile, OnnxFileError, open_files},
};
use narthex_spec::{
    DType, Recipe, Scheme,
    arch::{EncoderHead, Structure},
    dtype::Dim,
    manifest::{self, Bound, GraphEntry, Prompts},
};

use crate::{error::CompileError, pipeline::TOKENIZER_FILE};
use choice::{Choice, Form};
use decoder::{Decoder, Names, decoder};
use pipeline::Unified;
use settings::Settings;

pub use write::ImportJob;

/// An export that was read and is about to become a package.
pub struct Import {
    /// Where data files lie that the graph names.
    data: PathBuf,
    /// The files that it is made from.
    files: Vec<PathBuf>,
    graphs: Vec<(Graph, GraphEntry)>,
    /// The one kind of device that runs it.
    bound: Option<Bound>,
    /// A file that its operators read beside the graph, and nothing else does.
    beside: Option<String>,
    structure: Structure,
    /// The longest sequence, in tokens.
    max_length: usize,
    recipe: Recipe,
    text: Text,
    prompts: Prompts,
    license: Option<String>,
    /// What made it, in words.
    exporter: &'static str,
    notes: Vec<String>,
}

impl Import {
    /// How the graph stores its weights.
    pub fn scheme(&self) -> Scheme {
        self.recipe.scheme
    }

    /// The one kind of device that runs it, where there is only one.
    pub fn bound(&self) -> Option<&Bound> {
        self.bound.as_ref()
    }

    /// What its maker may want to know of it, in sentences.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// Reads the export in `path`: a folder, or one `.onnx` file of it, whose configuration and tokenizer may lie in the folder
/// above, as beside `onnx/model.onnx`. `file` chooses among several exports of one model by the name of its graph; without
/// it, the graph without a suffix (`model.onnx`, `decoder_model_merged.onnx`) is taken.
///
/// # Errors
/// [`CompileError::Open`] for graphs that cannot be read, [`CompileError::Foreign`] with what was expected and found for
/// what is not imported, [`CompileError::Bound`] for what runs on one kind of device alone.
pub fn open(path: &Path, file: Option<&str>) -> Result<Import, CompileError> {
    let (root, named) = placed(path);
    let file = file.or(named.as_deref());
    let mut folder = Folder::new(&root);
    if folder.has(genai::CONFIG) {
        return onnxruntime_genai(folder, file);
    }
    if let Some(error) = bound::genie(&mut folder) {
        return Err(error);
    }
    let Choice { files, form } = choice::choose(&folder, file)?;
    let parts = read(&files)?;
    let settings = Settings::read(&mut folder)?;
    let names = Names::default();
    if parts.iter().any(|part| names.fit(&part.graph)) {
        let opened = Opened { parts, names, settings, form, bound: None };
        return decoding(folder, opened, "Optimum or transformers.js");
    }
    encoding(folder, parts, settings)
}

/// The folder of the export that [`open`] reads in `path`.
pub fn folder(path: &Path) -> PathBuf {
    placed(path).0
}

/// The folder of an export, and the graph in it that `path` names, where it names one. It is the nearest folder that says
/// what the graph is: its own, or the one above.
fn placed(path: &Path) -> (PathBuf, Option<String>) {
    if !path.is_file() {
        return (path.to_owned(), None);
    }
    let Some(own) = path.parent() else { return (path.to_owned(), None) };
    // The name of a folder may be hidden behind `.` or a link.
    let own = if own.as_os_str().is_empty() { Path::new(".") } else { own };
    let says = |folder: &&Path| SAYING.iter().any(|file| folder.join(file).is_file());
    let whole = own.canonicalize().unwrap_or_else(|_| own.to_owned());
    let root = [Some(own), whole.parent()].into_iter().flatten().find(says).unwrap_or(own);
    let folder = whole.file_name().filter(|_| root != own);
    let named = folder.map_or_else(PathBuf::new, PathBuf::from).join(path.file_name().unwrap_or_default());
    (root.to_owned(), Some(named.to_string_lossy().into_owned()))
}

/// Files that say what a graph beside or below them is.
const SAYING: [&str; 3] = [genai::CONFIG, CONFIG, TOKENIZER_FILE];

/// Reads a folder of onnxruntime-genai: the graphs that its configuration names, or `file` as another form of the one.
fn onnxruntime_genai(mut folder: Folder, file: Option<&str>) -> Result<Import, CompileError> {
    let genai = genai::read(&mut folder, file)?;
    let files: Vec<PathBuf> = genai.graphs.iter().map(|graph| folder.file(graph)).collect();
    let parts = read(&files);
    let graphs = parts.as_ref().ok().map(|parts| parts.iter().map(|part| &part.graph));
    let amd = ryzen::bound(folder.path(), &genai.options, graphs)?;
    let parts = parts?;
    let beside = amd.as_ref().and_then(|_| ryzen::weights(&genai.options));
    let bound = match genai.pipeline.filter(|_| parts.iter().any(|part| bound::is_compiled(&part.graph))) {
        Some(pipeline) => Some(bound::pipeline(folder.path(), &pipeline, &parts)?),
        None => amd,
    };
    let opened = Opened { parts, names: genai.names, settings: genai.settings, form: genai.form, bound };
    let import = decoding(folder, opened, "onnxruntime-genai")?;
    Ok(Import { beside, ..import })
}

/// Reads graphs, with their nodes in order.
fn read(files: &[PathBuf]) -> Result<Vec<OnnxFile>, OnnxFileError> {
    let mut parts = open_files(files)?;
    parts.iter_mut().for_each(|part| part.graph.sort_nodes());
    Ok(parts)
}

/// The graphs of a decoder, and what is known of them.
struct Opened {
    parts: Vec<OnnxFile>,
    names: Names,
    settings: Settings,
    form: Form,
    bound: Option<Bound>,
}

/// The folder of the graphs' data, and a name for messages; refuses compiled contexts that no bundle says how to run.
fn origin(parts: &[OnnxFile], bound: Option<&Bound>) -> Result<(PathBuf, String), CompileError> {
    for part in parts.iter().filter(|_| bound.is_none()) {
        if let Some(error) = bound::compiled(&part.folder.join(&part.name), &part.graph) {
            return Err(error);
        }
    }
    let part = parts.first().ok_or_else(|| refused("the export", "a graph", "none"))?;
    if let Some(other) = parts.iter().find(|other| other.folder != part.folder) {
        return Err(refused("graphs of one model", "in one folder", other.folder.display()));
    }
    Ok((part.folder.clone(), part.name.clone()))
}

fn decoding(
    mut folder: Folder,
    Opened { parts, names, settings, form, bound }: Opened,
    exporter: &'static str,
) -> Result<Import, CompileError> {
    let (data, file) = origin(&parts, bound.as_ref())?;
    let files = parts.iter().map(|part| part.folder.join(&part.name)).collect();
    let mut recipe = recipe(parts.iter().map(|part| &part.graph));
    let mut graphs = parts.into_iter().map(|part| part.graph);
    let mut next = || graphs.next().ok_or_else(|| refused("the export", "another graph", "none"));
    let unified = match form {
        Form::One => Unified::One(Box::new(next()?)),
        Form::Embedded => Unified::One(Box::new(merge::embedded(next()?, next()?)?)),
        Form::Branches => Unified::One(Box::new(merge::branches(next()?, next()?)?)),
        Form::Stages(stages) => pipeline::unified((&stages, graphs.collect()), &names, &data)?,
    };
    let decoders = match unified {
        Unified::One(graph) => vec![decoder(&file, *graph, &names, &settings)?],
        Unified::Chunks(graphs) => {
            let chunk = |graph| chunk::chunk(CHUNKS, graph, &names, &settings);
            graphs.into_iter().map(chunk).collect::<Result<_, _>>()?
        }
    };
    let first = decoders.first().ok_or_else(|| refused("the export", "a decoder", "none"))?;
    let (imported, max_length) = (first.imported.clone(), first.max_length);
    let text = text::read(&mut folder, &settings.ids, Vocab::Decoder(imported.vocab, None))?;
    let compiled = decoders.iter().any(|decoder| decoder.entry.part != manifest::Part::Whole);
    let notes = decoders.iter().take(1).filter_map(|decoder| note(decoder, &settings, compiled)).collect();
    recipe.scheme = scheme(&first.graph);
    let license = folder.license()?;
    Ok(Import {
        data,
        files: [folder.files, files].concat(),
        graphs: decoders.into_iter().map(|decoder| (decoder.graph, decoder.entry)).collect(),
        bound,
        beside: None,
        structure: Structure::ImportedDecoder(imported),
        max_length,
        recipe,
        text,
        prompts: Prompts::default(),
        license,
        exporter,
        notes,
    })
}

/// What graphs of fixed shapes out of several stages are called in messages.
const CHUNKS: &str = "the pipeline";

/// What the maker of a package may want to know of its decoder.
fn note(decoder: &Decoder, settings: &Settings, compiled: bool) -> Option<String> {
    let length = decoder.max_length;
    let shorter = settings.context.is_some_and(|context| length < context);
    let why = if compiled { "its past has no more room" } else { "the graph changes its rotary factors" };
    shorter.then(|| format!("Beyond {length} tokens {why}; sequences are served up to there."))
}

fn encoding(mut folder: Folder, parts: Vec<OnnxFile>, settings: Settings) -> Result<Import, CompileError> {
    let (data, file) = origin(&parts, None)?;
    let files = parts.iter().map(|part| part.folder.join(&part.name)).collect();
    let [part] = <[OnnxFile; 1]>::try_from(parts)
        .map_err(|parts| refused("graphs of an encoder", "one", parts.len()))?;
    let sentence = pooling::read(&mut folder)?;
    let mut recipe = recipe([&part.graph]);
    recipe.scheme = scheme(&part.graph);
    let (graph, entry, imported) = encoder::encoder(&file, part.graph, &settings, &sentence)?;
    let longest = text::max_length(&mut folder, &sentence)?;
    let max_length =
        settings.stated("the longest text", longest.into_iter().chain(settings.context).min())?;
    let text = text::read(&mut folder, &settings.ids, Vocab::Encoder(imported.vocab))?;
    let masked = matches!(imported.head, EncoderHead::MaskedLm { .. });
    if masked && !text.special.texts.contains_key("mask_token") {
        return Err(refused("mask_token of the tokenizer", "the token that stands for a masked one", "none"));
    }
    let embeds = matches!(imported.head, EncoderHead::Embedding { .. });
    let prompts = if embeds { prompts::read(&mut folder)? } else { Prompts::default() };
    let license = folder.license()?;
    Ok(Import {
        data,
        files: [folder.files, files].concat(),
        graphs: vec![(graph, entry)],
        bound: None,
        beside: None,
        structure: Structure::ImportedEncoder(imported),
        max_length,
        recipe,
        text,
        prompts,
        license,
        exporter: "sentence-transformers or Optimum",
        notes: Vec::new(),
    })
}

/// Every node of a graph and of the bodies in it.
fn nodes<'a>(graph: &'a Graph, each: &mut dyn FnMut(&'a Node)) {
    for node in &graph.nodes {
        each(node);
        for (_, attribute) in &node.attributes {
            if let Attribute::Graph(body) = attribute {
                nodes(body, each);
            }
        }
    }
}

/// Block size and accuracy level of the first quantised product, as the recipe of an import; its scheme is not known yet.
fn recipe<'a>(graphs: impl IntoIterator<Item = &'a Graph>) -> Recipe {
    let mut recipe = Recipe::new(Scheme::F32);
    let mut found = None;
    for graph in graphs {
        nodes(graph, &mut |node| {
            if found.is_none() && node.op == "MatMulNBits" {
                found = Some((node.int("block_size"), node.int("accuracy_level")));
            }
        });
    }
    if let Some((block, level)) = found {
        recipe.block = block.and_then(|block| usize::try_from(block).ok()).unwrap_or(recipe.block);
        recipe.accuracy_level = level.and_then(|level| u8::try_from(level).ok()).unwrap_or(0);
    }
    recipe
}

/// The scheme that comes closest to how a graph stores its weights: by its operators, not by its name.
fn scheme(graph: &Graph) -> Scheme {
    let (mut four, mut eight) = (false, false);
    nodes(graph, &mut |node| match (node.op.as_str(), node.int("bits")) {
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

/// An error for what is well-formed and not taken over.
pub(crate) fn refused(
    what: impl Into<String>,
    expected: impl Into<String>,
    found: impl Display,
) -> CompileError {
    CompileError::Foreign { what: what.into(), expected: expected.into(), found: found.to_string() }
}

/// The extent of a fixed dimension.
fn fixed(dim: &Dim) -> Option<usize> {
    match dim {
        Dim::Fixed(extent) => usize::try_from(*extent).ok(),
        Dim::Symbol(_) => None,
    }
}

/// The type of a value of floating-point numbers.
fn floats(file: &str, value: &Value) -> Result<DType, CompileError> {
    match value.dtype.dtype() {
        Some(dtype @ (DType::F32 | DType::F16)) => Ok(dtype),
        _ => Err(refused(format!("{:?} of {file}", value.name), "f32 or f16", value.dtype)),
    }
}

/// Refuses a graph with inputs that nobody fills.
fn unknown_inputs(file: &str, graph: &Graph, known: &[&str]) -> Result<(), CompileError> {
    match graph.inputs.iter().find(|input| !known.contains(&input.name.as_str())) {
        None => Ok(()),
        Some(input) => {
            let known: Vec<&str> = known.iter().copied().filter(|name| !name.contains('.')).collect();
            Err(refused(format!("input of {file}"), known.join(", "), &input.name))
        }
    }
}

#[cfg(test)]
mod tests;
