//! The Apple Neural Engine through CoreML, which stands inside of the ONNX Runtime for macOS.
//!
//! ONNX Runtime offers no device of it, so it is asked for by name. It has no `MatMulNBits`: of a package's graphs it
//! can take those alone whose weights are half precision.

use std::path::PathBuf;

use super::{Device, Facts, Refusal};

/// What the provider is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreMlOptions {
    /// Who computes.
    pub units: Units,
    /// What a model is compiled for.
    pub specialization: Specialization,
    /// Where compiled models are kept; `None` compiles at each load.
    pub cache: Option<PathBuf>,
}

/// Who computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Units {
    /// CoreML's choice among all.
    All,
    /// The Neural Engine, and the CPU for what it refuses.
    NeuralEngine,
    /// The GPU, and the CPU for what it refuses.
    Gpu,
}

/// What a model is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specialization {
    /// A short load.
    Default,
    /// Short answers.
    FastPrediction,
}

impl Default for CoreMlOptions {
    fn default() -> Self {
        Self { units: Units::NeuralEngine, specialization: Specialization::FastPrediction, cache: None }
    }
}

impl CoreMlOptions {
    pub(super) fn entries(&self) -> Vec<(&'static str, String)> {
        let units = match self.units {
            Units::All => "ALL",
            Units::NeuralEngine => "CPUAndNeuralEngine",
            Units::Gpu => "CPUAndGPU",
        };
        let specialization = match self.specialization {
            Specialization::Default => "Default",
            Specialization::FastPrediction => "FastPrediction",
        };
        let mut entries = vec![
            // The older format, NeuralNetwork, knows neither half precision nor most operators.
            ("ModelFormat", "MLProgram".to_owned()),
            ("MLComputeUnits", units.to_owned()),
            ("RequireStaticInputShapes", "1".to_owned()),
            ("SpecializationStrategy", specialization.to_owned()),
        ];
        let cache = self.cache.as_ref();
        entries.extend(cache.map(|folder| ("ModelCacheDirectory", folder.to_string_lossy().into_owned())));
        entries
    }
}

/// The Neural Engine of this machine.
pub(super) fn probe(facts: &Facts) -> Result<Device, Refusal> {
    if (facts.os.as_str(), facts.arch.as_str()) != ("macos", "aarch64") {
        let platform = facts.platform();
        return Err(Refusal::absent(format!(
            "the Neural Engine is part of Apple's own chips, and this is {platform}"
        )));
    }
    Ok(Device::CoreMl(CoreMlOptions::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_by_the_provider_s_names() {
        let options = CoreMlOptions { cache: Some("/c".into()), ..CoreMlOptions::default() };
        let expected = [
            ("ModelFormat", "MLProgram"),
            ("MLComputeUnits", "CPUAndNeuralEngine"),
            ("RequireStaticInputShapes", "1"),
            ("SpecializationStrategy", "FastPrediction"),
            ("ModelCacheDirectory", "/c"),
        ];
        assert_eq!(options.entries(), expected.map(|(key, value)| (key, value.to_owned())));
    }
}
