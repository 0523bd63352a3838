//! Reasons why a checkpoint is refused.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Result of reading or writing a checkpoint.
pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// Reason why a checkpoint was refused.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file does not conform to its format.
    #[error("{path} is malformed: expected {expected}, found {found}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Content that the format requires.
        expected: String,
        /// Content of the file.
        found: String,
    },
    /// A weight is missing.
    #[error("{path} has no tensor for {name}")]
    MissingTensor {
        /// The file or folder.
        path: PathBuf,
        /// The canonical name, with the file's own name for it if that differs.
        name: String,
    },
    /// A weight's shape differs from the configuration.
    #[error("tensor {name} has the wrong shape: expected {expected:?}, found {found:?}")]
    WrongShape {
        /// The canonical name, with the file's own name for it if that differs.
        name: String,
        /// Shape according to the configuration; of the file's whole tensor if the weight is a part of it.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A weight has fewer or more bytes than its shape and encoding require.
    #[error(
        "tensor {name} has the wrong size: expected {expected} bytes, found {found}; fetch the file again"
    )]
    WrongSize {
        /// The canonical name, with the file's own name for it if that differs.
        name: String,
        /// Number of bytes for the shape and the encoding.
        expected: usize,
        /// Number of bytes in the file.
        found: usize,
    },
    /// A weight has an infinite or NaN value.
    #[error("tensor {name} contains {found}: expected finite numbers; download the checkpoint again")]
    NotFinite {
        /// The canonical name, with the file's own name for it if that differs.
        name: String,
        /// The first such value.
        found: f32,
    },
    /// An error about a weight or a setting, with its file.
    #[error("{path}: {what}")]
    InFile {
        /// The file.
        path: PathBuf,
        /// The error.
        what: Box<CheckpointError>,
    },
    /// The files do not state the pooling of an embedding model.
    #[error(
        "{path} has no 1_Pooling/config.json or key for the pooling: expected how an embedding model makes one vector of \
         the rows of a text"
    )]
    NoPooling {
        /// A file of the model.
        path: PathBuf,
    },
    /// The model's class or family is not supported.
    #[error("unsupported architecture: found {found}, expected one of {}", expected.join(", "))]
    Architecture {
        /// Supported classes or families.
        expected: Vec<&'static str>,
        /// Class or family that the checkpoint states.
        found: String,
    },
    /// Well-formed content that Narthex does not support.
    #[error("unsupported {what}: found {found}, expected {expected}")]
    Unsupported {
        /// Name of the setting.
        what: String,
        /// Supported values.
        expected: String,
        /// Value of the checkpoint.
        found: String,
    },
}

impl CheckpointError {
    /// Returns the error with the file that it is about, unless it already names one.
    pub(crate) fn in_file(self, path: &Path) -> Self {
        match self {
            Self::Read { .. }
            | Self::Malformed { .. }
            | Self::MissingTensor { .. }
            | Self::NoPooling { .. }
            | Self::InFile { .. } => self,
            Self::WrongShape { .. }
            | Self::WrongSize { .. }
            | Self::NotFinite { .. }
            | Self::Architecture { .. }
            | Self::Unsupported { .. } => Self::InFile { path: path.to_owned(), what: Box::new(self) },
        }
    }

    /// Returns the error with `called` as the name of the wrong tensor.
    pub(crate) fn of_tensor(mut self, called: String) -> Self {
        if let Self::WrongShape { name, .. } | Self::WrongSize { name, .. } | Self::NotFinite { name, .. } =
            &mut self
        {
            *name = called;
        }
        self
    }

    /// Returns the error without the surrounding file.
    pub fn what(&self) -> &Self {
        match self {
            Self::InFile { what, .. } => what.what(),
            other => other,
        }
    }

    /// Returns the error with another name of its file, for files that were fetched in part and stored under another
    /// name.
    pub fn renamed(mut self, name: impl Fn(&Path) -> PathBuf) -> Self {
        match &mut self {
            Self::Read { path, .. }
            | Self::Malformed { path, .. }
            | Self::MissingTensor { path, .. }
            | Self::NoPooling { path }
            | Self::InFile { path, .. } => *path = name(path),
            Self::WrongShape { .. }
            | Self::WrongSize { .. }
            | Self::NotFinite { .. }
            | Self::Architecture { .. }
            | Self::Unsupported { .. } => {}
        }
        self
    }
}
