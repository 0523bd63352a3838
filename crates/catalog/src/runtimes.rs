//! The libraries that run models: ONNX Runtime and its providers, taken out of pinned wheels.
//!
//! Each runtime is one exact wheel for each platform, pinned by version and SHA-256 in `pins`. It is fetched with the
//! user's own pip, or given as a file, checked, and its libraries are unpacked into the store as they lie in the
//! wheel, because they find each other by relative paths. Nothing here loads a library.

mod pins;

use std::{
    env, fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use narthex_spec::ProgressSink;
pub use pins::{Pin, Platform};
use serde::Serialize;

use crate::{
    Cancel,
    error::Error,
    source::{
        archive,
        pip::{Pip, Requirement},
        receipt::Receipt,
        wheel::{self, Origin, Pinned},
    },
    store::{Staging, Store},
};

/// The environment variable that names ONNX Runtime's library, over anything in the store.
pub const DYLIB_VARIABLE: &str = "ORT_DYLIB_PATH";

/// A runtime that can be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeKind {
    /// ONNX Runtime itself, with its CPU kernels.
    Cpu,
    /// Qualcomm NPUs: a plugin.
    Qnn,
    /// Intel NPUs, GPUs and CPUs: a plugin.
    OpenVino,
    /// Any GPU through WebGPU: a plugin.
    WebGpu,
    /// Any DirectX 12 device: an ONNX Runtime of its own.
    DirectMl,
    /// NVIDIA GPUs: an ONNX Runtime of its own.
    Cuda,
}

/// Whether a runtime is an ONNX Runtime of its own or is loaded into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Its library is ONNX Runtime.
    Core,
    /// Its library is a provider that the CPU runtime loads.
    Plugin,
}

/// A string that names no runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown runtime {found:?}: expected one of cpu, qnn, openvino, webgpu, directml, cuda")]
pub struct UnknownRuntime {
    /// What was given.
    pub found: String,
}

impl RuntimeKind {
    /// Every runtime, in the order in which they are listed to users.
    pub const ALL: [Self; 6] =
        [Self::Cpu, Self::Qnn, Self::OpenVino, Self::WebGpu, Self::DirectMl, Self::Cuda];

    /// The name used on the command line and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Qnn => "qnn",
            Self::OpenVino => "openvino",
            Self::WebGpu => "webgpu",
            Self::DirectMl => "directml",
            Self::Cuda => "cuda",
        }
    }

    /// The package that its wheels belong to.
    pub fn package(self) -> &'static str {
        pins::package(self).0
    }

    /// The pinned version, the same on every platform.
    pub fn version(self) -> &'static str {
        pins::package(self).1
    }

    /// Whether it is an ONNX Runtime of its own.
    pub fn role(self) -> Role {
        match self {
            Self::Cpu | Self::DirectMl | Self::Cuda => Role::Core,
            Self::Qnn | Self::OpenVino | Self::WebGpu => Role::Plugin,
        }
    }

    /// What the machine must have besides the runtime, if anything.
    pub fn needs(self) -> Option<&'static str> {
        match self {
            Self::Cuda => Some("an NVIDIA driver, CUDA 13 and cuDNN 9, which this wheel does not contain"),
            Self::Qnn => Some("Qualcomm's NPU driver to run on an NPU; compiling for one needs nothing more"),
            Self::OpenVino => Some("Intel's NPU or GPU driver to run on those devices"),
            Self::DirectMl => Some("Windows 10 version 1903 or later with a DirectX 12 driver"),
            Self::Cpu | Self::WebGpu => None,
        }
    }

    fn folder_name(self) -> String {
        format!("{self}-{}", self.version())
    }
}

impl fmt::Display for RuntimeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for RuntimeKind {
    type Err = UnknownRuntime;

    fn from_str(text: &str) -> Result<Self, UnknownRuntime> {
        let wanted = text.trim().to_ascii_lowercase();
        let found = || UnknownRuntime { found: text.chars().take(80).collect() };
        Self::ALL.into_iter().find(|kind| kind.as_str() == wanted).ok_or_else(found)
    }
}

/// Where a runtime's wheel is taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeSource {
    /// The user's pip.
    Pip,
    /// This pip.
    ThisPip(Pip),
    /// A wheel on disk, for machines without pip. Its digest must be the pinned one all the same.
    File(PathBuf),
}

/// An installed runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuntimeInfo {
    /// Which.
    pub kind: RuntimeKind,
    /// Its version.
    pub version: String,
    /// Its folder.
    pub dir: PathBuf,
    /// The library to load: ONNX Runtime, or the plugin.
    pub library: PathBuf,
}

/// The platform that this program was built for.
///
/// # Errors
/// [`Error::UnsupportedPlatform`] names any for which there are no wheels.
pub fn platform() -> Result<Platform, Error> {
    let (os, arch) = (env::consts::OS, env::consts::ARCH);
    Platform::of(os, arch).ok_or(Error::UnsupportedPlatform { os, arch })
}

/// The wheel that `kind` is on this machine; [`Error::NoRuntime`] says why there is none.
pub fn pinned(kind: RuntimeKind) -> Result<&'static Pin, Error> {
    pinned_for(kind, platform()?)
}

/// The wheel that `kind` is on a platform.
pub fn pinned_for(kind: RuntimeKind, platform: Platform) -> Result<&'static Pin, Error> {
    pins::find(kind, platform).map_err(|reason| Error::NoRuntime { kind, platform, reason })
}

/// Installs a runtime. Does nothing where it is installed already.
///
/// # Errors
/// [`Error::NoRuntime`] where it is not made for this machine, [`Error::WrongHash`] for any wheel but the pinned one.
pub fn install(
    store: &Store,
    kind: RuntimeKind,
    source: RuntimeSource,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<RuntimeInfo, Error> {
    install_pin(store, pinned(kind)?, source, progress, cancel)
}

fn install_pin(
    store: &Store,
    pin: &Pin,
    source: RuntimeSource,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<RuntimeInfo, Error> {
    let folder = store.runtime_folder(&pin.kind.folder_name());
    if let Some(info) = installed(&folder, pin) {
        return Ok(info);
    }
    let _lock = store.lock(&format!("runtime-{}", pin.kind), progress, cancel)?;
    if let Some(info) = installed(&folder, pin) {
        return Ok(info);
    }
    let sha256 = pin.sha256()?;
    let wanted = Requirement { package: pin.package, version: pin.version, platform: pin.tag };
    let pinned = Pinned { wanted, sha256, bytes: pin.bytes };
    let origin = match source {
        RuntimeSource::Pip => Origin::Pip,
        RuntimeSource::ThisPip(pip) => Origin::ThisPip(pip),
        RuntimeSource::File(path) => Origin::File(path),
    };
    let wheel = wheel::obtain(store, &pinned, &origin, progress, cancel)?;
    let staging = Staging::new(store, folder.clone())?;
    let choose = |member: &str| pin.takes(member).then(|| member.to_owned());
    let files = archive::unpack(pin.package, &wheel, staging.path(), &choose, progress, cancel)?;
    if !files.contains_key(pin.library) {
        return Err(Error::MissingMember { path: wheel, member: pin.library.to_owned() });
    }
    let source = format!("wheel {} {}", pin.package, pin.version);
    Receipt { made_for: pin.kind.to_string(), source, archive: sha256, files }.write(staging.path())?;
    let dir = staging.commit()?;
    store.drop_blob(&sha256)?;
    Ok(info(&dir, pin))
}

fn info(dir: &Path, pin: &Pin) -> RuntimeInfo {
    let library = pin.library.split('/').fold(dir.to_path_buf(), |path, part| path.join(part));
    RuntimeInfo { kind: pin.kind, version: pin.version.to_owned(), dir: dir.to_path_buf(), library }
}

/// A runtime counts as installed when every file of its receipt is there in its size.
fn installed(dir: &Path, pin: &Pin) -> Option<RuntimeInfo> {
    let receipt = Receipt::of_intact(dir)?;
    let same = receipt.files.contains_key(pin.library) && Some(receipt.archive) == pin.sha256().ok();
    same.then(|| info(dir, pin))
}

/// The pinned version of a runtime, if it is installed and whole.
pub fn locate(store: &Store, kind: RuntimeKind) -> Option<RuntimeInfo> {
    let pin = pinned(kind).ok()?;
    installed(&store.runtime_folder(&kind.folder_name()), pin)
}

/// Every installed runtime.
pub fn list(store: &Store) -> Vec<RuntimeInfo> {
    RuntimeKind::ALL.into_iter().filter_map(|kind| locate(store, kind)).collect()
}

/// Removes a runtime, whole or damaged; [`Error::RuntimeNotInstalled`] if there is none.
pub fn remove(store: &Store, kind: RuntimeKind) -> Result<(), Error> {
    let folder = store.runtime_folder(&kind.folder_name());
    if !folder.exists() {
        return Err(Error::RuntimeNotInstalled { kind });
    }
    store.discard(&folder)
}

/// What `ORT_DYLIB_PATH` names, whether it is there or not.
pub fn named_core() -> Option<PathBuf> {
    env::var_os(DYLIB_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// ONNX Runtime's library: what `ORT_DYLIB_PATH` names, else the installed CPU runtime's, else nothing.
///
/// # Errors
/// [`Error::DylibMissing`] if the variable names no file.
pub fn core_library(store: &Store) -> Result<Option<PathBuf>, Error> {
    core_library_or(store, named_core())
}

fn core_library_or(store: &Store, named: Option<PathBuf>) -> Result<Option<PathBuf>, Error> {
    match named {
        Some(path) if path.is_file() => Ok(Some(path)),
        Some(path) => Err(Error::DylibMissing { path }),
        None => Ok(locate(store, RuntimeKind::Cpu).map(|info| info.library)),
    }
}

#[cfg(test)]
mod tests;
