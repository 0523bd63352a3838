//! A supervised encoder.

use std::{num::NonZeroUsize, sync::Arc};

use super::{
    monitor::{NumericsMonitor, first_non_finite},
    queue::DeviceQueue,
    reopen::Reopenable,
};
use crate::{
    encoder::{Encoder, EncoderLimits, EncoderOutput, Text},
    executor::StepError,
};

/// An encoder that takes turns on its device, is opened again when the device is lost, and is monitored.
pub struct SupervisedEncoder {
    limits: EncoderLimits,
    encoder: Reopenable<dyn Encoder>,
    queue: Option<(Arc<DeviceQueue>, NonZeroUsize)>,
    monitor: Option<NumericsMonitor>,
}

impl SupervisedEncoder {
    /// An encoder on a device of its own, that nothing opens again and nothing monitors.
    pub fn new(encoder: Box<dyn Encoder>) -> Self {
        let limits = encoder.limits().clone();
        Self { limits, encoder: Reopenable::new(encoder), queue: None, monitor: None }
    }

    /// Shares its device with the models of a queue: each turn takes at most so many texts.
    pub fn queued(self, queue: Arc<DeviceQueue>, texts: NonZeroUsize) -> Self {
        Self { queue: Some((queue, texts)), ..self }
    }

    /// Is opened again by `open` when its device is lost; the batch that met the loss runs once more.
    pub fn reopened_by(mut self, mut open: impl FnMut() -> Result<Self, String> + Send + 'static) -> Self {
        self.encoder.open =
            Some(Box::new(move || open()?.encoder.model.ok_or_else(|| super::reopen::GONE.to_owned())));
        self
    }

    /// Fails with the monitor instead of giving values that are not finite.
    pub fn monitored_by(self, monitor: NumericsMonitor) -> Self {
        Self { monitor: Some(monitor), ..self }
    }

    /// Runs the texts of one turn.
    fn run_turn(&mut self, texts: &[Text<'_>]) -> Result<EncoderOutput, StepError> {
        let _turn = self.queue.as_ref().map(|(queue, _)| queue.wait());
        let outcome = self.encoder.get().and_then(|encoder| encoder.run(texts));
        match outcome.map_err(|error| self.encoder.recover(error)) {
            Err(StepError::Lost { .. }) => self.encoder.get()?.run(texts),
            outcome => outcome,
        }
    }
}

impl Encoder for SupervisedEncoder {
    fn limits(&self) -> &EncoderLimits {
        &self.limits
    }

    fn run(&mut self, texts: &[Text<'_>]) -> Result<EncoderOutput, StepError> {
        let most = self.queue.as_ref().map_or(usize::MAX, |(_, texts)| texts.get());
        let output = if texts.len() <= most {
            self.run_turn(texts)?
        } else {
            let mut output = EncoderOutput { data: Vec::new(), width: self.limits.width };
            for part in texts.chunks(most) {
                output.data.append(&mut self.run_turn(part)?.data);
            }
            output
        };
        if let Some(monitor) = &self.monitor {
            monitor.check("numbers", first_non_finite(output.data.iter().copied()))?;
        }
        Ok(output)
    }
}
