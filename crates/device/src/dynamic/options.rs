//! Bounds that a caller sets.

use narthex_engine::executor::{KvLimits, Limits};
use narthex_spec::{KvPrecision, manifest::KvLayout};

use crate::error::DeviceError;

/// Bounds of an executor.
#[derive(Debug, Clone, Copy)]
pub struct ExecutorOptions {
    /// Threads; 0 takes one per physical core that this process may use.
    pub threads: usize,
    /// Slots.
    pub slots: usize,
    /// Maximum number of bytes of the KV cache.
    pub kv_budget: usize,
    /// Tokens of which the cache's capacity is a multiple.
    pub kv_step: usize,
    /// Maximum number of new tokens in one span.
    pub chunk: usize,
    /// Precision of the cache where operators of Narthex attend over it: on the CPU. Elsewhere it is the graph's.
    pub kv_precision: KvPrecision,
}

impl ExecutorOptions {
    /// Limits of a model under these options.
    pub(super) fn limits(
        &self,
        context: usize,
        vocab: usize,
        kv: &[KvLayout],
    ) -> Result<Limits, DeviceError> {
        let wanted = [("slots", self.slots), ("KV step", self.kv_step), ("chunk", self.chunk)];
        if let Some((what, _)) = wanted.into_iter().find(|(_, value)| *value == 0) {
            return Err(DeviceError::Option { what });
        }
        Ok(Limits {
            slots: self.slots,
            context,
            chunk: self.chunk.min(context),
            batch: self.slots,
            vocab,
            kv: KvLimits { bytes_per_token: bytes_per_token(kv), step: self.kv_step, budget: self.kv_budget },
        })
    }
}

/// Bytes of one token's keys and values in all layers, saturating.
pub(super) fn bytes_per_token(kv: &[KvLayout]) -> usize {
    kv.iter().map(KvLayout::bytes_per_token).fold(0, usize::saturating_add)
}
