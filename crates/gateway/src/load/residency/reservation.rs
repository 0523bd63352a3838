//! Reservations of memory: the share of the limits that a model takes from the start of its load until the end of its
//! last use.

use std::sync::{Arc, Weak};

use super::{ResidencyLimits, ResidentModels};

/// Totals of all reservations, including those of removed models that requests still use.
#[derive(Debug, Default)]
pub(super) struct ReservedTotals {
    models: usize,
    kv_bytes: usize,
}

impl ReservedTotals {
    /// Adds a model if the limits allow it. Returns whether they do.
    fn add(&mut self, kv_bytes: usize, limits: &ResidencyLimits) -> bool {
        let kv_total = self.kv_bytes.saturating_add(kv_bytes);
        let fits = self.models < limits.models && (kv_bytes == 0 || kv_total <= limits.kv_bytes);
        if fits {
            self.models += 1;
            self.kv_bytes = kv_total;
        }
        fits
    }
}

/// Reservation of one model. Dropping it wakes the loads that wait for memory, so it must not be dropped by a thread
/// that has locked the resident models.
#[derive(Debug)]
pub(crate) struct ModelReservation {
    kv_bytes: usize,
    models: Weak<ResidentModels>,
}

impl ModelReservation {
    /// Reserves memory for a model with these bytes of KV cache, if the limits allow it.
    pub(super) fn take(models: &Arc<ResidentModels>, kv_bytes: usize) -> Option<Self> {
        let fits = models.reserved.lock().add(kv_bytes, &models.limits);
        fits.then(|| Self { kv_bytes, models: Arc::downgrade(models) })
    }
}

impl Drop for ModelReservation {
    fn drop(&mut self) {
        let Some(models) = self.models.upgrade() else { return };
        let mut in_use = models.reserved.lock();
        in_use.models -= 1;
        in_use.kv_bytes -= self.kv_bytes;
        drop(in_use);
        models.wake();
    }
}
