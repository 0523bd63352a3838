//! Where a model can run.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// An ONNX Runtime execution provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ep {
    /// ONNX Runtime's own CPU kernels.
    Cpu,
    /// Qualcomm NPUs through QNN.
    Qnn,
    /// Intel NPUs, GPUs and CPUs through OpenVINO.
    OpenVino,
    /// Any GPU with a WebGPU adapter.
    WebGpu,
    /// Any DirectX 12 GPU or NPU.
    DirectMl,
    /// AMD XDNA NPUs.
    VitisAi,
    /// NVIDIA GPUs.
    Cuda,
    /// Apple Neural Engine and GPU.
    CoreMl,
}

impl Ep {
    /// Every provider, in the order in which they are listed to users.
    pub const ALL: [Self; 8] = [
        Self::Qnn,
        Self::OpenVino,
        Self::VitisAi,
        Self::CoreMl,
        Self::DirectMl,
        Self::Cuda,
        Self::WebGpu,
        Self::Cpu,
    ];

    /// The name used on the command line and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Qnn => "qnn",
            Self::OpenVino => "openvino",
            Self::WebGpu => "webgpu",
            Self::DirectMl => "directml",
            Self::VitisAi => "vitisai",
            Self::Cuda => "cuda",
            Self::CoreMl => "coreml",
        }
    }
}

impl fmt::Display for Ep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A string that names no execution provider.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown device {found:?}: expected one of cpu, qnn, openvino, webgpu, directml, vitisai, cuda, coreml"
)]
pub struct UnknownEp {
    /// What was given.
    pub found: String,
}

impl FromStr for Ep {
    type Err = UnknownEp;

    fn from_str(text: &str) -> Result<Self, UnknownEp> {
        let wanted = text.to_ascii_lowercase();
        Self::ALL
            .into_iter()
            .find(|ep| ep.as_str() == wanted)
            .ok_or_else(|| UnknownEp { found: text.to_owned() })
    }
}

/// What a graph is lowered for: which of the two graph variants, and for which device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// Variant A: symbolic shapes, fused attention; for the CPU, WebGPU, CUDA and DirectML.
    Dynamic,
}
