//! Writes an import as a package: graphs, one data file, binaries of compiled contexts, tokenizer, template and
//! manifest.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use narthex_checkpoint::limits::map;
use narthex_graph::{
    Attribute, Graph, InitializerData,
    onnx::{
        external::{ByteRange, ExternalWriter},
        files::{DataFiles, OnnxFileError},
    },
};
use narthex_spec::{
    ModelName, ProgressSink, Sha256,
    manifest::{FORMAT, Manifest, Provenance, TokenizerEntry},
    progress::{Stage, Unit},
};
use narthex_text::tokenizer::{Tokenizer, package_json};

use super::{Import, refused};
use crate::{
    error::{CompileError, Result},
    package::{DATA_FILE, HashedFile, PackageWriter, TEMPLATE_FILE, TOKENIZER_FILE, chat_entry},
};

/// Minimum size in bytes of constants in the data file. Shapes and scalars stay in the graph for shape inference.
const LARGE: u64 = 1024;

/// Destination of an import.
pub struct ImportJob<'a> {
    /// The package's name.
    pub name: ModelName,
    /// An empty folder; on success it contains the package.
    pub out: &'a Path,
    /// The folder that was read, as the user wrote it.
    pub source: String,
    /// The Narthex version.
    pub compiler: String,
}

impl Import {
    /// Writes the package. Weights are copied one at a time into one data file.
    ///
    /// # Errors
    /// [`CompileError::Open`] for missing weights, [`CompileError::Write`], [`CompileError::Tokenizer`],
    /// [`CompileError::Cancelled`].
    pub fn write(
        mut self,
        job: ImportJob<'_>,
        progress: &dyn ProgressSink,
        cancel: &AtomicBool,
    ) -> Result<Manifest> {
        let package = PackageWriter::new(job.out);
        package.check_space(self.weight_bytes())?;
        // A tokenizer that cannot be read is refused now.
        Tokenizer::from_json(&self.text.tokenizer)?;
        package.write(TOKENIZER_FILE, &package_json(&self.text.tokenizer)?)?;
        let template = self.text.chat_template.take();
        if let Some(template) = &template {
            package.write(TEMPLATE_FILE, template.as_bytes())?;
        }
        let stage = Stage::start(progress, format!("Importing {}", job.name), Unit::Items, None);
        let mut weights = Weights {
            folder: &self.data,
            sources: DataFiles::default(),
            file: ExternalWriter::new(package.create(DATA_FILE)?),
            ranges: BTreeMap::new(),
            written: 0,
            stage: &stage,
            cancel,
        };

        for (graph, _) in &mut self.graphs {
            weights.gather(graph)?;
        }
        let Weights { file, sources, .. } = weights;
        let finished = file.finish();
        finished.map_err(|source| CompileError::Write { path: DATA_FILE.into(), source })?.sync()?;
        for (graph, entry) in &self.graphs {
            package.write(&entry.file, &graph.encode())?;
        }
        self.copy_binaries(&package, cancel)?;
        self.check_unchanged(&sources)?;
        let mut manifest = self.manifest(job, template.as_deref())?;
        package.finish(&mut manifest)?;
        Ok(manifest)
    }

    /// Returns the bytes of the constants that the data file will have. Those that share their bytes count once.
    fn weight_bytes(&self) -> u64 {
        let mut ranges = BTreeSet::new();
        let mut inline = 0u64;
        let mut graphs: Vec<&Graph> = self.graphs.iter().map(|(graph, _)| graph).collect();
        while let Some(graph) = graphs.pop() {
            for constant in graph.initializers.iter().filter(|constant| constant.bytes() >= LARGE) {
                match &constant.data {
                    InitializerData::External { file, offset, length } => {
                        ranges.insert((file, *offset, *length));
                    }
                    InitializerData::Inline(bytes) => inline += bytes.len() as u64,
                }
            }
            let attributes = graph.nodes.iter().flat_map(|node| &node.attributes);
            graphs.extend(attributes.filter_map(|(_, attribute)| match attribute {
                Attribute::Graph(body) => Some(&**body),
                _ => None,
            }));
        }
        ranges.iter().map(|(_, _, length)| *length).fold(inline, u64::saturating_add)
    }

    /// Checks that no file of the export has changed since it was opened.
    fn check_unchanged(&self, data: &DataFiles) -> Result<(), CompileError> {
        data.check_unchanged()?;
        for (path, watch) in &self.watches {
            watch.check().map_err(|source| OnnxFileError::Read { path: path.clone(), source })?;
        }
        Ok(())
    }

    /// Copies the binaries next to the graphs that compiled contexts and a vendor's operators read.
    fn copy_binaries(&self, package: &PackageWriter, cancel: &AtomicBool) -> Result<()> {
        let mut copied = BTreeSet::new();
        let named = self.graphs.iter().flat_map(|(graph, _)| graph.context_binaries());
        for name in named.chain(self.operator_weights.as_deref()) {
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

    fn manifest(self, job: ImportJob<'_>, template: Option<&str>) -> Result<Manifest> {
        let mut checkpoint = BTreeMap::new();
        for path in &self.files {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            checkpoint.insert(name, Sha256::of(&map(path)?));
        }

        let special = self.text.special;
        let chat = template.map(|template| chat_entry(template, special.texts.clone()));
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
            tokenizer: Some(TokenizerEntry {
                file: TOKENIZER_FILE.to_owned(),
                bos: special.bos,
                stop: special.stop,
                pad: special.pad,
                mask: special.texts.get("mask_token").cloned(),
            }),
            chat,
            speech: None,
            vision: None,
            audio: None,
            voice: None,
            transcriber: None,
            prompts: self.prompts,
            classifier: self.classifier,
            pairs: None,
            sampling: self.text.sampling,
            quality: None,
            loss: None,
            certificate: None,
            source_weights: Vec::new(),
            layer_widths: Vec::new(),
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

/// The data file while it is written.
struct Weights<'a> {
    folder: &'a Path,
    sources: DataFiles,
    file: ExternalWriter<HashedFile>,
    /// Locations of written constants by their origin; an embedding and a head may share their bytes.
    ranges: BTreeMap<(String, u64, u64), ByteRange>,
    written: u64,
    stage: &'a Stage<'a>,
    cancel: &'a AtomicBool,
}

impl Weights<'_> {
    /// Moves the constants of a graph, including those in the bodies of its nodes, to the package.
    fn gather(&mut self, graph: &mut Graph) -> Result<()> {
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
            let range = match from.as_ref().and_then(|from| self.ranges.get(from)) {
                Some(range) => *range,
                None => self
                    .file
                    .write(bytes)
                    .map_err(|source| CompileError::Write { path: DATA_FILE.into(), source })?,
            };
            self.ranges.extend(from.map(|from| (from, range)));
            let file = DATA_FILE.to_owned();
            let offset = range.offset;
            let length = range.length;
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
