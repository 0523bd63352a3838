//! A request to load a package, and the devices that it is opened on.

use std::sync::Arc;

use narthex_catalog::store::Store;
use narthex_device::{
    ep::{Device, Facts},
    precompile::FallbackPolicy,
    runtime::Runtime,
};
use narthex_spec::{DeviceName, NpuPolicy, ProgressSink, Variant, manifest::Manifest, progress::Quiet};

use crate::{
    cancel::Cancel,
    config::{Config, NPU_SHARE},
    library::package::Package,
};

/// A package to load, with the settings and the machine's facts that decide how.
#[derive(Clone)]
pub(crate) struct LoadRequest<'a> {
    pub(crate) package: Arc<Package>,
    pub(crate) runtime: &'static Runtime,
    /// Facts about this machine, with the providers that the runtime can load.
    pub(crate) facts: Arc<Facts>,
    pub(crate) config: Arc<Config>,
    pub(crate) store: Store,
    /// Reservation of the model's memory, which ends when it is dropped. None for a model that does not stay in memory.
    pub(crate) reservation: Option<Arc<dyn Send + Sync>>,
    pub(crate) progress: &'a dyn ProgressSink,
    pub(crate) cancel: Cancel,
}

impl LoadRequest<'_> {
    /// Returns the same request without progress, to be kept for later loads.
    pub(crate) fn to_quiet(&self) -> LoadRequest<'static> {
        LoadRequest {
            package: self.package.clone(),
            runtime: self.runtime,
            facts: self.facts.clone(),
            config: self.config.clone(),
            store: self.store.clone(),
            reservation: self.reservation.clone(),
            progress: &Quiet,
            cancel: self.cancel.clone(),
        }
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.package.manifest
    }

    /// Returns the treatment of nodes that a device with static graphs refuses. They may run on the CPU if the required
    /// share of the NPU is lower than the default.
    pub(crate) fn fallback_policy(&self) -> FallbackPolicy {
        let Config { npu, npu_share, .. } = *self.config;
        if npu == NpuPolicy::Require && npu_share < NPU_SHARE {
            FallbackPolicy::OnCpu
        } else {
            FallbackPolicy::Conversions
        }
    }

    /// Returns the graphs that a device runs. Only static graphs have a head of their own, and a package that is bound
    /// to a device has only one variant.
    pub(crate) fn variant(&self, device: DeviceName, head: Option<&SelectedDevice>) -> Variant {
        match self.manifest().bound {
            _ if head.is_some() => Variant::Static,
            Some(_) => Variant::Dynamic,
            None => device.variant(),
        }
    }
}

/// A device of this machine with its provider's options.
#[derive(Debug, Clone)]
pub(crate) struct SelectedDevice {
    pub(crate) name: DeviceName,
    pub(crate) device: Device,
}

impl SelectedDevice {
    /// Returns whether the provider compiles graphs into contexts that can be stored.
    pub(crate) fn compiles_contexts(&self) -> bool {
        matches!(self.device, Device::Qnn(_))
    }
}

/// The devices that one model is opened on.
#[derive(Debug, Clone)]
pub(crate) struct DeviceAssignment {
    /// Device of the model, or of its layers.
    pub(crate) main: SelectedDevice,
    /// Device of a decoder's head, if it is another one.
    pub(crate) head: Option<SelectedDevice>,
}

impl DeviceAssignment {
    /// Assigns the whole model to the CPU.
    pub(crate) fn cpu() -> Self {
        Self { main: SelectedDevice { name: DeviceName::Cpu, device: Device::Cpu }, head: None }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &SelectedDevice> {
        std::iter::once(&self.main).chain(&self.head)
    }

    /// Returns the device that compiles graphs ahead of time, if one does.
    pub(crate) fn compiler(&self) -> Option<&SelectedDevice> {
        self.iter().find(|device| device.compiles_contexts())
    }
}
