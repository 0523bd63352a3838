//! Models in memory, as requests use them.

use std::sync::{Arc, Weak};

use super::{ModelRoom, ResidentModels};
use crate::load::loaded_model::LoadedModel;

/// A model in memory. It is not removed to make room for another model until this value and the generations that it
/// started have ended. Its requests have the same names as those of a [`Gateway`](crate::Gateway).
#[derive(Clone)]
pub struct ReadyModel {
    // The fields are dropped in this order: the model, then the room of its memory, then the end that wakes the loads
    // that wait for room.
    pub(crate) loaded: Arc<LoadedModel>,
    _room: Arc<ModelRoom>,
    _end: UseEnd,
}

impl ReadyModel {
    pub(super) fn new(model: &Arc<LoadedModel>, room: &Arc<ModelRoom>, models: &Arc<ResidentModels>) -> Self {
        Self { loaded: model.clone(), _room: room.clone(), _end: UseEnd(Arc::downgrade(models)) }
    }
}

/// Wakes the loads that wait for room when it is dropped.
#[derive(Clone)]
struct UseEnd(Weak<ResidentModels>);

impl Drop for UseEnd {
    fn drop(&mut self) {
        if let Some(models) = self.0.upgrade() {
            models.wake();
        }
    }
}
