//! Entry point of fuzz targets: reads a package up to the point where ONNX Runtime reads its graphs.

use std::path::Path;

use narthex_device::fuzzing::read_package;
use narthex_spec::{ModelName, Scheme};

use crate::{
    Error,
    library::{package, package_key::PackageKey},
};

/// Reads the manifest of the package in `folder`, and the files that an executor reads.
///
/// # Errors
/// [`Error`] for a package that is damaged.
pub fn open_package(folder: &Path, name: &ModelName) -> Result<(), Error> {
    let key = PackageKey { name: name.clone(), scheme: Scheme::W8 };
    let manifest = package::read_manifest(folder, &key)?;
    Ok(read_package(folder, &manifest)?)
}
