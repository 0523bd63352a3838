//! `narthex import`: an ONNX export that somebody else made becomes a package of the store.

use std::path::PathBuf;

use narthex_catalog::resolve::import_name;
use narthex_compile::import::{self, ImportJob};
use narthex_spec::{ModelName, ProgressSink, manifest::Manifest, progress::Progress};

use crate::{
    cancel::Cancel,
    error::Error,
    gateway::{Gateway, Inner},
    names::PackageKey,
    shelf,
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
    /// catalogue.
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
        None => import_name(&request.path)?,
    };
    if inner.catalog.get(&name).is_some() {
        let message = format!("{name} is a model of the catalogue; give the import another name with --name");
        return Err(Error::Invalid { param: "name", message });
    }
    let found = import::open(&request.path, request.file.as_deref())?;
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
        source: format!("local {}", request.path.display()),
        compiler: format!("narthex {}", env!("CARGO_PKG_VERSION")),
    };
    found.write(job, progress, cancel.flag())?;
    let folder = staging.commit()?;
    inner.residents.evict(&key);
    Ok((folder, shelf::manifest(inner, &key)?))
}
