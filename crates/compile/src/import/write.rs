//! An import on its way to the disk: its graphs, one data file, the binaries of what is compiled already, the tokenizer, the
//! template and the manifest.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use narthex_checkpoint::limits::map;
use narthex_graph::{
    Attribute, Graph, InitializerData,
    onnx::{
        external::{ExternalWriter, Place},
        files::DataFiles,
    },
};
use narthex_spec::{
    ModelName, ProgressSink, Sha256,
    manifest::{ChatEntry, FORMAT, Manifest, Provenance, TokenizerEntry},
    progress::{Stage, Unit},
};
use narthex_text::tokenizer::Tokenizer;
use sha2::Digest;

use super::{Import, refused};
use crate::{
    error::CompileError,
    package::{HashedFile, PackageWriter},
    pipeline::{DATA_FILE, TEMPLATE_FILE, TOKENIZER_FILE},
};

/// Constants of this many bytes and more go to the data file; shapes and scalars stay where shapes are inferred from them.
const LARGE: u64 = 1024;

/// Where an import goes.
pub struct ImportJob<'a> {
    /// The package's name.
    pub name: ModelName,
    /// An empty folder; on success it holds a whole package.
    pub out: &'a Path,
    /// The folder that it was read from, as a person would write it.
    pub source: String,
    /// The Narthex version.
    pub compiler: String,
}

impl Import {
    /// Writes the package. Weights are copied one at a time, whatever files they lie in, into one data file.
    ///
    /// # Errors
    /// [`CompileError::Open`] for weights that are not there, [`CompileError::Write`], [`CompileError::Tokenizer`],
    /// [`CompileError::Cancelled`].
    pub fn write(
        mut self,
        job: ImportJob<'_>,
        progress: &dyn ProgressSink,
        cancel: &AtomicBool,
    ) -> Result<Manifest, CompileError> {
        let package = PackageWriter::new(job.out);
        package.write(TOKENIZER_FILE, &Tokenizer::from_json(&self.text.tokenizer)?.to_json()?)?;
        let template = self.text.chat_template.take();
        if let Some(template) = &template {
            package.write(TEMPLATE_FILE, template.as_bytes())?;
        }
        let stage = Stage::start(progress, format!("Importing {}", job.name), Unit::Items, None);
        let mut weights = Weights {
            folder: &self.data,
            sources: DataFiles::default(),
            file: ExternalWriter::new(package.create(DATA_FILE)?),
            places: BTreeMap::new(),
            written: 0,
            stage: &stage,
            cancel,
        };
        for (graph, _) in &mut self.graphs {
            weights.gather(graph)?;
        }
        let finished = weights.file.finish();
        finished.map_err(|source| CompileError::Write { path: DATA_FILE.into(), source })?.sync()?;
        for (graph, entry) in &self.graphs {
            package.write(&entry.file, &graph.encode())?;
        }
        self.copy_binaries(&package, cancel)?;
        let mut manifest = self.manifest(job, template.is_some())?;
        package.finish(&mut manifest)?;
        Ok(manifest)
    }

    /// Copies what compiled contexts and a vendor's operators read: binaries beside the graphs.
    fn copy_binaries(&self, package: &PackageWriter, cancel: &AtomicBool) -> Result<(), CompileError> {
        let mut copied = BTreeSet::new();
        let named = self.graphs.iter().flat_map(|(graph, _)| graph.context_binaries());
        for name in named.chain(self.beside.as_deref()) {
            let path = Path::new(name);
            let beside = !name.contains('\\') && path.file_name() == Some(path.as_os_str());
            if !beside || path.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("bin")) {
                return Err(refused("binary of the export", "a .bin file beside its graph", name));
            }
            if copied.insert(name) {
                package.copy(name, &self.data.join(name), cancel)?;
            }
        }
        Ok(())
    }

    fn manifest(self, job: ImportJob<'_>, chats: impl Into<bool>) -> Result<Manifest, CompileError> {
        let mut checkpoint = BTreeMap::new();
        for path in &self.files {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            checkpoint.insert(name, Sha256(sha2::Sha256::digest(&*map(path)?).into()));
        }
        let special = self.text.special;
        let chat = chats
            .into()
            .then(|| ChatEntry { template: TEMPLATE_FILE.to_owned(), special_tokens: special.texts.clone() });
        Ok(Manifest {
            format: FORMAT,
            name: job.name,
            architecture: self.structure,
            recipe: self.recipe,
            max_length: self.max_length,
            graphs: self.graphs.into_iter().map(|(_, entry)| entry).collect(),
            contexts: Vec::new(),
            bound: self.bound,
            tables: Vec::new(),
            tokenizer: TokenizerEntry {
                file: TOKENIZER_FILE.to_owned(),
                bos: special.bos,
                stop: special.stop,
                pad: special.pad,
                mask: special.texts.get("mask_token").cloned(),
            },
            chat,
            prompts: self.prompts,
            quality: None,
            loss: None,
            kept_tokens: None,
            files: BTreeMap::new(),
            provenance: Provenance {
                source: format!("{}, an export of {}", job.source, self.exporter),
                checkpoint,
                license: self.license,
                compiler: job.compiler,
            },
        })
    }
}

/// The data file under way.
struct Weights<'a> {
    folder: &'a Path,
    sources: DataFiles,
    file: ExternalWriter<HashedFile>,
    /// What was written already, by where it came from: an embedding and a head may share their bytes.
    places: BTreeMap<(String, u64, u64), Place>,
    written: u64,
    stage: &'a Stage<'a>,
    cancel: &'a AtomicBool,
}

impl Weights<'_> {
    /// Brings a graph's constants, and those of the bodies in it, to where the package keeps them.
    fn gather(&mut self, graph: &mut Graph) -> Result<(), CompileError> {
        for constant in &mut graph.initializers {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(CompileError::Cancelled);
            }
            let bytes = self.sources.bytes(self.folder, constant)?;
            if constant.bytes() < LARGE {
                constant.data = InitializerData::Inline(bytes.to_vec().into());
                continue;
            }
            let from = match &constant.data {
                InitializerData::External { file, offset, length } => Some((file.clone(), *offset, *length)),
                InitializerData::Inline(_) => None,
            };
            let place = match from.as_ref().and_then(|from| self.places.get(from)) {
                Some(place) => *place,
                None => self
                    .file
                    .write(bytes)
                    .map_err(|source| CompileError::Write { path: DATA_FILE.into(), source })?,
            };
            self.places.extend(from.map(|from| (from, place)));
            let (file, offset, length) = (DATA_FILE.to_owned(), place.offset, place.length);
            constant.data = InitializerData::External { file, offset, length };
            self.written += 1;
            self.stage.advance(self.written);
        }
        for (_, attribute) in graph.nodes.iter_mut().flat_map(|node| &mut node.attributes) {
            if let Attribute::Graph(body) = attribute {
                self.gather(body)?;
            }
        }
        Ok(())
    }
}
