//! Supervision of loaded models. Models use an NPU or a GPU one at a time, in order of arrival. A model whose device
//! was lost is reopened. A model that returns values that are not finite is stopped.

use std::{collections::BTreeMap, num::NonZeroUsize, sync::Arc};

use narthex_engine::supervise::{DeviceQueue, NumericsMonitor};
use narthex_spec::{DeviceKind, DeviceName, Ep};
use parking_lot::Mutex;

use crate::{error::Error, load::sessions::Model};

/// Queues of this process, one for each provider. A device belongs to the process, so all gateways share its queue.
static QUEUES: Mutex<BTreeMap<Ep, Arc<DeviceQueue>>> = Mutex::new(BTreeMap::new());

/// Supervises a model on `device`. `open` reopens the same model after the device was lost.
pub(crate) fn supervised(
    model: Model,
    device: DeviceName,
    mut open: impl FnMut() -> Result<Model, Error> + Send + 'static,
) -> Model {
    const CHANGED: &str = "the kind of the package's model changed after it was loaded";
    let model = match model {
        Model::Decoder(executor) => {
            Model::Decoder(executor.reopened_by(move || match open().map_err(|error| error.to_string())? {
                Model::Decoder(executor) => Ok(executor),
                Model::Encoder(_) | Model::Speech(_) => Err(CHANGED.to_owned()),
            }))
        }
        Model::Encoder(encoder) => {
            Model::Encoder(encoder.reopened_by(move || match open().map_err(|error| error.to_string())? {
                Model::Encoder(encoder) => Ok(encoder),
                Model::Decoder(_) | Model::Speech(_) => Err(CHANGED.to_owned()),
            }))
        }
        Model::Speech(speech) => {
            Model::Speech(speech.reopened_by(move || match open().map_err(|error| error.to_string())? {
                Model::Speech(speech) => Ok(speech),
                Model::Decoder(_) | Model::Encoder(_) => Err(CHANGED.to_owned()),
            }))
        }
    };

    queued(model, device)
}

/// Stops a model if its values are not finite.
pub(crate) fn monitored(model: Model, monitor: &NumericsMonitor) -> Model {
    match model {
        Model::Decoder(executor) => Model::Decoder(executor.monitored_by(monitor.clone())),
        Model::Encoder(encoder) => Model::Encoder(encoder.monitored_by(monitor.clone())),
        Model::Speech(speech) => Model::Speech(speech.monitored_by(monitor.clone())),
    }
}

/// Lets a model take turns on an NPU, on software that stands in for one, or on a GPU. Two concurrent models on WebGPU
/// give wrong answers or end the process (seen with 1.27.0).
fn queued(model: Model, device: DeviceName) -> Model {
    let texts = match device.kind() {
        DeviceKind::Cpu => return model,
        // A batch may hold hundreds of texts, and an NPU runs them one by one.
        DeviceKind::Npu | DeviceKind::StandIn => NonZeroUsize::MIN,
        DeviceKind::Gpu => NonZeroUsize::MAX,
    };
    let queue = QUEUES.lock().entry(device.ep()).or_default().clone();
    match model {
        Model::Decoder(executor) => Model::Decoder(executor.queued(queue)),
        Model::Encoder(encoder) => Model::Encoder(encoder.queued(queue, texts)),
        Model::Speech(speech) => Model::Speech(speech.queued(queue)),
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use narthex_device::split::{SplitExecutor, SplitOptions};
    use narthex_engine::{
        encoder::{Batching, Encoder, EncoderLimits, EncoderOutput, Rows, Text},
        executor::{Executor, KvBlock, KvLayer, KvRows, Limits, LogitRows, Logits, StepError, StepPlan},
        supervise::{SupervisedEncoder, SupervisedExecutor},
    };
    use narthex_spec::{OpenVinoDevice, SlotId, TokenId};
    use narthex_testkit::{
        encoder::FakeEncoder,
        executor::{FakeExecutor, Fault, KV},
    };

    use super::*;

    fn fake_decoder() -> FakeExecutor {
        FakeExecutor::new(Limits { slots: 1, context: 64, chunk: 8, batch: 1, vocab: 9, kv: KV })
    }

    fn fake_encoder() -> FakeEncoder {
        FakeEncoder::new(EncoderLimits {
            max_length: 4,
            max_batch_tokens: 1000,
            batching: Batching::Padded,
            rows: Rows::Text,
            width: 3,
        })
    }

    fn decoder(executor: impl Executor + 'static) -> Model {
        Model::Decoder(SupervisedExecutor::new(Box::new(executor)))
    }

    fn encoder(encoder: impl Encoder + 'static) -> Model {
        Model::Encoder(SupervisedEncoder::new(Box::new(encoder)))
    }

    fn never() -> Result<Model, Error> {
        Err(Error::ShuttingDown)
    }

    fn plan() -> StepPlan {
        let mut plan = StepPlan::default();
        plan.push(SlotId(0), 0, &[1], LogitRows::Last);
        plan
    }

    #[test]
    fn a_batch_takes_a_turn_for_each_text_and_an_answer_one_for_each_step() {
        let npu = DeviceName::OpenVino(OpenVinoDevice::Npu);
        let Model::Encoder(mut queued) = queued(encoder(fake_encoder()), npu) else { panic!("no encoder") };
        let queue = QUEUES.lock()[&Ep::OpenVino].clone();
        let texts: [&[TokenId]; 3] = [&[1, 2], &[3], &[4, 5, 6]];
        assert_eq!(queued.run_tokens(&texts).unwrap(), fake_encoder().run_tokens(&texts).unwrap());
        assert_eq!(queue.served(), 3);
        let Model::Decoder(mut chat) = super::queued(decoder(fake_decoder()), npu) else {
            panic!("no decoder")
        };
        chat.step(&plan()).unwrap();
        assert_eq!(queue.served(), 4);
    }

    #[test]
    fn a_gpu_takes_a_batch_in_one_turn_and_the_cpu_takes_none() {
        let run = |device| {
            let Model::Encoder(mut model) = queued(encoder(fake_encoder()), device) else {
                panic!("no encoder")
            };
            model.run_tokens(&[&[1, 2][..], &[3]]).unwrap();
        };
        run(DeviceName::DirectMl);
        run(DeviceName::Cpu);
        let queues = QUEUES.lock();
        assert_eq!(queues[&Ep::DirectMl].served(), 1);
        assert!(!queues.contains_key(&Ep::Cpu));
    }

    #[test]
    fn a_lost_model_is_opened_again() {
        let mut lost = fake_decoder();
        let message = "run the graph: QNN graph execute error. Error code: 1007".to_owned();
        lost.faults = [Fault::Error(StepError::Lost { message })].into();
        let open = || Ok(decoder(fake_decoder()));
        let model = supervised(decoder(lost), DeviceName::Cuda, open);
        let Model::Decoder(mut model) = model else { panic!("no decoder") };
        assert!(matches!(model.step(&plan()), Err(StepError::Lost { .. })));
        assert!(model.step(&plan()).is_ok());

        let mut lost = fake_encoder();
        lost.failures = [Some(StepError::Lost { message: "device lost".to_owned() })].into();
        let model = supervised(encoder(lost), DeviceName::Cuda, never);
        let Model::Encoder(mut model) = model else { panic!("no encoder") };
        assert!(model.run_tokens(&[&[1]]).unwrap_err().to_string().contains("opening it again failed"));
    }

    /// Returns a monitor and the list of its reports.
    fn monitor() -> (NumericsMonitor, Arc<Mutex<Vec<String>>>) {
        let reported = Arc::new(Mutex::new(Vec::new()));
        let sink = reported.clone();
        (NumericsMonitor::new(move |reason| sink.lock().push(reason)), reported)
    }

    /// Executor with correct logits whose keys are not numbers.
    struct NanKeysExecutor(FakeExecutor);

    impl Executor for NanKeysExecutor {
        fn limits(&self) -> &Limits {
            self.0.limits()
        }

        fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError> {
            self.0.execute(plan)
        }

        fn logits(&self) -> Logits<'_> {
            self.0.logits()
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
    fn of_two_devices_the_one_that_hands_nonsense_over_fails() {
        let (monitor, reported) = monitor();
        let fake =
            || FakeExecutor::new(Limits { slots: 1, context: 16, chunk: 8, batch: 1, vocab: 5, kv: KV });
        let Model::Decoder(prefill) = monitored(decoder(NanKeysExecutor(fake())), &monitor) else {
            panic!("no decoder")
        };
        let mut split =
            SplitExecutor::new(Box::new(prefill), Box::new(fake()), SplitOptions { break_even: 0 }).unwrap();
        let mut step = |at: usize, tokens: &[u32], wanted| {
            let mut plan = StepPlan::default();
            plan.push(SlotId(0), at, tokens, wanted);
            split.step(&plan).map(|logits| logits.rows())
        };
        // A part of a prompt has no logits in which the error would be visible.
        assert_eq!(step(0, &[1, 2, 3], LogitRows::Nothing), Ok(0));
        assert!(!monitor.has_failed());
        assert!(step(3, &[4], LogitRows::Last).is_err() && monitor.has_failed());
        let reported = reported.lock();
        assert!(
            reported.len() == 1 && reported[0].contains("keys and values that are not finite"),
            "{reported:?}"
        );
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
    fn values_that_are_not_finite_are_reported_once_and_never_given() {
        let (monitor, reported) = monitor();
        let limits = EncoderLimits { width: 2, ..fake_encoder().limits().clone() };
        let model = |data: &[f32]| {
            let model = encoder(Vectors(data.to_vec(), limits.clone()));
            let Model::Encoder(encoder) = monitored(model, &monitor) else { panic!("no encoder") };
            encoder
        };
        assert!(model(&[0.5, -0.5]).run_tokens(&[&[1]]).is_ok() && !monitor.has_failed());
        assert!(model(&[0.5, f32::NAN]).run_tokens(&[&[1]]).is_err() && monitor.has_failed());
        assert!(model(&[f32::INFINITY, 0.0]).run_tokens(&[&[1]]).is_err());
        let reported = reported.lock();
        assert!(reported.len() == 1 && reported[0].contains("NaN"), "{reported:?}");
    }
}
