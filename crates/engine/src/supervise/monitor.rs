//! A monitor for values that are not finite, which must not become part of an answer.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::executor::StepError;

/// Record of whether a model has returned values that are not finite. The first failure is reported.
#[derive(Clone)]
pub struct NumericsMonitor {
    failed: Arc<AtomicBool>,
    report: Arc<dyn Fn(String) + Send + Sync>,
}

impl NumericsMonitor {
    /// Creates a monitor that calls `report` with the reason at the first failure of a model.
    pub fn new(report: impl Fn(String) + Send + Sync + 'static) -> Self {
        Self { failed: Arc::new(AtomicBool::new(false)), report: Arc::new(report) }
    }

    /// Returns whether a model has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Fails if there is a value that is not finite.
    ///
    /// # Errors
    /// [`StepError::Device`] with the value.
    pub(super) fn check(&self, what: &str, non_finite: Option<f32>) -> Result<(), StepError> {
        let Some(value) = non_finite else { return Ok(()) };
        let message = format!("it returned {what} that are not finite ({value})");
        if !self.failed.swap(true, Ordering::AcqRel) {
            (self.report)(message.clone());
        }
        Err(StepError::Device { message })
    }
}

/// Returns the first value that is not finite.
pub(super) fn first_non_finite(values: impl IntoIterator<Item = f32>) -> Option<f32> {
    values.into_iter().find(|value| !value.is_finite())
}
