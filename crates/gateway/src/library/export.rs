//! `narthex export`: a model as a folder that others load.

use std::path::PathBuf;

use narthex_catalog::{fetch, resolve::ModelRef};
use narthex_compile::export::{self, ExportJob, GROUPS, QuarkJob};
use narthex_spec::ProgressSink;

use crate::{
    cancel::Cancel,
    error::Error,
    gateway::{Gateway, Inner},
    library::{models, names::split_scheme},
};

/// What a model is exported as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// A folder for onnxruntime-genai, of an installed package.
    Genai,
    /// A folder as AMD Quark writes it, for Ryzen AI's `model_generate`, of a checkpoint.
    Quark,
}

/// What is exported, and where to.
#[derive(Debug, Clone)]
pub struct ExportRequest {
    /// The model: a package's name, or what a compile takes.
    pub model: String,
    /// What it becomes.
    pub format: ExportFormat,
    /// Columns that share a scale and a zero point in [`ExportFormat::Quark`]; `None` takes 128.
    pub group: Option<usize>,
    /// A folder that is not there yet, or is empty.
    pub out: PathBuf,
}

impl Gateway {
    /// Writes a model into a folder.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] for packages; [`Error::Catalog`] for checkpoints that cannot be had; [`Error::Compile`] for
    /// what the format has no place for.
    pub fn export(
        &self,
        request: &ExportRequest,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        match request.format {
            ExportFormat::Genai => genai(self.inner(), request),
            ExportFormat::Quark => quark(self.inner(), request, progress, cancel),
        }
    }
}

fn genai(inner: &Inner, ExportRequest { model, group, out, .. }: &ExportRequest) -> Result<(), Error> {
    if group.is_some() {
        let message = "a package is exported with the groups that it has; --group goes with --format quark";
        return Err(Error::Invalid { param: "group", message: message.to_owned() });
    }
    let key = models::installed_key(inner, model)?;
    let manifest = models::manifest(inner, &key)?;
    let package = inner.store.package(&key.name, key.scheme);
    let package = package.ok_or_else(|| Error::NotInstalled { name: key.name.clone() })?;
    Ok(export::genai(&ExportJob { package: &package, manifest: &manifest, out })?)
}

/// A package's weights are rounded already, so the checkpoint is read anew.
fn quark(
    inner: &Inner,
    ExportRequest { model, group, out, .. }: &ExportRequest,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(), Error> {
    if let (model, Some(scheme)) = split_scheme(model) {
        let message =
            format!("a quark export is made from the checkpoint, in 4 bits; name {model} without @{scheme}");
        return Err(Error::Invalid { param: "model", message });
    }
    let group = group.unwrap_or(GROUPS[0]);
    if !GROUPS.contains(&group) {
        let message = format!("expected a group of {GROUPS:?} columns, found {group}");
        return Err(Error::Invalid { param: "group", message });
    }
    let resolved = ModelRef::parse(model)?.resolve(&inner.catalog)?;
    let files = fetch::fetch(&inner.store, &resolved, progress, cancel.flag())?;
    let job = QuarkJob { checkpoint: &files.path, name: resolved.name.as_str(), group, out };
    Ok(export::quark(&job, progress, cancel.flag())?)
}
