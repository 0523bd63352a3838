//! Variant B: graphs of fixed shapes, on an NPU, on an emulation of one, or on the CPU as their own reference.
//!
//! [`FixedExecutor`] implements the engine's port for decoders, [`FixedEncoder`] for encoders. The graphs know neither
//! positions nor lengths: this side writes rotary angles and masks, and keeps the cache.

mod cache;
mod decoder;
mod encoder;
mod graph;
mod step;

use std::path::Path;

use narthex_spec::manifest::{GraphEntry, Manifest};

pub use decoder::{FixedExecutor, FixedOptions};
pub use encoder::FixedEncoder;

use crate::{
    ep::Device,
    error::DeviceError,
    ort::{Session, SessionOptions},
    package, precompile,
    runtime::Runtime,
};

/// What is added to the score of a token that must not be seen: enough to make its weight 0 in half precision, and
/// little enough not to overflow it.
const HIDDEN: f32 = -10_000.0;

/// Where a package's fixed graphs are loaded.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The device.
    pub device: &'a Device,
    /// Threads on the CPU; 0 takes one per physical core.
    pub threads: usize,
    /// Which form of each graph is loaded.
    pub form: Form<'a>,
}

/// Where a decoder's parts are loaded.
#[derive(Debug, Clone, Copy)]
pub struct Apart<'a> {
    /// The layers.
    pub layers: Place<'a>,
    /// The head.
    pub head: Place<'a>,
}

impl<'a> From<Place<'a>> for Apart<'a> {
    fn from(place: Place<'a>) -> Self {
        Self { layers: place, head: place }
    }
}

/// The form in which a graph is loaded.
#[derive(Debug, Clone, Copy)]
pub enum Form<'a> {
    /// As ONNX; the provider compiles it on the spot.
    Graph,
    /// As the contexts for this target, which the package holds.
    Context(&'a narthex_spec::Target),
    /// As the contexts in this folder, each under its graph's file name.
    Folder(&'a Path),
}

/// Loads a graph; all of it must go to the device.
fn open(
    runtime: &Runtime,
    package: &Path,
    manifest: &Manifest,
    entry: &GraphEntry,
    place: Place<'_>,
) -> Result<Session, DeviceError> {
    let path = match place.form {
        Form::Folder(folder) => package::path(folder, &entry.file)?,
        form => package::path(package, file(manifest, entry, form)?)?,
    };
    let threads = crate::inventory::threads(place.threads);
    let session = Session::open(runtime, &path, SessionOptions::on(place.device, threads))?;
    precompile::whole(runtime, &path, place.device, session.placement())?;
    Ok(session)
}

fn file<'a>(manifest: &'a Manifest, entry: &'a GraphEntry, form: Form<'_>) -> Result<&'a str, DeviceError> {
    let Form::Context(target) = form else { return Ok(&entry.file) };
    let context = manifest.contexts.iter().find(|c| c.target == *target && c.graph == entry.file);
    let missing = || DeviceError::package(format!("a context of {} for {target}", entry.file), "none");
    Ok(&context.ok_or_else(missing)?.file)
}
