//! Models that survive the loss of their device, such as an NPU whose subsystem restarts or a GPU that is reset. They
//! are reopened with an empty state.

use crate::executor::StepError;

/// Function that reopens a model, or returns the reason why that failed.
pub(super) type Reopen<T> = Box<dyn FnMut() -> Result<Box<T>, String> + Send>;

/// Message for a device that was lost and has not come back.
pub(super) const DEVICE_LOST: &str = "it was lost earlier";

/// A model, and the function that reopens it.
pub(super) struct Reopenable<T: ?Sized> {
    /// `None` after a loss, until the device has come back.
    pub(super) model: Option<Box<T>>,
    /// `None` for a model that cannot be reopened.
    pub(super) open: Option<Reopen<T>>,
}

impl<T: ?Sized> Reopenable<T> {
    pub(super) fn new(model: Box<T>) -> Self {
        Self { model: Some(model), open: None }
    }

    /// Drops the model and reopens it.
    fn reopen(&mut self, message: &str) -> Result<(), StepError> {
        let Some(open) = &mut self.open else { return Err(StepError::Lost { message: message.to_owned() }) };
        // Some devices can be used by only one owner at a time.
        self.model = None;
        match open() {
            Ok(model) => {
                self.model = Some(model);
                Ok(())
            }
            Err(reason) => {
                let message = format!("{message}; opening it again failed: {reason}");
                Err(StepError::Device { message })
            }
        }
    }

    /// Returns the error for a caller after an error of the model. If the device was lost, the model is reopened.
    pub(super) fn recover(&mut self, error: StepError) -> StepError {
        match error {
            StepError::Lost { message } => match self.reopen(&message) {
                Ok(()) => StepError::Lost { message },
                Err(error) => error,
            },
            error => error,
        }
    }

    /// Returns the model.
    ///
    /// # Errors
    /// [`StepError::Lost`] if the model had to be reopened and is empty; [`StepError::Device`] if that failed.
    pub(super) fn get(&mut self) -> Result<&mut T, StepError> {
        if self.model.is_none() {
            self.reopen(DEVICE_LOST)?;
            return Err(StepError::Lost { message: DEVICE_LOST.to_owned() });
        }
        self.model.as_deref_mut().ok_or_else(|| StepError::Lost { message: DEVICE_LOST.to_owned() })
    }
}
