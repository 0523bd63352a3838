//! Options that a caller sets for an executor.

use std::path::Path;

use narthex_engine::executor::{KvLimits, Limits};
use narthex_spec::{KvPrecision, manifest::KvLayout};

use crate::{error::DeviceError, states::bytes_per_slot};

/// Options of an executor.
#[derive(Debug, Clone, Copy)]
pub struct ExecutorOptions<'a> {
    /// Number of threads. 0 means one per physical core that this process may use.
    pub threads: usize,
    /// Number of slots.
    pub slots: usize,
    /// Maximum size of the KV cache in bytes.
    pub kv_budget: usize,
    /// Step size of the cache's capacity in tokens.
    pub kv_step: usize,
    /// Maximum number of new tokens in one span.
    pub chunk: usize,
    /// Precision of the cache if Narthex's operators compute attention, as on the CPU. Otherwise the graph determines
    /// it.
    pub kv_precision: KvPrecision,
    /// Folder with the packed weights that an earlier load of the package has stored. See
    /// [`DynamicExecutor::packed_weights`](super::DynamicExecutor::packed_weights).
    pub packed_weights: Option<&'a Path>,
}

impl ExecutorOptions<'_> {
    /// Returns the limits of a model with these options.
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
            kv: KvLimits {
                bytes_per_token: bytes_per_token(kv),
                bytes_per_slot: bytes_per_slot(kv),
                step: self.kv_step,
                budget: self.kv_budget,
            },
        })
    }
}

/// Returns the bytes of one token's keys and values in all layers, or `usize::MAX` on overflow.
pub(super) fn bytes_per_token(kv: &[KvLayout]) -> usize {
    kv.iter().map(KvLayout::bytes_per_token).fold(0, usize::saturating_add)
}
