//! The crate's error.

use std::{io, path::PathBuf};

use narthex_files::environment;
use narthex_graph::onnx::files::OnnxFileError;

/// Reason why a model could not be checked or fixed.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The model could not be read.
    #[error(transparent)]
    Open(#[from] OnnxFileError),
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The fixes could not be applied.
    #[error("cannot write the fixed model: {reason}")]
    CannotFix {
        /// Description of the problem.
        reason: String,
    },
}

impl CheckError {
    /// Returns the next step for the user, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Open(error) => error.hint(),
            Self::Write { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                Some("choose a folder without this file; --fix does not overwrite files".to_owned())
            }
            Self::Write { source, .. } => environment::hint(source).map(str::to_owned),
            Self::CannotFix { .. } => None,
        }
    }
}
