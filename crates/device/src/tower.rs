//! Graphs and tensors of the towers that read media, as a manifest states them.

use std::path::Path;

use narthex_spec::{
    DType, Variant,
    manifest::{Binding, GraphEntry, Manifest},
};

use crate::{
    ep::Device,
    error::DeviceError,
    inventory,
    ort::{Session, SessionOptions},
    package,
    runtime::Runtime,
};

/// Options of a tower in the dynamic variant.
#[derive(Debug, Clone, Copy)]
pub struct TowerOptions<'a> {
    /// Number of threads. 0 means one per physical core that this process may use.
    pub threads: usize,
    /// Folder with the packed weights that an earlier load of the package has stored.
    pub packed_weights: Option<&'a Path>,
}

/// Loads the graph of a tower in the dynamic variant.
pub(crate) fn open(
    runtime: &Runtime,
    package: &Path,
    manifest: &Manifest,
    entry: &GraphEntry,
    device: &Device,
    options: &TowerOptions<'_>,
) -> Result<Session, DeviceError> {
    package::takes_dynamic(device, manifest)?;
    let settings = SessionOptions::on(device, inventory::threads(options.threads));
    let settings = SessionOptions { packed_weights: options.packed_weights, ..settings };
    let session = Session::open(runtime, &package::path(package, &entry.file)?, settings)?;
    session.check_names(entry)?;
    Ok(session)
}

/// Returns the graph of a variant. `tower` names the tower in errors.
pub(crate) fn graph<'a>(
    graphs: &'a [GraphEntry],
    variant: Variant,
    tower: &str,
) -> Result<&'a GraphEntry, DeviceError> {
    let graph = graphs.iter().find(|graph| graph.variant == variant);
    graph.ok_or_else(|| DeviceError::package(format!("a graph of the {tower} in {variant:?} shapes"), "none"))
}

/// Returns a tensor after a check of its type, and of its shape if it is fixed. `what` names the tensor in errors.
pub(crate) fn binding<'a>(
    binding: Option<&'a Binding>,
    what: &str,
    shape: Option<&[usize]>,
) -> Result<&'a Binding, DeviceError> {
    let Some(binding) = binding else { return Err(DeviceError::package(what, "none")) };
    let has_shape = shape
        .is_none_or(|shape| binding.shape == shape.iter().map(|&extent| extent.into()).collect::<Vec<_>>());
    if binding.dtype == DType::F32 && has_shape {
        return Ok(binding);
    }
    let expected = shape.map_or_else(String::new, |shape| format!(" {shape:?}"));
    let found = format!("{:?} {:?}", binding.dtype, binding.shape);
    Err(DeviceError::package(format!("{what} in f32{expected}"), found))
}
