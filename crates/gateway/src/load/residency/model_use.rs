//! Uses of models in memory by requests.

use std::{
    ops::Deref,
    sync::{Arc, Weak},
};

use super::ResidentModels;
use crate::load::loaded_model::LoadedModel;

/// Use of a model. The model is not removed to make room for another one until its uses have ended.
#[derive(Clone)]
pub(crate) struct ModelUse {
    // Dropped before `_end`, so that a woken load finds the use ended.
    model: Arc<LoadedModel>,
    _end: UseEnd,
}

impl ModelUse {
    pub(super) fn new(model: &Arc<LoadedModel>, models: &Arc<ResidentModels>) -> Self {
        Self { model: model.clone(), _end: UseEnd(Arc::downgrade(models)) }
    }
}

impl Deref for ModelUse {
    type Target = LoadedModel;

    fn deref(&self) -> &LoadedModel {
        &self.model
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
