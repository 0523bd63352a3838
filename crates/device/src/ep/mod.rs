//! The devices on which graphs are loaded: one file per provider, each with its options as types.
//!
//! A provider's library is registered with the runtime once, by `Runtime::register`; a [`Device`] then holds the
//! options of a session.

mod coreml;
mod cpu;
mod cuda;
mod cuda_libraries;
mod directml;
mod facts;
mod openvino;
mod qnn;
mod vitisai;
mod webgpu;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use narthex_spec::{DeviceKind, DeviceName, Ep, NpuOptions, Power, ProviderLibrary};

pub use coreml::CoreMlOptions;
pub use directml::DirectMlOptions;
pub use facts::{Cause, Facts, Refusal};
use facts::{DeviceSignature, Vendor};
pub use openvino::OpenVinoOptions;
pub use qnn::QnnOptions;
pub use vitisai::VitisAiOptions;
pub use webgpu::WebGpuOptions;

/// A device that ONNX Runtime offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrtDevice {
    /// Execution provider, by ONNX Runtime's name.
    pub ep: String,
    /// `CPU`, `GPU` or `NPU`.
    pub hardware: &'static str,
    /// Vendor.
    pub vendor: String,
    /// Name of the device within its provider, if the provider drives several: OpenVINO's `CPU`, `GPU.0`, `NPU`.
    pub unit: Option<String>,
}

/// Choice of a GPU if there are several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GpuPreference {
    /// The fastest GPU.
    #[default]
    HighPerformance,
    /// The GPU with the lowest power consumption.
    LowPower,
}

/// A device on which a graph is loaded, with the provider's options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    /// ONNX Runtime's own CPU provider.
    Cpu,
    /// A Hexagon NPU, or Qualcomm's emulation of one on a machine without it.
    Qnn(QnnOptions),
    /// A device of OpenVINO.
    OpenVino(OpenVinoOptions),
    /// An AMD XDNA NPU.
    VitisAi(VitisAiOptions),
    /// The Apple Neural Engine.
    CoreMl(CoreMlOptions),
    /// A GPU on Windows.
    DirectMl(DirectMlOptions),
    /// An NVIDIA GPU, through CUDA.
    Cuda,
    /// Any GPU, through WebGPU.
    WebGpu(WebGpuOptions),
}

impl Device {
    /// Returns the device's name. HTP emulation has the name of the NPU, since only the plugin knows which of the two
    /// runs.
    pub fn name(&self) -> DeviceName {
        match self {
            Self::Cpu => DeviceName::Cpu,
            Self::Qnn(_) => DeviceName::Qnn,
            Self::OpenVino(options) => DeviceName::OpenVino(options.device),
            Self::VitisAi(_) => DeviceName::VitisAi,
            Self::CoreMl(_) => DeviceName::CoreMl,
            Self::DirectMl(_) => DeviceName::DirectMl,
            Self::Cuda => DeviceName::Cuda,
            Self::WebGpu(_) => DeviceName::WebGpu,
        }
    }

    /// Returns the execution provider.
    pub fn ep(&self) -> Ep {
        self.name().ep()
    }

    /// Returns the options that affect the result of a compile for this device, by the provider's own names, without
    /// paths of files.
    pub fn settings(&self) -> BTreeMap<String, String> {
        let mut device = self.clone();
        if let Some(cache) = device.cache() {
            *cache = None;
        }
        if let Self::Qnn(options) = &mut device {
            // Clocks and priorities do not affect the result.
            let NpuOptions { vtcm_mb, .. } = options.npu;
            (options.power, options.npu) = (Power::Burst, NpuOptions { vtcm_mb, ..NpuOptions::default() });
        }
        let options = device.options().into_iter().filter(|(key, _)| !key.ends_with("_path"));
        options.map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Returns the setting for the folder in which the provider keeps compiled graphs between loads; `None` for a
    /// provider without such a folder.
    pub fn cache(&mut self) -> Option<&mut Option<PathBuf>> {
        match self {
            Self::OpenVino(OpenVinoOptions { cache, .. })
            | Self::VitisAi(VitisAiOptions { cache, .. })
            | Self::CoreMl(CoreMlOptions { cache, .. }) => Some(cache),
            Self::Cpu | Self::Qnn(_) | Self::DirectMl(_) | Self::Cuda | Self::WebGpu(_) => None,
        }
    }

    /// Returns the device with the clocks of a power preset. If there are several GPUs, the preset also selects one.
    #[must_use]
    pub fn with_power(mut self, power: Power) -> Self {
        match &mut self {
            Self::Qnn(options) => options.power = power,
            Self::DirectMl(DirectMlOptions { preference }) | Self::WebGpu(WebGpuOptions { preference })
                if power == Power::Saver =>
            {
                *preference = GpuPreference::LowPower;
            }
            _ => {}
        }
        self
    }

    /// Returns the device with settings of an NPU, which a CPU or GPU ignores.
    ///
    /// # Errors
    /// A [`Refusal`] for an NPU of another vendor, which has no such settings.
    pub fn with_npu_options(mut self, wanted: NpuOptions) -> Result<Self, Refusal> {
        if let Self::Qnn(options) = &mut self {
            options.npu = wanted;
        } else if wanted != NpuOptions::default() && self.name().kind() == DeviceKind::Npu {
            let reason = format!("{wanted} are settings for Qualcomm's NPUs only");
            return Err(Refusal { cause: Cause::Refused, reason, fix: Some("omit --npu-option".to_owned()) });
        }
        Ok(self)
    }

    /// Returns the provider's options, by its own names.
    pub(crate) fn options(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Cpu => Vec::new(),
            Self::Qnn(options) => options.entries(),
            Self::OpenVino(options) => options.entries(),
            Self::VitisAi(options) => options.entries(),
            Self::CoreMl(options) => options.entries(),
            Self::DirectMl(options) => options.entries(),
            Self::Cuda => cuda::entries(),
            Self::WebGpu(options) => options.entries(),
        }
    }

    /// Returns the provider's options for one graph of a package. A provider may store compiled graphs under the
    /// graph's name.
    pub(crate) fn options_for(&self, graph: &Path) -> Vec<(&'static str, String)> {
        let mut entries = self.options();
        if let Self::VitisAi(options) = self {
            entries.extend(options.key(graph));
        }
        entries
    }

    /// Returns the options with which the provider writes the refused nodes and its reasons to `folder`;
    /// empty for a provider without such a trace.
    pub(crate) fn trace_options(&self, folder: &Path) -> Vec<(&'static str, String)> {
        match self {
            Self::Qnn(_) => qnn::trace_options(folder),
            _ => Vec::new(),
        }
    }

    /// Returns additional options for the trace of [`Device::trace_options`], and for each form that the graph has on
    /// its way to the provider's compiler.
    pub(crate) fn diagnostic_options(&self, folder: &Path) -> Vec<(&'static str, String)> {
        match self {
            Self::Qnn(_) => qnn::diagnostic_options(folder),
            _ => Vec::new(),
        }
    }

    /// Returns the options with which a [control](Self::control_backend) writes its form of the graph to `folder`.
    pub(crate) fn control_options(&self, folder: &Path) -> Vec<(&'static str, String)> {
        match self {
            Self::Qnn(_) => qnn::control_options(folder),
            _ => Vec::new(),
        }
    }

    /// Returns the provider's backend that accepts every valid graph and runs none, if it has one.
    pub(crate) fn control_backend(&self) -> Option<Self> {
        match self {
            Self::Qnn(options) => options.control_backend().map(Self::Qnn),
            _ => None,
        }
    }

    /// Returns the provider's backend that records each call and runs nothing, if it has one.
    pub(crate) fn saver_backend(&self) -> Option<Self> {
        match self {
            Self::Qnn(options) => options.saver_backend().map(Self::Qnn),
            _ => None,
        }
    }

    /// Returns the index of this device among those that ONNX Runtime offers: one of the same provider and, for
    /// OpenVINO, of the same unit. If several match, the expected kind of hardware is preferred. The session gets a
    /// single device, since most providers refuse several.
    pub(crate) fn choose(&self, offered: &[OrtDevice]) -> Option<usize> {
        let name = self.ep().ort_name();
        // A stand-in for an NPU is software on the processor.
        let hardware = match self.name().kind() {
            DeviceKind::Npu => "NPU",
            DeviceKind::Gpu => "GPU",
            DeviceKind::Cpu | DeviceKind::StandIn => "CPU",
        };
        let candidates =
            offered.iter().enumerate().filter(|(_, device)| device.ep == name && self.matches_unit(device));
        // Emulation is offered as a CPU, so the kind of hardware only orders the candidates.
        candidates.min_by_key(|(_, device)| device.hardware != hardware).map(|(index, _)| index)
    }

    /// Returns whether a device is the unit that OpenVINO shall use. Other providers have no units.
    fn matches_unit(&self, device: &OrtDevice) -> bool {
        match (self, &device.unit) {
            (Self::OpenVino(options), Some(unit)) => openvino::is_unit(options.device, unit),
            (Self::OpenVino(_), None) => false,
            _ => true,
        }
    }

    /// Returns whether the provider may be part of ONNX Runtime without offering a device. CoreML never offers one;
    /// WebGPU offers none if the system's only GPU driver is a software driver.
    pub(crate) fn may_lack_device(&self) -> bool {
        matches!(self, Self::CoreMl(_) | Self::VitisAi(_) | Self::WebGpu(_))
    }
}

/// Returns the device with a name, ready to be opened.
///
/// # Errors
/// [`Refusal`] if the machine lacks the device or its runtime. A library that cannot be loaded is noticed only when it
/// is registered.
pub fn probe(name: DeviceName, facts: &Facts) -> Result<Device, Refusal> {
    match name {
        DeviceName::Cpu => Ok(cpu::device()),
        DeviceName::Qnn => qnn::probe(facts),
        DeviceName::QnnEmulation => qnn::probe_emulation(facts),
        DeviceName::OpenVino(device) => openvino::probe(device, facts),
        DeviceName::VitisAi => vitisai::probe(facts),
        DeviceName::CoreMl => coreml::probe(facts),
        DeviceName::DirectMl => directml::probe(facts),
        DeviceName::Cuda => cuda::probe(facts),
        DeviceName::WebGpu => webgpu::probe(facts),
    }
}

/// Source of a provider for an ONNX Runtime.
pub(crate) enum ProviderSource {
    /// The provider is part of this ONNX Runtime.
    Builtin,
    /// The provider is loaded from this library.
    Library(PathBuf),
    /// The provider works only in an ONNX Runtime of its own, and `core` is another one.
    OtherRuntime,
}

/// Returns the source of a provider with the library `library` for the ONNX Runtime `core`.
pub(crate) fn provider_source(ep: Ep, library: &Path, core: &Path) -> ProviderSource {
    match ep {
        Ep::Cuda if library == core => ProviderSource::Library(cuda::beside(core)),
        _ if library == core => ProviderSource::Builtin,
        _ if ep.library() == ProviderLibrary::OnnxRuntime => ProviderSource::OtherRuntime,
        _ => ProviderSource::Library(library.to_owned()),
    }
}

/// Returns true if the ONNX Runtime at `core` includes a provider that works in no other one, judging by the files in
/// its folder.
pub fn bundles_provider(ep: Ep, core: &Path) -> bool {
    match ep {
        Ep::Cuda => cuda::beside(core).is_file(),
        Ep::DirectMl => core.with_file_name(directml::SYSTEM).is_file(),
        _ => false,
    }
}

/// Returns true if a provider's error message states that its device was lost, so that reopening the model may help.
/// Used for errors without a code in ONNX Runtime. Messages do not name their provider, so all tables are searched.
pub fn is_device_loss(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    let tables = [qnn::LOSSES, directml::LOSSES, openvino::LOSSES, webgpu::LOSSES];
    tables.into_iter().flatten().any(|words| message.contains(words))
}

/// Returns the path of a library in the folder of another one.
fn beside(library: &Path, name: &str) -> String {
    library.with_file_name(name).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use narthex_spec::{OpenVinoDevice, QnnChip};

    use super::*;

    #[test]
    fn a_loss_is_known_by_each_of_its_forms() {
        for message in [
            "run the graph: NPU crashed again after SSR recovery.",
            "NPU crashed. SSR detected during QNN graph execute.",
            "QNN graph execute error. Error code: 1007",
            "Failed to execute. Error: QNN_COMMON_ERROR_SYSTEM_COMMUNICATION: Communication error., Code: 1007",
            "DXGI_ERROR_DEVICE_REMOVED (0x887A0005)",
            "DXGI_ERROR_DEVICE_HUNG (0x887A0006)",
            "ZE_RESULT_ERROR_DEVICE_LOST",
            "A valid external Instance reference no longer exists: Device is lost.",
        ] {
            assert!(is_device_loss(message), "{message}");
        }
        for message in [
            "Error code: 1002",
            "QNN graph execute error. Error code: 6001",
            "SSR recovery succeeded.",
            "out of memory",
        ] {
            assert!(!is_device_loss(message), "{message}");
        }
    }

    #[test]
    fn settings_of_an_npu_reach_it_and_count_where_they_change_what_is_compiled() {
        let npu = |text: &str| text.parse::<NpuOptions>().unwrap();
        let qnn = Device::Qnn(QnnOptions::new(Path::new("/q/plugin.so"), &[QnnChip::XElite]));
        let with = |text: &str| qnn.clone().with_npu_options(npu(text)).unwrap();
        assert!(with("priority=high").options().contains(&("qnn_context_priority", "high".to_owned())));
        assert_eq!(with("priority=high,rpc-latency=7").settings(), qnn.settings());
        assert_eq!(with("vtcm=4").settings()["vtcm_mb"], "4");
        assert_eq!(Device::Cpu.with_npu_options(npu("vtcm=4")), Ok(Device::Cpu));
        let other = Device::OpenVino(OpenVinoOptions::new(OpenVinoDevice::Npu));
        assert_eq!(other.clone().with_npu_options(NpuOptions::default()), Ok(other.clone()));
        let refusal = other.with_npu_options(npu("vtcm=4")).unwrap_err();
        assert!(refusal.reason.contains("vtcm=4 are settings for Qualcomm's NPUs"), "{refusal:?}");
    }

    #[test]
    fn where_compiled_graphs_are_kept_is_no_setting_of_them() {
        for mut device in [
            Device::OpenVino(OpenVinoOptions::new(OpenVinoDevice::Npu)),
            Device::VitisAi(VitisAiOptions::default()),
            Device::CoreMl(CoreMlOptions::default()),
        ] {
            let (settings, options) = (device.settings(), device.options());
            *device.cache().unwrap() = Some("/kept".into());
            assert_eq!(device.settings(), settings);
            assert_ne!(device.options(), options);
        }
        let mut qnn = Device::Qnn(QnnOptions::new(Path::new("/q/plugin.so"), &[]));
        assert!(qnn.cache().is_none() && Device::Cpu.cache().is_none());
    }

    #[test]
    fn the_hardware_decides_among_a_provider_s_devices() {
        let offer = |ep: Ep, hardware, unit: Option<&str>| OrtDevice {
            ep: ep.ort_name().to_owned(),
            hardware,
            vendor: "?".to_owned(),
            unit: unit.map(str::to_owned),
        };
        let offered = [
            offer(Ep::Cpu, "CPU", None),
            offer(Ep::Qnn, "GPU", None),
            offer(Ep::Qnn, "NPU", None),
            offer(Ep::OpenVino, "CPU", Some("CPU")),
            offer(Ep::OpenVino, "GPU", Some("GPU.0")),
            offer(Ep::OpenVino, "GPU", Some("GPU.1")),
            offer(Ep::OpenVino, "NPU", Some("NPU")),
            OrtDevice { ep: "OpenVINOExecutionProvider.AUTO".into(), ..offer(Ep::OpenVino, "CPU", None) },
            offer(Ep::WebGpu, "GPU", None),
        ];
        let openvino = |device| Device::OpenVino(OpenVinoOptions::new(device));
        let check = |device: Device, expected| assert_eq!(device.choose(&offered), expected, "{device:?}");
        let qnn = || Device::Qnn(QnnOptions::new(Path::new("/q/plugin.so"), &[]));
        check(Device::Cpu, Some(0));
        check(qnn(), Some(2));
        check(openvino(OpenVinoDevice::Cpu), Some(3));
        check(openvino(OpenVinoDevice::Gpu), Some(4));
        check(openvino(OpenVinoDevice::Npu), Some(6));
        check(Device::WebGpu(WebGpuOptions::default()), Some(8));
        check(Device::Cuda, None);
        // Emulation of an NPU is offered as a CPU.
        assert_eq!(qnn().choose(&[offer(Ep::Qnn, "CPU", None)]), Some(0));
    }

    #[test]
    fn providers_come_to_the_runtime_that_they_are_made_for() {
        let core = Path::new("/r/libonnxruntime.so.1.31.1");
        let check = |ep, library: &str, expected: fn(&ProviderSource) -> bool| {
            assert!(expected(&provider_source(ep, Path::new(library), core)), "{ep} {library}");
        };
        check(
            Ep::Qnn,
            "/q/plugin.so",
            |found| matches!(found, ProviderSource::Library(path) if path.ends_with("plugin.so")),
        );
        check(Ep::WebGpu, "/r/libonnxruntime.so.1.31.1", |found| matches!(found, ProviderSource::Builtin));
        check(Ep::DirectMl, "/d/onnxruntime.dll", |found| matches!(found, ProviderSource::OtherRuntime));
        check(Ep::Cuda, "/c/libonnxruntime.so.1.31.1", |found| matches!(found, ProviderSource::OtherRuntime));
        let cuda = "libonnxruntime_providers_cuda.so";
        assert!(
            matches!(provider_source(Ep::Cuda, core, core), ProviderSource::Library(path) if path.ends_with(cuda))
        );
    }
}
