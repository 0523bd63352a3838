//! The devices that graphs are loaded on: one file per provider, each with its options as types.
//!
//! A provider's library is registered with the runtime once ([`crate::runtime::Runtime::register`]); a [`Device`] then
//! says what a session asks of it.

mod cpu;
mod openvino;
mod probe;
mod qnn;

use std::{collections::BTreeMap, path::Path};

use narthex_spec::{DeviceName, Ep, target::OpenVinoDevice};

pub use openvino::{Hint, Mode, OpenVinoOptions, Precision};
use probe::Vendor;
pub use probe::{Cause, Facts, Refusal, probe};
pub use qnn::{Performance, QnnOptions};

use crate::runtime::OrtDevice;

/// A device that a graph is loaded on, with everything that the provider is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    /// ONNX Runtime's own CPU kernels, and nothing else.
    Cpu,
    /// A Hexagon NPU; on a machine without one, Qualcomm's emulation of it.
    Qnn(QnnOptions),
    /// A device of OpenVINO.
    OpenVino(OpenVinoOptions),
}

impl Device {
    /// The provider.
    pub fn ep(&self) -> Ep {
        match self {
            Self::Cpu => Ep::Cpu,
            Self::Qnn(_) => Ep::Qnn,
            Self::OpenVino(_) => Ep::OpenVino,
        }
    }

    /// What decides the outcome of a compile for this device, by the provider's own names; not where its files lie.
    pub fn settings(&self) -> BTreeMap<String, String> {
        let options = self.options().into_iter().filter(|(key, _)| !key.ends_with("_path"));
        options.map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// The provider's options, by its own names.
    pub(crate) fn options(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Cpu => Vec::new(),
            Self::Qnn(options) => options.entries(),
            Self::OpenVino(options) => options.entries(),
        }
    }

    /// Which of the devices that ONNX Runtime offers it is: one of its provider, and of the hardware that it stands for
    /// where the provider drives several kinds.
    pub(crate) fn choose(&self, offered: &[OrtDevice]) -> Option<usize> {
        let name = ort_name(self.ep());
        let meant = |device: &OrtDevice| {
            device.ep == name
                && match self {
                    Self::OpenVino(options) => {
                        device.unit.as_deref().is_some_and(|unit| openvino::is_unit(options.device, unit))
                    }
                    Self::Cpu | Self::Qnn(_) => true,
                }
        };
        let own = offered.iter().enumerate().filter(|(_, device)| meant(device));
        // Emulation is offered as a CPU, so the kind of hardware decides only where there is a choice.
        own.min_by_key(|(_, device)| device.hardware != self.hardware()).map(|(index, _)| index)
    }

    /// In a sentence.
    pub(crate) fn describe(&self) -> &'static str {
        match self {
            Self::Cpu => DeviceName::Cpu.describe(),
            // What runs, the NPU or its emulation, is the plugin's to know.
            Self::Qnn(_) => DeviceName::Qnn.describe(),
            Self::OpenVino(options) => DeviceName::OpenVino(options.device).describe(),
        }
    }

    /// The hardware that it stands for, as [`OrtDevice`] has it.
    fn hardware(&self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Qnn(_) => "NPU",
            Self::OpenVino(options) => match options.device {
                OpenVinoDevice::Npu => "NPU",
                OpenVinoDevice::Gpu => "GPU",
                OpenVinoDevice::Cpu => "CPU",
            },
        }
    }
}

/// ONNX Runtime's name of a provider.
pub(crate) fn ort_name(ep: Ep) -> &'static str {
    match ep {
        Ep::Cpu => cpu::NAME,
        Ep::Qnn => qnn::NAME,
        Ep::OpenVino => openvino::NAME,
        Ep::WebGpu => "WebGpuExecutionProvider",
        Ep::DirectMl => "DmlExecutionProvider",
        Ep::VitisAi => "VitisAIExecutionProvider",
        Ep::Cuda => "CUDAExecutionProvider",
        Ep::CoreMl => "CoreMLExecutionProvider",
    }
}

/// ONNX Runtime's name of a provider, as ours.
pub(crate) fn of_ort_name(name: &str) -> Option<Ep> {
    Ep::ALL.into_iter().find(|&ep| ort_name(ep) == name)
}

/// A library that lies beside a provider's own.
fn beside(library: &Path, name: &str) -> String {
    library.with_file_name(name).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_by_name() {
        for ep in Ep::ALL {
            assert_eq!(of_ort_name(ort_name(ep)), Some(ep));
        }
        assert_eq!(of_ort_name("NoSuchExecutionProvider"), None);
    }
}
