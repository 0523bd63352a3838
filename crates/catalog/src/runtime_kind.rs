//! The runtimes that can be installed, their pinned versions, and the platforms that have wheels for them.

use serde::Serialize;

/// A runtime that can be installed.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", ascii_case_insensitive)]
#[strum(parse_err_ty = UnknownRuntime, parse_err_fn = UnknownRuntime::new)]
pub enum RuntimeKind {
    /// ONNX Runtime itself, with its CPU kernels.
    Cpu,
    /// Plugin for Qualcomm NPUs.
    Qnn,
    /// Plugin for Intel NPUs, GPUs and CPUs.
    OpenVino,
    /// Plugin for any GPU through WebGPU.
    WebGpu,
    /// ONNX Runtime built for any DirectX 12 device.
    DirectMl,
    /// ONNX Runtime built for NVIDIA GPUs.
    Cuda,
}

/// How a runtime's library is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The library is an ONNX Runtime.
    Core,
    /// The library is a provider that an ONNX Runtime loads.
    Plugin,
}

/// A string that names no runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown runtime {found:?}: expected one of cpu, qnn, openvino, webgpu, directml, cuda")]
pub struct UnknownRuntime {
    /// The string, shortened.
    pub found: String,
}

impl UnknownRuntime {
    fn new(text: &str) -> Self {
        Self { found: text.chars().take(80).collect() }
    }
}

impl RuntimeKind {
    /// Every runtime, in the order in which they are listed to users.
    pub const ALL: [Self; 6] =
        [Self::Cpu, Self::Qnn, Self::OpenVino, Self::WebGpu, Self::DirectMl, Self::Cuda];

    /// Returns the name used on the command line and in JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the package that its wheels belong to.
    pub const fn package(self) -> &'static str {
        match self {
            Self::Cpu => "onnxruntime",
            Self::Qnn => "onnxruntime-qnn",
            Self::OpenVino => "onnxruntime-ep-openvino",
            Self::WebGpu => "onnxruntime-ep-webgpu",
            Self::DirectMl => "onnxruntime-directml",
            Self::Cuda => "onnxruntime-gpu",
        }
    }

    /// Returns the pinned version, the same on every platform.
    pub const fn version(self) -> &'static str {
        match self {
            Self::Cpu | Self::Cuda => "1.31.1",
            Self::Qnn => "2.7.0",
            Self::OpenVino => "1.8.1",
            Self::WebGpu => "0.4.0",
            Self::DirectMl => "1.24.4",
        }
    }

    /// Returns how its library is loaded.
    pub fn role(self) -> Role {
        match self {
            Self::Cpu | Self::DirectMl | Self::Cuda => Role::Core,
            Self::Qnn | Self::OpenVino | Self::WebGpu => Role::Plugin,
        }
    }

    /// Returns what the machine must have besides the runtime, if anything.
    pub fn needs(self) -> Option<&'static str> {
        match self {
            Self::Cuda => Some("an NVIDIA driver, CUDA 13 and cuDNN 9, which this wheel does not contain"),
            Self::Qnn => Some("Qualcomm's NPU driver to run on an NPU; compiling for one needs nothing more"),
            Self::OpenVino => Some("Intel's NPU or GPU driver to run on those devices"),
            Self::DirectMl => Some("Windows 10 version 1903 or later with a DirectX 12 driver"),
            Self::Cpu | Self::WebGpu => None,
        }
    }
}

/// An operating system and processor for which runtime wheels are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Platform {
    /// Linux on x86-64, with glibc.
    LinuxX64,
    /// Linux on arm64, with glibc.
    LinuxArm64,
    /// Windows on x64.
    WindowsX64,
    /// Windows on arm64.
    WindowsArm64,
    /// macOS on arm64.
    MacArm64,
}

impl Platform {
    /// Every platform.
    pub const ALL: [Self; 5] =
        [Self::LinuxX64, Self::LinuxArm64, Self::WindowsX64, Self::WindowsArm64, Self::MacArm64];

    /// Returns the platform with these names, which are those of [`std::env::consts`].
    pub(crate) fn of(os: &str, arch: &str) -> Option<Self> {
        match (os, arch) {
            ("linux", "x86_64") => Some(Self::LinuxX64),
            ("linux", "aarch64") => Some(Self::LinuxArm64),
            ("windows", "x86_64") => Some(Self::WindowsX64),
            ("windows", "aarch64") => Some(Self::WindowsArm64),
            ("macos", "aarch64") => Some(Self::MacArm64),
            _ => None,
        }
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::LinuxX64 => "Linux x86-64",
            Self::LinuxArm64 => "Linux arm64",
            Self::WindowsX64 => "Windows x64",
            Self::WindowsArm64 => "Windows arm64",
            Self::MacArm64 => "macOS arm64",
        })
    }
}
