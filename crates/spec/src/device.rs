//! Execution providers and devices, by name. [`DeviceName::spec`] returns a device's row in the table of devices.
//!
//! All facts about a provider or a device are in its row, in `device/table.rs`. A new execution provider is a variant of
//! [`Ep`] and a variant of [`DeviceName`], each with its row, and a file of session options in the device crate, which
//! also detects the device.

mod table;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::{
    Scheme, UnknownName, Variant,
    name::{parse_by_name, string_form},
};

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

    /// Returns the provider's main device, which has the provider's own name.
    pub const fn device(self) -> DeviceName {
        match self {
            Self::Cpu => DeviceName::Cpu,
            Self::Qnn => DeviceName::Qnn,
            Self::OpenVino => DeviceName::OpenVino(OpenVinoDevice::Npu),
            Self::WebGpu => DeviceName::WebGpu,
            Self::DirectMl => DeviceName::DirectMl,
            Self::VitisAi => DeviceName::VitisAi,
            Self::Cuda => DeviceName::Cuda,
            Self::CoreMl => DeviceName::CoreMl,
        }
    }

    /// Returns the name on the command line and in JSON.
    pub fn as_str(self) -> &'static str {
        self.device().as_str()
    }

    /// Returns ONNX Runtime's own name of the provider: `QNNExecutionProvider`.
    pub const fn ort_name(self) -> &'static str {
        table::provider(self).ort_name
    }

    /// Returns the provider with this name in ONNX Runtime.
    pub fn from_ort_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ep| ep.ort_name() == name)
    }

    /// Returns the library that adds the provider to a process.
    pub const fn library(self) -> ProviderLibrary {
        table::provider(self).library
    }
}

impl From<Ep> for &'static str {
    fn from(ep: Ep) -> Self {
        ep.as_str()
    }
}

impl fmt::Display for Ep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

parse_by_name!(Ep, "execution provider");

/// A device of OpenVINO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum OpenVinoDevice {
    /// The NPU of a Core Ultra.
    Npu,
    /// Intel graphics.
    Gpu,
    /// OpenVINO's own CPU kernels; never counted as an NPU.
    Cpu,
}

impl OpenVinoDevice {
    /// Every device.
    pub const ALL: [Self; 3] = [Self::Npu, Self::Gpu, Self::Cpu];

    /// Returns the name in a [`Target`](crate::Target).
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Name of a device on the command line: `qnn`, `qnn:emulation`, `openvino:gpu`, `cpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceName {
    /// A Snapdragon's Hexagon NPU.
    Qnn,
    /// Qualcomm's emulation of a Hexagon NPU on x86-64 Linux; no NPU, and far slower than the CPU.
    QnnEmulation,
    /// A device of OpenVINO.
    OpenVino(OpenVinoDevice),
    /// An AMD XDNA NPU.
    VitisAi,
    /// The Apple Neural Engine.
    CoreMl,
    /// Any DirectX 12 device.
    DirectMl,
    /// An NVIDIA GPU.
    Cuda,
    /// Any GPU with a WebGPU adapter.
    WebGpu,
    /// ONNX Runtime's own CPU kernels.
    Cpu,
}

/// Kind of hardware behind a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A neural processing unit.
    Npu,
    /// A graphics processor.
    Gpu,
    /// The processor.
    Cpu,
    /// Software replacement of an NPU, for tests. It is used only if the user names it, and never counted as an NPU.
    StandIn,
}

/// Library that adds an execution provider to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderLibrary {
    /// An ONNX Runtime that was built with the provider. A process loads exactly one ONNX Runtime.
    OnnxRuntime,
    /// A plugin for the ONNX Runtime of the CPU runtime.
    Plugin,
    /// Part of the vendor's own software or of the system; never installed by Narthex.
    External,
}

/// One row of the device table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Name on the command line and in JSON.
    pub name: &'static str,
    /// Other names that are accepted.
    pub aliases: &'static [&'static str],
    /// Noun phrase for sentences. The phrase for emulation contains the word emulation.
    pub description: &'static str,
    /// Kind of hardware.
    pub kind: DeviceKind,
    /// Execution provider of the device.
    pub ep: Ep,
    /// Variant of the graphs that it runs.
    pub variant: Variant,
    /// Weight schemes that it supports.
    pub schemes: &'static [Scheme],
}

impl DeviceName {
    /// Every device, NPUs first, each stand-in after the device that it stands in for.
    pub const ALL: [Self; 11] = [
        Self::Qnn,
        Self::QnnEmulation,
        Self::OpenVino(OpenVinoDevice::Npu),
        Self::OpenVino(OpenVinoDevice::Gpu),
        Self::OpenVino(OpenVinoDevice::Cpu),
        Self::VitisAi,
        Self::CoreMl,
        Self::DirectMl,
        Self::Cuda,
        Self::WebGpu,
        Self::Cpu,
    ];

    /// Returns the device's row in the table.
    pub const fn spec(self) -> &'static DeviceSpec {
        match self {
            Self::Qnn => &table::QNN,
            Self::QnnEmulation => &table::QNN_EMULATION,
            Self::OpenVino(OpenVinoDevice::Npu) => &table::OPENVINO_NPU,
            Self::OpenVino(OpenVinoDevice::Gpu) => &table::OPENVINO_GPU,
            Self::OpenVino(OpenVinoDevice::Cpu) => &table::OPENVINO_CPU,
            Self::VitisAi => &table::VITIS_AI,
            Self::CoreMl => &table::CORE_ML,
            Self::DirectMl => &table::DIRECT_ML,
            Self::Cuda => &table::CUDA,
            Self::WebGpu => &table::WEB_GPU,
            Self::Cpu => &table::CPU,
        }
    }

    /// Returns the name on the command line and in JSON.
    pub const fn as_str(self) -> &'static str {
        self.spec().name
    }

    /// Returns a noun phrase for sentences. The phrase for emulation contains the word emulation.
    pub const fn describe(self) -> &'static str {
        self.spec().description
    }

    /// Returns the kind of hardware.
    pub const fn kind(self) -> DeviceKind {
        self.spec().kind
    }

    /// Returns the execution provider of the device.
    pub const fn ep(self) -> Ep {
        self.spec().ep
    }

    /// Returns the variant of the graphs that it runs.
    pub const fn variant(self) -> Variant {
        self.spec().variant
    }

    /// Returns true if the device supports weights of this scheme.
    pub fn supports(self, scheme: Scheme) -> bool {
        self.spec().schemes.contains(&scheme)
    }
}

impl From<DeviceName> for &'static str {
    fn from(name: DeviceName) -> Self {
        name.as_str()
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DeviceName {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let name = text.trim().to_ascii_lowercase();
        let aliased = Self::ALL.into_iter().find(|device| device.spec().aliases.contains(&name.as_str()));
        aliased.map_or_else(|| UnknownName::find("device", text, &Self::ALL), Ok)
    }
}

string_form!(DeviceName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_name_devices() {
        assert_eq!(" DML ".parse(), Ok(DeviceName::DirectMl));
        assert_eq!("openvino:npu".parse(), Ok(DeviceName::OpenVino(OpenVinoDevice::Npu)));
        assert!("npu".parse::<DeviceName>().unwrap_err().to_string().contains("qnn:emulation"));
    }

    #[test]
    fn providers_and_their_main_devices_agree() {
        for ep in Ep::ALL {
            assert_eq!(ep.device().ep(), ep);
            assert_eq!(Ep::from_ort_name(ep.ort_name()), Some(ep));
        }
        assert_eq!(Ep::from_ort_name("NoSuchExecutionProvider"), None);
    }
}
