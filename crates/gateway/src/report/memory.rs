//! Memory of this process and of the machine, for health reports and metrics.

use narthex_device::{inventory, memory};
use schemars::JsonSchema;
use serde::Serialize;

use crate::report::models::ModelStatus;

/// Free share of the memory below which a report has a warning.
const LOW: f64 = 0.1;

/// Memory of this process and of the machine. Values that the system does not report are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MemoryReport {
    /// Resident bytes of this process, including mapped files.
    pub resident_bytes: Option<u64>,
    /// Bytes of the packages of the models in memory, which are mostly weights.
    pub weights_bytes: u64,
    /// Bytes of the KV caches in use.
    pub kv_used_bytes: u64,
    /// Maximum bytes of the KV caches of the models in memory.
    pub kv_budget_bytes: u64,
    /// Bytes that this process may use: the machine's memory, or a lower limit of its control group.
    pub total_bytes: Option<u64>,
    /// Bytes that the system can still provide without swapping.
    pub free_bytes: Option<u64>,
    /// Free bytes below which the memory is low.
    pub warning_below_bytes: Option<u64>,
}

impl MemoryReport {
    /// Measures the memory now, with these models.
    pub(crate) fn measure(models: &[ModelStatus]) -> Self {
        Self::new(models, inventory::memory_bytes(), inventory::available_memory())
    }

    fn new(models: &[ModelStatus], total_bytes: Option<u64>, free_bytes: Option<u64>) -> Self {
        let engines = models.iter().filter_map(|model| model.engine.as_ref());
        Self {
            resident_bytes: memory::rss(),
            weights_bytes: models.iter().filter_map(|model| model.package_bytes).sum(),
            kv_used_bytes: engines.clone().map(|engine| engine.kv_used_bytes as u64).sum(),
            kv_budget_bytes: engines.map(|engine| engine.kv_budget_bytes as u64).sum(),
            total_bytes,
            free_bytes,
            warning_below_bytes: total_bytes.map(|total| (total as f64 * LOW) as u64),
        }
    }

    /// Returns true if less than a tenth of the memory is free.
    pub fn is_low(&self) -> bool {
        self.free_bytes.zip(self.warning_below_bytes).is_some_and(|(free, least)| free < least)
    }

    /// Logs a warning if little memory is free.
    pub(crate) fn warn_if_low(&self) {
        if let (true, Some(free), Some(total)) = (self.is_low(), self.free_bytes, self.total_bytes) {
            tracing::warn!(
                "only {} of {} MB of memory are free; use fewer models (--max-models) or smaller caches (--kv-budget)",
                free / 1_000_000,
                total / 1_000_000
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::Scheme;

    use super::*;
    use crate::report::models::{EngineCounters, ModelState};

    #[test]
    fn memory_is_the_sum_of_the_models() {
        let model = |package_bytes, kv_used_bytes| {
            let engine = EngineCounters { kv_used_bytes, kv_budget_bytes: 50, ..EngineCounters::default() };
            let unloaded = ModelStatus::unloaded(&"tiny".parse().unwrap(), Scheme::W8, ModelState::Ready);
            ModelStatus { package_bytes: Some(package_bytes), engine: Some(engine), ..unloaded }
        };
        let report = MemoryReport::new(&[model(7, 2), model(5, 0)], Some(1000), Some(100));
        assert_eq!((report.weights_bytes, report.kv_used_bytes, report.kv_budget_bytes), (12, 2, 100));
        assert!(report.warning_below_bytes == Some(100) && !report.is_low());
        assert!(MemoryReport::new(&[], Some(1000), Some(99)).is_low());
        assert!(!MemoryReport::new(&[], None, Some(0)).is_low(), "nothing is known");
    }
}
