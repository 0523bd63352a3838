//! The door for fuzz targets: a package, up to where ONNX Runtime would read its graph. No part of the product has it.

use std::path::Path;

use narthex_device::fuzzing::read_package;
use narthex_spec::{ModelName, Scheme};

use crate::{
    Error,
    library::{package, package_key::PackageKey},
};

/// Reads the manifest of the package in `folder`, and all that an executor reads because of it.
///
/// # Errors
/// [`Error`] for a package that is not whole.
pub fn open_package(folder: &Path, name: &ModelName) -> Result<(), Error> {
    let key = PackageKey { name: name.clone(), scheme: Scheme::W8 };
    let manifest = package::read_manifest(folder, &key)?;
    Ok(read_package(folder, &manifest)?)
}
