//! Errors in opening packages and sessions.

use std::path::PathBuf;

use narthex_engine::executor::StepError;
use narthex_spec::{DeviceName, Ep};

/// Fix for a missing CUDA library.
pub(crate) const INSTALL_CUDA: &str =
    "install CUDA 13 and cuDNN 9, or name the folder of their libraries in LD_LIBRARY_PATH";

/// Error of a device or of ONNX Runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The library could not be loaded.
    #[error("ONNX Runtime cannot be loaded from {path}: {reason}")]
    Load {
        /// Path of the library.
        path: PathBuf,
        /// Reason that the loader gives.
        reason: String,
    },
    /// Another library is already loaded. A process can load only one.
    #[error("ONNX Runtime is already loaded from {loaded}; a process cannot also load {wanted}")]
    AlreadyLoaded {
        /// Path of the loaded library.
        loaded: PathBuf,
        /// Path of the requested library.
        wanted: PathBuf,
    },
    /// Telemetry was not switched off before the library was loaded.
    #[error("ORT_DISABLE_TELEMETRY is not 1; call `disable_telemetry` first in `main`")]
    TelemetryOn,
    /// ONNX Runtime returned an error.
    #[error("ONNX Runtime failed to {what}: {message}")]
    Ort {
        /// Operation that failed.
        what: &'static str,
        /// Message of ONNX Runtime.
        message: String,
    },
    /// A provider found no device that it can use, although its library is loaded.
    #[error("{device} cannot be used: {reason}")]
    Unusable {
        /// Description of the device.
        device: &'static str,
        /// Reason that the provider gives.
        reason: String,
    },
    /// The runtime does not offer a device.
    #[error("ONNX Runtime offers no device for {device} on this machine")]
    NoDevice {
        /// Description of the device.
        device: &'static str,
    },
    /// The device does not run graphs of this variant.
    #[error("{device} does not run graphs with symbolic shapes")]
    Variant {
        /// Description of the device.
        device: &'static str,
    },
    /// The device computes some models wrongly.
    #[error("{device} ignores {ignored} of this model")]
    Wrong {
        /// Description of the device.
        device: &'static str,
        /// Part of the computation that it leaves out.
        ignored: &'static str,
    },
    /// Models for speech run on the CPU alone.
    #[error("{device} does not run models that transcribe speech; this version runs them on the CPU")]
    Speech {
        /// Description of the device.
        device: &'static str,
    },
    /// Models with recurrent states run on the CPU alone.
    #[error("{device} does not run models with recurrent states; this version runs them on the CPU")]
    States {
        /// Description of the device.
        device: &'static str,
    },
    /// The package was made for another device.
    #[error("the package contains {holds}, which runs only on {to}")]
    Bound {
        /// Description of its contents.
        holds: String,
        /// Description of the device that runs it.
        to: String,
    },
    /// A provider's library cannot be used.
    #[error("the {ep} provider cannot be loaded from {path}: {reason}")]
    Plugin {
        /// Provider.
        ep: Ep,
        /// Path of its library.
        path: PathBuf,
        /// Reason that ONNX Runtime gives.
        reason: String,
    },
    /// A graph that must run on a device as a whole has nodes that cannot.
    #[error("{graph}: {} of {nodes} nodes cannot run on {ep}: {}", refused.len(), examples(refused))]
    NotWhole {
        /// File name of the graph.
        graph: String,
        /// Provider of the device.
        ep: Ep,
        /// Total number of nodes.
        nodes: usize,
        /// Nodes that the provider refused.
        refused: Vec<RefusedNode>,
    },
    /// The caller cancelled the operation.
    #[error("interrupted")]
    Cancelled,
    /// This executor cannot run the package.
    #[error("the package cannot be run: expected {expected}, found {found}")]
    Package {
        /// Requirement of the executor.
        expected: String,
        /// Value in the manifest.
        found: String,
    },
    /// An option is zero that must be at least 1.
    #[error("the executor's {what} must be at least 1, found 0")]
    Option {
        /// Name of the option.
        what: &'static str,
    },
    /// A file of the package could not be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Reason that the system gives.
        reason: String,
    },
}

/// A node that a provider refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedNode {
    /// Path of the node.
    pub name: String,
    /// Operator type.
    pub op: String,
    /// Reason that the provider gives, if any.
    pub reason: Option<String>,
}

/// Returns the names and operators of the first few nodes.
fn examples(refused: &[RefusedNode]) -> String {
    let examples: Vec<String> =
        refused.iter().take(3).map(|node| format!("{} ({})", node.name, node.op)).collect();
    examples.join(", ")
}

impl DeviceError {
    pub(crate) fn package(expected: impl ToString, found: impl ToString) -> Self {
        Self::Package { expected: expected.to_string(), found: found.to_string() }
    }

    /// Converts an error of creating a binding.
    pub(crate) fn binding(error: StepError) -> Self {
        Self::step("create a binding", error)
    }

    /// Converts a step's error outside of a step; `what` is the operation that failed.
    pub(crate) fn step(what: &'static str, error: StepError) -> Self {
        let message = match error {
            StepError::Device { message } | StepError::Lost { message } => message,
            other => other.to_string(),
        };
        Self::Ort { what, message }
    }

    /// Returns the next step for the user, if there is one.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Load { .. } => {
                "unset ORT_DYLIB_PATH, or set it to an ONNX Runtime for this platform; `narthex runtime install cpu` \
                 installs one"
            }
            Self::AlreadyLoaded { .. } => "use the other library in a separate process",
            Self::TelemetryOn => "set ORT_DISABLE_TELEMETRY=1 in the environment",
            Self::Package { .. } | Self::Read { .. } => "compile the model again with `narthex compile`",
            Self::Ort { .. } => {
                "compile the model again with `narthex compile`, and report the problem if it persists"
            }
            Self::Variant { .. } => "compile the model with `--context`, which adds graphs with fixed shapes",
            Self::Speech { .. } | Self::States { .. } => "leave out --providers and --npu for this model",
            Self::Wrong { .. } => "use another device; `narthex doctor` lists those of this machine",
            Self::Bound { .. } => "load it on that device, or import an export for CPUs or GPUs",
            Self::Unusable { device, .. } if *device == DeviceName::WebGpu.describe() => {
                "install the GPU's driver for Vulkan and its loader; `vulkaninfo --summary` must list the GPU"
            }
            Self::Unusable { .. } | Self::NoDevice { .. } => {
                "`narthex doctor` lists the devices of this machine"
            }
            Self::Plugin { ep: Ep::VitisAi, .. } => {
                "set NARTHEX_VITISAI_LIBRARY to the VitisAI provider library of the installed Ryzen AI software"
            }
            Self::Plugin { ep: Ep::Cuda, .. } => INSTALL_CUDA,
            Self::Plugin { .. } => "remove it with `narthex runtime rm`, and install it again",
            Self::NotWhole { .. } => "run `narthex check` on the graph for the reasons and the remedies",
            Self::Option { .. } => "use a value of at least 1",
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
        assert!(hint(Ep::Cuda).contains("LD_LIBRARY_PATH"));
        assert!(
            hint(Ep::VitisAi).contains("NARTHEX_VITISAI_LIBRARY") && !hint(Ep::VitisAi).contains("runtime")
        );
    }
}
