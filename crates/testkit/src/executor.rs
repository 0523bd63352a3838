//! An executor without a model: its logits are a hash of everything in the slot, so that any mix-up of slots, positions
//! or tokens changes the answer. It checks its caller strictly and fails on demand.

use std::collections::{HashSet, VecDeque};

use narthex_engine::executor::{Executor, Limits, Logits, StepError, StepPlan};
use narthex_spec::{SlotId, TokenId};

/// What the executor does instead of the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mishap {
    /// Nothing: the step runs.
    None,
    /// It gives this error.
    Error(StepError),
    /// It panics.
    Panic,
    /// It gives logits that are not numbers.
    NotANumber,
}

/// The executor.
pub struct FakeExecutor {
    limits: Limits,
    slots: Vec<Vec<TokenId>>,
    logits: Vec<f32>,
    /// What happens at the coming steps, one entry each.
    pub mishaps: VecDeque<Mishap>,
}

impl FakeExecutor {
    /// An executor with empty slots.
    pub fn new(limits: Limits) -> Self {
        let slots = vec![Vec::with_capacity(limits.context); limits.slots];
        let logits = Vec::with_capacity(limits.vocab * (limits.chunk + limits.batch));
        Self { slots, logits, limits, mishaps: VecDeque::new() }
    }

    fn check(&self, plan: &StepPlan) -> Result<(), String> {
        let mut seen = HashSet::new();
        let mut single = 0;
        for span in &plan.spans {
            let held = self.slots.get(span.slot.index()).ok_or("no such slot")?;
            let length = span.tokens.len();
            if !seen.insert(span.slot) {
                return Err(format!("slot {} twice", span.slot.0));
            }
            if span.at != held.len() {
                return Err(format!(
                    "slot {} holds {} tokens, the span begins at {}",
                    span.slot.0,
                    held.len(),
                    span.at
                ));
            }
            if length == 0 || length > self.limits.chunk || span.at + length > self.limits.context {
                return Err(format!("a span of {length} at {}", span.at));
            }
            single += usize::from(length == 1);
        }
        if single > self.limits.batch { Err(format!("{single} single tokens")) } else { Ok(()) }
    }

    fn row(&mut self, slot: usize) {
        let seed = self.slots[slot].iter().fold(0xCBF2_9CE4_8422_2325u64, |hash, &token| {
            (hash ^ u64::from(token).wrapping_add(1)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        let mut state = seed;
        self.logits.extend((0..self.limits.vocab).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u32 << 22) as f32
        }));
    }
}

impl Executor for FakeExecutor {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn step(&mut self, plan: &StepPlan) -> Result<Logits<'_>, StepError> {
        self.check(plan).map_err(|reason| StepError::BadPlan { reason })?;
        let mishap = self.mishaps.pop_front().unwrap_or(Mishap::None);
        match &mishap {
            Mishap::Error(error) => return Err(error.clone()),
            Mishap::Panic => panic!("the fake executor was told to panic"),
            Mishap::None | Mishap::NotANumber => {}
        }
        self.logits.clear();
        for span in &plan.spans {
            let slot = span.slot.index();
            let skipped = span.tokens.len() - span.logits.rows(span.tokens.len());
            for (index, &token) in plan.tokens_of(span).iter().enumerate() {
                self.slots[slot].push(token);
                if index >= skipped {
                    self.row(slot);
                }
            }
        }
        if mishap == Mishap::NotANumber {
            self.logits.fill(f32::NAN);
        }
        Ok(Logits::new(&self.logits, self.limits.vocab))
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        let held = &mut self.slots[slot.index()];
        if len > held.len() {
            return Err(StepError::BadPlan {
                reason: format!("slot {} holds only {} tokens", slot.0, held.len()),
            });
        }
        held.truncate(len);
        Ok(())
    }
}
