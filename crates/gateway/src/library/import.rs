//! Import of an existing ONNX export, or of a package in one file, as a package of the store.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use narthex_catalog::{
    resolve::{check_digests, check_links, import_name, model_name},
    store::{PACKAGE_EXTENSION, UnpackedPackage},
};
use narthex_compile::{
    CompileError,
    import::{self, Import, ImportJob},
    package::add_files,
    transcriber::{self, TranscriberFiles, TranscriberJob},
    voice::{self, VoiceFiles, VoiceJob},
};
use narthex_graph::onnx::files::graph_files;
use narthex_spec::{
    ModelName, ProgressSink,
    arch::Pooling,
    manifest::{Manifest, Provenance},
    progress::Progress,
};

use crate::{
    cancel::Cancel,
    error::Error,
    library::{DEFAULT_SCHEME, Library, english_files, package, package_key::PackageKey},
};

/// Import of an ONNX export.
///
/// ```
/// use narthex_gateway::{Cancel, Config, ErrorKind, Gateway, ImportRequest};
/// use narthex_spec::progress::Quiet;
///
/// # fn main() -> Result<(), narthex_gateway::Error> {
/// # let home = tempfile::tempdir().unwrap();
/// # let config = Config { home: Some(home.path().to_owned()), ..Config::standard() };
/// let gateway = Gateway::open(config)?;
/// let request =
///     ImportRequest { path: "exports/missing".into(), name: None, file: None, pooling: None };
/// let error = gateway.import(&request, &Quiet, &Cancel::new()).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ImportRequest {
    /// Folder of the export, one ONNX file in it, or a package in one file.
    pub path: PathBuf,
    /// Name of the package; by default the folder's name.
    pub name: Option<ModelName>,
    /// File name of the graph to import, if the folder has several.
    pub file: Option<String>,
    /// Pooling of an embedding model, in place of the one that its files state.
    pub pooling: Option<Pooling>,
}

/// Returns whether a path names a package in one file.
fn is_package_file(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|found| found.eq_ignore_ascii_case(PACKAGE_EXTENSION))
}

/// Installs a package from one file, after comparing every file with the manifest.
fn import_package(
    library: &Library,
    request: &ImportRequest,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(PackageKey, PathBuf), Error> {
    let ImportRequest { path, name, file, pooling } = request;
    if file.is_some() || pooling.is_some() {
        let message =
            format!("--file and --pooling are for ONNX exports, and {} is a package", path.display());
        return Err(Error::invalid("path", message));
    }
    let UnpackedPackage { staging, files } = library.store.unpack_package(path, progress, cancel.flag())?;
    let found = package::stated_key(staging.path()).map_err(Error::io("read the manifest in", path))?;
    let mut manifest = package::read_manifest(staging.path(), &found)?;
    let expected = manifest.files.len() + 1;
    if files.len() != expected {
        let reason =
            format!("{} has {} files, and its manifest states {expected}", path.display(), files.len());
        return Err(package::bad_package(&found, reason));
    }
    for (file, stated) in &manifest.files {
        if let Some(unpacked) = files.get(file).filter(|unpacked| *unpacked != stated) {
            let message =
                format!("{file} has SHA-256 {}, but its manifest states {}", unpacked.sha256, stated.sha256);
            return Err(package::bad_package(&found, message));
        }
    }
    package::check(staging.path(), &found)?;

    let key = PackageKey { name: name.clone().unwrap_or_else(|| found.name.clone()), ..found.clone() };
    library.check_name(&key.name, Some(&found.name), &manifest.provenance.source)?;
    if key != found {
        manifest.name = key.name.clone();
        add_files(staging.path(), &mut manifest, &[])?;
    }
    let lock_name = format!("compile-{}-{}", key.name.file_stem(), key.scheme);
    let _lock = library.store.lock(&lock_name, progress, cancel.flag())?;
    let folder = staging.into_package(&key.name, key.scheme).commit()?;
    Ok((key, folder))
}

/// Runs a new package in a folder before it is kept.
pub(crate) type TrialRun<'a> = &'a dyn Fn(&PackageKey, &Path) -> Result<(), Error>;

/// Imports an export that passes the trial run. Returns the key and the folder of the package.
pub(crate) fn import(
    library: &Library,
    request: &ImportRequest,
    trial: TrialRun<'_>,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(PackageKey, PathBuf), Error> {
    if is_package_file(&request.path) {
        return import_package(library, request, progress, cancel);
    }
    let voice = VoiceFiles::find(&request.path, request.file.as_deref());
    let name = match (&request.name, voice.as_ref().and_then(VoiceFiles::name)) {
        (Some(name), _) => name.clone(),
        (None, Some(file)) => model_name(&file)?,
        (None, None) => import_name(&import::folder(&request.path))?,
    };
    let folder = import::folder(&request.path);
    check_links(&folder)?;
    let path = std::path::absolute(&request.path).map_err(Error::io("find", &request.path))?;
    let source = format!("local {}", path.display());
    library.check_name(&name, None, &source)?;

    let provenance = || Provenance {
        source: source.clone(),
        checkpoint: BTreeMap::new(),
        license: None,
        compiler: format!("narthex {}", env!("CARGO_PKG_VERSION")),
    };
    if let Some(files) = &voice {
        let english = english_files::folder(library, files, progress, cancel)?;
        let import = SpeechImport { library, request, name: &name, what: "a voice" };
        return import.run(trial, |out| {
            let (name, file, english) = (name.clone(), request.file.as_deref(), english.as_deref());
            let job = VoiceJob { files, file, english, name, out, provenance: provenance(), progress };
            voice::import(job, cancel.flag())
        });
    }
    if let Some(files) = &TranscriberFiles::find(&request.path, request.file.as_deref()) {
        let import = SpeechImport { library, request, name: &name, what: "a model that transcribes speech" };
        return import.run(trial, |out| {
            let job = TranscriberJob { files, name: name.clone(), out, provenance: provenance() };
            transcriber::import(job, cancel.flag())
        });
    }
    let intact = |error| check_digests(&folder, cancel.flag()).map_or_else(Error::from, |()| error);
    let export = open(request).map_err(intact)?;
    if let Some(bound) = export.bound() {
        let note = format!("The export contains {}, which runs only on {}.", bound.holds, bound.device);
        progress.event(Progress::Note(note));
    }

    for note in export.notes() {
        progress.event(Progress::Note(note.clone()));
    }
    let key = PackageKey { name: name.clone(), scheme: export.scheme() };
    let lock_name = format!("compile-{}-{}", name.file_stem(), key.scheme);
    let _lock = library.store.lock(&lock_name, progress, cancel.flag())?;
    let staging = library.store.stage_package(&name, key.scheme)?;
    let compiler = format!("narthex {}", env!("CARGO_PKG_VERSION"));
    let job = ImportJob { name, out: staging.path(), source, compiler };
    export.write(job, progress, cancel.flag()).map_err(|error| intact(error.into()))?;
    trial(&key, staging.path()).map_err(intact)?;
    Ok((key, staging.commit()?))
}

/// Import of a voice, or of a model that transcribes speech.
struct SpeechImport<'a> {
    library: &'a Library,
    request: &'a ImportRequest,
    /// Name of the new package.
    name: &'a ModelName,
    /// Kind of the model in words.
    what: &'static str,
}

impl SpeechImport<'_> {
    /// Keeps the package that `write` writes to a folder, if it passes the trial run.
    fn run(
        self,
        trial: TrialRun<'_>,
        write: impl FnOnce(&Path) -> Result<Manifest, CompileError>,
    ) -> Result<(PackageKey, PathBuf), Error> {
        let Self { library, request, name, what } = self;
        if request.pooling.is_some() {
            let message =
                format!("--pooling is for embedding models, and {} is {what}", request.path.display());
            return Err(Error::invalid("pooling", message));
        }

        let key = PackageKey { name: name.clone(), scheme: DEFAULT_SCHEME };
        let staging = library.store.stage_package(name, key.scheme)?;
        write(staging.path())?;
        trial(&key, staging.path())?;
        Ok((key, staging.commit()?))
    }
}

/// Opens the export. A checkpoint in its place has an error of its own.
fn open(request: &ImportRequest) -> Result<Import, Error> {
    match import::open(&request.path, request.file.as_deref(), request.pooling) {
        Err(_) if holds_checkpoint_alone(&request.path) => {
            let path = request.path.display();
            let message =
                format!("path: {path} contains a checkpoint and no ONNX graph; try `narthex compile {path}`");
            Err(Error::Invalid { param: "path", message })
        }
        Err(_) if is_file_of_another_kind(&request.path) => {
            let message = format!(
                "path: expected a folder with an ONNX export or an .onnx file, found the file {}",
                request.path.display()
            );
            Err(Error::Invalid { param: "path", message })
        }
        found => Ok(found?),
    }
}

/// Returns whether a path is a file that is not a graph.
fn is_file_of_another_kind(path: &Path) -> bool {
    path.is_file() && !has_extension(path, "onnx")
}

/// Returns whether a path holds a checkpoint's weights and no graph.
fn holds_checkpoint_alone(path: &Path) -> bool {
    let files: Vec<PathBuf> = match std::fs::read_dir(path) {
        Ok(entries) => entries.filter_map(Result::ok).map(|entry| entry.path()).collect(),
        Err(_) => vec![path.to_owned()],
    };
    let has_graph =
        graph_files(path).is_ok_and(|graphs| graphs.iter().any(|graph| has_extension(graph, "onnx")));
    !has_graph && files.iter().any(|file| has_extension(file, "safetensors") || has_extension(file, "gguf"))
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}
