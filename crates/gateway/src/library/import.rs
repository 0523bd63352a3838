//! `narthex import`: an ONNX export that somebody else made becomes a package of the store.

use std::path::{Path, PathBuf};

use narthex_catalog::resolve::import_name;
use narthex_compile::import::{self, Import, ImportJob};
use narthex_graph::onnx::files::graph_files;
use narthex_spec::{ModelName, ProgressSink, Scheme, manifest::Manifest, progress::Progress};

use crate::{
    cancel::Cancel,
    error::Error,
    gateway::{Gateway, Inner},
    library::{models, names::PackageKey},
};

/// What is imported.
#[derive(Debug, Clone)]
pub struct ImportRequest {
    /// A folder, or one ONNX file of it.
    pub path: PathBuf,
    /// The name of the package; the folder's where there is none.
    pub name: Option<ModelName>,
    /// The graph that is taken of several.
    pub file: Option<String>,
}

impl Gateway {
    /// Imports an export; gives the package's folder and manifest.
    ///
    /// # Errors
    /// [`Error::Compile`] for what is not imported, with what was expected and found; [`Error::Invalid`] for a name of the
    /// catalogue and for a checkpoint; [`Error::Taken`] for the name of what was made from something else.
    pub fn import(
        &self,
        request: &ImportRequest,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<(PathBuf, Manifest), Error> {
        run(self.inner(), request, progress, cancel)
    }
}

fn run(
    inner: &Inner,
    request: &ImportRequest,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(PathBuf, Manifest), Error> {
    let name = match &request.name {
        Some(name) => name.clone(),
        None => import_name(&import::folder(&request.path))?,
    };
    if inner.catalog.get(&name).is_some() {
        let message = format!("{name} is a model of the catalogue; give the import another name with --name");
        return Err(Error::Invalid { param: "name", message });
    }
    let failed = |source| Error::Io { what: format!("cannot find {}", request.path.display()), source };
    let source = format!("local {}", std::path::absolute(&request.path).map_err(failed)?.display());
    check_name(inner, &name, &source)?;
    let found = opened(request)?;
    if let Some(bound) = found.bound() {
        progress.event(Progress::Note(format!(
            "It holds {}, which runs on {} alone.",
            bound.holds, bound.device
        )));
    }
    for note in found.notes() {
        progress.event(Progress::Note(note.clone()));
    }
    let key = PackageKey { name: name.clone(), scheme: found.scheme() };
    let lock_name = format!("compile-{}-{}", name.file_stem(), key.scheme);
    let _lock = inner.store.lock(&lock_name, progress, cancel.flag())?;
    let staging = inner.store.stage_package(&name, key.scheme)?;
    let job = ImportJob {
        name,
        out: staging.path(),
        source,
        compiler: format!("narthex {}", env!("CARGO_PKG_VERSION")),
    };
    found.write(job, progress, cancel.flag())?;
    let folder = staging.commit()?;
    inner.residents.evict(&key);
    Ok((folder, models::manifest(inner, &key)?))
}

/// The export that is asked for; a checkpoint in its place is told apart from an export that is not understood.
fn opened(request: &ImportRequest) -> Result<Import, Error> {
    match import::open(&request.path, request.file.as_deref()) {
        Err(_) if holds_checkpoint_alone(&request.path) => {
            let path = request.path.display();
            let message =
                format!("path: {path} holds a checkpoint and no ONNX graph; try `narthex compile {path}`");
            Err(Error::Invalid { param: "path", message })
        }
        found => Ok(found?),
    }
}

/// Fails where a package of this name was made from something else than `source`: another scheme of it would be another
/// model under the same name, and the same scheme would take its place.
fn check_name(inner: &Inner, name: &ModelName, source: &str) -> Result<(), Error> {
    for scheme in Scheme::ALL {
        let key = PackageKey { name: name.clone(), scheme };
        // What is not installed or cannot be read is nobody's model.
        let Ok(manifest) = models::manifest(inner, &key) else { continue };
        let found = manifest.provenance.source;
        // An import's says behind the path which kind of export it was.
        if found != source && !found.strip_prefix(source).is_some_and(|rest| rest.starts_with(", ")) {
            return Err(Error::Taken { name: name.clone(), found });
        }
    }
    Ok(())
}

/// Whether a path is or has a checkpoint's weights, and no graph lies there.
fn holds_checkpoint_alone(path: &Path) -> bool {
    let ends = |path: &Path, endings: &[&str]| {
        path.extension().is_some_and(|found| endings.iter().any(|ending| found.eq_ignore_ascii_case(ending)))
    };
    let files: Vec<PathBuf> = match std::fs::read_dir(path) {
        Ok(entries) => entries.filter_map(Result::ok).map(|entry| entry.path()).collect(),
        Err(_) => vec![path.to_owned()],
    };
    let graphs = graph_files(path).is_ok_and(|graphs| graphs.iter().any(|graph| ends(graph, &["onnx"])));
    !graphs && files.iter().any(|file| ends(file, &["safetensors", "gguf"]))
}
