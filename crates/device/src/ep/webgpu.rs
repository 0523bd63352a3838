//! Any GPU through WebGPU: the plugin, version 0.4, or the provider inside of an ONNX Runtime that was built with it.

use narthex_spec::Ep;

use super::{Device, Facts, Refusal};
use crate::inventory::AcceleratorKind;

/// The messages of a lost GPU, in lower case, by Dawn and Vulkan; the provider gives no code for them.
pub(super) const LOSSES: &[&str] = &["device is lost", "device lost"];

/// What the provider is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebGpuOptions {
    /// Which GPU is taken where there are several.
    pub choice: Choice,
    /// How closely the calls to the GPU are checked.
    pub validation: Validation,
}

/// Which GPU is taken where there are several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The fastest.
    HighPerformance,
    /// The thriftiest.
    LowPower,
}

/// How closely the calls to the GPU are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validation {
    /// Not at all.
    Off,
    /// As a browser would, for finding faults.
    Full,
}

impl Default for WebGpuOptions {
    fn default() -> Self {
        Self { choice: Choice::HighPerformance, validation: Validation::Off }
    }
}

impl WebGpuOptions {
    pub(super) fn entries(self) -> Vec<(&'static str, String)> {
        let choice = match self.choice {
            Choice::HighPerformance => "high-performance",
            Choice::LowPower => "low-power",
        };
        let validation = match self.validation {
            Validation::Off => "disabled",
            Validation::Full => "full",
        };
        vec![("powerPreference", choice.to_owned()), ("validationMode", validation.to_owned())]
    }
}

/// A GPU of this machine.
pub(super) fn probe(facts: &Facts) -> Result<Device, Refusal> {
    if (facts.os.as_str(), facts.arch.as_str()) == ("macos", "x86_64") {
        let platform = facts.platform();
        return Err(Refusal::absent(format!("the webgpu runtime is not made for {platform}")));
    }
    let gpu = facts.accelerators.iter().any(|found| found.kind == AcceleratorKind::Gpu);
    if facts.os == "linux" && !gpu {
        return Err(Refusal::absent("no GPU driver is loaded (expected a render node in /dev/dri)"));
    }
    facts.library(Ep::WebGpu)?;
    Ok(Device::WebGpu(WebGpuOptions::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_by_the_provider_s_names() {
        let options = WebGpuOptions { choice: Choice::LowPower, validation: Validation::Full };
        let expected = [("powerPreference", "low-power"), ("validationMode", "full")];
        assert_eq!(options.entries(), expected.map(|(key, value)| (key, value.to_owned())));
    }
}
