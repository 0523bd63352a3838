//! The static variant: graphs of fixed shapes, on an NPU, on an emulation of one, or on the CPU as their reference.
//!
//! [`StaticExecutor`] implements the engine's port for decoders, [`StaticEncoder`] for encoders, [`StaticSpeech`] for models
//! that transcribe speech; [`StaticVisionTower`] runs vision towers, [`StaticAudioTower`] audio towers. The graphs depend neither on positions nor on lengths:
//! the host writes rotary angles and masks, and maintains the cache.

mod audio;
mod cache;
mod decoder;
mod encoder;
mod graph;
mod layers;
mod speech;
mod step;
mod vision;
mod window;

use std::path::{Path, PathBuf};

use narthex_graph::{Graph, onnx::files::MAX_FILE_BYTES};
use narthex_spec::{
    Target,
    manifest::{GraphEntry, Manifest},
};

pub use audio::StaticAudioTower;
pub use decoder::{StaticExecutor, StaticOptions};
pub use encoder::StaticEncoder;
pub use speech::StaticSpeech;
pub use vision::StaticVisionTower;

use crate::{
    ep::Device,
    error::DeviceError,
    ort::{Context, Session, SessionOptions},
    package,
    precompile::{self, FallbackPolicy},
    runtime::Runtime,
};

/// Value added to the attention score of a masked token: large enough that its weight is 0 in half precision, and small
/// enough that the sum does not overflow.
const HIDDEN: f32 = -10_000.0;

/// Options for loading a package's static graphs.
#[derive(Debug, Clone, Copy)]
pub struct GraphLoad<'a> {
    /// The device.
    pub device: &'a Device,
    /// Number of threads on the CPU; 0 uses one per physical core.
    pub threads: usize,
    /// Form in which each graph is loaded.
    pub form: Form<'a>,
    /// Policy for nodes that the device refuses.
    pub fallback: FallbackPolicy,
}

/// Options for loading a decoder's parts.
#[derive(Debug, Clone, Copy)]
pub struct DecoderLoad<'a> {
    /// The layers.
    pub layers: GraphLoad<'a>,
    /// The head.
    pub head: GraphLoad<'a>,
}

impl<'a> From<GraphLoad<'a>> for DecoderLoad<'a> {
    fn from(load: GraphLoad<'a>) -> Self {
        Self { layers: load, head: load }
    }
}

/// Form in which a graph is loaded.
#[derive(Debug, Clone, Copy)]
pub enum Form<'a> {
    /// ONNX, which the provider compiles at the load.
    Graph,
    /// The package's contexts for this target.
    Context(&'a Target),
    /// Contexts in this folder, each under its graph's file name.
    Folder(&'a Path),
}

/// Loads a graph. The whole graph must be placed on the device, except for nodes that `load.fallback` allows elsewhere.
fn open(
    runtime: &Runtime,
    package: &Path,
    manifest: &Manifest,
    entry: &GraphEntry,
    load: GraphLoad<'_>,
) -> Result<Session, DeviceError> {
    let path = match load.form {
        Form::Folder(folder) => package::path(folder, &entry.file)?,
        form => package::path(package, file(manifest, entry, form)?)?,
    };
    let threads = crate::inventory::threads(load.threads);
    let context = match load.form {
        Form::Context(target) => shared(&contexts(package, manifest, target)?, &entry.file)?,
        Form::Graph | Form::Folder(_) => Context::Own,
    };
    let options = SessionOptions { context, ..SessionOptions::on(load.device, threads) };
    let session = Session::open(runtime, &path, options)?;
    session.check_names(entry)?;
    precompile::check_placement(runtime, &path, load.device, session.placement(), load.fallback)?;
    Ok(session)
}

fn file<'a>(manifest: &'a Manifest, entry: &'a GraphEntry, form: Form<'_>) -> Result<&'a str, DeviceError> {
    let Form::Context(target) = form else { return Ok(&entry.file) };
    let context = manifest.contexts.iter().find(|c| c.target == *target && c.graph == entry.file);
    Ok(&context
        .ok_or_else(|| DeviceError::package(format!("a context of {} for {target}", entry.file), "none"))?
        .file)
}

/// Returns the package's contexts for a target: the file name of each graph, and the path of its context's ONNX file.
fn contexts<'a>(
    folder: &Path,
    manifest: &'a Manifest,
    target: &Target,
) -> Result<Vec<(&'a str, PathBuf)>, DeviceError> {
    let contexts = manifest.contexts.iter().filter(|context| context.target == *target);
    contexts.map(|context| Ok((context.graph.as_str(), package::path(folder, &context.file)?))).collect()
}

/// Returns the way to load the context of a graph: contexts that refer to the same binary share the weights in it.
fn shared(contexts: &[(&str, PathBuf)], graph: &str) -> Result<Context<'static>, DeviceError> {
    let mut own = Vec::new();
    let mut others = Vec::new();
    for (of, path) in contexts {
        let named = binaries(path)?;
        if *of == graph { own.extend(named) } else { others.extend(named) }
    }
    Ok(if own.iter().any(|own| others.contains(own)) { Context::Shared } else { Context::Own })
}

/// Returns the way to load two graphs of one package that contain contexts among other nodes.
pub(crate) fn shared_by(
    folder: &Path,
    graphs: [Option<&GraphEntry>; 2],
) -> Result<Context<'static>, DeviceError> {
    let [Some(one), Some(other)] = graphs else { return Ok(Context::Own) };
    let one = package::path(folder, &one.file)?;
    let other = package::path(folder, &other.file)?;
    shared(&[("one", one), ("other", other)], "one")
}

/// Returns the binaries to which a file's contexts refer; empty if the contexts are embedded.
fn binaries(path: &Path) -> Result<Vec<PathBuf>, DeviceError> {
    let bytes = narthex_files::read(path, MAX_FILE_BYTES)
        .map_err(|error| DeviceError::Read { path: path.to_owned(), reason: error.to_string() })?;
    let graph = Graph::decode(&bytes).map_err(|error| DeviceError::package("a context in ONNX", error))?;
    Ok(graph.context_binaries().map(|name| path.with_file_name(name)).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use narthex_graph::{Attribute, Builder, context::CONTEXT_OP};

    use super::*;

    #[test]
    fn contexts_that_name_one_binary_share_it() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, mode: i64, binary: &str| {
            let mut graph = Builder::new("context", &[]).finish();
            graph.nodes.push(narthex_graph::Node {
                name: "context".to_owned(),
                op: CONTEXT_OP.to_owned(),
                domain: "com.microsoft".to_owned(),
                inputs: Vec::new(),
                outputs: Vec::new(),
                attributes: vec![
                    ("embed_mode".to_owned(), Attribute::Int(mode)),
                    ("ep_cache_context".to_owned(), Attribute::String(binary.to_owned())),
                ],
            });
            let path = folder.path().join(file);
            fs::write(&path, graph.encode()).unwrap();
            path
        };
        let contexts = [
            ("prefill", write("prefill.onnx", 0, "pair.bin")),
            ("decode", write("decode.onnx", 0, "pair.bin")),
            ("head", write("head.onnx", 0, "head.bin")),
            ("inside", write("inside.onnx", 1, "pair.bin")),
        ];
        let check = |graph, expected: bool| {
            let found = shared(&contexts, graph).unwrap();
            assert_eq!(matches!(found, Context::Shared), expected, "{graph}");
        };
        check("prefill", true);
        check("decode", true);
        check("head", false);
        check("inside", false);
        assert!(shared(&[("gone", folder.path().join("gone.onnx"))], "gone").is_err());
    }
}
