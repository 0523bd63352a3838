//! Models that outlive the loss of their device: an NPU whose subsystem was restarted, a GPU that was reset. They are
//! opened again; what was in their slots is gone, and whoever knows the tokens runs them again.
//!
//! Knows the ports alone, and the words in which runtimes tell of a loss.

use std::ops::Range;

use narthex_engine::{
    encoder::{Encoder, EncoderLimits, EncoderOutput, Text},
    executor::{Executor, KvBlock, Limits, Logits, StepError, StepPlan},
};
use narthex_spec::SlotId;

/// How the loss of a device reads in ONNX Runtime's messages.
const LOSSES: [&str; 9] = [
    // QNN after a restart of the NPU's subsystem (SSR): `NPU crashed. SSR detected …`, `NPU crashed again after SSR
    // recovery.`, and QNN_COMMON_ERROR_SYSTEM_COMMUNICATION, as `Error code: 1007` or `…, Code: 1007`.
    "npu crashed",
    "qnn_common_error_system_communication",
    "code: 1007",
    // Direct3D 12: removed, hung, reset.
    "887a0005",
    "887a0006",
    "887a0007",
    // Level Zero, under OpenVINO.
    "error_device_lost",
    // WebGPU and Vulkan.
    "device is lost",
    "device lost",
];

/// What is said of a device that was lost and is not back.
const GONE: &str = "it was lost earlier";

/// Whether a device's message says that it was lost, so that opening it again may help.
pub fn is_loss(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    LOSSES.iter().any(|words| message.contains(words))
}

/// Opens a model again; the reason in words where that fails.
pub type Open<T> = Box<dyn FnMut() -> Result<Box<T>, String> + Send>;

/// A model, and how to have it back.
struct Lasting<T: ?Sized> {
    /// `None` after a loss that could not be mended yet.
    inner: Option<Box<T>>,
    open: Open<T>,
}

impl<T: ?Sized> Lasting<T> {
    /// Drops the model and opens it again.
    fn reopen(&mut self, message: &str) -> Result<&mut T, StepError> {
        // Some devices are given to one holder at a time.
        self.inner = None;
        match (self.open)() {
            Ok(inner) => Ok(self.inner.insert(inner).as_mut()),
            Err(reason) => {
                let message = format!("{message}; opening it again failed: {reason}");
                Err(StepError::Device { message })
            }
        }
    }

    /// What an error of the model means for whoever called it: after a loss the model is opened again.
    fn mend(&mut self, error: StepError) -> StepError {
        match error {
            StepError::Device { message } if is_loss(&message) => match self.reopen(&message) {
                Ok(_) => StepError::Lost { message },
                Err(error) => error,
            },
            error => error,
        }
    }

    /// The model.
    fn held(&mut self) -> Result<&mut T, StepError> {
        if self.inner.is_none() {
            self.reopen(GONE)?;
            // It is back, but not what was in it.
            return Err(StepError::Lost { message: GONE.to_owned() });
        }
        self.inner.as_deref_mut().ok_or_else(|| StepError::Lost { message: GONE.to_owned() })
    }
}

/// An executor that is opened again when its device is lost.
pub struct LastingExecutor {
    limits: Limits,
    lasting: Lasting<dyn Executor>,
    logits: Vec<f32>,
}

impl LastingExecutor {
    /// An executor whose slots are empty, and how to open the same again.
    pub fn new(executor: Box<dyn Executor>, open: Open<dyn Executor>) -> Self {
        let limits = executor.limits().clone();
        Self { limits, lasting: Lasting { inner: Some(executor), open }, logits: Vec::new() }
    }
}

impl Executor for LastingExecutor {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn step(&mut self, plan: &StepPlan) -> Result<Logits<'_>, StepError> {
        self.logits.clear();
        match self.lasting.held()?.step(plan) {
            Ok(logits) => (0..logits.rows()).for_each(|row| self.logits.extend_from_slice(logits.row(row))),
            Err(error) => return Err(self.lasting.mend(error)),
        }
        Ok(Logits::new(&self.logits, self.limits.vocab))
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        match &mut self.lasting.inner {
            Some(executor) => executor.truncate(slot, len),
            // Nothing is held by a device that is gone.
            None => self.limits.check_slot(slot),
        }
    }

    fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        match &self.lasting.inner {
            Some(executor) => executor.read_kv(slot, range),
            None => Err(StepError::Device { message: GONE.to_owned() }),
        }
    }

    fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        let outcome = self.lasting.held()?.write_kv(slot, at, block);
        outcome.map_err(|error| self.lasting.mend(error))
    }
}

/// An encoder that is opened again when its device is lost; the batch that met the loss runs once more.
pub struct LastingEncoder {
    limits: EncoderLimits,
    lasting: Lasting<dyn Encoder>,
}

impl LastingEncoder {
    /// An encoder, and how to open the same again.
    pub fn new(encoder: Box<dyn Encoder>, open: Open<dyn Encoder>) -> Self {
        let limits = encoder.limits().clone();
        Self { limits, lasting: Lasting { inner: Some(encoder), open } }
    }
}

impl Encoder for LastingEncoder {
    fn limits(&self) -> &EncoderLimits {
        &self.limits
    }

    fn run(&mut self, texts: &[Text<'_>]) -> Result<EncoderOutput, StepError> {
        let outcome = self.lasting.held().and_then(|encoder| encoder.run(texts));
        match outcome.map_err(|error| self.lasting.mend(error)) {
            Err(StepError::Lost { .. }) => self.lasting.held()?.run(texts),
            outcome => outcome,
        }
    }
}
