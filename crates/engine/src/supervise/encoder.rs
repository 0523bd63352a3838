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

/// An encoder that takes turns on its device, is reopened when the device is lost, and is monitored for values that are
/// not finite.
pub struct SupervisedEncoder {
    limits: EncoderLimits,
    encoder: Reopenable<dyn Encoder>,
    queue: Option<(Arc<DeviceQueue>, NonZeroUsize)>,
    monitor: Option<NumericsMonitor>,
}

impl SupervisedEncoder {
    /// Creates a supervised encoder with exclusive use of its device, without reopening and without a monitor.
    pub fn new(encoder: Box<dyn Encoder>) -> Self {
        let limits = encoder.limits().clone();
        Self { limits, encoder: Reopenable::new(encoder), queue: None, monitor: None }
    }

    /// Shares the device with the models of a queue. A turn processes at most `texts` texts.
    pub fn queued(self, queue: Arc<DeviceQueue>, texts: NonZeroUsize) -> Self {
        Self { queue: Some((queue, texts)), ..self }
    }

    /// Reopens the encoder by `open` when its device is lost. The batch that failed with the loss runs once more.
    pub fn reopened_by(mut self, mut open: impl FnMut() -> Result<Self, String> + Send + 'static) -> Self {
        self.encoder.open = Some(Box::new(move || {
            open()?.encoder.model.ok_or_else(|| super::reopen::DEVICE_LOST.to_owned())
        }));
        self
    }

    /// Fails through the monitor if the output has a value that is not finite.
    pub fn monitored_by(self, monitor: NumericsMonitor) -> Self {
        Self { monitor: Some(monitor), ..self }
    }

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
