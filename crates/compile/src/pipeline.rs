//! The stages of a compile, in order: checkpoint → plan → graph → package.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use narthex_graph::{Builder, onnx::external::ExternalWriter};
use narthex_spec::{
    DType, ModelName, ProgressSink, Recipe,
    arch::Architecture,
    manifest::{ChatEntry, FORMAT, Manifest, Provenance, TokenizerEntry},
    progress::{Stage, Unit},
};
use narthex_text::tokenizer::Tokenizer;

use crate::{
    checkpoint::{self, Checkpoint, TokenizerSource},
    emit::{Emitter, Places},
    error::CompileError,
    lower::{
        Lowered,
        dynamic::{self, GRAPH_FILE},
        fixed,
    },
    package::PackageWriter,
    quant::Plan,
};

const DATA_FILE: &str = "model.onnx.data";
const TOKENIZER_FILE: &str = "tokenizer.json";
const TEMPLATE_FILE: &str = "chat_template.jinja";

/// What is compiled into what.
pub struct CompileJob<'a> {
    /// A checkpoint's file or folder.
    pub checkpoint: &'a Path,
    /// The package's name.
    pub name: ModelName,
    /// How weights are stored.
    pub recipe: Recipe,
    /// An empty folder; on success it holds a whole package.
    pub out: &'a Path,
    /// A folder that gets every stage in a form for people.
    pub keep_stages: Option<&'a Path>,
    /// Where the checkpoint came from.
    pub provenance: Provenance,
}

/// Compiles a checkpoint into a package; tensors stream through one at a time.
pub fn compile(
    mut job: CompileJob<'_>,
    progress: &dyn ProgressSink,
    cancel: &AtomicBool,
) -> Result<Manifest, CompileError> {
    let checkpoint = checkpoint::open(job.checkpoint)?;
    job.recipe.fixed = job.recipe.fixed.map(|shapes| shapes.within(checkpoint.max_length));
    let plan = Plan::new(&checkpoint.architecture, &job.recipe);
    keep(job.keep_stages, "architecture.json", || json(&checkpoint.architecture))?;
    keep(job.keep_stages, "plan.json", || json(&plan))?;

    let package = PackageWriter::new(job.out);
    let tokenizer = match &checkpoint.tokenizer {
        TokenizerSource::Gguf(vocab) => Tokenizer::from_gguf(vocab)?,
        TokenizerSource::Json(bytes) => Tokenizer::from_json(bytes)?,
    };
    package.write(TOKENIZER_FILE, &tokenizer.to_json()?)?;
    if let Some(template) = &checkpoint.chat_template {
        package.write(TEMPLATE_FILE, template.as_bytes())?;
    }

    let stage = Stage::start(progress, format!("Compiling {}", job.name), Unit::Items, None);
    let mut emitter = Emitter {
        graph: Builder::new(job.name.as_str(), &dynamic::OPSETS),
        weights: checkpoint.weights.as_ref(),
        plan: &plan,
        recipe: &job.recipe,
        data_file: DATA_FILE,
        data: ExternalWriter::new(package.create(DATA_FILE)?),
        stage: &stage,
        cancel,
        written: 0,
        places: Places::default(),
        compute: DType::F32,
    };
    let mut lowered = match &checkpoint.architecture {
        Architecture::Decoder(arch) => dynamic::decoder(&mut emitter, arch)?,
        Architecture::Encoder(arch) => dynamic::encoder(&mut emitter, arch)?,
    };
    if let Some(shapes) = &job.recipe.fixed {
        let fixed = fixed::lower(&mut emitter, &checkpoint.architecture, shapes)?;
        lowered.graphs.extend(fixed.graphs);
        lowered.tables.extend(fixed.tables);
    }
    emitter.close()?;
    for (graph, entry) in &lowered.graphs {
        let text = if entry.file == GRAPH_FILE { "graph.txt".into() } else { format!("{}.txt", entry.file) };
        keep(job.keep_stages, &text, || graph.dump().into_bytes())?;
        package.write(&entry.file, &graph.encode())?;
    }
    let mut manifest = manifest(job.name, job.recipe, job.provenance, &checkpoint, lowered);
    package.finish(&mut manifest)?;
    Ok(manifest)
}

fn manifest(
    name: ModelName,
    recipe: Recipe,
    provenance: Provenance,
    checkpoint: &Checkpoint,
    lowered: Lowered,
) -> Manifest {
    let special = &checkpoint.special;
    let license = provenance.license.or_else(|| checkpoint.license.clone());
    Manifest {
        format: FORMAT,
        name,
        architecture: checkpoint.architecture.clone(),
        recipe,
        max_length: checkpoint.max_length,
        graphs: lowered.graphs.into_iter().map(|(_, entry)| entry).collect(),
        contexts: Vec::new(),
        tables: lowered.tables,
        tokenizer: TokenizerEntry {
            file: TOKENIZER_FILE.to_owned(),
            bos: special.bos,
            stop: special.stop.clone(),
            pad: special.pad,
        },
        chat: checkpoint
            .chat_template
            .as_ref()
            .map(|_| ChatEntry { template: TEMPLATE_FILE.to_owned(), special_tokens: special.texts.clone() }),
        files: std::collections::BTreeMap::new(),
        provenance: Provenance { license, ..provenance },
    }
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    // Plain structs of numbers and strings always serialise.
    serde_json::to_vec_pretty(value).unwrap_or_default()
}

fn keep(folder: Option<&Path>, name: &str, bytes: impl FnOnce() -> Vec<u8>) -> Result<(), CompileError> {
    let Some(folder) = folder else { return Ok(()) };
    let path: PathBuf = folder.join(name);
    let failed = |source| CompileError::Write { path: path.clone(), source };
    fs::create_dir_all(folder).map_err(failed)?;
    fs::write(&path, bytes()).map_err(failed)
}
