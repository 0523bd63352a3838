//! Which devices a model may be loaded on, in which order, and what happens where one refuses.
//!
//! Names and rules only: what a machine really has is found out by the device crate.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Ep, Scheme, Variant, target::OpenVinoDevice};

/// A device as users name it: `qnn`, `qnn:emulation`, `openvino:gpu`, `cpu`.
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

/// What stands behind a device's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A neural processing unit.
    Npu,
    /// A graphics processor.
    Gpu,
    /// The processor.
    Cpu,
    /// Software in an NPU's place, for tests. Used where it is named, never chosen, never counted as an NPU.
    StandIn,
}

impl DeviceName {
    /// Every device, NPUs first, each stand-in after what it stands for.
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

    /// The provider behind it.
    pub fn ep(self) -> Ep {
        match self {
            Self::Qnn | Self::QnnEmulation => Ep::Qnn,
            Self::OpenVino(_) => Ep::OpenVino,
            Self::VitisAi => Ep::VitisAi,
            Self::CoreMl => Ep::CoreMl,
            Self::DirectMl => Ep::DirectMl,
            Self::Cuda => Ep::Cuda,
            Self::WebGpu => Ep::WebGpu,
            Self::Cpu => Ep::Cpu,
        }
    }

    /// What stands behind it.
    pub fn kind(self) -> DeviceKind {
        match self {
            Self::Qnn | Self::OpenVino(OpenVinoDevice::Npu) | Self::VitisAi | Self::CoreMl => DeviceKind::Npu,
            Self::OpenVino(OpenVinoDevice::Gpu) | Self::DirectMl | Self::Cuda | Self::WebGpu => {
                DeviceKind::Gpu
            }
            Self::QnnEmulation | Self::OpenVino(OpenVinoDevice::Cpu) => DeviceKind::StandIn,
            Self::Cpu => DeviceKind::Cpu,
        }
    }

    /// The graphs that it runs.
    pub fn variant(self) -> Variant {
        match self {
            Self::Qnn | Self::QnnEmulation | Self::OpenVino(_) | Self::VitisAi | Self::CoreMl => {
                Variant::Static
            }
            Self::DirectMl | Self::Cuda | Self::WebGpu | Self::Cpu => Variant::Dynamic,
        }
    }

    /// Whether it computes with weights of a scheme. CoreML has no operator for weights in blocks (`MatMulNBits`).
    pub fn takes(self, scheme: Scheme) -> bool {
        match scheme {
            Scheme::W8 | Scheme::W4 => self != Self::CoreMl,
            Scheme::F16 | Scheme::F32 => true,
        }
    }

    /// The name on the command line and in JSON: the provider's, with the kind of device where that is not its usual.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::QnnEmulation => "qnn:emulation",
            Self::OpenVino(OpenVinoDevice::Gpu) => "openvino:gpu",
            Self::OpenVino(OpenVinoDevice::Cpu) => "openvino:cpu",
            usual => usual.ep().as_str(),
        }
    }

    /// In a sentence. Emulation is called emulation.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Qnn => "the Hexagon NPU",
            Self::QnnEmulation => "HTP emulation",
            Self::OpenVino(OpenVinoDevice::Npu) => "the Intel NPU",
            Self::OpenVino(OpenVinoDevice::Gpu) => "the Intel GPU",
            Self::OpenVino(OpenVinoDevice::Cpu) => "OpenVINO's CPU device",
            Self::VitisAi => "the AMD XDNA NPU",
            Self::CoreMl => "the Apple Neural Engine",
            Self::DirectMl => "DirectML",
            Self::Cuda => "the NVIDIA GPU",
            Self::WebGpu => "WebGPU",
            Self::Cpu => "the CPU",
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A string that names no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown device {found:?}: expected one of qnn, qnn:emulation, openvino, openvino:gpu, openvino:cpu, vitisai, coreml, \
     directml (or dml), cuda, webgpu, cpu"
)]
pub struct UnknownDevice {
    /// What was given.
    pub found: String,
}

impl FromStr for DeviceName {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        let wanted = text.trim().to_ascii_lowercase();
        let wanted = match wanted.as_str() {
            "dml" => "directml",
            "openvino:npu" => "openvino",
            "qnn:npu" => "qnn",
            other => other,
        };
        Self::ALL
            .into_iter()
            .find(|name| name.as_str() == wanted)
            .ok_or_else(|| UnknownDevice { found: text.chars().take(80).collect() })
    }
}

impl TryFrom<String> for DeviceName {
    type Error = UnknownDevice;

    fn try_from(text: String) -> Result<Self, UnknownDevice> {
        text.parse()
    }
}

impl From<DeviceName> for String {
    fn from(name: DeviceName) -> Self {
        name.to_string()
    }
}

/// Devices in the order in which a load tries them; at least one, each once.
///
/// Written as names with commas (`directml,qnn,cpu`), or as a preset's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    devices: Vec<DeviceName>,
    named: bool,
}

/// Orders by the machine they suit. The CPU is the last of each.
const PRESETS: [(&str, &[DeviceName]); 6] = {
    use DeviceName::{CoreMl, Cpu, Cuda, DirectMl, OpenVino, Qnn, VitisAi, WebGpu};
    [
        ("auto", &[Qnn, OpenVino(OpenVinoDevice::Npu), VitisAi, CoreMl, DirectMl, Cuda, WebGpu, Cpu]),
        ("snapdragon", &[Qnn, DirectMl, WebGpu, Cpu]),
        ("ryzen-ai", &[VitisAi, DirectMl, WebGpu, Cpu]),
        ("core-ultra", &[OpenVino(OpenVinoDevice::Npu), DirectMl, WebGpu, Cpu]),
        ("apple", &[CoreMl, WebGpu, Cpu]),
        ("nvidia", &[Cuda, DirectMl, WebGpu, Cpu]),
    ]
};

impl Order {
    /// The order of the preset `auto`: NPUs, then DirectML, then GPUs, then the CPU.
    pub fn auto() -> Self {
        Self { devices: PRESETS[0].1.to_vec(), named: false }
    }

    /// Exactly these devices, as a person names them; repeated ones count once. `None` for no device.
    pub fn of(devices: &[DeviceName]) -> Option<Self> {
        let mut once: Vec<DeviceName> = Vec::with_capacity(devices.len());
        for &device in devices {
            if !once.contains(&device) {
                once.push(device);
            }
        }
        (!once.is_empty()).then_some(Self { devices: once, named: true })
    }

    /// The devices.
    pub fn devices(&self) -> &[DeviceName] {
        &self.devices
    }

    /// Whether a person chose it; one who did wants to hear of every device that was passed over.
    pub fn is_named(&self) -> bool {
        self.named
    }
}

impl Default for Order {
    fn default() -> Self {
        Self::auto()
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.devices.iter().map(|device| device.as_str()).collect();
        f.write_str(&names.join(","))
    }
}

/// A string that is no order of devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{source}; or the name of an order: auto, snapdragon, ryzen-ai, core-ultra, apple, nvidia")]
pub struct UnknownOrder {
    source: UnknownDevice,
}

impl FromStr for Order {
    type Err = UnknownOrder;

    fn from_str(text: &str) -> Result<Self, UnknownOrder> {
        let wanted = text.trim().to_ascii_lowercase();
        if let Some((name, devices)) = PRESETS.into_iter().find(|(name, _)| *name == wanted) {
            return Ok(Self { devices: devices.to_vec(), named: name != "auto" });
        }
        let devices: Result<Vec<DeviceName>, UnknownDevice> = text.split(',').map(str::parse).collect();
        let none = || UnknownDevice { found: String::new() };
        devices
            .and_then(|devices| Self::of(&devices).ok_or_else(none))
            .map_err(|source| UnknownOrder { source })
    }
}

/// What a load does about an NPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NpuPolicy {
    /// It fails unless the NPU does the share of the work that is asked for.
    Require,
    /// It takes the next device where the NPU refuses, and says so.
    #[default]
    Prefer,
    /// It leaves NPUs alone.
    Off,
}

impl NpuPolicy {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Require, Self::Prefer, Self::Off];

    /// The name on the command line and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Require => "require",
            Self::Prefer => "prefer",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for NpuPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A string that names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy {found:?}: expected require, prefer or off")]
pub struct UnknownPolicy {
    /// What was given.
    pub found: String,
}

impl FromStr for NpuPolicy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let wanted = text.trim().to_ascii_lowercase();
        let found = || UnknownPolicy { found: text.chars().take(80).collect() };
        Self::ALL.into_iter().find(|policy| policy.as_str() == wanted).ok_or_else(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_read_as_they_are_written() {
        for device in DeviceName::ALL {
            assert_eq!(device.as_str().parse(), Ok(device));
        }
        assert_eq!(" DML ".parse(), Ok(DeviceName::DirectMl));
        assert_eq!("openvino:npu".parse(), Ok(DeviceName::OpenVino(OpenVinoDevice::Npu)));
        assert!("npu".parse::<DeviceName>().unwrap_err().to_string().contains("qnn:emulation"));
    }

    #[test]
    fn orders_read_as_they_are_written() {
        let check = |text: &str, expected: Option<&str>| {
            let order = text.parse::<Order>().ok();
            assert_eq!(order.map(|order| order.to_string()).as_deref(), expected, "{text}");
        };
        check("dml, qnn,cpu,qnn", Some("directml,qnn,cpu"));
        check("Snapdragon", Some("qnn,directml,webgpu,cpu"));
        check("auto", Some("qnn,openvino,vitisai,coreml,directml,cuda,webgpu,cpu"));
        check("qnn:emulation", Some("qnn:emulation"));
        check("", None);
        check("cpu,", None);
        check("tpu", None);
        assert!(!Order::auto().is_named() && "cpu".parse::<Order>().unwrap().is_named());
        assert_eq!("auto".parse(), Ok(Order::auto()));
    }

    #[test]
    fn no_preset_holds_a_stand_in() {
        for (name, devices) in PRESETS {
            assert!(devices.iter().all(|device| device.kind() != DeviceKind::StandIn), "{name}");
            assert_eq!(devices.last(), Some(&DeviceName::Cpu), "{name}");
        }
    }

    #[test]
    fn policies_read_as_they_are_written() {
        for policy in NpuPolicy::ALL {
            assert_eq!(policy.as_str().parse(), Ok(policy));
        }
        assert!("maybe".parse::<NpuPolicy>().unwrap_err().to_string().contains("prefer"));
    }
}
