//! Reservations of memory: the share of the limits that a model takes from the start of its load until the end of its
//! last use.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use narthex_spec::manifest::Manifest;

use super::{ResidencyLimits, ResidentModels};
use crate::{config::Config, library::package_key::PackageKey};

/// Memory that a model takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ModelMemory {
    /// Bytes of its packages, which are mostly weights.
    pub(crate) package_bytes: u64,
    /// Maximum bytes of its KV caches.
    pub(crate) kv_bytes: usize,
}

impl ModelMemory {
    /// Returns what the package of `manifest` takes with the settings of its model, without a draft model.
    pub(crate) fn of(config: &Config, manifest: &Manifest) -> Self {
        let kv_bytes = if manifest.architecture.is_decoder() { config.kv_memory().budget } else { 0 };
        Self { package_bytes: manifest.bytes(), kv_bytes }
    }
}

/// All reservations, including those of removed models that requests still use.
#[derive(Debug, Clone, Default)]
pub(super) struct ReservedMemory {
    models: BTreeMap<u64, (PackageKey, ModelMemory)>,
    next: u64,
}

impl ReservedMemory {
    /// Adds a model if the limits allow it. Returns its number.
    fn add(&mut self, key: &PackageKey, memory: ModelMemory, limits: &ResidencyLimits) -> Option<u64> {
        self.has_room(memory, limits).then(|| {
            let number = self.next;
            self.next += 1;
            self.models.insert(number, (key.clone(), memory));
            number
        })
    }

    /// Returns whether the limits allow a further model. A single model may have any package.
    pub(super) fn has_room(&self, memory: ModelMemory, limits: &ResidencyLimits) -> bool {
        let ModelMemory { package_bytes, kv_bytes } = memory;
        let reserved = self.models.values().map(|(_, memory)| memory);
        let kv_total = reserved.fold(kv_bytes, |total, memory| total.saturating_add(memory.kv_bytes));
        let packages_total = package_bytes.saturating_add(self.package_bytes());
        self.models.len() < limits.models
            && (kv_bytes == 0 || kv_total <= limits.kv_bytes)
            && (self.models.is_empty() || limits.package_bytes.is_none_or(|limit| packages_total <= limit))
    }

    /// Returns the bytes of all packages.
    pub(super) fn package_bytes(&self) -> u64 {
        self.models.values().fold(0, |total, (_, memory)| total.saturating_add(memory.package_bytes))
    }

    /// Removes the reservations of a model. Returns the bytes of its packages.
    pub(super) fn remove(&mut self, key: &PackageKey) -> u64 {
        let before = self.package_bytes();
        self.models.retain(|_, (reserved, _)| reserved != key);
        before - self.package_bytes()
    }
}

/// Reservation of one model. Dropping it wakes the loads that wait for memory, so it must not be dropped by a thread
/// that has locked the resident models.
#[derive(Debug)]
pub(crate) struct ModelReservation {
    number: u64,
    models: Weak<ResidentModels>,
}

impl ModelReservation {
    /// Reserves memory for a model, if the limits allow it.
    pub(super) fn take(models: &Arc<ResidentModels>, key: &PackageKey, memory: ModelMemory) -> Option<Self> {
        let number = models.reserved.lock().add(key, memory, &models.limits)?;
        Some(Self { number, models: Arc::downgrade(models) })
    }
}

impl Drop for ModelReservation {
    fn drop(&mut self) {
        let Some(models) = self.models.upgrade() else { return };
        models.reserved.lock().models.remove(&self.number);
        models.wake();
    }
}
