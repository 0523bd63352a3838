//! Order in which a load tries devices, and its policy for NPUs.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

use crate::{DeviceName, OpenVinoDevice, UnknownName, name::named_set};

/// Devices in the order in which a load tries them: at least one, without repetitions.
///
/// Written as names with commas (`directml,qnn,cpu`), or as a preset's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOrder {
    devices: Vec<DeviceName>,
    explicit: bool,
}

/// Preset orders, each for a kind of machine. All of them end with the CPU.
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

impl DeviceOrder {
    /// Returns the order of the preset `auto`: NPUs, then DirectML, then GPUs, then the CPU.
    pub fn auto() -> Self {
        Self { devices: PRESETS[0].1.to_vec(), explicit: false }
    }

    /// Returns an order of exactly these devices, as chosen by a user. Repeated devices count once; the result is
    /// `None` without a device.
    pub fn of(devices: &[DeviceName]) -> Option<Self> {
        let mut once: Vec<DeviceName> = Vec::with_capacity(devices.len());
        for &device in devices {
            if !once.contains(&device) {
                once.push(device);
            }
        }
        (!once.is_empty()).then_some(Self { devices: once, explicit: true })
    }

    /// Returns the devices.
    pub fn devices(&self) -> &[DeviceName] {
        &self.devices
    }

    /// Returns true if a user chose the order. In that case, every device that is skipped is reported.
    pub fn is_explicit(&self) -> bool {
        self.explicit
    }
}

impl Default for DeviceOrder {
    fn default() -> Self {
        Self::auto()
    }
}

impl fmt::Display for DeviceOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.devices.iter().map(|device| device.as_str()).collect();
        f.write_str(&names.join(","))
    }
}

/// A string that is not a [`DeviceOrder`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{source}; or the name of an order: auto, snapdragon, ryzen-ai, core-ultra, apple, nvidia")]
pub struct UnknownOrder {
    source: UnknownName,
}

impl FromStr for DeviceOrder {
    type Err = UnknownOrder;

    fn from_str(text: &str) -> Result<Self, UnknownOrder> {
        let preset = text.trim().to_ascii_lowercase();
        if let Some((name, devices)) = PRESETS.into_iter().find(|(name, _)| *name == preset) {
            return Ok(Self { devices: devices.to_vec(), explicit: name != "auto" });
        }
        let devices: Result<Vec<DeviceName>, UnknownName> = text.split(',').map(str::parse).collect();
        devices
            .and_then(|devices| {
                Self::of(&devices)
                    .ok_or_else(|| UnknownName::new("device", "", DeviceName::ALL.map(DeviceName::as_str)))
            })
            .map_err(|source| UnknownOrder { source })
    }
}

/// Policy of a load for NPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, Display, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum NpuPolicy {
    /// Fail unless an NPU does the required share of the work.
    Require,
    /// Use the next device if the NPU refuses, and report why.
    #[default]
    Prefer,
    /// Use no NPU.
    Off,
}

impl NpuPolicy {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Require, Self::Prefer, Self::Off];
}

named_set!(NpuPolicy, "policy");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_read_as_they_are_written() {
        let check = |text: &str, expected: Option<&str>| {
            let order = text.parse::<DeviceOrder>().ok();
            assert_eq!(order.map(|order| order.to_string()).as_deref(), expected, "{text}");
        };
        check("dml, qnn,cpu,qnn", Some("directml,qnn,cpu"));
        check("Snapdragon", Some("qnn,directml,webgpu,cpu"));
        check("auto", Some("qnn,openvino,vitisai,coreml,directml,cuda,webgpu,cpu"));
        check("qnn:emulation", Some("qnn:emulation"));
        check("", None);
        check("cpu,", None);
        check("tpu", None);
        assert!(!DeviceOrder::auto().is_explicit() && "cpu".parse::<DeviceOrder>().unwrap().is_explicit());
        assert_eq!("auto".parse(), Ok(DeviceOrder::auto()));
    }

    #[test]
    fn no_preset_holds_a_stand_in() {
        for (name, devices) in PRESETS {
            assert!(devices.iter().all(|device| device.kind() != crate::DeviceKind::StandIn), "{name}");
            assert_eq!(devices.last(), Some(&DeviceName::Cpu), "{name}");
        }
    }
}
