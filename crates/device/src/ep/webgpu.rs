//! Any GPU through WebGPU: the plugin, version 0.4, or the provider that is part of an ONNX Runtime built with it.

use narthex_spec::Ep;

use super::{Cause, Device, Facts, GpuPreference, Refusal};
use crate::inventory::AcceleratorKind;

/// Messages for a lost GPU, in lower case, by Dawn and Vulkan; the provider has no error code for them.
pub(super) const LOSSES: &[&str] = &["device is lost", "device lost"];

/// Options of the provider.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WebGpuOptions {
    /// GPU to choose if there are several.
    pub preference: GpuPreference,
}

impl WebGpuOptions {
    pub(super) fn entries(self) -> Vec<(&'static str, String)> {
        let preference = match self.preference {
            GpuPreference::HighPerformance => "high-performance",
            GpuPreference::LowPower => "low-power",
        };
        vec![("powerPreference", preference.to_owned()), ("validationMode", "disabled".to_owned())]
    }
}

/// Returns this machine's GPU.
pub(super) fn probe(facts: &Facts) -> Result<Device, Refusal> {
    if (facts.os.as_str(), facts.arch.as_str()) == ("macos", "x86_64") {
        let platform = facts.platform();
        return Err(Refusal::absent(format!("the webgpu runtime is not available for {platform}")));
    }
    let gpu = facts.accelerators.iter().any(|found| found.kind == AcceleratorKind::Gpu);
    if facts.os == "linux" && !gpu {
        return Err(Refusal::absent("no GPU driver is loaded (expected a render node in /dev/dri)"));
    }
    facts.gpu_library(Ep::WebGpu).map_err(|refusal| {
        // One hint about the GPU is enough.
        let has_directml = (facts.os.as_str(), facts.arch.as_str()) == ("windows", "x86_64");
        if refusal.cause != Cause::NotInstalled || !has_directml {
            return refusal;
        }
        let reason = format!("{}, and directml is preferred on Windows", refusal.reason);
        Refusal { cause: Cause::Absent, reason, ..refusal }
    })?;
    Ok(Device::WebGpu(WebGpuOptions::default()))
}
