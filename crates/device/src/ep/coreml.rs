//! The Apple Neural Engine through CoreML, a provider that is part of the ONNX Runtime for macOS.
//!
//! ONNX Runtime offers no device for it, so sessions select the provider by name. It has no `MatMulNBits`, so it can
//! run only those graphs of a package that have half-precision weights.

use std::path::PathBuf;

use super::{Device, Facts, Refusal};

/// Options of the provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CoreMlOptions {
    /// Folder for compiled models; `None` compiles at each load.
    pub cache: Option<PathBuf>,
}

impl CoreMlOptions {
    pub(super) fn entries(&self) -> Vec<(&'static str, String)> {
        let mut entries = vec![
            // The older format, NeuralNetwork, lacks half precision and most operators.
            ("ModelFormat", "MLProgram".to_owned()),
            ("MLComputeUnits", "CPUAndNeuralEngine".to_owned()),
            ("RequireStaticInputShapes", "1".to_owned()),
            ("SpecializationStrategy", "FastPrediction".to_owned()),
        ];
        let cache = self.cache.as_ref();
        entries.extend(cache.map(|folder| ("ModelCacheDirectory", folder.to_string_lossy().into_owned())));
        entries
    }
}

/// Returns this machine's Neural Engine.
pub(super) fn probe(facts: &Facts) -> Result<Device, Refusal> {
    facts.require(
        facts.os == "macos" && facts.arch == "aarch64",
        "the Neural Engine is part of Apple's own chips",
    )?;
    Ok(Device::CoreMl(CoreMlOptions::default()))
}
