//! A model that is watched while it serves: numbers that are not finite stop it and raise the alarm, so that nobody is
//! given an answer made of nonsense.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use narthex_engine::{
    encoder::{Encoder, EncoderLimits, EncoderOutput, Text},
    executor::{Executor, KvBlock, Limits, Logits, StepError, StepPlan},
};
use narthex_spec::SlotId;

use crate::start::Model;

/// Raised once by a model that gives nonsense; seen by whoever would send it another request.
#[derive(Clone)]
pub(crate) struct Alarm {
    raised: Arc<AtomicBool>,
    told: Arc<dyn Fn(String) + Send + Sync>,
}

impl Alarm {
    /// An alarm that tells `told` why it was raised, once.
    pub(crate) fn new(told: impl Fn(String) + Send + Sync + 'static) -> Self {
        Self { raised: Arc::new(AtomicBool::new(false)), told: Arc::new(told) }
    }

    /// Whether it was raised.
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    fn check(&self, what: &str, values: &[f32]) -> Result<(), StepError> {
        let Some(value) = values.iter().find(|value| !value.is_finite()) else { return Ok(()) };
        let message = format!("it gave {what} that are not finite ({value})");
        if !self.raised.swap(true, Ordering::AcqRel) {
            (self.told)(message.clone());
        }
        Err(StepError::Device { message })
    }
}

/// The model under watch.
pub(crate) fn watched(model: Model, alarm: &Alarm) -> Model {
    match model {
        Model::Decoder(inner) => Model::Decoder(Box::new(WatchedExecutor { inner, alarm: alarm.clone() })),
        Model::Encoder(inner) => Model::Encoder(Box::new(WatchedEncoder { inner, alarm: alarm.clone() })),
    }
}

struct WatchedExecutor {
    inner: Box<dyn Executor>,
    alarm: Alarm,
}

impl Executor for WatchedExecutor {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn step(&mut self, plan: &StepPlan) -> Result<Logits<'_>, StepError> {
        let logits = self.inner.step(plan)?;
        for row in 0..logits.rows() {
            self.alarm.check("logits", logits.row(row))?;
        }
        Ok(logits)
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        self.inner.truncate(slot, len)
    }

    fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        self.inner.read_kv(slot, range)
    }

    fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        self.inner.write_kv(slot, at, block)
    }
}

struct WatchedEncoder {
    inner: Box<dyn Encoder>,
    alarm: Alarm,
}

impl Encoder for WatchedEncoder {
    fn limits(&self) -> &EncoderLimits {
        self.inner.limits()
    }

    fn run(&mut self, texts: &[Text<'_>]) -> Result<EncoderOutput, StepError> {
        let output = self.inner.run(texts)?;
        self.alarm.check("numbers", &output.data)?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use narthex_engine::encoder::Rows;

    use super::*;

    struct Vectors(Vec<f32>, EncoderLimits);

    impl Encoder for Vectors {
        fn limits(&self) -> &EncoderLimits {
            &self.1
        }

        fn run(&mut self, _: &[Text<'_>]) -> Result<EncoderOutput, StepError> {
            Ok(EncoderOutput { data: self.0.clone(), width: self.1.width })
        }
    }

    #[test]
    fn nonsense_is_told_once_and_never_given() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = told.clone();
        let alarm = Alarm::new(move |reason| heard.lock().unwrap().push(reason));
        let limits = EncoderLimits { max_length: 4, max_batch_tokens: 4, rows: Rows::Text, width: 2 };
        let model = |data: &[f32]| {
            let inner = Model::Encoder(Box::new(Vectors(data.to_vec(), limits.clone())));
            let Model::Encoder(encoder) = watched(inner, &alarm) else { panic!("no encoder") };
            encoder
        };
        assert!(model(&[0.5, -0.5]).run_tokens(&[&[1]]).is_ok() && !alarm.is_raised());
        assert!(model(&[0.5, f32::NAN]).run_tokens(&[&[1]]).is_err() && alarm.is_raised());
        assert!(model(&[f32::INFINITY, 0.0]).run_tokens(&[&[1]]).is_err());
        let told = told.lock().unwrap();
        assert!(told.len() == 1 && told[0].contains("NaN"), "{told:?}");
    }
}
