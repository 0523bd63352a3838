//! Qualcomm's Hexagon NPUs through the QNN plugin, version 2.7.
//!
//! On x86-64 the plugin's compiler makes the same graphs for a named chip, and its emulator runs them: results are those
//! of the NPU's arithmetic, times are not.

use std::path::{Path, PathBuf};

use narthex_spec::{Ep, target::QnnChip};

use super::{Device, Facts, Refusal, beside};

/// The Linux driver through which the NPU is reached.
const DRIVER: &str = "fastrpc";

/// ONNX Runtime's name of the provider.
pub(super) const NAME: &str = "QNNExecutionProvider";

/// What the provider is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QnnOptions {
    /// The HTP backend's library.
    pub backend: PathBuf,
    /// The chips that graphs are compiled for; none leaves it to the machine's own NPU.
    pub chips: Vec<QnnChip>,
    /// What the NPU's clocks do.
    pub performance: Performance,
}

/// What the NPU's clocks do while a graph runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Performance {
    /// The shortest answers.
    Burst,
    /// A balance of time and energy.
    Balanced,
    /// The least energy.
    Saver,
}

impl Performance {
    /// QNN's name of the mode, and microseconds that a call may wait for the NPU to wake.
    fn mode(self) -> (&'static str, u32) {
        match self {
            Self::Burst => ("burst", 100),
            Self::Balanced => ("balanced", 100),
            Self::Saver => ("power_saver", 1000),
        }
    }
}

impl QnnOptions {
    /// The options for some chips, with the libraries beside the plugin's.
    pub fn new(plugin: &Path, chips: &[QnnChip]) -> Self {
        let name = if cfg!(windows) { "QnnHtp.dll" } else { "libQnnHtp.so" };
        Self {
            backend: PathBuf::from(beside(plugin, name)),
            chips: chips.to_vec(),
            performance: Performance::Burst,
        }
    }

    pub(super) fn entries(&self) -> Vec<(&'static str, String)> {
        let (mode, latency) = self.performance.mode();
        let mut entries = vec![
            ("backend_path", self.backend.to_string_lossy().into_owned()),
            ("htp_performance_mode", mode.to_owned()),
            ("rpc_control_latency", latency.to_string()),
            ("htp_graph_finalization_optimization_mode", "3".to_owned()),
            // Its default differs from what its documentation says, so it is always given.
            ("enable_htp_fp16_precision", "1".to_owned()),
            // Quantising at the graph's edges would otherwise go to the CPU.
            ("offload_graph_io_quantization", "0".to_owned()),
        ];
        if !self.chips.is_empty() {
            let list = |value: fn(QnnChip) -> u32| {
                let values: Vec<String> = self.chips.iter().map(|&chip| value(chip).to_string()).collect();
                values.join(",")
            };
            entries.push(("soc_model", list(|chip| chip.facts().soc_model)));
            entries.push(("htp_arch", list(|chip| chip.facts().htp_arch)));
            let vtcm = self.chips.iter().map(|chip| chip.facts().vtcm_mb).min().unwrap_or(0);
            entries.push(("vtcm_mb", vtcm.to_string()));
        }
        entries
    }
}

/// The chip of a processor with this name; `None` for one that this version does not know.
pub(super) fn chip_of(processor: &str) -> Option<QnnChip> {
    let name = processor.to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    match () {
        () if has(&["x2 elite", "x2e"]) => Some(QnnChip::X2Elite),
        () if has(&["x elite", "x plus", "x1e", "x1p"]) => Some(QnnChip::XElite),
        () if has(&["8 elite gen 5", "sm8850"]) => Some(QnnChip::EliteGen5),
        () if has(&["8 elite", "sm8750"]) => Some(QnnChip::Elite),
        () if has(&["8 gen 3", "sm8650"]) => Some(QnnChip::Gen3),
        () => None,
    }
}

/// The NPU of this machine. Its chip is left to the driver where the processor's name does not tell it.
pub(super) fn probe(facts: &Facts) -> Result<Device, Refusal> {
    if facts.arch != "aarch64" || facts.os == "macos" {
        let platform = facts.platform();
        return Err(Refusal::absent(format!(
            "Hexagon NPUs are part of Snapdragon chips, and this is {platform}"
        )));
    }
    // Windows tells of its NPU only once the provider is loaded.
    if facts.os != "windows" && !facts.accelerators.iter().any(|found| found.driver == DRIVER) {
        return Err(Refusal::absent("no Hexagon driver is loaded (expected /dev/fastrpc-cdsp)"));
    }
    let chips: Vec<QnnChip> = chip_of(&facts.processor).into_iter().collect();
    Ok(Device::Qnn(QnnOptions::new(&facts.library(Ep::Qnn)?, &chips)))
}

/// The chip that is emulated, since the emulator must be told one.
const EMULATED: QnnChip = QnnChip::XElite;

/// Qualcomm's emulation of an NPU.
pub(super) fn probe_emulation(facts: &Facts) -> Result<Device, Refusal> {
    if (facts.os.as_str(), facts.arch.as_str()) != ("linux", "x86_64") {
        let platform = facts.platform();
        return Err(Refusal::absent(format!(
            "HTP emulation is made for Linux on x86-64, and this is {platform}"
        )));
    }
    Ok(Device::Qnn(QnnOptions::new(&facts.library(Ep::Qnn)?, &[EMULATED])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_by_the_processor_s_name() {
        let check = |name: &str, chip| assert_eq!(chip_of(name), chip, "{name}");
        check("Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Oryon(TM) CPU", Some(QnnChip::XElite));
        check("Snapdragon(R) X Plus - X1P42100", Some(QnnChip::XElite));
        check("Snapdragon(R) X2 Elite - X2E96100", Some(QnnChip::X2Elite));
        check("Qualcomm Technologies, Inc SM8650", Some(QnnChip::Gen3));
        check("Intel(R) Core(TM) Ultra 7 155H", None);
    }

    #[test]
    fn chips_become_lists() {
        let options = QnnOptions::new(Path::new("/q/plugin.so"), &[QnnChip::XElite, QnnChip::Elite]);
        let entries = options.entries();
        let check = |key: &str, expected: &str| {
            let value = entries.iter().find(|(name, _)| *name == key).map(|(_, value)| value.as_str());
            assert_eq!(value, Some(expected), "{key}");
        };
        check("soc_model", "60,69");
        check("htp_arch", "73,79");
        check("enable_htp_fp16_precision", "1");
        check("htp_performance_mode", "burst");
        assert!(options.backend.starts_with("/q"));
        let none = QnnOptions::new(Path::new("/q/plugin.so"), &[]);
        assert!(none.entries().iter().all(|(key, _)| *key != "soc_model"));
    }
}
