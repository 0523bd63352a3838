//! Models that outlive the loss of their device, such as an NPU whose subsystem restarts or a GPU that is reset: they are
//! opened again, empty.

use crate::executor::StepError;

/// Opens a model again; the reason if that fails.
pub(super) type Reopen<T> = Box<dyn FnMut() -> Result<Box<T>, String> + Send>;

/// Message about a device that was lost and is not back.
pub(super) const GONE: &str = "it was lost earlier";

/// A model and the way to open it again.
pub(super) struct Reopenable<T: ?Sized> {
    /// `None` after a loss from which the device has not come back.
    pub(super) model: Option<Box<T>>,
    /// `None` for a model that nothing opens again.
    pub(super) open: Option<Reopen<T>>,
}

impl<T: ?Sized> Reopenable<T> {
    pub(super) fn new(model: Box<T>) -> Self {
        Self { model: Some(model), open: None }
    }

    /// Drops the model and opens it again.
    fn reopen(&mut self, message: &str) -> Result<(), StepError> {
        let Some(open) = &mut self.open else { return Err(StepError::Lost { message: message.to_owned() }) };
        // Some devices are given to one holder at a time.
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

    /// Returns the error that a caller gets for one of the model: after a loss, the model is opened again.
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
    /// [`StepError::Lost`] if it had to be opened again, and is empty; [`StepError::Device`] if that failed.
    pub(super) fn get(&mut self) -> Result<&mut T, StepError> {
        if self.model.is_none() {
            self.reopen(GONE)?;
            return Err(StepError::Lost { message: GONE.to_owned() });
        }
        self.model.as_deref_mut().ok_or_else(|| StepError::Lost { message: GONE.to_owned() })
    }
}
