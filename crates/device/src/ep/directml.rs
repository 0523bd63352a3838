//! GPUs on Windows through DirectML, a provider that is part of an ONNX Runtime of its own, version 1.24.
//!
//! Windows ML is a copy of ONNX Runtime with DirectML, and a catalogue from which the system downloads vendors'
//! plugins. `ORT_DYLIB_PATH` can name its library; DirectML is then detected by its own library in the same folder. The
//! catalogue is not used: plugins come as Narthex's runtimes, or, for AMD, from a variable with the library's path.

use narthex_spec::Ep;

use super::{Device, Facts, GpuPreference, Refusal};

/// Messages for a lost GPU, in lower case: Direct3D's codes for a device that was removed, hangs or was reset. ONNX
/// Runtime turns them into exceptions without an error code of their own (microsoft/onnxruntime#26648).
pub(super) const LOSSES: &[&str] = &["887a0005", "887a0006", "887a0007"];

/// DirectML's own library, in the folder of an ONNX Runtime that is built for it.
pub(super) const SYSTEM: &str = "DirectML.dll";

/// Options of the provider.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectMlOptions {
    /// GPU to choose if there are several.
    pub preference: GpuPreference,
}

impl DirectMlOptions {
    pub(super) fn entries(self) -> Vec<(&'static str, String)> {
        let preference = match self.preference {
            GpuPreference::HighPerformance => "high_performance",
            GpuPreference::LowPower => "minimum_power",
        };
        vec![
            ("performance_preference", preference.to_owned()),
            ("device_filter", "gpu".to_owned()),
            ("disable_metacommands", "false".to_owned()),
        ]
    }
}

/// Returns this machine's GPU.
pub(super) fn probe(facts: &Facts) -> Result<Device, Refusal> {
    facts.require(facts.os == "windows", "DirectML is part of Windows")?;
    let is_supported = facts.arch == "x86_64" || facts.libraries.contains_key(&Ep::DirectMl);
    let fix = "use webgpu, or set ORT_DYLIB_PATH to an onnxruntime.dll with DirectML.dll beside it";
    facts
        .require(is_supported, "the directml runtime is available for Windows on x86-64")
        .map_err(|refusal| Refusal { fix: Some(fix.to_owned()), ..refusal })?;
    facts.gpu_library(Ep::DirectMl)?;
    Ok(Device::DirectMl(DirectMlOptions::default()))
}
