//! Export of a model to a folder for other runtimes.

use std::path::PathBuf;

use narthex_catalog::{
    fetch,
    resolve::ModelRef,
    store::{self, PACKAGE_EXTENSION},
};
use narthex_compile::export::{self, ExportJob, GROUPS, QuarkJob};
use narthex_spec::ProgressSink;

use crate::{
    cancel::Cancel,
    error::Error,
    library::{Library, package, package_key::split_scheme},
    threads::{self, ComputingThreads},
};

/// Format of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// Folder for onnxruntime-genai, made from an installed package.
    Genai,
    /// One file with an installed package, which [`Gateway::import`](crate::Gateway::import) reads on another machine.
    Package,
    /// Folder in the format of AMD Quark, for Ryzen AI's `model_generate`, made from a checkpoint.
    Quark,
}

/// Export of a model.
///
/// ```
/// use narthex_gateway::{Cancel, Config, Error, ExportFormat, ExportRequest, Gateway};
/// use narthex_spec::progress::Quiet;
///
/// # fn main() -> Result<(), Error> {
/// # let home = tempfile::tempdir().unwrap();
/// # let config = Config { home: Some(home.path().to_owned()), ..Config::standard() };
/// let gateway = Gateway::open(config)?;
/// let request = ExportRequest {
///     model: "smollm2:135m@w4".to_owned(),
///     format: ExportFormat::Genai,
///     group: None,
///     out: "exports/smollm2".into(),
/// };
/// // This format is made from a package, which must be installed.
/// let error = gateway.export(&request, &Quiet, &Cancel::new()).unwrap_err();
/// assert!(matches!(error, Error::NotInstalled { .. }), "{error}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ExportRequest {
    /// Name of a package, or for [`ExportFormat::Quark`] any model that can be compiled.
    pub model: String,
    /// Format.
    pub format: ExportFormat,
    /// Number of columns that share a scale and a zero point in [`ExportFormat::Quark`]; 128 by default.
    pub group: Option<usize>,
    /// Output folder, which must be missing or empty; for [`ExportFormat::Package`] a file, which must be missing.
    pub out: PathBuf,
}

/// Writes a model into a folder or a file.
pub(crate) fn export(
    library: &Library,
    request: &ExportRequest,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(), Error> {
    match request.format {
        ExportFormat::Genai => genai(library, request, progress, cancel),
        ExportFormat::Package => whole_package(library, request, progress, cancel),
        ExportFormat::Quark => quark(library, request, progress, cancel),
    }
}

/// Refuses groups for exports that are made from a package.
fn refuse_group(request: &ExportRequest) -> Result<(), Error> {
    if request.group.is_none() {
        return Ok(());
    }
    let message = "--group applies only to --format quark; a package is exported with its own groups";
    Err(Error::Invalid { param: "group", message: message.to_owned() })
}

fn whole_package(
    library: &Library,
    request: &ExportRequest,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(), Error> {
    refuse_group(request)?;
    let ExportRequest { model, out, .. } = request;
    if out.extension().is_none_or(|found| found != PACKAGE_EXTENSION) {
        let message =
            format!("expected a file name that ends in .{PACKAGE_EXTENSION}, found {}", out.display());
        return Err(Error::invalid("out", message));
    }
    let key = library.installed_key(model)?;
    let folder = library.package_folder(&key)?;
    let manifest = package::verified_manifest(&library.store, &key, &folder, progress, cancel)?;
    Ok(store::pack(&folder, &manifest.files, out, progress, cancel.flag())?)
}

fn genai(
    library: &Library,
    request: &ExportRequest,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(), Error> {
    refuse_group(request)?;
    let ExportRequest { model, out, .. } = request;
    let key = library.installed_key(model)?;
    let package = library.package_folder(&key)?;
    let manifest = package::verified_manifest(&library.store, &key, &package, progress, cancel)?;
    Ok(export::genai(&ExportJob { package: &package, manifest: &manifest, out })?)
}

/// Exports from the checkpoint, because a package's weights are already quantised.
fn quark(
    library: &Library,
    ExportRequest { model, group, out, .. }: &ExportRequest,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(), Error> {
    if let (model, Some(scheme)) = split_scheme(model) {
        let message =
            format!("a quark export is made from the checkpoint in 4 bits; name {model} without @{scheme}");
        return Err(Error::Invalid { param: "model", message });
    }
    let group = group.unwrap_or(GROUPS[0]);
    if !GROUPS.contains(&group) {
        let message = format!("expected a group of {GROUPS:?} columns, found {group}");
        return Err(Error::Invalid { param: "group", message });
    }
    let resolved = ModelRef::parse(model)?.resolve(&library.catalog)?;
    threads::check(ComputingThreads::Cores)?;
    let files = fetch::fetch(&library.store, &resolved, progress, cancel.flag())?;
    let job = QuarkJob { checkpoint: &files.path, name: resolved.name.as_str(), group, out };
    Ok(export::quark(&job, progress, cancel.flag())?)
}
