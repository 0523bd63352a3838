//! Qualcomm's Hexagon NPUs through the QNN plugin, version 2.7.
//!
//! On x86-64 the plugin's compiler produces the same graphs for a named chip, and its emulator runs them: results are
//! those of the NPU's arithmetic, but times are not meaningful.

use std::path::{Path, PathBuf};

use narthex_spec::{Ep, NpuOptions, Power, QnnChip};

use super::{Device, Facts, Refusal, beside, facts::contains_any};

/// Linux driver of the NPU.
const DRIVER: &str = "fastrpc";

/// Messages for a lost NPU, in lower case. ONNX Runtime uses the same error code for other failures. After a restart of
/// the NPU's subsystem (SSR) they are `NPU crashed. SSR detected …`, `NPU crashed again after SSR recovery.`, and
/// QNN_COMMON_ERROR_SYSTEM_COMMUNICATION, as `Error code: 1007` or `…, Code: 1007`.
pub(super) const LOSSES: &[&str] = &["npu crashed", "qnn_common_error_system_communication", "code: 1007"];

/// Options of the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QnnOptions {
    /// Library of the HTP backend.
    pub backend: PathBuf,
    /// Chips for which graphs are compiled; an empty list means the machine's own NPU.
    pub chips: Vec<QnnChip>,
    /// Preset of the NPU's clocks while a graph runs.
    pub power: Power,
    /// Further settings of the NPU.
    pub npu: NpuOptions,
}

/// Options for a power preset.
struct Preset {
    /// QNN's name of the performance mode.
    mode: &'static str,
    /// Maximum time in microseconds for which a call waits for the NPU to wake up.
    rpc_latency: u32,
}

fn preset(power: Power) -> Preset {
    match power {
        Power::Burst => Preset { mode: "burst", rpc_latency: 100 },
        Power::Balanced => Preset { mode: "balanced", rpc_latency: 100 },
        Power::Saver => Preset { mode: "power_saver", rpc_latency: 1000 },
    }
}

impl QnnOptions {
    /// Returns the options for some chips, with the HTP backend in the plugin's folder.
    pub fn new(plugin: &Path, chips: &[QnnChip]) -> Self {
        let name = if cfg!(windows) { "QnnHtp.dll" } else { "libQnnHtp.so" };
        Self {
            backend: PathBuf::from(beside(plugin, name)),
            chips: chips.to_vec(),
            power: Power::Burst,
            npu: NpuOptions::default(),
        }
    }

    /// Returns options with the backend that writes graphs in QNN's own form, if its library is in the same folder.
    pub(super) fn control_backend(&self) -> Option<Self> {
        self.with_backend(if cfg!(windows) { "QnnIr.dll" } else { "libQnnIr.so" })
    }

    /// Returns options with the backend that records the calls that it receives, if its library is in the same folder.
    pub(super) fn saver_backend(&self) -> Option<Self> {
        self.with_backend(if cfg!(windows) { "QnnSaver.dll" } else { "libQnnSaver.so" })
    }

    fn with_backend(&self, name: &str) -> Option<Self> {
        let backend = self.backend.with_file_name(name);
        backend.is_file().then(|| Self { backend, ..self.clone() })
    }

    pub(super) fn entries(&self) -> Vec<(&'static str, String)> {
        let Preset { mode, rpc_latency } = preset(self.power);
        let NpuOptions { priority, vtcm_mb, rpc_latency: latency } = self.npu;
        let rpc_latency = latency.unwrap_or(rpc_latency);
        let mut entries = vec![
            ("backend_path", self.backend.to_string_lossy().into_owned()),
            ("htp_performance_mode", mode.to_owned()),
            ("rpc_control_latency", rpc_latency.to_string()),
            ("qnn_context_priority", priority.unwrap_or_default().as_str().to_owned()),
            ("htp_graph_finalization_optimization_mode", "3".to_owned()),
            // The option is always set, because the default differs from the documented one.
            ("enable_htp_fp16_precision", "1".to_owned()),
            // Without this option, the CPU would quantise the graph's inputs and outputs.
            ("offload_graph_io_quantization", "0".to_owned()),
        ];

        if !self.chips.is_empty() {
            let specs = self.chips.iter().map(|chip| chip.spec());
            let models: Vec<String> = specs.clone().map(|spec| spec.soc_model.to_string()).collect();
            let archs: Vec<String> = specs.map(|spec| spec.htp_arch.to_string()).collect();
            entries.push(("soc_model", models.join(",")));
            entries.push(("htp_arch", archs.join(",")));
        }

        // If neither is known, the driver uses all that the chip has.
        if let Some(vtcm) = QnnChip::shared_vtcm(&self.chips).into_iter().chain(vtcm_mb).min() {
            entries.push(("vtcm_mb", vtcm.to_string()));
        }
        entries
    }
}

/// Returns the options for a trace of every node, `qnn_op_trace.json`.
pub(super) fn trace_options(folder: &Path) -> Vec<(&'static str, String)> {
    let folder = folder.to_string_lossy().into_owned();
    vec![("enable_framework_op_trace", "1".to_owned()), ("framework_op_trace_dir", folder)]
}

/// Returns the options by which the control writes its form of a graph to `folder`. Without them, it writes to the
/// current folder.
pub(super) fn control_options(folder: &Path) -> Vec<(&'static str, String)> {
    let folder = folder.to_string_lossy().into_owned();
    vec![("dump_qnn_ir_dlc", "1".to_owned()), ("dump_qnn_ir_dlc_dir", folder)]
}

/// Returns the options for a trace, for the graph as the provider receives it, and for the graph that the provider
/// composes for its backend. The last is written before the backend's compiler receives it.
pub(super) fn diagnostic_options(folder: &Path) -> Vec<(&'static str, String)> {
    let folder_text = folder.to_string_lossy().into_owned();
    let mut entries = trace_options(folder);
    for (switch, place) in [
        ("dump_qnn_ep_input_graph", "dump_qnn_ep_input_graph_dir"),
        ("dump_json_qnn_graph", "json_qnn_graph_dir"),
    ] {
        entries.extend([(switch, "1".to_owned()), (place, folder_text.clone())]);
    }
    entries
}

/// Returns the chip of a processor by its name; `None` for one that this version does not know. Windows reports
/// `Snapdragon(R) X Elite - X1E80100 - …`; Linux reports the chip's number or the names in the kernel's device trees.
pub(super) fn chip_of(processor: &str) -> Option<QnnChip> {
    /// Parts of the names of each chip. A chip comes before those whose names its own contain.
    const NAMES: [(QnnChip, &[&str]); 5] = [
        (QnnChip::X2Elite, &["x2 elite", "x2e", "sc8480xp", "qcom,glymur"]),
        (QnnChip::XElite, &["x elite", "x plus", "x1e", "x1p", "x1-26", "x126100", "sc8380xp"]),
        (QnnChip::EliteGen5, &["8 elite gen 5", "sm8850", "qcom,kaanapali"]),
        (QnnChip::Elite, &["8 elite", "sm8750"]),
        (QnnChip::Gen3, &["8 gen 3", "sm8650"]),
    ];
    let (chip, _) = NAMES.into_iter().find(|(_, names)| contains_any(processor, names))?;
    Some(chip)
}

/// Returns this machine's NPU. The driver chooses the chip if the processor's name does not identify it.
pub(super) fn probe(facts: &Facts) -> Result<Device, Refusal> {
    facts.require(
        facts.arch == "aarch64" && facts.os != "macos",
        "Hexagon NPUs are part of Snapdragon chips",
    )?;
    // Windows lists the NPU only once the provider is loaded.
    if facts.os != "windows" && !facts.accelerators.iter().any(|found| found.driver == DRIVER) {
        return Err(Refusal::absent("no Hexagon driver is loaded (expected /dev/fastrpc-cdsp)"));
    }
    let chips: Vec<QnnChip> = chip_of(&facts.processor).into_iter().collect();
    Ok(Device::Qnn(QnnOptions::new(&facts.library(Ep::Qnn)?, &chips)))
}

/// The emulated chip; the emulator requires one.
const EMULATED: QnnChip = QnnChip::XElite;

/// Returns Qualcomm's emulation of an NPU.
pub(super) fn probe_emulation(facts: &Facts) -> Result<Device, Refusal> {
    facts.require(
        facts.os == "linux" && facts.arch == "x86_64",
        "HTP emulation is available for Linux on x86-64",
    )?;
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
        check("Snapdragon(R) X - X126100 - Qualcomm(R) Oryon(TM) CPU", Some(QnnChip::XElite));
        for name in ["X1E-80-100", "X1P-42-100", "X1-26-100", "qcom,sc8380xp"] {
            check(name, Some(QnnChip::XElite));
        }
        check("qcom,glymur-crd, qcom,glymur", Some(QnnChip::X2Elite));
        check("Qualcomm Technologies, Inc SM8650", Some(QnnChip::Gen3));
        check("qcom,sm8650-mtp, qcom,sm8650", Some(QnnChip::Gen3));
        check("qcom,sm8750-mtp, qcom,sm8750", Some(QnnChip::Elite));
        check("qcom,kaanapali-mtp, qcom,kaanapali", Some(QnnChip::EliteGen5));
        check("ARMv8 (64-bit) Family 8 Model 1 Revision 201, Qualcomm Technologies Inc", None);
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
        check("qnn_context_priority", "normal");
        check("vtcm_mb", "8");
        assert!(options.backend.starts_with("/q"));
        let npu = "priority=low,vtcm=4".parse().unwrap();
        let thrifty = QnnOptions { power: Power::Saver, npu, ..options.clone() }.entries();
        for entry in [
            ("htp_performance_mode", "power_saver"),
            ("rpc_control_latency", "1000"),
            ("qnn_context_priority", "low"),
            ("vtcm_mb", "4"),
        ] {
            assert!(thrifty.contains(&(entry.0, entry.1.to_owned())), "{entry:?}");
        }
        let none = QnnOptions::new(Path::new("/q/plugin.so"), &[]);
        assert!(none.entries().iter().all(|(key, _)| !["soc_model", "vtcm_mb"].contains(key)));
        let npu = "vtcm=2,rpc-latency=300,priority=high".parse().unwrap();
        let told = QnnOptions { npu, ..none }.entries();
        for entry in [("vtcm_mb", "2"), ("rpc_control_latency", "300"), ("qnn_context_priority", "high")] {
            assert!(told.contains(&(entry.0, entry.1.to_owned())), "{entry:?}");
        }
    }
}
