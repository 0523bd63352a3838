//! A monitor for values that are not finite, so that no answer is made of them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::executor::StepError;

/// Notes that a model gave values that are not finite, and reports it once.
#[derive(Clone)]
pub struct NumericsMonitor {
    failed: Arc<AtomicBool>,
    report: Arc<dyn Fn(String) + Send + Sync>,
}

impl NumericsMonitor {
    /// A monitor that calls `report` with the reason when a model fails for the first time.
    pub fn new(report: impl Fn(String) + Send + Sync + 'static) -> Self {
        Self { failed: Arc::new(AtomicBool::new(false)), report: Arc::new(report) }
    }

    /// Returns whether a model has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Fails the model where a value is given, which is not finite.
    ///
    /// # Errors
    /// [`StepError::Device`] that names the value.
    pub(super) fn check(&self, what: &str, non_finite: Option<f32>) -> Result<(), StepError> {
        let Some(value) = non_finite else { return Ok(()) };
        let message = format!("it gave {what} that are not finite ({value})");
        if !self.failed.swap(true, Ordering::AcqRel) {
            (self.report)(message.clone());
        }
        Err(StepError::Device { message })
    }
}

/// The first value that is not finite.
pub(super) fn first_non_finite(values: impl IntoIterator<Item = f32>) -> Option<f32> {
    values.into_iter().find(|value| !value.is_finite())
}
