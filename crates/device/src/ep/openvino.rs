//! Intel NPUs and GPUs through the OpenVINO plugin, version 1.8, and its CPU device, which replaces them in tests.
//!
//! The plugin offers one ONNX Runtime device for each device of OpenVINO. Precision, hints and cache are set through
//! `load_config`; the plugin ignores the options that earlier versions had for these.

use std::path::PathBuf;

use narthex_spec::{Ep, OpenVinoDevice};
use serde_json::{Map, Value};

use super::{Device, DeviceSignature, Facts, Refusal, Vendor};
use crate::inventory::AcceleratorKind;

/// Messages for a lost device, in lower case: Level Zero's `ZE_RESULT_ERROR_DEVICE_LOST`, which OpenVINO includes in
/// the text of an exception without a code.
pub(super) const LOSSES: &[&str] = &["error_device_lost"];

/// Linux driver of the NPU.
const NPU_DRIVER: &str = "intel_vpu";

/// Linux drivers of Intel graphics.
const GPU_DRIVERS: [&str; 2] = ["i915", "xe"];

const NPU: DeviceSignature = DeviceSignature {
    name: "Intel NPU",
    kind: AcceleratorKind::Npu,
    // Every Core Ultra has an NPU, which Windows calls `Intel(R) AI Boost`.
    processors: &["core(tm) ultra"],
    drivers: &["intel"],
};

const GPU: DeviceSignature =
    DeviceSignature { name: "Intel GPU", kind: AcceleratorKind::Gpu, processors: &[], drivers: &["intel"] };

/// Options of the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenVinoOptions {
    /// Device that runs the graph.
    pub device: OpenVinoDevice,
    /// Folder for compiled graphs, kept between loads; `None` keeps none.
    pub cache: Option<PathBuf>,
}

impl OpenVinoOptions {
    /// Returns options without a folder for compiled graphs.
    pub fn new(device: OpenVinoDevice) -> Self {
        Self { device, cache: None }
    }

    pub(super) fn entries(&self) -> Vec<(&'static str, String)> {
        let (precision, mode) = match self.device {
            OpenVinoDevice::Npu | OpenVinoDevice::Gpu => ("f16", None),
            // The CPU replaces the other devices in tests, so it must not quantise activations on its own.
            OpenVinoDevice::Cpu => ("f32", Some("ACCURACY")),
        };
        let cache = self.cache.as_ref().map(|folder| folder.to_string_lossy());
        let config = [
            ("PERFORMANCE_HINT", Some("LATENCY")),
            ("INFERENCE_PRECISION_HINT", Some(precision)),
            ("EXECUTION_MODE_HINT", mode),
            ("CACHE_DIR", cache.as_deref()),
        ];
        let given = config.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into())));
        let config: Map<String, Value> = given.collect();
        let by_device = Map::from_iter([(ov_name(self.device).to_owned(), Value::Object(config))]);
        vec![("load_config", Value::Object(by_device).to_string())]
    }
}

/// Returns OpenVINO's name of a device.
fn ov_name(device: OpenVinoDevice) -> &'static str {
    match device {
        OpenVinoDevice::Npu => "NPU",
        OpenVinoDevice::Gpu => "GPU",
        OpenVinoDevice::Cpu => "CPU",
    }
}

/// Returns true if the plugin's name of a unit refers to this device. On a machine with several GPUs they are numbered:
/// `GPU.0`, `GPU.1`.
pub(super) fn is_unit(device: OpenVinoDevice, unit: &str) -> bool {
    let name = ov_name(device);
    unit.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns a device of OpenVINO on this machine.
pub(super) fn probe(device: OpenVinoDevice, facts: &Facts) -> Result<Device, Refusal> {
    facts.require(facts.is_x86_64_pc(), "OpenVINO's plugin is available for Linux and Windows on x86-64")?;
    match device {
        OpenVinoDevice::Npu => {
            facts.require_driver(NPU.name, &[NPU_DRIVER], Some(Vendor::Intel))?;
            facts.library_of(Ep::OpenVino, &NPU)?;
        }
        OpenVinoDevice::Gpu => {
            facts.require_driver(GPU.name, &GPU_DRIVERS, None)?;
            facts.library_of(Ep::OpenVino, &GPU)?;
        }
        // The plugin offers only Intel's hardware, though OpenVINO itself runs on any x86-64 processor.
        OpenVinoDevice::Cpu if facts.vendor().is_some_and(|vendor| vendor != Vendor::Intel) => {
            let processor = &facts.processor;
            return Err(Refusal::absent(format!(
                "OpenVINO's plugin supports only Intel processors, but this machine has {processor}"
            )));
        }
        OpenVinoDevice::Cpu => drop(facts.library(Ep::OpenVino)?),
    }
    Ok(Device::OpenVino(OpenVinoOptions::new(device)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_a_configuration_of_the_device() {
        let check = |options: OpenVinoOptions, expected: &str| {
            assert_eq!(options.entries(), [("load_config", expected.to_owned())]);
        };
        check(
            OpenVinoOptions::new(OpenVinoDevice::Npu),
            r#"{"NPU":{"PERFORMANCE_HINT":"LATENCY","INFERENCE_PRECISION_HINT":"f16"}}"#,
        );
        check(
            OpenVinoOptions { device: OpenVinoDevice::Cpu, cache: Some(r"C:\a b".into()) },
            r#"{"CPU":{"PERFORMANCE_HINT":"LATENCY","INFERENCE_PRECISION_HINT":"f32","EXECUTION_MODE_HINT":"ACCURACY","CACHE_DIR":"C:\\a b"}}"#,
        );
    }

    #[test]
    fn numbered_units_are_recognised() {
        let check = |device, unit: &str, expected| assert_eq!(is_unit(device, unit), expected, "{unit}");
        check(OpenVinoDevice::Gpu, "GPU", true);
        check(OpenVinoDevice::Gpu, "GPU.1", true);
        check(OpenVinoDevice::Gpu, "GPUX", false);
        check(OpenVinoDevice::Npu, "CPU", false);
        check(OpenVinoDevice::Cpu, "AUTO", false);
    }
}
