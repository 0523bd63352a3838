//! What can go wrong between a package and a running session.

use std::path::PathBuf;

/// Why a device cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The library could not be loaded.
    #[error("ONNX Runtime cannot be loaded from {path}: {reason}")]
    Load {
        /// The library.
        path: PathBuf,
        /// The loader's reason.
        reason: String,
    },
    /// Another library is loaded already; a process has one.
    #[error("ONNX Runtime is loaded from {loaded} already; a process cannot load {wanted} too")]
    AlreadyLoaded {
        /// The one in use.
        loaded: PathBuf,
        /// The one asked for.
        wanted: PathBuf,
    },
    /// Telemetry was not switched off before the library was loaded.
    #[error("ORT_DISABLE_TELEMETRY is not 1; call `disable_telemetry` first in `main`")]
    TelemetryOn,
    /// ONNX Runtime refused something.
    #[error("ONNX Runtime failed to {what}: {message}")]
    Ort {
        /// What was asked of it.
        what: &'static str,
        /// Its message.
        message: String,
    },
    /// The package is not one that this executor runs.
    #[error("the package cannot be run: expected {expected}, found {found}")]
    Package {
        /// What the executor needs.
        expected: String,
        /// What the manifest says.
        found: String,
    },
    /// A file of the package could not be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
}

impl DeviceError {
    /// The next step, where one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Load { .. } => Some("install it with `narthex runtime install cpu`".to_owned()),
            Self::Package { .. } | Self::Read { .. } => {
                Some("compile the model again with `narthex compile`".to_owned())
            }
            _ => None,
        }
    }
}
