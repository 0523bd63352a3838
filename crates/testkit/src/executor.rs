//! An executor without a model: its logits are a hash of everything in the slot, so that any mix-up of slots, positions
//! or tokens changes the answer. It checks its caller strictly and fails on demand. If its limits have states, they are
//! the hash, so that a state of other tokens changes the answer too.

mod state;

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use narthex_engine::{
    executor::{
        Executor, KvBlock, KvCopy, KvLimits, KvRows, Limits, Logits, Span, StepError, StepPlan, check_read,
        check_truncate,
    },
    position::Position,
    supervise::SupervisedExecutor,
};
use narthex_spec::{SlotId, TokenId, manifest::KvLayout};

pub(crate) use state::hash;
use state::{SlotState, hash_after};

/// Limits of a cache that never runs short: a token takes one byte.
pub const KV: KvLimits = KvLimits { bytes_per_token: 1, bytes_per_slot: 0, step: 8, budget: 1 << 20 };

/// Fault injected into a call of the executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// Returns this error and leaves garbage in the slots of the failed step.
    Error(StepError),
    /// Loses the device; its slots are empty afterwards. No effect on truncations.
    Lost,
    /// Panics.
    Panic,
    /// Returns NaN logits. No effect on truncations.
    NotANumber,
    /// Returns the logits of other tokens. No effect on truncations.
    Distorted,
}

impl Fault {
    fn inject(&self) -> Result<(), StepError> {
        match self {
            Self::Error(error) => Err(error.clone()),
            Self::Panic => panic!("injected panic of the fake executor"),
            Self::None | Self::NotANumber | Self::Distorted | Self::Lost => Ok(()),
        }
    }
}

/// An executor without a model. Decode steps do not allocate.
pub struct FakeExecutor {
    limits: Limits,
    slots: Vec<Vec<TokenId>>,
    /// States of the slots, if the limits have any.
    states: Vec<SlotState>,
    logits: Vec<f32>,
    watch: Watch,
    /// Faults of the next steps, one entry each.
    pub faults: VecDeque<Fault>,
    /// Faults of the next truncations, one entry each.
    pub truncate_faults: VecDeque<Fault>,
    /// Faults of the next copies, one entry each.
    pub copy_faults: VecDeque<Fault>,
    /// Faults of the next writes of keys and values, one entry each.
    pub write_faults: VecDeque<Fault>,
    /// Number of last tokens that logits depend on; all of them by default.
    pub looks_back: usize,
    /// Number of elements of a medium's row; by default, only tokens are taken.
    pub media_width: Option<usize>,
}

/// A view of the lengths of an executor's slots. It stays valid after the executor has been moved.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<Mutex<Vec<usize>>>);

impl Watch {
    /// Returns the number of tokens in each slot.
    pub fn lengths(&self) -> Vec<usize> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, slot: SlotId, length: usize) {
        if let Some(held) = self.lock().get_mut(slot.index()) {
            *held = length;
        }
    }
}

impl FakeExecutor {
    /// Creates an executor with empty slots.
    pub fn new(limits: Limits) -> Self {
        Self {
            slots: (0..limits.slots).map(|_| Vec::with_capacity(limits.context)).collect(),
            states: vec![SlotState::empty(); if limits.kv.has_states() { limits.slots } else { 0 }],
            logits: Vec::with_capacity(limits.vocab * (limits.chunk + limits.batch)),
            watch: Watch(Arc::new(Mutex::new(vec![0; limits.slots]))),
            faults: VecDeque::new(),
            truncate_faults: VecDeque::new(),
            copy_faults: VecDeque::new(),
            write_faults: VecDeque::new(),
            looks_back: usize::MAX,
            media_width: None,
            limits,
        }
    }

    /// Returns a view of the slots, for use after the executor has been moved.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    fn held(&self, slot: SlotId) -> Result<&[TokenId], StepError> {
        self.limits.check_slot(slot)?;
        Ok(&self.slots[slot.index()])
    }

    fn check(&self, plan: &StepPlan) -> Result<(), StepError> {
        plan.check(&self.limits, |slot| self.slots[slot.index()].len())?;
        let single = plan.spans.iter().filter(|span| span.tokens.len() == 1).count();
        if single > self.limits.batch {
            let reason = format!("{single} single tokens, {} fit", self.limits.batch);
            return Err(StepError::bad_plan(reason));
        }
        plan.check_media(self.media_width)?;
        self.check_memory(plan)
    }

    /// Checks the KV budget. The engine has to stay within it, so an error here is an error of its accounting.
    fn check_memory(&self, plan: &StepPlan) -> Result<(), StepError> {
        let (mut rows, mut longest) = (0, 0);
        for (slot, held) in self.slots.iter().enumerate() {
            let span = plan.spans.iter().find(|span| span.slot.index() == slot);
            let length = held.len() + span.map_or(0, |span| span.tokens.len());
            rows += usize::from(length > 0);
            longest = longest.max(length);
        }
        let kv = &self.limits.kv;
        let bytes = kv.bytes(rows, kv.capacity_for(longest, self.limits.context));
        if bytes <= kv.budget {
            return Ok(());
        }
        Err(StepError::bad_plan(format!("{bytes} KV bytes, {} fit", kv.budget)))
    }

    fn run(&mut self, plan: &StepPlan, span: &Span) {
        let skipped = span.tokens.len() - span.logits.rows(span.tokens.len());
        let slot = &mut self.slots[span.slot.index()];
        let state = self.states.get_mut(span.slot.index());
        for (index, &position) in plan.tokens_of(span).iter().enumerate() {
            slot.push(content(plan, position));
            if index >= skipped {
                let seed = match &state {
                    Some(state) => hash_after(state.hash, &slot[state.length..]),
                    None => hash(&slot[slot.len().saturating_sub(self.looks_back)..]),
                };
                self.logits.extend(noise(seed).take(self.limits.vocab).map(|x| 4.0 * x));
            }
        }
        state.into_iter().for_each(|state| state.run(&slot[state.length..], span.keeps_state));
        self.watch.set(span.slot, slot.len());
    }

    fn lose(&mut self) -> StepError {
        for slot in 0..self.slots.len() {
            self.slots[slot].clear();
            self.states.iter_mut().for_each(|state| *state = SlotState::empty());
            self.watch.set(SlotId(slot as u32), 0);
        }
        StepError::Lost { message: "injected device loss of the fake executor".to_owned() }
    }

    /// Leaves an extra token in a slot, as a failed step may do on a device.
    fn corrupt(&mut self, plan: &StepPlan) {
        if let Some(span) = plan.spans.first() {
            self.corrupt_slot(span.slot);
        }
    }

    /// Writes a block after the first `at` tokens of a slot.
    fn write(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        block.check(&[layout()], at, self.held(slot)?.len(), self.limits.context)?;
        let layer = &block.layers()[0];
        if layer.keys != layer.values {
            return Err(StepError::bad_plan("keys and values of different tokens"));
        }
        let held = &mut self.slots[slot.index()];
        held.truncate(at);
        held.extend(layer.keys.f32s().map(|value| value as TokenId));
        self.watch.set(slot, held.len());
        Ok(())
    }

    /// Returns the keys and values of some tokens.
    fn read(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        let held = self.held(slot)?;
        check_read(&range, held.len())?;
        let rows = KvRows::F32(held[range.clone()].iter().map(|&token| token as f32).collect());
        KvBlock::read(range.len(), &[layout()], |_| Ok([rows.clone(), rows.clone()]))
    }

    fn corrupt_slot(&mut self, slot: SlotId) {
        let held = &mut self.slots[slot.index()];
        held.push(0);
        self.watch.set(slot, held.len());
    }
}

/// Returns the number that a slot has for a position: the token, or a number that follows from the values of a row. Each
/// is exact in single precision, as keys and values are.
fn content(plan: &StepPlan, position: Position) -> TokenId {
    const ROWS: u32 = 1 << 23;
    let bits = |row: &[f32]| row.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
    let row = plan.row(position).map(|row| ROWS | (hash(&bits(row)) as u32 & (ROWS - 1)));
    row.or(position.as_token()).unwrap_or(0)
}

/// Returns the layout of the fake cache: one layer, in which a token's key and value are its id.
fn layout() -> KvLayout {
    KvLayout::plain(1, 1)
}

/// Returns numbers in [0, 1), by Knuth's 64-bit linear congruential generator.
pub(crate) fn noise(seed: u64) -> impl Iterator<Item = f32> {
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((*state >> 40) as f32 / (1u32 << 24) as f32)
    };
    let mut state = seed;
    std::iter::from_fn(move || next(&mut state))
}

impl Executor for FakeExecutor {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        self.check(plan)?;
        let fault = self.faults.pop_front().unwrap_or(Fault::None);
        if fault == Fault::Lost {
            return Err(self.lose());
        }
        if let Err(error) = fault.inject() {
            self.corrupt(plan);
            return Err(error);
        }
        self.logits.clear();
        for span in &plan.spans {
            self.run(plan, span);
        }
        match fault {
            Fault::NotANumber => self.logits.fill(f32::NAN),
            Fault::Distorted => self.logits.reverse(),
            _ => {}
        }
        Ok(())
    }

    fn logits(&self) -> Logits<'_> {
        Logits::new(&self.logits, self.limits.vocab)
    }

    fn media_width(&self) -> Option<usize> {
        self.media_width
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        check_truncate(slot, len, self.held(slot)?.len())?;
        self.truncate_faults.pop_front().unwrap_or(Fault::None).inject()?;
        if let Some(state) = self.states.get_mut(slot.index()) {
            *state = state.at(len).ok_or(StepError::CannotRewind)?;
        }
        self.slots[slot.index()].truncate(len);
        self.watch.set(slot, len);
        Ok(())
    }

    fn rewind_length(&self, slot: SlotId, len: usize) -> usize {
        match self.states.get(slot.index()) {
            Some(state) if len < state.length => state.checkpoints.longest(len),
            Some(state) => state.length,
            None => len,
        }
    }

    fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        if self.limits.kv.has_states() {
            return Err(StepError::bad_plan("keys and values without states"));
        }
        self.read(slot, range)
    }

    fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        if self.limits.kv.has_states() {
            return Err(StepError::bad_plan("keys and values without states"));
        }
        let fault = self.write_faults.pop_front().unwrap_or(Fault::None);
        if fault == Fault::Lost {
            return Err(self.lose());
        }
        let outcome = fault.inject();
        if matches!(outcome, Err(ref error) if !matches!(error, StepError::BadPlan { .. })) {
            self.corrupt_slot(slot);
        }
        outcome?;
        self.write(slot, at, block)
    }

    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        copy.check(self.held(copy.from)?.len(), self.held(copy.to)?.len())?;
        let fault = self.copy_faults.pop_front().unwrap_or(Fault::None);
        if fault == Fault::Lost {
            return Err(self.lose());
        }
        if let Err(error) = fault.inject() {
            self.corrupt_slot(copy.to);
            return Err(error);
        }
        let state = self.states.get(copy.from.index()).map(|state| state.at(copy.tokens.end));
        let block = self.read(copy.from, copy.tokens.clone())?;
        if let Some(state) = state {
            self.states[copy.to.index()] =
                state.ok_or_else(|| StepError::bad_plan("a copy that does not end at a checkpoint"))?;
        }
        self.write(copy.to, copy.tokens.start, &block)?;
        self.check_memory(&StepPlan::default())
    }
}

#[cfg(test)]
mod tests {
    use narthex_engine::executor::{KvLimits, LogitRows};

    use super::*;

    fn executor() -> FakeExecutor {
        let kv = KvLimits { bytes_per_token: 1, bytes_per_slot: 0, step: 4, budget: 16 };
        FakeExecutor::new(Limits { slots: 3, context: 12, chunk: 5, batch: 2, vocab: 6, kv })
    }

    fn plan(spans: &[(u32, usize, &[TokenId])]) -> StepPlan {
        let mut plan = StepPlan::default();
        spans.iter().for_each(|&(slot, at, tokens)| plan.push(SlotId(slot), at, tokens, LogitRows::Last));
        plan
    }

    fn last_row(executor: &mut FakeExecutor, spans: &[(u32, usize, &[TokenId])]) -> Vec<f32> {
        let plan = plan(spans);
        let logits = executor.step(&plan).unwrap();
        logits.row(logits.rows() - 1).to_vec()
    }

    #[test]
    fn logits_depend_on_all_that_is_in_the_slot_and_on_nothing_else() {
        let whole = last_row(&mut executor(), &[(0, 0, &[1, 2, 3])]);
        let mut parts = executor();
        last_row(&mut parts, &[(2, 0, &[1, 2])]);
        assert_eq!(last_row(&mut parts, &[(1, 0, &[5]), (2, 2, &[3])]), whole);
        assert_ne!(last_row(&mut executor(), &[(0, 0, &[2, 1, 3])]), whole);
        parts.truncate(SlotId(2), 1).unwrap();
        assert_eq!(last_row(&mut parts, &[(2, 1, &[2, 3])]), whole);
        assert_eq!(parts.watch().lengths(), [0, 1, 3]);
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let (mut from, mut to) = (executor(), executor());
        last_row(&mut from, &[(0, 0, &[1, 2, 3, 4])]);
        last_row(&mut to, &[(2, 0, &[1, 5, 5])]);
        let block = from.read_kv(SlotId(0), 1..4).unwrap();
        to.write_kv(SlotId(2), 1, &block).unwrap();
        assert_eq!(to.read_kv(SlotId(2), 1..4).unwrap(), block);
        assert_eq!(to.watch().lengths(), [0, 0, 4]);
        assert_eq!(last_row(&mut to, &[(2, 4, &[5])]), last_row(&mut from, &[(0, 4, &[5])]));
        assert!(from.read_kv(SlotId(0), 1..6).is_err() && from.read_kv(SlotId(3), 0..1).is_err());
        assert!(to.write_kv(SlotId(1), 1, &block).is_err() && to.write_kv(SlotId(3), 0, &block).is_err());
    }

    #[test]
    fn plans_that_break_the_contract_are_refused() {
        let check = |spans: &[(u32, usize, &[TokenId])], expect: &str| {
            let error = executor().step(&plan(spans)).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(&[(0, 1, &[1])], "slot 0 holds 0 tokens, the span begins at 1");
        check(&[(0, 0, &[1]), (1, 0, &[1]), (2, 0, &[1])], "3 single tokens, 2 fit");
        check(&[(0, 0, &[1; 5]), (1, 0, &[1]), (2, 0, &[1])], "24 KV bytes, 16 fit");
    }

    #[test]
    fn mishaps_come_in_their_turn() {
        let mut executor = executor();
        let lost = StepError::Device { message: "lost".to_owned() };
        executor.faults = [Fault::None, Fault::Error(lost.clone()), Fault::NotANumber].into();
        executor.truncate_faults = [Fault::Error(StepError::CannotRewind)].into();
        last_row(&mut executor, &[(0, 0, &[1, 2])]);
        assert_eq!(executor.step(&plan(&[(0, 2, &[3])])).unwrap_err(), lost);
        assert_eq!(executor.watch().lengths(), [3, 0, 0]);
        assert_eq!(executor.truncate(SlotId(0), 2), Err(StepError::CannotRewind));
        assert_eq!(executor.truncate(SlotId(0), 2), Ok(()));
        assert!(last_row(&mut executor, &[(0, 2, &[3])]).iter().all(|x| x.is_nan()));
    }
}

/// A clock that a test moves.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// Returns the time since its creation.
    pub fn now(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// A fake executor whose steps take a fixed time on a clock.
pub struct TimedExecutor {
    executor: FakeExecutor,
    clock: Clock,
    /// Microseconds of a step's first token, and of each further one.
    costs: [u64; 2],
}

impl TimedExecutor {
    /// Creates an executor. `costs` are the microseconds of a step's first token, and of each further one.
    pub fn new(executor: FakeExecutor, clock: Clock, costs: [u64; 2]) -> Self {
        Self { executor, clock, costs }
    }

    /// Returns the executor with its clock, for an engine.
    pub fn supervised(self) -> SupervisedExecutor {
        let clock = self.clock.clone();
        SupervisedExecutor::new(Box::new(self)).timed_by(move || clock.now())
    }
}

impl Executor for TimedExecutor {
    fn limits(&self) -> &Limits {
        self.executor.limits()
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        let [first, further] = self.costs;
        let cost = first + further * (plan.tokens.len() as u64).saturating_sub(1);
        self.clock.0.fetch_add(cost, Ordering::Relaxed);
        self.executor.execute(plan)
    }

    fn logits(&self) -> Logits<'_> {
        self.executor.logits()
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        self.executor.truncate(slot, len)
    }

    fn rewind_length(&self, slot: SlotId, len: usize) -> usize {
        self.executor.rewind_length(slot, len)
    }

    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        self.executor.copy_kv(copy)
    }
}

/// Executor that cannot copy keys and values or hand them over.
pub struct ClosedExecutor(pub FakeExecutor);

impl Executor for ClosedExecutor {
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

    fn rewind_length(&self, slot: SlotId, len: usize) -> usize {
        self.0.rewind_length(slot, len)
    }

    fn media_width(&self) -> Option<usize> {
        self.0.media_width()
    }
}
