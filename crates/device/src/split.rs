//! Two executors combined into one: prompts are processed on one device, and answers are generated on the other.
//!
//! Spans of several tokens run on the prefill side. Single tokens run on the decode side, and so do spans that verify
//! the next tokens of an answer, whose past is only there. Before a side runs, it receives the keys and values that
//! only the other side has. Both sides keep the tokens that they have, so that each token is handed over once. The
//! module depends only on the engine's port, and is independent of the devices and of the layout of their caches.

use std::ops::Range;

use narthex_engine::executor::{
    Executor, KvBlock, KvCopy, KvLimits, Limits, LogitRows, Logits, RowScan, Span, StepError, StepPlan,
    check_read, check_truncate,
};
use narthex_spec::{SlotId, divisor::greatest_common_divisor};

use crate::error::DeviceError;

/// Options of the division of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitOptions {
    /// Number of tokens from which a span runs on the prefill side. Shorter spans run on the decode side, if its chunk
    /// is large enough: for them, the handover costs more than the faster prefill saves. With 0 or 1, every span of
    /// several tokens runs on the prefill side.
    pub break_even: usize,
}

/// A decoder on two devices.
pub struct SplitExecutor {
    limits: Limits,
    /// Maximum number of tokens in a span that runs on the decode side.
    short: usize,
    /// The prefill side and the decode side.
    sides: [Side; 2],
    /// Side of each span of the current plan.
    chosen: Vec<usize>,
    source: LogitsSource,
    logits: Vec<f32>,
    scans: Vec<RowScan>,
}

/// Location of the logits of the last step.
#[derive(Debug, Clone, Copy)]
enum LogitsSource {
    /// In the executor of the only side that returned any.
    Side(usize),
    /// In rows gathered from both sides. The field is their number.
    Gathered(usize),
}

/// One of the two executors, and the state of its slots.
struct Side {
    executor: Box<dyn Executor>,
    slots: Vec<SideSlot>,
    /// This side's part of the current plan.
    plan: StepPlan,
}

/// State of a slot on one side.
#[derive(Debug, Clone, Copy, Default)]
struct SideSlot {
    /// Number of the sequence's first tokens that this side certainly has.
    length: usize,
    /// The slot may have more tokens, left by a failure.
    is_uncertain: bool,
}

const PREFILL: usize = 0;
const DECODE: usize = 1;

impl SplitExecutor {
    /// Combines two executors of one model. All of their slots must be empty.
    ///
    /// # Errors
    /// [`DeviceError::Package`] for executors with different vocabularies, and for layers with states.
    pub fn new(
        prefill: Box<dyn Executor>,
        decode: Box<dyn Executor>,
        options: SplitOptions,
    ) -> Result<Self, DeviceError> {
        let limits = joined(prefill.limits(), decode.limits())?;
        Ok(Self {
            short: options.break_even.saturating_sub(1).min(decode.limits().chunk).max(1),
            sides: [prefill, decode].map(|executor| Side {
                executor,
                slots: vec![SideSlot::default(); limits.slots],
                plan: StepPlan::default(),
            }),
            chosen: Vec::new(),
            source: LogitsSource::Gathered(0),
            logits: Vec::new(),
            scans: Vec::new(),
            limits,
        })
    }

    /// Returns the side that runs a span.
    fn side_of(&self, span: &Span) -> usize {
        let [prefill, decode] = self.sides.each_ref().map(|side| side.slots[span.slot.index()].length);
        let tokens = span.tokens.len();
        // The span verifies the next tokens of an answer, which would first have to be handed over to the prefill side.
        let verifies = span.logits == LogitRows::All && decode == span.at && prefill < span.at;
        let short = if verifies {
            self.short.max(self.sides[DECODE].executor.verify_limit(span.at))
        } else {
            self.short
        };
        if tokens <= short { DECODE } else { PREFILL }
    }

    /// Returns the number of tokens in a slot. The side that ran last has all of them.
    fn length(&self, slot: SlotId) -> usize {
        self.sides.iter().map(|side| side.slots[slot.index()].length).max().unwrap_or(0)
    }

    /// Returns the number of tokens in a slot, after checking the slot.
    fn held(&self, slot: SlotId) -> Result<usize, StepError> {
        self.limits.check_slot(slot)?;
        Ok(self.length(slot))
    }

    fn check(&self, plan: &StepPlan) -> Result<(), StepError> {
        plan.check(&self.limits, |slot| self.length(slot))?;
        for SlotId(slot) in plan.spans.iter().map(|span| span.slot) {
            if self.sides.iter().any(|side| side.slots[slot as usize].is_uncertain) {
                return Err(StepError::bad_plan(format!("slot {slot} failed and was not truncated")));
            }
        }
        Ok(())
    }

    /// Copies the keys and values of a slot's first `length` tokens that a side lacks from the other side.
    fn hand_over(&mut self, to: usize, slot: SlotId, length: usize) -> Result<(), StepError> {
        let [prefill, decode] = &mut self.sides;
        let (to, from) = if to == PREFILL { (prefill, decode) } else { (decode, prefill) };
        let own = to.slots[slot.index()].length;
        if own >= length {
            return Ok(());
        }
        let block = from.executor.read_kv(slot, own..length)?;
        to.write(slot, own, &block)
    }

    /// Empties all slots of both sides if `error` is the loss of a device, which has emptied the slots of one side.
    fn empty_if_lost(&mut self, error: StepError) -> StepError {
        if !matches!(error, StepError::Lost { .. }) {
            return error;
        }
        for side in &mut self.sides {
            for (index, held) in side.slots.iter_mut().enumerate() {
                if let Err(error) = side.executor.truncate(SlotId(index as u32), 0) {
                    return error;
                }
                *held = SideSlot::default();
            }
        }
        error
    }

    /// Hands over the tokens that the sides lack, and runs their parts of a plan.
    fn run(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        self.sides.iter_mut().for_each(|side| side.plan.clear());
        self.chosen.clear();
        self.sides.iter_mut().for_each(|side| side.plan.media.extend_from_slice(&plan.media));
        for span in &plan.spans {
            let side = self.side_of(span);
            self.chosen.push(side);
            self.hand_over(side, span.slot, span.at)?;
            let tokens = plan.tokens_of(span).iter().copied();
            self.sides[side].plan.push_span(span.slot, span.at, tokens, span.logits);
        }
        for side in &mut self.sides {
            if !side.plan.spans.is_empty() {
                side.step()?;
            }
        }
        self.source = match [PREFILL, DECODE].map(|side| self.sides[side].plan.logits_rows() > 0) {
            [true, true] => self.gather(plan),
            [true, false] => LogitsSource::Side(PREFILL),
            [false, true] => LogitsSource::Side(DECODE),
            [false, false] => LogitsSource::Gathered(0),
        };
        Ok(())
    }

    /// Arranges the logits of both sides in the order of the plan.
    fn gather(&mut self, plan: &StepPlan) -> LogitsSource {
        self.logits.clear();
        self.scans.clear();
        let mut next = [0; 2];
        for (span, &side) in plan.spans.iter().zip(&self.chosen) {
            let logits = self.sides[side].executor.logits();
            for _ in 0..span.logits.rows(span.tokens.len()) {
                let row = logits.scanned_row(next[side]);
                self.logits.extend_from_slice(row.logits);
                self.scans.push(row.scan);
                next[side] += 1;
            }
        }
        LogitsSource::Gathered(self.scans.len())
    }
}

impl Side {
    /// Runs this side's part of the plan.
    fn step(&mut self) -> Result<(), StepError> {
        let Self { executor, slots, plan } = self;
        for span in &plan.spans {
            slots[span.slot.index()].is_uncertain = true;
        }
        let found = executor.step(plan)?.rows();
        let expected = plan.logits_rows();
        if found != expected {
            let message = format!("expected {expected} rows of logits, found {found}; please report this");
            return Err(StepError::Device { message });
        }
        for span in &plan.spans {
            slots[span.slot.index()] = SideSlot { length: span.at + span.tokens.len(), is_uncertain: false };
        }
        Ok(())
    }

    fn write(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        let held = &mut self.slots[slot.index()];
        let outcome = self.executor.write_kv(slot, at, block);
        match &outcome {
            Ok(()) => *held = SideSlot { length: at + block.tokens(), is_uncertain: false },
            Err(StepError::BadPlan { .. }) => {}
            Err(_) => *held = SideSlot { length: at.min(held.length), is_uncertain: true },
        }
        outcome
    }

    /// Copies those of the tokens that this side has.
    fn copy(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        self.truncate_or_empty(copy.to, copy.tokens.start)?;
        let own = self.slots[copy.to.index()].length;
        let end = self.slots[copy.from.index()].length.min(copy.tokens.end);
        if own >= end {
            return Ok(());
        }
        let outcome = self.executor.copy_kv(&KvCopy { tokens: own..end, ..copy.clone() });
        let held = &mut self.slots[copy.to.index()];
        match &outcome {
            Ok(()) => *held = SideSlot { length: end, is_uncertain: false },
            Err(StepError::BadPlan { .. }) => {}
            Err(_) => held.is_uncertain = true,
        }
        outcome
    }

    /// Keeps at most the first `length` tokens, or none if the device cannot rewind.
    fn truncate_or_empty(&mut self, slot: SlotId, length: usize) -> Result<(), StepError> {
        match self.truncate(slot, length) {
            Err(StepError::CannotRewind) => self.truncate(slot, 0),
            outcome => outcome,
        }
    }

    /// Keeps at most the first `length` tokens.
    fn truncate(&mut self, slot: SlotId, length: usize) -> Result<(), StepError> {
        let held = &mut self.slots[slot.index()];
        if held.length > length || held.is_uncertain {
            let kept = held.length.min(length);
            self.executor.truncate(slot, kept)?;
            *held = SideSlot { length: kept, is_uncertain: false };
        }
        Ok(())
    }
}

impl Executor for SplitExecutor {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        self.check(plan)?;
        self.run(plan).map_err(|error| self.empty_if_lost(error))
    }

    fn logits(&self) -> Logits<'_> {
        match self.source {
            LogitsSource::Side(side) => self.sides[side].executor.logits(),
            LogitsSource::Gathered(rows) => {
                let vocab = self.limits.vocab;
                Logits::new(&self.logits[..rows * vocab], vocab).with_scans(&self.scans[..rows])
            }
        }
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        check_truncate(slot, len, self.held(slot)?)?;
        let mut cannot_rewind = [false; 2];
        for (side, cannot) in self.sides.iter_mut().zip(&mut cannot_rewind) {
            match side.truncate(slot, len) {
                Err(StepError::CannotRewind) => *cannot = true,
                outcome => outcome?,
            }
        }
        if cannot_rewind == [false; 2] {
            return Ok(());
        }
        if !self
            .sides
            .iter()
            .zip(&cannot_rewind)
            .any(|(side, cannot)| !cannot && side.slots[slot.index()].length == len)
        {
            return Err(StepError::CannotRewind);
        }
        // A side that cannot rewind empties the slot. The other side hands the tokens over again when they are needed.
        let mut emptied = self.sides.iter_mut().zip(cannot_rewind).filter(|(_, cannot)| *cannot);
        emptied.try_for_each(|(side, _)| side.truncate(slot, 0))
    }

    fn media_width(&self) -> Option<usize> {
        let [prefill, decode] = self.sides.each_ref().map(|side| side.executor.media_width());
        prefill.filter(|_| prefill == decode)
    }

    fn verify_limit(&self, at: usize) -> usize {
        self.sides[DECODE].executor.verify_limit(at).min(self.limits.chunk)
    }

    fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        check_read(&range, self.held(slot)?)?;
        let side = self.sides.iter().rev().find(|side| side.slots[slot.index()].length >= range.end);
        side.ok_or_else(|| StepError::bad_plan(format!("neither side has these tokens of slot {}", slot.0)))?
            .executor
            .read_kv(slot, range)
    }

    fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        let held = self.held(slot)?;
        let room = self.limits.context.saturating_sub(at);
        if at > held || block.tokens() > room {
            let found = block.tokens();
            let expected = format!("at most {room} tokens at 0 to {held}");
            return Err(StepError::bad_plan(format!("expected {expected}, found {found} at {at}")));
        }
        let write = self.hand_over(DECODE, slot, at).and_then(|()| self.sides[DECODE].write(slot, at, block));
        write.map_err(|error| self.empty_if_lost(error))?;
        self.sides[PREFILL].truncate_or_empty(slot, at)
    }

    fn portable_length(&self) -> usize {
        // Keys that depend on the length of the sequence would be handed over between the sides without their tokens.
        let is_fixed = self.sides.iter().all(|side| side.executor.portable_length() == usize::MAX);
        if is_fixed { usize::MAX } else { 0 }
    }

    fn is_portable(&self, _: SlotId) -> bool {
        self.portable_length() > 0
    }

    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        copy.check(self.held(copy.from)?, self.held(copy.to)?)?;
        let outcome = self.sides.iter_mut().try_for_each(|side| side.copy(copy));
        outcome.map_err(|error| self.empty_if_lost(error))
    }
}

/// Returns the limits of two executors together.
fn joined(prefill: &Limits, decode: &Limits) -> Result<Limits, DeviceError> {
    if [prefill, decode].iter().any(|side| side.kv.has_states()) {
        let expected = "keys and values in every layer, which two devices hand over to each other";
        return Err(DeviceError::package(expected, "layers with states, which run on one device"));
    }
    if prefill.vocab != decode.vocab {
        let expected = format!("one vocabulary on both devices, of {} tokens", prefill.vocab);
        return Err(DeviceError::package(expected, decode.vocab));
    }
    let context = prefill.context.min(decode.context);
    Ok(Limits {
        slots: prefill.slots.min(decode.slots),
        context,
        chunk: prefill.chunk.min(context),
        batch: decode.batch.min(prefill.slots).min(decode.slots),
        vocab: prefill.vocab,
        kv: joined_kv([prefill, decode], context),
    })
}

/// Returns KV limits that satisfy both budgets: each token is at most once on each side, and rows grow in steps that
/// are multiples of both sides' steps.
fn joined_kv(sides: [&Limits; 2], context: usize) -> KvLimits {
    let [a, b] = sides.map(|side| side.kv.step.max(1));
    let step = (a / greatest_common_divisor(a, b)).saturating_mul(b).min(context.max(1));
    let tokens = sides.map(|side| {
        let tokens = side.kv.budget.checked_div(side.kv.bytes_per_token)?;
        // A side's own rows may be longer than the joint context, so fewer of them fit into its budget.
        let row = side.kv.capacity_for(context, side.context).max(1);
        usize::try_from(tokens as u128 * context as u128 / row as u128).ok()
    });
    let bytes_per_token = sides[0].kv.bytes_per_token.saturating_add(sides[1].kv.bytes_per_token);
    let budget = tokens.into_iter().flatten().min().map(|tokens| tokens.saturating_mul(bytes_per_token));
    KvLimits { bytes_per_token, bytes_per_slot: 0, step, budget: budget.unwrap_or(usize::MAX) }
}
