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

use crate::load::sessions::Model;

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

    fn check(&self, what: &str, values: impl IntoIterator<Item = f32>) -> Result<(), StepError> {
        let Some(value) = values.into_iter().find(|value| !value.is_finite()) else { return Ok(()) };
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
            self.alarm.check("logits", logits.row(row).iter().copied())?;
        }
        Ok(logits)
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        self.inner.truncate(slot, len)
    }

    fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        let block = self.inner.read_kv(slot, range)?;
        // Pieces of a prompt give no logits, so what is wrong with them would show on the device that has them next.
        for layer in block.layers() {
            self.alarm.check("keys and values", layer.keys.f32s().chain(layer.values.f32s()))?;
        }
        Ok(block)
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
        self.alarm.check("numbers", output.data.iter().copied())?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use narthex_device::split::{SplitExecutor, SplitOptions};
    use narthex_engine::{
        encoder::Rows,
        executor::{KvLayer, KvLimits, KvRows, Wanted},
    };
    use narthex_testkit::executor::FakeExecutor;

    use super::*;

    /// Reads prompts as it should, but keeps keys that are no numbers.
    struct Spoiled(FakeExecutor);

    impl Executor for Spoiled {
        fn limits(&self) -> &Limits {
            self.0.limits()
        }

        fn step(&mut self, plan: &StepPlan) -> Result<Logits<'_>, StepError> {
            self.0.step(plan)
        }

        fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
            self.0.truncate(slot, len)
        }

        fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
            let tokens = range.len();
            let spoiled =
                |layer: &KvLayer| KvLayer { keys: KvRows::F32(vec![f32::NAN; tokens]), ..layer.clone() };
            let block = self.0.read_kv(slot, range)?;
            KvBlock::new(tokens, block.layers().iter().map(spoiled).collect())
        }

        fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
            self.0.write_kv(slot, at, block)
        }
    }

    #[test]
    fn of_two_devices_the_one_that_hands_nonsense_over_is_to_blame() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = told.clone();
        let alarm = Alarm::new(move |reason| heard.lock().unwrap().push(reason));
        let kv = KvLimits { bytes_per_token: 1, step: 8, budget: 1 << 10 };
        let fake = || FakeExecutor::new(Limits { slots: 1, context: 16, chunk: 8, batch: 1, vocab: 5, kv });
        let Model::Decoder(prefill) = watched(Model::Decoder(Box::new(Spoiled(fake()))), &alarm) else {
            panic!("no decoder")
        };
        let mut split =
            SplitExecutor::new(prefill, Box::new(fake()), SplitOptions { break_even: 0 }).unwrap();
        let mut step = |at: usize, tokens: &[u32], wanted| {
            let mut plan = StepPlan::default();
            plan.push(SlotId(0), at, tokens, wanted);
            split.step(&plan).map(|logits| logits.rows())
        };
        // A piece of a prompt gives no logits, in which it would show.
        assert_eq!(step(0, &[1, 2, 3], Wanted::Nothing), Ok(0));
        assert!(!alarm.is_raised());
        assert!(step(3, &[4], Wanted::Last).is_err() && alarm.is_raised());
        let told = told.lock().unwrap();
        assert!(told.len() == 1 && told[0].contains("keys and values that are not finite"), "{told:?}");
    }

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
