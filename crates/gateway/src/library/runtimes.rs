//! ONNX Runtime and its providers in the store.

use std::path::PathBuf;

use narthex_catalog::{
    runtimes::{self, RuntimeKind},
    store::Store,
};
use serde::Serialize;

use crate::error::Error;

/// A runtime that this version supports.
#[derive(Debug, Clone, Serialize)]
pub struct RuntimeListing {
    /// Name, such as `cpu` or `qnn`.
    pub kind: String,
    /// Pinned version.
    pub version: String,
    /// Folder of the installed runtime.
    pub installed: Option<PathBuf>,
    /// Reason why the runtime cannot be installed on this machine.
    pub refusal: Option<String>,
}

/// Lists every runtime that this version supports.
pub(crate) fn list_runtimes(store: &Store) -> Vec<RuntimeListing> {
    runtimes::all()
        .map(|package| RuntimeListing {
            kind: package.kind.to_string(),
            version: package.version.clone(),
            installed: runtimes::locate(store, package.kind).map(|info| info.dir),
            refusal: runtimes::pinned(package.kind).err().map(|error| error.to_string()),
        })
        .collect()
}

/// Returns the runtime with this name.
pub(crate) fn parse_runtime(kind: &str) -> Result<RuntimeKind, Error> {
    runtimes::parse(kind).map_err(|error| Error::Invalid { param: "runtime", message: error.to_string() })
}
