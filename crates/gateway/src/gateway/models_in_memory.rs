//! Methods for the models in memory.

use super::Gateway;
use crate::{
    error::Error,
    library::RequestedModel,
    report::{memory::MemoryReport, models::ModelStatus},
};

/// Models in memory.
impl Gateway {
    /// Returns the status of every model that was requested since the gateway was opened.
    pub fn status(&self) -> Vec<ModelStatus> {
        self.models.drop_stale();
        let mut status = self.models.status();
        status.retain(|model| self.rights.allows(&model.name));
        status
    }

    /// Measures the memory of this process and of the machine.
    pub fn memory(&self) -> MemoryReport {
        MemoryReport::measure(&self.models.status())
    }

    /// Removes a model that a request names from memory. Requests that already use it continue with it.
    pub fn unload(&self, model: &str) -> Result<(), Error> {
        let RequestedModel { key, .. } = self.resolve(model)?;
        self.models.evict(&key);
        Ok(())
    }
}
