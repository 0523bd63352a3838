//! ONNX Runtime itself: one library and one environment per process, with telemetry disabled.
//!
//! Since version 1.29, ONNX Runtime sends usage data unless `ORT_DISABLE_TELEMETRY` is 1 when its environment is
//! created. Disabling it afterwards is too late, so [`Runtime::load`] fails if the variable is not set.

use std::{
    collections::BTreeMap,
    ffi::CStr,
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    ptr,
    sync::{Arc, OnceLock},
};

use ort::{AsPointer, environment::Environment, logging::LogLevel, memory::DeviceType};
use parking_lot::Mutex;

use narthex_spec::Ep;

use crate::{
    ep::{self, OrtDevice, ProviderSource},
    error::DeviceError,
};

const TELEMETRY: &str = "ORT_DISABLE_TELEMETRY";

/// Oldest minor version that has every function used here.
const OLDEST: u32 = ort::MINOR_VERSION;

/// Disables ONNX Runtime's telemetry for this process and its children. The call must be the first statement of `main`:
/// changing the environment is sound only while no other thread reads it.
pub fn disable_telemetry() {
    // SAFETY: the documentation requires that this is the first statement of `main`, before any thread is started.
    unsafe { std::env::set_var(TELEMETRY, "1") };
}

/// Disables telemetry as [`disable_telemetry`] does, unless it is disabled. Functions of Rust's standard library may read
/// the environment meanwhile; functions of C in other threads may not.
pub fn ensure_telemetry_disabled() {
    if !is_telemetry_disabled() {
        disable_telemetry();
    }
}

fn is_telemetry_disabled() -> bool {
    std::env::var_os(TELEMETRY).is_some_and(|value| value == "1")
}

/// Returns the minor version of an ONNX Runtime library, such as 31 for 1.31.1; `None` if the file cannot be loaded or
/// is another library. The library is unloaded again.
pub fn probe(library: &Path) -> Option<u32> {
    // A relative path would be resolved against the folder of the executable.
    ort::util::probe(narthex_files::canonicalize(library).ok()?)
}

/// The loaded library.
#[derive(Debug)]
pub struct Runtime {
    environment: Environment,
    library: PathBuf,
    version: String,
    plugins: Mutex<BTreeMap<Ep, PathBuf>>,
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();
static LOADING: Mutex<()> = Mutex::new(());

impl Runtime {
    /// Loads the library once per process. Later calls must name the same file.
    ///
    /// # Errors
    /// [`DeviceError::TelemetryOn`] if neither [`disable_telemetry`] was called nor the variable was set by the user,
    /// [`DeviceError::Load`] for a file that is not ONNX Runtime 1.24 or later, [`DeviceError::AlreadyLoaded`] if
    /// another file is loaded.
    pub fn load(library: &Path) -> Result<&'static Self, DeviceError> {
        let _one_at_a_time = LOADING.lock();
        let load = |reason: String| DeviceError::Load { path: library.to_owned(), reason };
        let path = narthex_files::canonicalize(library).map_err(|error| load(error.to_string()))?;
        if let Some(runtime) = RUNTIME.get() {
            if runtime.library == path {
                return Ok(runtime);
            }
            return Err(DeviceError::AlreadyLoaded { loaded: runtime.library.clone(), wanted: path });
        }
        if !is_telemetry_disabled() {
            return Err(DeviceError::TelemetryOn);
        }
        exclude_working_folder();

        let minor = probe(&path).ok_or_else(|| load(why_not(&path)))?;
        if minor < OLDEST {
            return Err(load(format!("it is version 1.{minor}, and 1.{OLDEST} or later is required")));
        }

        let environment = ort::init_from(&path)
            .map_err(|error| load(error.to_string()))?
            .with_name("narthex")
            .with_telemetry(false)
            .with_logger(Arc::new(forward_log))
            .build()
            .map_err(|error| load(error.to_string()))?;

        environment.set_log_level(LogLevel::Warning);
        let version = version_of(&path, minor);
        Ok(RUNTIME.get_or_init(|| Self { environment, library: path, version, plugins: Mutex::default() }))
    }

    /// Returns the runtime that this process has loaded, if any.
    pub fn loaded() -> Option<&'static Self> {
        RUNTIME.get()
    }

    /// Returns the version of ONNX Runtime, such as `1.31.1`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the path of the loaded library.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Loads a provider's library, unless it is already loaded. For a provider that is part of this ONNX Runtime,
    /// `library` is ONNX Runtime's own library.
    ///
    /// # Errors
    /// [`DeviceError::Plugin`] for a file that is not that provider, or if another file was loaded for the provider;
    /// [`DeviceError::AlreadyLoaded`] for a provider that works only in its own ONNX Runtime.
    pub fn register(&self, ep: Ep, library: &Path) -> Result<(), DeviceError> {
        let refused = |reason: String| DeviceError::Plugin { ep, path: library.to_owned(), reason };
        let library = narthex_files::canonicalize(library).map_err(|error| refused(error.to_string()))?;
        let library = match ep::provider_source(ep, &library, &self.library) {
            ProviderSource::Builtin => return Ok(()),
            ProviderSource::Library(library) => library,
            ProviderSource::OtherRuntime => {
                return Err(DeviceError::AlreadyLoaded { loaded: self.library.clone(), wanted: library });
            }
        };
        let mut plugins = self.plugins.lock();
        match plugins.get(&ep) {
            Some(loaded) if *loaded == library => return Ok(()),
            Some(loaded) => {
                return Err(refused(format!("{} is already loaded for this provider", loaded.display())));
            }
            None => {}
        }
        self.environment
            .register_ep_library(ep.ort_name(), &library)
            .map_err(|error| refused(error.message().to_owned()))?;
        plugins.insert(ep, library);
        Ok(())
    }

    /// Returns the devices that ONNX Runtime offers.
    pub fn devices(&self) -> Vec<OrtDevice> {
        self.environment.devices().map(|device| offered(&device)).collect()
    }

    /// Returns whether ONNX Runtime includes a provider.
    pub(crate) fn has(&self, ep: Ep) -> bool {
        let api = ort::api();
        let mut names = ptr::null_mut();
        let mut count = 0;
        // SAFETY: both out-pointers are valid; the list has `count` strings, and is released once after it was read.
        // `ort` takes ownership of each status and releases it.
        unsafe {
            let status = (api.GetAvailableProviders)(&raw mut names, &raw mut count);
            if ort::Error::result_from_status(status).is_err() || names.is_null() {
                return false;
            }
            let wanted = ep.ort_name().as_bytes();
            let count_of = usize::try_from(count).unwrap_or(0);
            let found = (0..count_of).any(|index| CStr::from_ptr(*names.add(index)).to_bytes() == wanted);
            drop(ort::Error::result_from_status((api.ReleaseAvailableProviders)(names, count)));
            found
        }
    }

    /// Returns ONNX Runtime's device that matches `device`.
    pub(crate) fn device(&self, device: &ep::Device) -> Result<ort::device::Device<'_>, DeviceError> {
        let offers = self.devices();
        let none = DeviceError::NoDevice { device: device.name().describe() };
        let index = device.choose(&offers).ok_or(none.clone())?;
        self.environment.devices().nth(index).ok_or(none)
    }

    pub(crate) fn environment(&self) -> &Environment {
        &self.environment
    }
}

/// Describes one of ONNX Runtime's devices.
fn offered(device: &ort::device::Device<'_>) -> OrtDevice {
    let hardware = device.hardware_device();
    OrtDevice {
        ep: device.ep().unwrap_or("?").to_owned(),
        hardware: match hardware.ty() {
            DeviceType::GPU => "GPU",
            DeviceType::NPU => "NPU",
            _ => "CPU",
        },
        vendor: hardware.vendor().unwrap_or("?").to_owned(),
        unit: metadata(device, c"ov_device"),
    }
}

/// Returns a value from a provider's metadata of one of its devices.
fn metadata(device: &ort::device::Device<'_>, key: &CStr) -> Option<String> {
    let api = ort::api();
    // SAFETY: the device is alive, and the results belong to it; both are checked for null.
    unsafe {
        let pairs = (api.EpDevice_EpMetadata)(device.ptr());
        let value = if pairs.is_null() { ptr::null() } else { (api.GetKeyValue)(pairs, key.as_ptr()) };
        (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
    }
}

/// Removes the working folder from the folders in which Windows looks up the libraries of a library: one beside a user's
/// files is not to be trusted. ONNX Runtime itself is loaded by its full path.
#[cfg(windows)]
fn exclude_working_folder() {
    // SAFETY: the argument is an empty string with its end, and Windows copies it. A failure leaves the default order.
    unsafe { windows_sys::Win32::System::LibraryLoader::SetDllDirectoryW([0].as_ptr()) };
}

#[cfg(not(windows))]
fn exclude_working_folder() {}

/// Message for a library whose own libraries are missing, in the words of the reader of the error.
fn explain(error: &str) -> String {
    if !error.contains(MISSING_MODULE) {
        return error.to_owned();
    }
    format!(
        "a library that it needs is missing ({error}); on most machines this is the Microsoft Visual C++ runtime, which \
         https://aka.ms/vs/17/release/vc_redist.{}.exe installs",
        if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" }
    )
}

/// Number of Windows for a library that was not found (`ERROR_MOD_NOT_FOUND`), as the standard library prints it.
const MISSING_MODULE: &str = "(os error 126)";

/// Returns an error with its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Returns the reason why a file cannot be loaded.
fn why_not(path: &Path) -> String {
    match ort::init_from(path) {
        Err(ort::LoadDynamicError::Dlopen { error, .. }) => explain(&with_causes(&error)),
        Err(other) => other.to_string(),
        Ok(_) => "it is not ONNX Runtime 1.x".to_owned(),
    }
}

/// Returns the version of a library. On Linux and macOS the file name contains the full version; elsewhere only the
/// minor version is known.
fn version_of(path: &Path, minor: u32) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit()).trim_end_matches(".dylib");
    if digits.starts_with(&format!("1.{minor}.")) { digits.to_owned() } else { format!("1.{minor}") }
}

/// File to which ONNX Runtime's log is also written, if any.
static RECORDED: Mutex<Option<File>> = Mutex::new(None);

/// Recording of the log of all of ONNX Runtime's sessions to a file, until it is dropped. A second recording replaces
/// the first.
pub(crate) struct LogRecording;

impl LogRecording {
    /// Creates the file and starts the recording.
    pub(crate) fn to(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        *RECORDED.lock() = Some(file);
        Ok(Self)
    }
}

impl Drop for LogRecording {
    fn drop(&mut self) {
        *RECORDED.lock() = None;
    }
}

fn forward_log(level: LogLevel, category: &str, _id: &str, location: &str, message: &str) {
    if let Some(file) = &mut *RECORDED.lock() {
        // A write error, such as a full disk, is not a reason to stop.
        let _ = writeln!(file, "{level:?} {location} {message}");
    }
    match level {
        LogLevel::Verbose => tracing::trace!(target: "ort", category, location, "{message}"),
        LogLevel::Info => tracing::trace!(target: "ort", category, location, "{message}"),
        // ONNX Runtime's warnings are meant for its developers. Problems that concern users are returned as errors or
        // shown in the placement.
        LogLevel::Warning => tracing::debug!(target: "ort", category, location, "{message}"),
        LogLevel::Error | LogLevel::Fatal => tracing::error!(target: "ort", category, location, "{message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_from_file_names() {
        let check = |name: &str, expected| assert_eq!(version_of(Path::new(name), 31), expected);
        check("/x/libonnxruntime.so.1.31.1", "1.31.1");
        check("/x/libonnxruntime.1.31.1.dylib", "1.31.1");
        check("/x/onnxruntime.dll", "1.31");
    }

    #[test]
    fn a_missing_library_of_a_library_is_named() {
        let text = explain("LoadLibraryExW failed: Module not found. (os error 126)");
        assert!(text.contains("Visual C++") && text.contains("(os error 126)"), "{text}");
        assert_eq!(explain("no such file (os error 2)"), "no such file (os error 2)");
        let error = std::io::Error::other(ErrorKind::Wrapped(std::io::Error::other("inner")));
        assert_eq!(with_causes(&error), "outer: inner");
    }

    /// An error with a cause.
    #[derive(Debug, thiserror::Error)]
    enum ErrorKind {
        #[error("outer")]
        Wrapped(#[source] std::io::Error),
    }

    #[test]
    #[cfg(windows)]
    #[allow(unsafe_code, reason = "libraries are loaded by foreign functions")]
    fn libraries_in_the_working_folder_are_not_found() {
        use windows_sys::Win32::System::LibraryLoader::LoadLibraryW;
        let folder = tempfile::tempdir().unwrap();
        let system = std::env::var_os("SystemRoot").unwrap();
        let copied = folder.path().join("narthex-search-order.dll");
        std::fs::copy(Path::new(&system).join("system32/version.dll"), &copied).unwrap();
        let before = std::env::current_dir().unwrap();
        std::env::set_current_dir(folder.path()).unwrap();
        let name: Vec<u16> = "narthex-search-order.dll\0".encode_utf16().collect();
        // SAFETY: the name ends with 0, and the library is one of the system's.
        let load = || unsafe { !LoadLibraryW(name.as_ptr()).is_null() };
        exclude_working_folder();
        assert!(!load());
        std::env::set_current_dir(before).unwrap();
    }
}
