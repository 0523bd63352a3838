//! Inventory of this machine, read from the system itself. No library of a vendor is loaded, and no program is started
//! except by [`measured`].
//!
//! It is our own code because sysinfo counts the machine's cores instead of those that this process may use, reads the
//! memory limit of one control group only, and knows neither NPUs nor drivers.

mod control_groups;
pub(crate) mod cores;
pub(crate) mod nvidia;
mod windows;

use std::{fs, path::Path};

use narthex_kernels::Kernels;

use self::{control_groups::ControlGroups, cores::FastCores};
use crate::{memory, registry};

/// Registry key under which Windows has the name of the first processor.
const PROCESSOR_KEY: &str = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0";

/// Processor of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpu {
    /// Name.
    pub name: String,
    /// Number of logical cores of the machine.
    pub cores: usize,
    /// Number of logical cores that this process may use, by affinity and control group.
    pub usable_cores: usize,
    /// Number of physical cores among those that affinity allows, if the system reports them.
    pub physical_cores: Option<usize>,
    /// Number of fast physical cores, if computations leave out slow ones.
    pub fast_cores: Option<usize>,
    /// Vector instruction sets that are relevant to inference.
    pub features: Vec<&'static str>,
}

/// Kind of an accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceleratorKind {
    /// A neural processing unit.
    Npu,
    /// A graphics processor.
    Gpu,
}

impl AcceleratorKind {
    /// Returns `npu` or `gpu`.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Npu => "npu",
            Self::Gpu => "gpu",
        }
    }
}

/// An accelerator whose driver the system has loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accelerator {
    /// Kind.
    pub kind: AcceleratorKind,
    /// Name of the driver: `intel_vpu`, `amdxdna`, `fastrpc`, ….
    pub driver: String,
    /// Description in plain words.
    pub text: String,
    /// Size of its own memory in bytes, if its driver reports it.
    pub memory: Option<u64>,
}

/// A driver with its version, on which a device's behaviour may depend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// Kind of device that it drives.
    pub kind: AcceleratorKind,
    /// Name and version, and the version of the device's firmware, if known.
    pub text: String,
}

/// Returns the processor of this machine.
pub fn cpu() -> Cpu {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let usable_cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = info.lines().filter(|line| line.starts_with("processor")).count();
    Cpu {
        name: cpu_field(&info, "model name")
            .or_else(|| cpu_field(&info, "Model"))
            .or_else(|| soc(Path::new("/")))
            .or_else(|| registry::text(PROCESSOR_KEY, "ProcessorNameString"))
            // Windows sets this variable for every process.
            .or_else(|| std::env::var("PROCESSOR_IDENTIFIER").ok())
            .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores: cores.max(usable_cores),
        usable_cores,
        physical_cores: cores::physical_cores(),
        fast_cores: FastCores::here().map(|fast| fast.physical),
        features: features(),
    }
}

/// Returns the first value of a field of `/proc/cpuinfo`.
fn cpu_field(info: &str, name: &str) -> Option<String> {
    let line = info.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns the names that kernel and firmware give an Arm chip, whose processor cores have no name: the chip's number,
/// and the names of board and chip in the device tree. `root` is the root folder of the system.
fn soc(root: &Path) -> Option<String> {
    /// Maximum number of names. A device tree names a board and a chip, each up to twice.
    const MAX_NAMES: usize = 8;
    let [machine, tree] = ["sys/devices/soc0/machine", "proc/device-tree/compatible"]
        .map(|file| fs::read_to_string(root.join(file)).unwrap_or_default());
    let names = std::iter::once(machine.trim()).chain(tree.split('\0').map(str::trim));
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).take(MAX_NAMES).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Returns the number of compute threads: `wanted`, or if that is 0, one per physical core that this process may use,
/// without the slow cores of a processor that has several kinds. A second thread on a core would have no vector unit of its
/// own.
pub fn threads(wanted: usize) -> usize {
    if wanted > 0 {
        return wanted;
    }
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = FastCores::here().map(|fast| fast.physical).or_else(cores::physical_cores);
    cores.map_or(usable, |cores| usable.min(cores.max(1)))
}

fn features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let features = [
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("FMA", is_x86_feature_detected!("fma")),
        ("AVX-VNNI", is_x86_feature_detected!("avxvnni")),
        ("AVX-512", is_x86_feature_detected!("avx512f")),
        ("AVX-512-VNNI", is_x86_feature_detected!("avx512vnni")),
    ];
    #[cfg(target_arch = "aarch64")]
    let features = [
        ("NEON", std::arch::is_aarch64_feature_detected!("neon")),
        ("dot product", std::arch::is_aarch64_feature_detected!("dotprod")),
        ("i8mm", narthex_kernels::arm::has_i8mm()),
        ("bf16", narthex_kernels::arm::has_bf16()),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let features: [(&str, bool); 0] = [];
    features.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

/// Returns the instruction set for which this processor has kernels.
pub fn kernels() -> &'static str {
    Kernels::detect().name()
}

/// Returns the bytes of memory that this process may use: the machine's memory, or its control group's limit if that is
/// lower.
pub fn memory_bytes() -> Option<u64> {
    Some(ControlGroups::of_process().limits().fold(memory::installed()?, u64::min))
}

/// Returns the bytes of memory that this process can still take: those that the system can provide without swapping, or
/// the room in its control group if that is less.
pub fn available_memory() -> Option<u64> {
    Some(ControlGroups::of_process().rooms().fold(memory::available()?, u64::min))
}

/// Returns the operating system's name and version, if it reports them.
pub fn system() -> Option<String> {
    let release = fs::read_to_string("/etc/os-release").ok()?;
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?.trim_matches('"');
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    Some(kernel.map_or_else(|| name.to_owned(), |kernel| format!("{name}, kernel {}", kernel.trim())))
}

/// Returns the accelerators whose drivers are loaded; on Windows, those of the registry.
pub fn accelerators() -> Vec<Accelerator> {
    let mut found = windows::accelerators();
    for (driver, text) in in_class(Path::new("/sys/class/accel"), "accel") {
        let text = match driver.as_str() {
            "intel_vpu" => format!("Intel NPU ({text})"),
            "amdxdna" => format!("AMD XDNA NPU ({text})"),
            _ => format!("accelerator with driver {driver} ({text})"),
        };
        found.push(Accelerator { kind: AcceleratorKind::Npu, driver, text, memory: None });
    }

    if ["/dev/fastrpc-cdsp", "/dev/fastrpc-cdsp-secure"].iter().any(|path| Path::new(path).exists()) {
        let text = "Qualcomm Hexagon NPU (/dev/fastrpc-cdsp)".to_owned();
        found.push(Accelerator {
            kind: AcceleratorKind::Npu,
            driver: "fastrpc".to_owned(),
            text,
            memory: None,
        });
    }

    for (driver, text) in in_class(Path::new("/sys/class/drm"), "renderD") {
        let memory = own_memory(&Path::new("/sys/class/drm").join(&text));
        let text = format!("GPU with driver {driver} ({text})");
        found.push(Accelerator { kind: AcceleratorKind::Gpu, driver, text, memory });
    }

    // In a container, NVIDIA's devices may have no render node.
    let seen = found.iter().any(|accelerator| accelerator.driver == "nvidia");
    if !seen && Path::new("/dev/nvidiactl").exists() {
        let text = "NVIDIA GPU (/dev/nvidiactl)".to_owned();
        found.push(Accelerator {
            kind: AcceleratorKind::Gpu,
            driver: "nvidia".to_owned(),
            text,
            memory: None,
        });
    }
    found
}

/// Returns the accelerators with the sizes of their memory. On Windows, GPUs come from DXGI. For NVIDIA's cards the entries
/// come from the driver's own program. If that program is installed it is run, which may take seconds.
pub fn measured() -> Vec<Accelerator> {
    with_cards(windows::with_graphics(accelerators()), nvidia::cards())
}

/// Replaces the system's entries for a vendor's cards by the vendor's own.
fn with_cards(mut found: Vec<Accelerator>, cards: Vec<Accelerator>) -> Vec<Accelerator> {
    found.retain(|known| cards.iter().all(|card| card.driver != known.driver));
    found.extend(cards);
    found
}

/// Returns the drivers of these accelerators, and on Windows those of every NPU and GPU.
pub fn drivers(accelerators: &[Accelerator]) -> Vec<Driver> {
    let mut drivers: Vec<Driver> = windows::drivers().collect();
    if drivers.is_empty() {
        drivers = drivers_at(Path::new("/"), accelerators);
    }
    drivers.sort_by(|a, b| a.text.cmp(&b.text));
    drivers
}

/// Returns the drivers of these accelerators on Linux, with its root folder at `root`. A driver that is part of the
/// kernel has the kernel's version.
fn drivers_at(root: &Path, accelerators: &[Accelerator]) -> Vec<Driver> {
    let kernel = text_of(&root.join("proc/sys/kernel/osrelease"));
    let kernel = kernel.map_or_else(|| "unknown".to_owned(), |version| format!("kernel {version}"));
    let class = root.join("sys/class/accel");
    accelerators
        .iter()
        .map(|Accelerator { kind, driver, .. }| {
            let version = text_of(&root.join("sys/module").join(driver).join("version"));
            let mut text = format!("{driver} {}", version.as_ref().unwrap_or(&kernel));
            let devices = in_class(&class, "accel").into_iter().filter(|(other, _)| other == driver);
            for (_, device) in devices {
                if let Some(firmware) = text_of(&class.join(device).join("device/fw_version")) {
                    text.push_str(&format!(" with firmware {firmware}"));
                }
            }
            Driver { kind: *kind, text }
        })
        .collect()
}

/// Returns the text of a small file of the system, if it has one.
fn text_of(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Returns the size in bytes of a graphics card's own memory, as AMD's driver reports it.
fn own_memory(card: &Path) -> Option<u64> {
    fs::read_to_string(card.join("device/mem_info_vram_total")).ok()?.trim().parse().ok()
}

/// Returns the driver and the device name of every device of a class whose name starts with `prefix`.
fn in_class(class: &Path, prefix: &str) -> Vec<(String, String)> {
    let Ok(entries) = fs::read_dir(class) else { return Vec::new() };
    let mut devices: Vec<(String, String)> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| {
            let link = fs::read_link(entry.path().join("device/driver")).unwrap_or_default();
            let driver =
                link.file_name().map_or_else(|| "?".to_owned(), |name| name.to_string_lossy().into_owned());
            (driver, entry.file_name().to_string_lossy().into_owned())
        })
        .collect();
    devices.sort();
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_processor() {
        let cpu = cpu();
        assert!(cpu.usable_cores >= 1 && cpu.cores >= cpu.usable_cores && !cpu.name.is_empty());
        assert!((1..=cpu.usable_cores).contains(&threads(0)));
        assert_eq!(threads(7), 7);
    }

    #[test]
    fn a_chip_is_called_what_the_kernel_and_the_device_tree_call_it() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(soc(root.path()), None);
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/device-tree/compatible", "lenovo,thinkpad-t14s\0qcom,x1e78100\0qcom,x1e80100\0");
        let tree = "lenovo,thinkpad-t14s, qcom,x1e78100, qcom,x1e80100";
        assert_eq!(soc(root.path()).as_deref(), Some(tree));
        write("sys/devices/soc0/machine", "X1E78100\n");
        assert_eq!(soc(root.path()), Some(format!("X1E78100, {tree}")));
    }

    #[test]
    fn drivers_have_the_system_s_version() {
        let root = tempfile::tempdir().unwrap();
        let accelerator = |kind, driver: &str| Accelerator {
            kind,
            driver: driver.to_owned(),
            text: driver.to_owned(),
            memory: None,
        };
        let (npu, gpu) = (AcceleratorKind::Npu, AcceleratorKind::Gpu);
        let accelerators =
            [accelerator(npu, "amdxdna"), accelerator(npu, "fastrpc"), accelerator(gpu, "nvidia")];
        let drivers = || {
            let drivers = drivers_at(root.path(), &accelerators);
            drivers.into_iter().map(|driver| driver.text).collect::<Vec<_>>()
        };
        assert_eq!(drivers(), ["amdxdna unknown", "fastrpc unknown", "nvidia unknown"]);
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/sys/kernel/osrelease", "6.12.9\n");
        write("sys/module/nvidia/version", "580.95\n");
        write("sys/class/accel/accel0/device/fw_version", "1.5.2.380\n");
        #[cfg(unix)]
        std::os::unix::fs::symlink(
            "/sys/bus/pci/drivers/amdxdna",
            root.path().join("sys/class/accel/accel0/device/driver"),
        )
        .unwrap();
        let xdna = if cfg!(unix) { " with firmware 1.5.2.380" } else { "" };
        let xdna = format!("amdxdna kernel 6.12.9{xdna}");
        assert_eq!(drivers(), [&xdna, "fastrpc kernel 6.12.9", "nvidia 580.95"]);
    }

    #[test]
    fn this_machine_has_memory() {
        if cfg!(any(target_os = "linux", target_os = "macos", windows)) {
            assert!(memory_bytes().unwrap() > 1 << 20);
        }
    }

    #[test]
    fn a_vendor_s_program_has_the_last_word_on_its_cards() {
        let card = |driver: &str, text: &str, memory| Accelerator {
            kind: AcceleratorKind::Gpu,
            driver: driver.to_owned(),
            text: text.to_owned(),
            memory,
        };
        let system = vec![card("nvidia", "renderD128", None), card("amdgpu", "renderD129", Some(1))];
        assert_eq!(with_cards(system.clone(), Vec::new()), system);
        let cards = vec![card("nvidia", "A", Some(2)), card("nvidia", "B", None)];
        let expect = [system[1].clone(), cards[0].clone(), cards[1].clone()];
        assert_eq!(with_cards(system, cards), expect);
    }

    #[test]
    fn devices_of_a_class_are_found_by_prefix() {
        let class = tempfile::tempdir().unwrap();
        for name in ["renderD128", "card0"] {
            fs::create_dir(class.path().join(name)).unwrap();
        }
        assert_eq!(in_class(class.path(), "renderD"), [("?".to_owned(), "renderD128".to_owned())]);
        assert!(in_class(Path::new("/nonexistent"), "x").is_empty());
        let card = class.path().join("renderD128");
        assert_eq!(own_memory(&card), None);
        fs::create_dir(card.join("device")).unwrap();
        fs::write(card.join("device/mem_info_vram_total"), "17163091968\n").unwrap();
        assert_eq!(own_memory(&card), Some(17_163_091_968));
    }
}
