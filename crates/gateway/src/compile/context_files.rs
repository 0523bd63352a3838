//! Files of the graphs that a vendor's compiler makes for a package.

use std::{fs, path::Path};

use narthex_graph::{Graph, onnx::files::MAX_FILE_BYTES};
use narthex_spec::manifest::Manifest;

use crate::error::Error;

/// Reads a graph of a package.
pub(super) fn decode(path: &Path, manifest: &Manifest) -> Result<Graph, Error> {
    let bytes = narthex_files::read(path, MAX_FILE_BYTES).map_err(Error::io("read", path))?;
    Graph::decode(&bytes).map_err(|error| bad_package(manifest, format!("{}: {error}", path.display())))
}

/// Returns the error for a package with a wrong graph.
pub(super) fn bad_package(manifest: &Manifest, reason: String) -> Error {
    Error::BadPackage { name: manifest.name.clone(), scheme: manifest.recipe.scheme, reason }
}

/// Lists the files in a folder, relative to the package.
pub(super) fn list_files(folder: &Path, stem: &str) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let entry = entry.map_err(Error::io("list", folder))?;
        names.push(format!("{stem}/{}", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names)
}
