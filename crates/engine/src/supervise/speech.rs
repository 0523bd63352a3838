//! A supervised model for speech. A panic becomes an error.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use narthex_spec::TokenId;

use super::{
    monitor::{NumericsMonitor, first_non_finite},
    queue::DeviceQueue,
    reopen::{DEVICE_LOST, Reopenable},
};
use crate::{
    executor::StepError,
    speech::{SpeechLimits, SpeechModel},
};

/// A model for speech that takes turns on its device, is reopened when the device is lost, and is monitored for values
/// that are not finite. The state of the window is lost with the device, so the call fails and the window starts again.
pub struct SupervisedSpeech {
    limits: SpeechLimits,
    model: Reopenable<dyn SpeechModel>,
    queue: Option<Arc<DeviceQueue>>,
    monitor: Option<NumericsMonitor>,
    /// Logits of the last step, which the monitor has checked.
    logits: Vec<f32>,
    /// True if the model has panicked. Its state is unknown, so it is not called again.
    panicked: bool,
}

impl SupervisedSpeech {
    /// Creates a supervised model with exclusive use of its device, without reopening and without a monitor.
    pub fn new(model: Box<dyn SpeechModel>) -> Self {
        let limits = *model.limits();
        let logits = Vec::new();
        Self { limits, model: Reopenable::new(model), queue: None, monitor: None, logits, panicked: false }
    }

    /// Shares the device with the models of a queue. Each call takes a turn.
    pub fn queued(self, queue: Arc<DeviceQueue>) -> Self {
        Self { queue: Some(queue), ..self }
    }

    /// Reopens the model by `open` when its device is lost.
    pub fn reopened_by(mut self, mut open: impl FnMut() -> Result<Self, String> + Send + 'static) -> Self {
        self.model.open = Some(Box::new(move || open()?.model.model.ok_or_else(|| DEVICE_LOST.to_owned())));
        self
    }

    /// Fails through the monitor if logits are not finite.
    pub fn monitored_by(self, monitor: NumericsMonitor) -> Self {
        Self { monitor: Some(monitor), ..self }
    }

    /// Calls the model in one turn, unless it has panicked before.
    fn guard<T>(
        &mut self,
        call: impl FnOnce(&mut (dyn SpeechModel + 'static)) -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        if self.panicked {
            return Err(StepError::Panicked);
        }
        let _turn = self.queue.as_deref().map(DeviceQueue::wait);
        let outcome = catch_unwind(AssertUnwindSafe(|| self.model.get().and_then(call)));
        let outcome = outcome.unwrap_or(Err(StepError::Panicked));
        self.panicked |= matches!(outcome, Err(StepError::Panicked));
        outcome.map_err(|error| self.model.recover(error))
    }
}

impl SpeechModel for SupervisedSpeech {
    fn limits(&self) -> &SpeechLimits {
        &self.limits
    }

    fn encode(&mut self, features: &[f32]) -> Result<(), StepError> {
        match self.guard(|model| model.encode(features)) {
            // The reopened model is empty, and so is a model before it encodes.
            Err(StepError::Lost { .. }) if self.model.open.is_some() => {
                self.guard(|model| model.encode(features))
            }
            outcome => outcome,
        }
    }

    fn decode(&mut self, at: usize, tokens: &[TokenId], rows: &[usize]) -> Result<&[f32], StepError> {
        let mut logits = std::mem::take(&mut self.logits);
        logits.clear();
        self.guard(|model| {
            logits.extend_from_slice(model.decode(at, tokens, rows)?);
            Ok(())
        })?;
        if let Some(monitor) = &self.monitor {
            monitor.check("logits", first_non_finite(logits.iter().copied()))?;
        }
        self.logits = logits;
        Ok(&self.logits)
    }

    fn alignment(&mut self) -> Result<Vec<f32>, StepError> {
        self.guard(|model| model.alignment())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model that fails as stated, then returns these logits.
    struct FakeModel {
        failure: Option<StepError>,
        logits: Vec<f32>,
    }

    impl SpeechModel for FakeModel {
        fn limits(&self) -> &SpeechLimits {
            &SpeechLimits {
                bins: 1,
                frames: 2,
                positions: 1,
                takes_short_windows: false,
                context: 4,
                vocab: 2,
                alignment_heads: 0,
            }
        }

        fn encode(&mut self, _: &[f32]) -> Result<(), StepError> {
            match self.failure.take() {
                Some(StepError::Panicked) => panic!("a model that panics, as this test wants"),
                Some(error) => Err(error),
                None => Ok(()),
            }
        }

        fn decode(&mut self, _: usize, _: &[TokenId], _: &[usize]) -> Result<&[f32], StepError> {
            Ok(&self.logits)
        }

        fn alignment(&mut self) -> Result<Vec<f32>, StepError> {
            Ok(Vec::new())
        }
    }

    fn model(failure: Option<StepError>, logits: &[f32]) -> SupervisedSpeech {
        SupervisedSpeech::new(Box::new(FakeModel { failure, logits: logits.to_vec() }))
    }

    #[test]
    fn a_window_is_encoded_again_after_a_loss() {
        let lost = || Some(StepError::Lost { message: "gone".to_owned() });
        assert!(model(lost(), &[]).encode(&[]).is_err());
        assert_eq!(model(lost(), &[]).reopened_by(|| Ok(model(None, &[]))).encode(&[]), Ok(()));
        let mut broken = model(lost(), &[]).reopened_by(|| Err("no driver".to_owned()));
        assert!(broken.encode(&[]).unwrap_err().to_string().contains("no driver"));
    }

    #[test]
    fn a_model_that_panicked_is_not_called_again() {
        let mut panics = model(Some(StepError::Panicked), &[1.0]);
        assert_eq!(panics.encode(&[]), Err(StepError::Panicked));
        assert_eq!(panics.decode(0, &[1], &[0]), Err(StepError::Panicked));
    }

    #[test]
    fn logits_that_are_not_finite_are_never_given() {
        let monitor = NumericsMonitor::new(|_| ());
        assert_eq!(model(None, &[1.0]).monitored_by(monitor.clone()).decode(0, &[1], &[0]), Ok(&[1.0][..]));
        assert!(model(None, &[f32::NAN]).monitored_by(monitor.clone()).decode(0, &[1], &[0]).is_err());
        assert!(monitor.has_failed());
    }
}
