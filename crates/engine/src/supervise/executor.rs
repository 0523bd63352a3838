//! A supervised executor. It protects the engine from failures of the executor: panics become errors, and the logits
//! are checked against the plan.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use narthex_spec::SlotId;

use super::{
    monitor::{NumericsMonitor, first_non_finite},
    queue::DeviceQueue,
    reopen::{DEVICE_LOST, Reopenable},
};
use crate::{
    executor::{Executor, KvBlock, KvCopy, Limits, Logits, RowScan, StepError, StepPlan},
    position::Position,
};

/// Returns the time since some moment.
type Clock = Box<dyn FnMut() -> Duration + Send>;

/// An executor that takes turns on its device, is reopened when the device is lost, and is monitored for values that
/// are not finite.
pub struct SupervisedExecutor {
    limits: Limits,
    executor: Reopenable<dyn Executor>,
    queue: Option<Arc<DeviceQueue>>,
    monitor: Option<NumericsMonitor>,
    clock: Option<Clock>,
    /// Time of the last step, if there is a clock.
    step_time: Option<Duration>,
    /// Scans of the last step's logits; empty if it failed.
    scans: Vec<RowScan>,
    /// True if the executor has panicked. Its state is unknown, so it is not called again.
    panicked: bool,
}

impl SupervisedExecutor {
    /// Creates a supervised executor with exclusive use of its device, without reopening and without a monitor.
    pub fn new(executor: Box<dyn Executor>) -> Self {
        let limits = executor.limits().clone();
        Self {
            scans: Vec::with_capacity(limits.slots),
            limits,
            executor: Reopenable::new(executor),
            queue: None,
            monitor: None,
            clock: None,
            step_time: None,
            panicked: false,
        }
    }

    /// Shares the device with the models of a queue. Each call takes a turn.
    pub fn queued(self, queue: Arc<DeviceQueue>) -> Self {
        Self { queue: Some(queue), ..self }
    }

    /// Reopens the executor by `open` when its device is lost. Its slots are then empty.
    pub fn reopened_by(mut self, mut open: impl FnMut() -> Result<Self, String> + Send + 'static) -> Self {
        self.executor.open =
            Some(Box::new(move || open()?.executor.model.ok_or_else(|| DEVICE_LOST.to_owned())));
        self
    }

    /// Fails through the monitor if logits, keys or values are not finite.
    pub fn monitored_by(self, monitor: NumericsMonitor) -> Self {
        Self { monitor: Some(monitor), ..self }
    }

    /// Measures the time of each step by `clock`, which returns the time since a fixed moment.
    pub fn timed_by(self, clock: impl FnMut() -> Duration + Send + 'static) -> Self {
        Self { clock: Some(Box::new(clock)), ..self }
    }

    /// Limits the vocabulary to the first `count` tokens. The weights may have more rows than the tokenizer has tokens;
    /// such rows are then neither sampled, nor biased, nor part of a prompt.
    pub fn with_vocabulary(mut self, count: usize) -> Self {
        self.limits.vocab = self.limits.vocab.min(count.max(1));
        self
    }

    /// Returns the time of the last step, without the wait for its turn.
    pub(crate) fn step_time(&self) -> Option<Duration> {
        self.step_time
    }

    /// Returns the error for all further calls if the executor has panicked.
    pub(crate) fn fault(&self) -> Option<StepError> {
        self.panicked.then_some(StepError::Panicked)
    }

    /// Calls the executor, unless it has panicked before.
    fn guard<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<T, StepError>) -> Result<T, StepError> {
        if self.panicked {
            return Err(StepError::Panicked);
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| call(self)));
        let outcome = outcome.unwrap_or(Err(StepError::Panicked));
        // The executor of a phase split has supervised executors of its own, which catch panics.
        self.panicked |= matches!(outcome, Err(StepError::Panicked));
        outcome
    }

    /// Returns the executor if it has not panicked and its keys and values can be stored for other sequences. Those
    /// of a slot with states are incomplete.
    fn portable(&self) -> Option<&dyn Executor> {
        let is_portable = !self.panicked && !self.limits.kv.has_states();
        self.executor.model.as_deref().filter(|_| is_portable)
    }

    /// Runs a plan in one turn, and reopens the model if its device is lost.
    fn run(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        let _turn = self.queue.as_deref().map(DeviceQueue::wait);
        let start = self.clock.as_mut().map(|clock| clock());
        let outcome = self.executor.get()?.execute(plan);
        self.step_time = self.clock.as_mut().zip(start).map(|(clock, start)| clock().saturating_sub(start));
        outcome.map_err(|error| self.executor.recover(error))
    }

    /// Checks the logits of a plan that has run, and scans each row.
    fn scan(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        let Some(executor) = &self.executor.model else { return Ok(()) };
        let logits = executor.logits();
        let found = logits.rows();
        let expected = plan.logits_rows();
        let width = executor.limits().vocab;
        if found != expected || logits.vocab() != width {
            let message = format!(
                "expected {expected} rows of {width} logits, found {found} of {}; please report this",
                logits.vocab()
            );
            return Err(StepError::Device { message });
        }
        let logits = logits.limited(self.limits.vocab);
        self.scans.extend((0..found).map(|row| logits.scanned_row(row).scan));
        match &self.monitor {
            Some(monitor) => monitor.check("logits", self.scans.iter().find_map(|scan| scan.non_finite())),
            None => Ok(()),
        }
    }

    /// Reads keys and values, and checks that they are finite. Inner chunks of a prompt return no logits, so values
    /// that are not finite would otherwise be noticed only on the device to which they are handed over.
    fn read(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        let tokens = range.len();
        let block = {
            let _turn = self.queue.as_deref().map(DeviceQueue::wait);
            self.executor
                .model
                .as_ref()
                .ok_or_else(|| StepError::Device { message: DEVICE_LOST.to_owned() })?
                .read_kv(slot, range)?
        };
        if block.tokens() != tokens {
            let found = block.tokens();
            let message = format!("expected keys of {tokens} tokens, found {found}; please report this");
            return Err(StepError::Device { message });
        }
        if let Some(monitor) = &self.monitor {
            let values = block.layers().iter().flat_map(|layer| layer.keys.f32s().chain(layer.values.f32s()));
            monitor.check("keys and values", first_non_finite(values))?;
        }
        Ok(block)
    }
}

impl<E: Executor + 'static> From<Box<E>> for SupervisedExecutor {
    fn from(executor: Box<E>) -> Self {
        Self::new(executor)
    }
}

impl From<Box<dyn Executor>> for SupervisedExecutor {
    fn from(executor: Box<dyn Executor>) -> Self {
        Self::new(executor)
    }
}

impl Executor for SupervisedExecutor {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        self.scans.clear();
        let outcome = self.guard(|supervised| {
            supervised.run(plan)?;
            supervised.scan(plan)
        });
        if outcome.is_err() {
            self.scans.clear();
        }
        outcome
    }

    fn logits(&self) -> Logits<'_> {
        match &self.executor.model {
            Some(executor) if !self.panicked => {
                executor.logits().limited(self.limits.vocab).with_scans(&self.scans)
            }
            _ => Logits::new(&[], self.limits.vocab.max(1)),
        }
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        self.guard(|Self { executor, queue, limits, .. }| {
            let _turn = queue.as_deref().map(DeviceQueue::wait);
            match &mut executor.model {
                Some(executor) => executor.truncate(slot, len),
                // A device that is lost has empty slots.
                None => limits.check_slot(slot),
            }
        })
    }

    fn rewind_length(&self, slot: SlotId, len: usize) -> usize {
        let executor = self.executor.model.as_deref().filter(|_| !self.panicked);
        executor.map_or(0, |executor| executor.rewind_length(slot, len))
    }

    fn media_width(&self) -> Option<usize> {
        self.executor.model.as_deref().filter(|_| !self.panicked)?.media_width()
    }

    fn verify_limit(&self, at: usize) -> usize {
        // Rejected tokens would be in the states.
        let can_rewind = !self.panicked && !self.limits.kv.has_states();
        let executor = self.executor.model.as_deref().filter(|_| can_rewind);
        executor.map_or(1, |executor| executor.verify_limit(at))
    }

    fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        if self.panicked {
            return Err(StepError::Panicked);
        }
        // A read changes nothing, so a panic in it does not affect later steps.
        let read = catch_unwind(AssertUnwindSafe(|| self.read(slot, range)));
        let outcome = read.unwrap_or_else(|_| {
            let message = "reading keys and values panicked; please report this".to_owned();
            Err(StepError::Device { message })
        });
        match outcome {
            // The next step reopens the model and reports the loss.
            Err(StepError::Lost { message }) => Err(StepError::Device { message }),
            outcome => outcome,
        }
    }

    fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        self.guard(|Self { executor, queue, .. }| {
            let _turn = queue.as_deref().map(DeviceQueue::wait);
            let outcome = executor.get()?.write_kv(slot, at, block);
            outcome.map_err(|error| executor.recover(error))
        })
    }

    fn record_tokens(&mut self, slot: SlotId, at: usize, tokens: &[Position]) {
        // The next step reports a failure.
        let _ = self.guard(|Self { executor, .. }| {
            executor.get()?.record_tokens(slot, at, tokens);
            Ok(())
        });
    }

    fn portable_length(&self) -> usize {
        self.portable().map_or(0, Executor::portable_length)
    }

    fn is_portable(&self, slot: SlotId) -> bool {
        self.portable().is_some_and(|executor| executor.is_portable(slot))
    }

    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        self.guard(|Self { executor, queue, .. }| {
            let _turn = queue.as_deref().map(DeviceQueue::wait);
            let outcome = executor.get()?.copy_kv(copy);
            outcome.map_err(|error| executor.recover(error))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{KvLimits, LogitRows};

    /// An executor that returns these logits for every plan, and panics once if there are none.
    struct FixedLogitsExecutor {
        limits: Limits,
        logits: Vec<f32>,
        width: usize,
    }

    impl Executor for FixedLogitsExecutor {
        fn limits(&self) -> &Limits {
            &self.limits
        }

        fn execute(&mut self, _: &StepPlan) -> Result<(), StepError> {
            if self.logits.is_empty() {
                self.logits.resize(self.width, 0.0);
                panic!("an executor that panics, as this test wants");
            }
            Ok(())
        }

        fn logits(&self) -> Logits<'_> {
            Logits::new(&self.logits, self.width)
        }

        fn truncate(&mut self, _: SlotId, _: usize) -> Result<(), StepError> {
            Ok(())
        }

        fn read_kv(&self, _: SlotId, _: Range<usize>) -> Result<KvBlock, StepError> {
            KvBlock::new(1, Vec::new())
        }

        fn write_kv(&mut self, _: SlotId, _: usize, _: &KvBlock) -> Result<(), StepError> {
            panic!("an executor that panics, as this test wants")
        }
    }

    /// Checks the second of two steps, each of which requests one row of four logits, and a truncation after it.
    fn check(count: usize, width: usize, expect: &str) {
        let kv = KvLimits { bytes_per_token: 1, bytes_per_slot: 0, step: 1, budget: 9 };
        let limits = Limits { slots: 1, context: 9, chunk: 9, batch: 1, vocab: 4, kv };
        let mut supervised = SupervisedExecutor::new(Box::new(FixedLogitsExecutor {
            limits,
            logits: vec![0.0; count],
            width,
        }));
        let mut plan = StepPlan::default();
        plan.push(SlotId(0), 0, &[1, 2], LogitRows::Last);
        let first = supervised.step(&plan).map(|logits| logits.rows());
        let second = supervised.step(&plan).map(|logits| logits.rows());
        assert_eq!(first, second);
        let found = format!(
            "{second:?} {:?} {:?}",
            supervised.truncate(SlotId(0), 0).is_ok(),
            supervised.fault().is_some()
        );
        assert!(found.contains(expect), "{found}");
    }

    #[test]
    fn logits_are_what_the_plan_wants_or_an_error() {
        check(4, 4, "Ok(1) true false");
        check(8, 4, "expected 1 rows of 4 logits, found 2 of 4");
        check(3, 3, "expected 1 rows of 4 logits, found 1 of 3");
    }

    #[test]
    fn rows_of_weights_without_a_token_have_no_logits() {
        let kv = KvLimits { bytes_per_token: 1, bytes_per_slot: 0, step: 1, budget: 9 };
        let limits = Limits { slots: 1, context: 9, chunk: 9, batch: 1, vocab: 4, kv };
        let logits = vec![0.0, 1.0, 2.0, f32::INFINITY];
        let executor = SupervisedExecutor::new(Box::new(FixedLogitsExecutor { limits, logits, width: 4 }));
        let mut limited = executor.with_vocabulary(3).monitored_by(NumericsMonitor::new(|_| ()));
        let mut plan = StepPlan::default();
        plan.push(SlotId(0), 0, &[1, 2], LogitRows::Last);
        let found = limited.step(&plan).unwrap();
        assert_eq!(found.scanned_row(0).scan, RowScan::of(&[0.0, 1.0, 2.0]));
        assert_eq!((found.rows(), limited.limits().vocab), (1, 3));
    }

    #[test]
    fn an_executor_that_panicked_is_not_called_again() {
        check(0, 4, "Err(Panicked)");
        check(0, 4, "false true");
    }

    #[test]
    fn a_panic_of_a_supervised_executor_inside_is_noticed() {
        let kv = KvLimits { bytes_per_token: 1, bytes_per_slot: 0, step: 1, budget: 9 };
        let limits = Limits { slots: 1, context: 9, chunk: 9, batch: 1, vocab: 4, kv };
        let side =
            SupervisedExecutor::new(Box::new(FixedLogitsExecutor { limits, logits: Vec::new(), width: 4 }));
        let mut supervised = SupervisedExecutor::new(Box::new(side));
        let mut plan = StepPlan::default();
        plan.push(SlotId(0), 0, &[1, 2], LogitRows::Last);
        assert_eq!(supervised.execute(&plan), Err(StepError::Panicked));
        assert_eq!(supervised.fault(), Some(StepError::Panicked));
    }

    #[test]
    fn blocks_are_as_long_as_asked_and_a_panic_while_writing_is_an_error() {
        let kv = KvLimits { bytes_per_token: 1, bytes_per_slot: 0, step: 1, budget: 9 };
        let limits = Limits { slots: 1, context: 9, chunk: 9, batch: 1, vocab: 4, kv };
        let mut supervised =
            SupervisedExecutor::new(Box::new(FixedLogitsExecutor { limits, logits: vec![0.0; 4], width: 4 }));
        let block = supervised.read_kv(SlotId(0), 3..4).unwrap();
        let error = supervised.read_kv(SlotId(0), 3..5).unwrap_err().to_string();
        assert!(error.contains("expected keys of 2 tokens, found 1"), "{error}");
        assert!(supervised.fault().is_none());
        assert_eq!(supervised.write_kv(SlotId(0), 0, &block), Err(StepError::Panicked));
        assert_eq!(supervised.read_kv(SlotId(0), 3..4), Err(StepError::Panicked));
    }
}
