//! Facts about a machine that decide which devices it has, and the reasons against a device.
//!
//! Facts are read once, or recorded from another machine for tests.

use std::{collections::BTreeMap, path::PathBuf};

use narthex_spec::Ep;

use super::cuda_libraries;
use crate::{
    error::INSTALL_CUDA,
    inventory::{self, Accelerator, AcceleratorKind, Driver},
};

/// Environment variable with the path of AMD's provider library.
const VITISAI_LIBRARY: &str = "NARTHEX_VITISAI_LIBRARY";

/// Facts that decide which devices a machine has; empty by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Operating system, as `std::env::consts::OS`.
    pub os: String,
    /// Architecture of the processor, as `std::env::consts::ARCH`.
    pub arch: String,
    /// Name of the processor.
    pub processor: String,
    /// Accelerators whose drivers are loaded.
    pub accelerators: Vec<Accelerator>,
    /// Drivers of the accelerators with their versions; on Windows, drivers of all NPUs and GPUs in the registry.
    pub drivers: Vec<Driver>,
    /// Installed libraries of providers.
    pub libraries: BTreeMap<Ep, PathBuf>,
    /// Installed providers that cannot be loaded into this process's ONNX Runtime, each with the reason.
    pub unloadable: BTreeMap<Ep, Refusal>,
}

impl Facts {
    /// Returns the facts of this machine, with these installed libraries. AMD's library is not part of any runtime; its
    /// path is in `NARTHEX_VITISAI_LIBRARY`.
    pub fn here(mut libraries: BTreeMap<Ep, PathBuf>) -> Self {
        if let Some(path) = std::env::var_os(VITISAI_LIBRARY).filter(|path| !path.is_empty()) {
            libraries.entry(Ep::VitisAi).or_insert_with(|| PathBuf::from(path));
        }
        let accelerators = inventory::accelerators();
        let mut unloadable = BTreeMap::new();
        if libraries.contains_key(&Ep::Cuda)
            && accelerators.iter().any(|found| found.driver == cuda_libraries::DRIVER)
            && let Some(name) = cuda_libraries::missing()
        {
            libraries.remove(&Ep::Cuda);
            unloadable.insert(Ep::Cuda, Refusal::without_cuda(&name));
        }
        Self {
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            processor: inventory::cpu().name,
            drivers: inventory::drivers(&accelerators),
            accelerators,
            libraries,
            unloadable,
        }
    }

    /// Returns the installed library of a provider, or a refusal with the command that installs it or the way to load
    /// it.
    pub(super) fn library(&self, ep: Ep) -> Result<PathBuf, Refusal> {
        if let Some(refusal) = self.unloadable.get(&ep) {
            return Err(refusal.clone());
        }
        self.libraries.get(&ep).cloned().ok_or_else(|| Refusal {
            cause: Cause::NotInstalled,
            reason: format!("the {ep} runtime is not installed"),
            fix: Some(format!("narthex runtime install {ep}")),
        })
    }

    /// Returns the library as [`Self::library`], for a device whose driver only Linux lists. If nothing else indicates
    /// the device either, the machine may lack the runtime or the device itself, and the device counts as absent.
    pub(super) fn library_of(&self, ep: Ep, what: &DeviceSignature) -> Result<PathBuf, Refusal> {
        self.library(ep).map_err(|refusal| self.absent_without_signs(refusal, what))
    }

    /// Returns the library as [`Self::library`], for any GPU. If Windows has no driver of a GPU, nothing indicates that the
    /// runtime would be of use, and the device counts as absent.
    pub(super) fn gpu_library(&self, ep: Ep) -> Result<PathBuf, Refusal> {
        let has_driver = self.drivers.iter().any(|driver| driver.kind == AcceleratorKind::Gpu);
        self.library(ep).map_err(|refusal| match refusal.cause {
            Cause::NotInstalled if self.os == "windows" && !has_driver => {
                let reason = format!("{}, and no GPU was detected", refusal.reason);
                Refusal { cause: Cause::Absent, reason, ..refusal }
            }
            _ => refusal,
        })
    }

    /// Returns the path of AMD's provider library, which the user has to set.
    pub(super) fn vitisai_library(&self, what: &DeviceSignature) -> Result<PathBuf, Refusal> {
        self.libraries.get(&Ep::VitisAi).cloned().ok_or_else(|| {
            let refusal = Refusal {
                cause: Cause::NotInstalled,
                reason: format!(
                    "of chat models, it runs only those that AMD's tools have compiled, and it needs AMD's provider library, but \
                     {VITISAI_LIBRARY} is not set"
                ),
                fix: Some(format!(
                    "for such models, install AMD's Ryzen AI software and set {VITISAI_LIBRARY} to its VitisAI provider \
                     library"
                )),
            };
            self.absent_without_signs(refusal, what)
        })
    }

    fn absent_without_signs(&self, refusal: Refusal, what: &DeviceSignature) -> Refusal {
        if self.os == "linux" || refusal.cause != Cause::NotInstalled || self.has_signs_of(what) {
            return refusal;
        }
        let reason = format!("{}, so it is unknown whether there is an {}", refusal.reason, what.name);
        Refusal { cause: Cause::Absent, reason, ..refusal }
    }

    /// Returns true if the processor's name implies a device, or the system has a driver for it.
    fn has_signs_of(&self, what: &DeviceSignature) -> bool {
        contains_any(&self.processor, what.processors)
            || self
                .drivers
                .iter()
                .any(|driver| driver.kind == what.kind && contains_any(&driver.text, what.drivers))
    }

    /// Refuses a machine on which none of these drivers is loaded. Only Linux lists loaded drivers. On other systems a
    /// device is known only once its provider is loaded, so a machine is refused only if its processor is from a vendor
    /// other than `of`.
    pub(super) fn require_driver(
        &self,
        what: &str,
        drivers: &[&str],
        of: Option<Vendor>,
    ) -> Result<(), Refusal> {
        if self.os == "linux" {
            let found = self.accelerators.iter().any(|found| drivers.contains(&found.driver.as_str()));
            let names = drivers.join(" or ");
            return found
                .then_some(())
                .ok_or_else(|| Refusal::absent(format!("no {what} driver is loaded (expected {names})")));
        }
        match (of, self.vendor()) {
            (Some(of), Some(other)) if of != other => {
                let processor = &self.processor;
                Err(Refusal::absent(format!("there is no {what} with this processor ({processor})")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the vendor in the processor's name, if any.
    pub(super) fn vendor(&self) -> Option<Vendor> {
        let name = self.processor.to_ascii_lowercase();
        [("intel", Vendor::Intel), ("amd", Vendor::Amd)]
            .into_iter()
            .find_map(|(word, vendor)| name.contains(word).then_some(vendor))
    }

    /// Returns whether the machine runs Linux or Windows on x86-64, for which several runtimes are made.
    pub(super) fn is_x86_64_pc(&self) -> bool {
        self.arch == "x86_64" && matches!(self.os.as_str(), "linux" | "windows")
    }

    /// Refuses the machine as one without the device, unless its platform is supported. `requirement` is the reason
    /// without the name of the platform.
    pub(super) fn require(&self, is_supported: bool, requirement: &str) -> Result<(), Refusal> {
        is_supported.then_some(()).ok_or_else(|| {
            Refusal::absent(format!("{requirement}, but this machine runs {}", self.platform()))
        })
    }

    /// Returns the platform as a phrase, such as `Linux on x86-64`.
    pub(super) fn platform(&self) -> String {
        let os = match self.os.as_str() {
            "linux" => "Linux",
            "windows" => "Windows",
            "macos" => "macOS",
            other => other,
        };
        let arch = match self.arch.as_str() {
            "x86_64" => "x86-64",
            "aarch64" => "arm64",
            other => other,
        };
        format!("{os} on {arch}")
    }
}

/// Returns whether a text contains one of these names, which are in lower case.
pub(super) fn contains_any(text: &str, names: &[&str]) -> bool {
    let text = text.to_ascii_lowercase();
    names.iter().any(|name| text.contains(name))
}

/// Signs of a device that Windows does not list among its accelerators. Names are in lower case.
pub(super) struct DeviceSignature {
    /// Name of the device in messages.
    pub(super) name: &'static str,
    /// Kind of device.
    pub(super) kind: AcceleratorKind,
    /// Parts of the names of processors with the device.
    pub(super) processors: &'static [&'static str],
    /// Parts of the driver's name.
    pub(super) drivers: &'static [&'static str],
}

/// Vendor of x86-64 processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vendor {
    Intel,
    Amd,
}

/// Reason why a device is not used, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Kind of the reason.
    pub cause: Cause,
    /// Reason in plain words.
    pub reason: String,
    /// Next step, if there is one.
    pub fix: Option<String>,
}

/// Kind of a reason against a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The machine has no such device.
    Absent,
    /// The device may be there, but its runtime is not installed.
    NotInstalled,
    /// The device is present but refused the model.
    Refused,
    /// The device runs only packages of another kind, whatever is installed.
    OtherPackages,
}

impl Refusal {
    /// Returns the refusal of the CUDA runtime on a machine where this CUDA library is missing.
    fn without_cuda(name: &str) -> Self {
        Self {
            cause: Cause::NotInstalled,
            reason: format!(
                "the cuda runtime needs CUDA 13 and cuDNN 9, but the linker does not find {name}"
            ),
            fix: Some(INSTALL_CUDA.to_owned()),
        }
    }

    /// Returns the refusal of a device that the machine does not have.
    pub(super) fn absent(reason: impl Into<String>) -> Self {
        Self { cause: Cause::Absent, reason: reason.into(), fix: None }
    }
}
