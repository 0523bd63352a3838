//! Which ONNX Runtime this process takes. It loads one: DirectML and CUDA work inside of one of their own alone, and the
//! plugins inside of one of the CPU runtime's version. No provider is loaded here. Start at [`Core::of`].

use std::path::PathBuf;

use narthex_catalog::runtimes;
use narthex_device::{
    ep::{self, Cause, Facts, Refusal},
    runtime::Runtime,
};
use narthex_spec::{DeviceName, Ep, PlacementChoice, ProgressSink, ProviderLibrary};

use crate::{
    cancel::Cancel, compile::job, config::Config, error::Error, gateway::Inner, load::device_selection,
};

/// The core of this process, and the machine as it is seen from there.
pub(crate) struct Core {
    taken: Taken,
    /// What is known of this machine, with the providers that can come into the core.
    pub(crate) facts: Facts,
}

/// Where a core comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Taken {
    /// A library that is named, or that was loaded already and belongs to no runtime of the store.
    Library(PathBuf),
    /// A runtime of the store, installed on first need.
    Runtime(Ep),
}

impl Core {
    /// The core for the settings' place and order.
    pub(crate) fn of(inner: &Inner) -> Self {
        Self::serving(inner, wanted(&inner.config))
    }

    /// The core for these devices: that of the first that can be used here, unless one is named or loaded already.
    pub(crate) fn serving(inner: &Inner, devices: impl IntoIterator<Item = DeviceName>) -> Self {
        let located = |ep| Some((ep, runtimes::locate(&inner.store, ep)?.library));
        let machine =
            Facts::here(Ep::ALL.into_iter().filter(|&ep| ep != Ep::Cpu).filter_map(located).collect());
        let taken = match (named(inner), Runtime::loaded()) {
            (Some(library), _) => Taken::Library(library),
            (None, Some(runtime)) => Taken::loaded(inner, runtime),
            (None, None) => Taken::Runtime(needed(&inner.config, devices, &machine)),
        };
        let facts = taken.sees(machine);
        Self { taken, facts }
    }

    /// Its library, if it is there.
    pub(crate) fn found(&self, inner: &Inner) -> Result<Option<PathBuf>, Error> {
        match &self.taken {
            _ if named(inner).is_some() => job::found_library(inner),
            Taken::Library(library) => Ok(Some(library.clone())),
            Taken::Runtime(kind) => Ok(runtimes::locate(&inner.store, *kind).map(|info| info.library)),
        }
    }

    /// Loads it where it is another than the CPU runtime, which whatever is made on the way to a load would take.
    pub(crate) fn claim(&self, inner: &Inner) -> Result<(), Error> {
        match (&self.taken, self.found(inner)?) {
            (Taken::Runtime(ep), Some(library)) if *ep != Ep::Cpu => Runtime::load(&library).map(drop)?,
            _ => {}
        }
        Ok(())
    }

    /// Loads it; the CPU runtime is installed on first need.
    pub(crate) fn load(
        &self,
        inner: &Inner,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<&'static Runtime, Error> {
        match self.found(inner)? {
            Some(library) => Ok(Runtime::load(&library)?),
            None => inner.runtime(progress, cancel),
        }
    }
}

impl Taken {
    /// The core that this process has already.
    fn loaded(inner: &Inner, runtime: &Runtime) -> Self {
        let is = |kind: &Ep| {
            let info = runtimes::locate(&inner.store, *kind);
            info.and_then(|info| info.library.canonicalize().ok())
                .is_some_and(|path| path == runtime.library())
        };
        let kind = own_runtimes().chain([Ep::Cpu]).find(is);
        kind.map_or_else(|| Self::Library(runtime.library().to_owned()), Self::Runtime)
    }

    /// A machine as it is seen from this core: providers that cannot come into it are refused with the reason.
    fn sees(&self, mut machine: Facts) -> Facts {
        for ep in own_runtimes() {
            let inside = match self {
                Self::Library(core) => ep::comes_with(ep, core).then(|| core.clone()),
                Self::Runtime(kind) if ep == *kind => machine.libraries.get(&ep).cloned(),
                Self::Runtime(_) => None,
            };
            let installed = machine.libraries.remove(&ep);
            match inside {
                Some(core) => drop(machine.libraries.insert(ep, core)),
                None if installed.is_some() => {
                    let works = "it works in an ONNX Runtime of its own alone".to_owned();
                    machine.elsewhere.insert(ep, self.refusal(ep, works));
                }
                None => {}
            }
        }
        let plugins = runtimes::ONNX_RUNTIME.version;
        if matches!(self, Self::Runtime(ep) if version(*ep) != plugins) {
            for ep in Ep::ALL.into_iter().filter(|ep| ep.library() == ProviderLibrary::Plugin) {
                if machine.libraries.remove(&ep).is_some() {
                    let works = format!("its plugin works in ONNX Runtime {plugins}");
                    machine.elsewhere.insert(ep, self.refusal(ep, works));
                }
            }
        }
        machine
    }

    /// The refusal of a provider that `works` elsewhere.
    fn refusal(&self, ep: Ep, works: String) -> Refusal {
        let (this, unset) = match self {
            Self::Library(path) => (path.display().to_string(), "unset ORT_DYLIB_PATH and "),
            Self::Runtime(kind) => (format!("that of the {kind} runtime, {}", version(*kind)), ""),
        };
        let reason = format!("{works}, and this process has {this}; a process loads one");
        let fix = format!("{unset}name it first, in a process of its own: --providers {ep},cpu");
        Refusal { cause: Cause::Refused, reason, fix: Some(fix) }
    }
}

/// Providers that work only in an ONNX Runtime that was built with them.
fn own_runtimes() -> impl Iterator<Item = Ep> {
    Ep::ALL.into_iter().filter(|&ep| ep != Ep::Cpu && ep.library() == ProviderLibrary::OnnxRuntime)
}

/// The pinned version of a provider's runtime.
fn version(ep: Ep) -> &'static str {
    runtimes::package(ep).map_or("unknown", |package| package.version)
}

/// The library that the settings or the environment name.
pub(crate) fn named(inner: &Inner) -> Option<PathBuf> {
    inner.config.runtime.clone().or_else(runtimes::named_core)
}

/// The devices that the settings ask for, in turn.
fn wanted(config: &Config) -> Vec<DeviceName> {
    let order = config.providers.devices();
    let together = match config.place {
        Some(PlacementChoice::Fixed(place)) => place.devices(),
        Some(PlacementChoice::Auto) => order.to_vec(),
        None => Vec::new(),
    };
    // The CPU runs in any core, so that it has no say where several devices are used together.
    together.into_iter().filter(|&device| device != DeviceName::Cpu).chain(order.iter().copied()).collect()
}

/// The runtime whose core the first of these devices needs that can be used on a machine.
fn needed(config: &Config, devices: impl IntoIterator<Item = DeviceName>, machine: &Facts) -> Ep {
    let usable = |name: &DeviceName| device_selection::refusal(config, *name, machine).is_none();
    let first = devices.into_iter().find(usable).map(DeviceName::ep);
    first.filter(|ep| ep.library() == ProviderLibrary::OnnxRuntime).unwrap_or(Ep::Cpu)
}

#[cfg(test)]
mod tests;
