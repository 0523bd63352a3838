//! Choice of the ONNX Runtime library of this process, which loads only one. DirectML and CUDA need a library of their
//! own; plugins need one of the CPU runtime's version. Nothing here loads a provider. Start at [`RuntimeChoice::of`].

use std::path::{Path, PathBuf};

use narthex_catalog::{
    runtimes::{self, RuntimeInfo},
    source::wheel::WheelOrigin,
};
use narthex_device::{
    ep::{self, Cause, Facts, Refusal},
    runtime::Runtime,
};
use narthex_spec::{
    DeviceName, DevicePlacement, Ep, PlacementChoice, ProgressSink, ProviderLibrary, progress::Progress,
};

use crate::{cancel::Cancel, config::Config, error::Error, library::Library, load::eligibility};

/// The runtime library of this process, and the machine's facts under that library.
pub(crate) struct RuntimeChoice {
    library: RuntimeLibrary,
    /// Facts about this machine, with the providers that the library can load.
    pub(crate) facts: Facts,
}

/// Source of the runtime library.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RuntimeLibrary {
    /// A file that the settings name, or that is already loaded and belongs to no runtime of the store.
    File(PathBuf),
    /// A runtime of the store, installed on first need.
    Installed(Ep),
}

impl RuntimeChoice {
    /// Chooses the library for the devices of the settings.
    pub(crate) fn of(library: &Library) -> Self {
        Self::for_devices(library, requested_devices(&library.config))
    }

    /// Chooses the library for these devices: that of the first usable one, unless one is named or loaded already.
    pub(crate) fn for_devices(library: &Library, devices: impl IntoIterator<Item = DeviceName>) -> Self {
        let Library { config, store, .. } = library;
        let machine = Facts::here(
            Ep::ALL
                .into_iter()
                .filter(|&ep| ep != Ep::Cpu)
                .filter_map(|ep| Some((ep, runtimes::locate(store, ep)?.library)))
                .collect(),
        );
        let chosen = match (named_file(config), Runtime::loaded()) {
            (Some(file), _) => RuntimeLibrary::File(file),
            (None, Some(runtime)) => RuntimeLibrary::loaded(library, runtime),
            (None, None) => RuntimeLibrary::Installed(required_runtime(config, devices, &machine)),
        };
        let facts = chosen.restrict(machine);
        Self { library: chosen, facts }
    }

    /// Returns the library's file, if it exists.
    pub(crate) fn file(&self, library: &Library) -> Result<Option<PathBuf>, Error> {
        match &self.library {
            _ if named_file(&library.config).is_some() => cpu_library(library),
            RuntimeLibrary::File(file) => Ok(Some(file.clone())),
            RuntimeLibrary::Installed(Ep::Cpu) => cpu_library(library),
            RuntimeLibrary::Installed(ep) => {
                Ok(runtimes::locate(&library.store, *ep).map(|info| info.library))
            }
        }
    }

    /// Verifies the library and the providers' libraries that changed since their last verification. The devices of a
    /// damaged provider are refused.
    ///
    /// # Errors
    /// [`Error::Catalog`] for a damaged ONNX Runtime, [`Error::Cancelled`].
    pub(crate) fn verify(
        &mut self,
        library: &Library,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        for (ep, file) in self.facts.libraries.clone() {
            if let Err(error) = runtimes::verify(&library.store, &file, progress, cancel.flag()) {
                cancel.check()?;
                let reason = error.to_string();
                let fix = error.hint();
                self.facts.libraries.remove(&ep);
                self.facts.unloadable.insert(ep, Refusal { cause: Cause::Refused, reason, fix });
            }
        }
        if let Some(file) = self.file(library)? {
            runtimes::verify(&library.store, &file, progress, cancel.flag())?;
        }
        Ok(())
    }

    /// Loads the library now if it is not that of the CPU runtime. Earlier jobs of the load would otherwise load the
    /// CPU runtime, and a process loads only one.
    pub(crate) fn load_early(&self, library: &Library) -> Result<(), Error> {
        if let (RuntimeLibrary::Installed(ep), Some(file)) = (&self.library, self.file(library)?)
            && *ep != Ep::Cpu
        {
            Runtime::load(&file)?;
        }
        Ok(())
    }

    /// Loads the library. Installs the CPU runtime on first need.
    pub(crate) fn load(
        &self,
        library: &Library,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<&'static Runtime, Error> {
        match self.file(library)? {
            Some(file) => load_verified(library, &file, progress, cancel),
            None => cpu_runtime(library, progress, cancel),
        }
    }
}

impl RuntimeLibrary {
    /// Returns the library that this process has loaded.
    fn loaded(library: &Library, runtime: &Runtime) -> Self {
        let ep = own_runtimes().chain([Ep::Cpu]).find(|ep| {
            let info = runtimes::locate(&library.store, *ep);
            info.and_then(|info| narthex_files::canonicalize(&info.library).ok())
                .is_some_and(|path| path == runtime.library())
        });
        ep.map_or_else(|| Self::File(runtime.library().to_owned()), Self::Installed)
    }

    /// Restricts a machine's facts to the providers that this library can load. The others are refused with the reason.
    fn restrict(&self, mut machine: Facts) -> Facts {
        for ep in own_runtimes() {
            let included = match self {
                Self::File(file) => ep::bundles_provider(ep, file).then(|| file.clone()),
                Self::Installed(own) if ep == *own => machine.libraries.get(&ep).cloned(),
                Self::Installed(_) => None,
            };
            let installed = machine.libraries.remove(&ep);
            match included {
                Some(file) => drop(machine.libraries.insert(ep, file)),
                None if installed.is_some() => {
                    let needs = "it needs a separate ONNX Runtime".to_owned();
                    machine.unloadable.insert(ep, self.refusal(ep, needs));
                }
                None => {}
            }
        }

        let plugins = version(Ep::Cpu);
        if matches!(self, Self::Installed(ep) if version(*ep) != plugins) {
            for ep in Ep::ALL.into_iter().filter(|ep| ep.library() == ProviderLibrary::Plugin) {
                if machine.libraries.remove(&ep).is_some() {
                    let needs = format!("its plugin needs ONNX Runtime {plugins}");
                    machine.unloadable.insert(ep, self.refusal(ep, needs));
                }
            }
        }
        machine
    }

    /// The refusal of a provider that `needs` another library.
    fn refusal(&self, ep: Ep, needs: String) -> Refusal {
        let (this, unset) = match self {
            Self::File(path) => (path.display().to_string(), "unset ORT_DYLIB_PATH and "),
            Self::Installed(own) => (format!("that of the {own} runtime, {}", version(*own)), ""),
        };
        let reason = format!("{needs}, and this process has {this}; a process loads only one");
        let fix = format!("{unset}name it first in a separate process: --providers {ep},cpu");
        Refusal { cause: Cause::Refused, reason, fix: Some(fix) }
    }
}

/// Returns the providers that need an ONNX Runtime that was built with them.
fn own_runtimes() -> impl Iterator<Item = Ep> {
    Ep::ALL.into_iter().filter(|&ep| ep != Ep::Cpu && ep.library() == ProviderLibrary::OnnxRuntime)
}

/// Returns the pinned version of a provider's runtime.
fn version(ep: Ep) -> &'static str {
    runtimes::package(ep).map_or("unknown", |package| &package.version)
}

/// Loads ONNX Runtime for work on the CPU: the loaded library, else the CPU runtime, installed on first need.
pub(crate) fn cpu_runtime(
    library: &Library,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<&'static Runtime, Error> {
    if let (None, Some(runtime)) = (named_file(&library.config), Runtime::loaded()) {
        return Ok(runtime);
    }
    if let Some(file) = cpu_library(library)? {
        return load_verified(library, &file, progress, cancel);
    }
    progress.event(Progress::Note("Installing ONNX Runtime, which is not installed yet.".to_owned()));
    let installed = runtimes::install(&library.store, Ep::Cpu, &WheelOrigin::Index, progress, cancel.flag())?;
    Ok(Runtime::load(&installed.library)?)
}

/// Loads ONNX Runtime, after verifying those of its files that changed since the last verification.
pub(crate) fn load_verified(
    library: &Library,
    file: &Path,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<&'static Runtime, Error> {
    runtimes::verify(&library.store, file, progress, cancel.flag())?;
    Ok(Runtime::load(file)?)
}

/// Loads a provider's library into ONNX Runtime, after verifying those of its files that changed since the last
/// verification.
pub(crate) fn register_verified(
    library: &Library,
    runtime: &Runtime,
    provider: &RuntimeInfo,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(), Error> {
    runtimes::verify(&library.store, &provider.library, progress, cancel.flag())?;
    // A compiler that runs no models adds no provider.
    let Some(ep) = provider.kind.ep() else { return Ok(()) };
    Ok(runtime.register(ep, &provider.library)?)
}

/// Returns ONNX Runtime's library from the settings, the environment or the store.
pub(crate) fn cpu_library(library: &Library) -> Result<Option<PathBuf>, Error> {
    match &library.config.runtime {
        Some(file) => Ok(Some(file.clone())),
        None => Ok(runtimes::core_library(&library.store)?),
    }
}

/// Returns the library that the settings or the environment name.
fn named_file(config: &Config) -> Option<PathBuf> {
    config.runtime.clone().or_else(runtimes::named_core)
}

/// Returns the devices of the settings, in the order of preference.
fn requested_devices(config: &Config) -> Vec<DeviceName> {
    let order = config.providers.devices();
    let combined = match (&config.device_map, config.place) {
        (Some(map), _) => {
            map.placements(&config.providers).into_iter().flat_map(DevicePlacement::devices).collect()
        }
        (None, Some(PlacementChoice::Fixed(place))) => place.devices(),
        (None, Some(PlacementChoice::Auto)) => order.to_vec(),
        (None, None) => Vec::new(),
    };
    // The CPU works with any library, so it does not decide for a combination of devices.
    combined.into_iter().filter(|&device| device != DeviceName::Cpu).chain(order.iter().copied()).collect()
}

/// Returns the runtime for the first of these devices that is usable on a machine.
fn required_runtime(config: &Config, devices: impl IntoIterator<Item = DeviceName>, machine: &Facts) -> Ep {
    let first = devices
        .into_iter()
        .find(|name| eligibility::refusal(config, *name, machine).is_none())
        .map(DeviceName::ep);
    first.filter(|ep| ep.library() == ProviderLibrary::OnnxRuntime).unwrap_or(Ep::Cpu)
}

#[cfg(test)]
pub(crate) mod tests;
