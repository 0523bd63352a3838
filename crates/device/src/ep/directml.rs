//! GPUs on Windows through DirectML, which stands inside of an ONNX Runtime of its own, version 1.24.
//!
//! Windows ML is a copy of ONNX Runtime with DirectML in it, and a catalogue out of which the system downloads vendors'
//! plugins. Its library can be named with `ORT_DYLIB_PATH` (DirectML is seen by its own library beside it); the catalogue is
//! not asked, so that plugins come as runtimes of ours, or AMD's by the variable that names it.

use narthex_spec::Ep;

use super::{Device, Facts, GpuPreference, Refusal};

/// The messages of a lost GPU, in lower case: Direct3D's results for a device that was removed, hangs or was reset. ONNX
/// Runtime turns them into exceptions without a code of their own (microsoft/onnxruntime#26648).
pub(super) const LOSSES: &[&str] = &["887a0005", "887a0006", "887a0007"];

/// DirectML's own library, which lies beside an ONNX Runtime that is built for it.
pub(super) const SYSTEM: &str = "DirectML.dll";

/// Options of the provider.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectMlOptions {
    /// GPU to take if there are several.
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

/// A GPU of this machine.
pub(super) fn probe(facts: &Facts) -> Result<Device, Refusal> {
    if facts.os != "windows" {
        let platform = facts.platform();
        return Err(Refusal::absent(format!("DirectML is a part of Windows, and this is {platform}")));
    }
    if facts.arch != "x86_64" && !facts.libraries.contains_key(&Ep::DirectMl) {
        let platform = facts.platform();
        return Err(Refusal::absent(format!("no directml runtime is published for {platform}")));
    }
    facts.library(Ep::DirectMl)?;
    Ok(Device::DirectMl(DirectMlOptions::default()))
}
