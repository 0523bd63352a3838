//! Room in memory: the share of the limits that a model takes from the start of its load until the end of its last use.

use std::sync::{Arc, Weak};

use super::{ResidencyLimits, ResidentModels};

/// Room that all models take together, including removed models that requests still use.
#[derive(Debug, Default)]
pub(super) struct RoomInUse {
    models: usize,
    kv_bytes: usize,
}

impl RoomInUse {
    /// Adds a model if the limits leave room for it. Returns whether they do.
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

/// Room of one model. Dropping it wakes the loads that wait for room, so it must not be dropped by a thread that has
/// locked the resident models.
#[derive(Debug)]
pub(crate) struct ModelRoom {
    kv_bytes: usize,
    models: Weak<ResidentModels>,
}

impl ModelRoom {
    /// Takes room for a model with these bytes of KV cache, if there is enough.
    pub(super) fn take(models: &Arc<ResidentModels>, kv_bytes: usize) -> Option<Self> {
        let is_taken = models.room_in_use.lock().add(kv_bytes, &models.limits);
        is_taken.then(|| Self { kv_bytes, models: Arc::downgrade(models) })
    }
}

impl Drop for ModelRoom {
    fn drop(&mut self) {
        let Some(models) = self.models.upgrade() else { return };
        let mut in_use = models.room_in_use.lock();
        in_use.models -= 1;
        in_use.kv_bytes -= self.kv_bytes;
        drop(in_use);
        models.wake();
    }
}
