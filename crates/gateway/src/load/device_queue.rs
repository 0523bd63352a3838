//! Care for devices that several models share and that may be lost: an NPU or GPU is used by one model at a time, in the
//! order in which they asked, and a model whose device was lost is opened again.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use narthex_device::lasting::{LastingEncoder, LastingExecutor};
use narthex_engine::{
    encoder::{Encoder, EncoderLimits, EncoderOutput, Text},
    executor::{Executor, KvBlock, Limits, Logits, StepError, StepPlan},
};
use narthex_spec::{DeviceName, Ep, SlotId, provider::DeviceKind};

use crate::{error::Error, load::sessions::Model};

/// The queues of this process, one for each provider: a device belongs to the process, whichever gateway asks.
static QUEUES: Mutex<BTreeMap<Ep, Arc<DeviceQueue>>> = Mutex::new(BTreeMap::new());

/// Puts a model on `device` under care; `open` opens the same once more.
pub(crate) fn cared_for(
    model: Model,
    device: DeviceName,
    open: impl FnMut() -> Result<Model, Error> + Send + 'static,
) -> Model {
    queued(lasting(model, open), device)
}

/// A model that is opened again when its device is lost.
fn lasting(model: Model, mut open: impl FnMut() -> Result<Model, Error> + Send + 'static) -> Model {
    let other = || "the package has become one of another kind".to_owned();
    match model {
        Model::Decoder(executor) => {
            let open = move || match open().map_err(|error| error.to_string())? {
                Model::Decoder(executor) => Ok(executor),
                Model::Encoder(_) => Err(other()),
            };
            Model::Decoder(Box::new(LastingExecutor::new(executor, Box::new(open))))
        }
        Model::Encoder(encoder) => {
            let open = move || match open().map_err(|error| error.to_string())? {
                Model::Encoder(encoder) => Ok(encoder),
                Model::Decoder(_) => Err(other()),
            };
            Model::Encoder(Box::new(LastingEncoder::new(encoder, Box::new(open))))
        }
    }
}

/// A model that takes its turns on an NPU, on what stands in for one, or on a GPU: two models side by side on WebGPU give
/// wrong answers or end the process (seen with 1.27.0).
fn queued(model: Model, device: DeviceName) -> Model {
    let texts = match device.kind() {
        DeviceKind::Cpu => return model,
        // A batch may hold hundreds of texts, and an NPU runs them one by one.
        DeviceKind::Npu | DeviceKind::StandIn => 1,
        DeviceKind::Gpu => usize::MAX,
    };
    let queue = lock(&QUEUES).entry(device.ep()).or_default().clone();
    match model {
        Model::Decoder(inner) => Model::Decoder(Box::new(QueuedExecutor { inner, queue })),
        Model::Encoder(inner) => Model::Encoder(Box::new(QueuedEncoder { inner, queue, texts })),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the mutexes here guard is plain data that every holder leaves whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who may use a device: whoever has waited longest.
#[derive(Default)]
struct DeviceQueue {
    tickets: Mutex<Tickets>,
    turn: Condvar,
}

#[derive(Default)]
struct Tickets {
    /// The next one to be given out.
    next: u64,
    /// The one whose turn it is.
    serving: u64,
}

/// A turn on a device; it ends when this is dropped.
struct Turn<'a>(&'a DeviceQueue);

impl DeviceQueue {
    /// Waits for a turn.
    fn wait(&self) -> Turn<'_> {
        let mut tickets = lock(&self.tickets);
        let own = tickets.next;
        tickets.next += 1;
        while tickets.serving != own {
            tickets = self.turn.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.tickets).serving += 1;
        self.0.turn.notify_all();
    }
}

/// A decoder that takes a turn for each step.
struct QueuedExecutor {
    inner: Box<dyn Executor>,
    queue: Arc<DeviceQueue>,
}

impl Executor for QueuedExecutor {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn step(&mut self, plan: &StepPlan) -> Result<Logits<'_>, StepError> {
        let _turn = self.queue.wait();
        self.inner.step(plan)
    }

    // A GPU keeps the cache.

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        let _turn = self.queue.wait();
        self.inner.truncate(slot, len)
    }

    fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        let _turn = self.queue.wait();
        self.inner.read_kv(slot, range)
    }

    fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        let _turn = self.queue.wait();
        self.inner.write_kv(slot, at, block)
    }
}

/// An encoder that takes a turn for so many texts.
struct QueuedEncoder {
    inner: Box<dyn Encoder>,
    queue: Arc<DeviceQueue>,
    texts: usize,
}

impl Encoder for QueuedEncoder {
    fn limits(&self) -> &EncoderLimits {
        self.inner.limits()
    }

    fn run(&mut self, texts: &[Text<'_>]) -> Result<EncoderOutput, StepError> {
        let mut all = EncoderOutput { data: Vec::new(), width: self.inner.limits().width };
        for part in texts.chunks(self.texts) {
            let _turn = self.queue.wait();
            all.data.append(&mut self.inner.run(part)?.data);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use narthex_engine::{
        encoder::Rows,
        executor::{KvLimits, Wanted},
    };
    use narthex_spec::{TokenId, target::OpenVinoDevice};
    use narthex_testkit::{
        encoder::FakeEncoder,
        executor::{FakeExecutor, Mishap},
    };

    use super::*;

    fn decoder() -> FakeExecutor {
        let kv = KvLimits { bytes_per_token: 1, step: 8, budget: 1 << 20 };
        FakeExecutor::new(Limits { slots: 1, context: 64, chunk: 8, batch: 1, vocab: 9, kv })
    }

    fn encoder() -> FakeEncoder {
        FakeEncoder::new(EncoderLimits { max_length: 4, max_batch_tokens: 1000, rows: Rows::Text, width: 3 })
    }

    fn never() -> Result<Model, Error> {
        Err(Error::ShuttingDown)
    }

    fn plan() -> StepPlan {
        let mut plan = StepPlan::default();
        plan.push(SlotId(0), 0, &[1], Wanted::Last);
        plan
    }

    #[test]
    fn turns_come_in_the_order_of_asking() {
        let queue = DeviceQueue::default();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let held = queue.wait();
            for asker in 0..5u64 {
                let (queue, order) = (&queue, &order);
                scope.spawn(move || {
                    let _turn = queue.wait();
                    lock(order).push(asker);
                });
                while lock(&queue.tickets).next < asker + 2 {
                    thread::yield_now();
                }
            }
            assert!(lock(&order).is_empty());
            drop(held);
        });
        assert_eq!(*lock(&order), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_batch_takes_a_turn_for_each_text_and_an_answer_one_for_each_step() {
        let Model::Encoder(mut queued) =
            queued(Model::Encoder(Box::new(encoder())), DeviceName::OpenVino(OpenVinoDevice::Npu))
        else {
            panic!("no encoder")
        };
        let queue = lock(&QUEUES)[&Ep::OpenVino].clone();
        let texts: [&[TokenId]; 3] = [&[1, 2], &[3], &[4, 5, 6]];
        assert_eq!(queued.run_tokens(&texts).unwrap(), encoder().run_tokens(&texts).unwrap());
        assert_eq!(lock(&queue.tickets).serving, 3);
        let chat =
            super::queued(Model::Decoder(Box::new(decoder())), DeviceName::OpenVino(OpenVinoDevice::Npu));
        let Model::Decoder(mut chat) = chat else { panic!("no decoder") };
        chat.step(&plan()).unwrap();
        assert_eq!(lock(&queue.tickets).serving, 4);
    }

    #[test]
    fn a_gpu_takes_a_batch_in_one_turn_and_the_cpu_takes_none() {
        let run = |device| {
            let Model::Encoder(mut model) = queued(Model::Encoder(Box::new(encoder())), device) else {
                panic!("no encoder")
            };
            model.run_tokens(&[&[1, 2], &[3]]).unwrap();
        };
        run(DeviceName::DirectMl);
        run(DeviceName::Cpu);
        let queues = lock(&QUEUES);
        assert_eq!(lock(&queues[&Ep::DirectMl].tickets).serving, 1);
        assert!(!queues.contains_key(&Ep::Cpu));
    }

    #[test]
    fn a_lost_model_is_opened_again() {
        let mut lost = decoder();
        let message = "run the graph: QNN graph execute error. Error code: 1007".to_owned();
        lost.mishaps = [Mishap::Error(StepError::Device { message })].into();
        let open = || Ok(Model::Decoder(Box::new(decoder())));
        let model = cared_for(Model::Decoder(Box::new(lost)), DeviceName::Cuda, open);
        let Model::Decoder(mut model) = model else { panic!("no decoder") };
        assert!(matches!(model.step(&plan()), Err(StepError::Lost { .. })));
        assert!(model.step(&plan()).is_ok());

        let mut lost = encoder();
        lost.failures = [Some(StepError::Device { message: "device lost".to_owned() })].into();
        let model = cared_for(Model::Encoder(Box::new(lost)), DeviceName::Cuda, never);
        let Model::Encoder(mut model) = model else { panic!("no encoder") };
        assert!(model.run_tokens(&[&[1]]).unwrap_err().to_string().contains("opening it again failed"));
    }
}
