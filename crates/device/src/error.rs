//! Errors between a package and a running session.

use std::path::PathBuf;

use narthex_engine::executor::StepError;
use narthex_spec::Ep;

/// Error of a device or of ONNX Runtime.
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
        /// The operation.
        what: &'static str,
        /// Its message.
        message: String,
    },
    /// The runtime does not offer a device.
    #[error("ONNX Runtime offers no device for {device} on this machine")]
    NoDevice {
        /// The device, in words.
        device: &'static str,
    },
    /// The device does not run graphs of this variant.
    #[error("{device} does not run graphs of symbolic shapes")]
    Variant {
        /// The device, in words.
        device: &'static str,
    },
    /// The package was made for another device.
    #[error("the package holds {holds}, which runs on {to} alone")]
    Bound {
        /// Its contents, in words.
        holds: String,
        /// The device that runs it, in words.
        to: String,
    },
    /// A provider's library cannot be used.
    #[error("the {ep} provider cannot be loaded from {path}: {reason}")]
    Plugin {
        /// The provider.
        ep: Ep,
        /// Its library.
        path: PathBuf,
        /// ONNX Runtime's reason.
        reason: String,
    },
    /// A graph that must run on a device as a whole does not.
    #[error("{graph}: {} of {nodes} nodes cannot run on {ep}: {}", refused.len(), examples(refused))]
    NotWhole {
        /// The graph's file.
        graph: String,
        /// The device's provider.
        ep: Ep,
        /// All nodes.
        nodes: usize,
        /// Those that the provider refused.
        refused: Vec<RefusedNode>,
    },
    /// The caller broke off.
    #[error("interrupted")]
    Cancelled,
    /// The package is not one that this executor runs.
    #[error("the package cannot be run: expected {expected}, found {found}")]
    Package {
        /// The executor's requirement.
        expected: String,
        /// The manifest's value.
        found: String,
    },
    /// An option that must not be zero is.
    #[error("the executor's {what} must be at least 1, found 0")]
    Option {
        /// Which.
        what: &'static str,
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

/// A node that a provider refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedNode {
    /// The node's path.
    pub name: String,
    /// Operator type.
    pub op: String,
    /// Why, in the provider's own words; `None` where it gives none.
    pub reason: Option<String>,
}

/// The first of some nodes, by path and operator.
fn examples(refused: &[RefusedNode]) -> String {
    let examples: Vec<String> =
        refused.iter().take(3).map(|node| format!("{} ({})", node.name, node.op)).collect();
    examples.join(", ")
}

impl DeviceError {
    pub(crate) fn package(expected: impl ToString, found: impl ToString) -> Self {
        Self::Package { expected: expected.to_string(), found: found.to_string() }
    }

    /// A step's error before there is a step.
    pub(crate) fn binding(error: StepError) -> Self {
        Self::step("make a binding", error)
    }

    /// A step's error where there is no engine.
    pub(crate) fn step(what: &'static str, error: StepError) -> Self {
        let message = match error {
            StepError::Device { message } | StepError::Lost { message } => message,
            other => other.to_string(),
        };
        Self::Ort { what, message }
    }

    /// The next step, where one is known.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Load { .. } => {
                "unset ORT_DYLIB_PATH, or name an ONNX Runtime of this platform with it; `narthex runtime install cpu` \
                 installs one"
            }
            Self::AlreadyLoaded { .. } => "use the other library in a process of its own",
            Self::TelemetryOn => "set ORT_DISABLE_TELEMETRY=1 in the environment",
            Self::Package { .. } | Self::Read { .. } => "compile the model again with `narthex compile`",
            Self::Ort { .. } => "compile the model again with `narthex compile`, and report this if it stays",
            Self::Variant { .. } => "compile the model with `--context`, which makes graphs of fixed shape",
            Self::Bound { .. } => "load it on that device, or import an export for CPUs or GPUs",
            Self::NoDevice { .. } => "`narthex doctor` says what this machine has",
            Self::Plugin { ep: Ep::VitisAi, .. } => {
                "set NARTHEX_VITISAI_LIBRARY to the VitisAI provider library of the installed Ryzen AI software"
            }
            Self::Plugin { .. } => "remove it with `narthex runtime rm`, and install it again",
            Self::NotWhole { .. } => "`narthex check` on the graph says why and what helps",
            Self::Option { .. } => "give a number of 1 or more",
            Self::Cancelled => return None,
        };
        Some(hint.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_hints_depend_on_the_origin() {
        let hint =
            |ep| DeviceError::Plugin { ep, path: "/p".into(), reason: "no".to_owned() }.hint().unwrap();
        assert!(hint(Ep::Qnn).contains("narthex runtime rm"));
        assert!(
            hint(Ep::VitisAi).contains("NARTHEX_VITISAI_LIBRARY") && !hint(Ep::VitisAi).contains("runtime")
        );
    }
}
