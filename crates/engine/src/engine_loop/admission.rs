//! Assignment of slots, and preemption.
//!
//! First come, first served. Idle slots are emptied first to free memory. If running sequences outgrow it, the youngest one
//! is preempted: it returns to the head of the queue and keeps its tokens.

use super::EngineLoop;
use crate::{
    executor::{Executor, StepError},
    kv::{Reuse, SlotChoice},
    request::Finish,
    sequence::Sequence,
};
use narthex_spec::SlotId;

impl EngineLoop {
    /// Assigns slots to waiting sequences.
    pub(super) fn admit(&mut self) {
        while self.running.len() < self.config.max_running && !self.pressed && !self.is_dead() {
            let Some(sequence) = self.queue.front() else { return };
            let reuse = if sequence.wants_prompt() { Reuse::Nothing } else { Reuse::Prefix };
            let footprint = sequence.footprint();
            let choice = self.slots.choose(&sequence.tokens, reuse);
            let choice = choice.filter(|choice| self.make_room(choice.slot, footprint));
            match choice {
                Some(choice) => self.start_first(choice, footprint),
                None if self.running.is_empty() => self.refuse_first(footprint),
                None => return,
            }
        }
    }

    /// Assigns a slot to the first waiting sequence, unless the slot had to be retired.
    fn start_first(&mut self, choice: SlotChoice, footprint: usize) {
        let SlotChoice { slot, reused } = choice;
        let prompt_end = self.slots.take_prompt_end(slot);
        let Some(length) = self.rewind(slot, reused) else { return };
        let Some(mut sequence) = self.queue.pop_front() else { return };
        self.slots.hold(slot, length, footprint);
        self.stats.cached_tokens += sequence.start(slot, length) as u64;
        let before = sequence.answered();
        let end = match prompt_end {
            Some(prompt_end) if sequence.pending() == 0 => sequence.resume(prompt_end, &mut self.scratch),
            _ => None,
        };
        self.stats.generated_tokens += (sequence.answered() - before) as u64;
        self.running.push(sequence);
        if let Some(finish) = end {
            self.end(self.running.len() - 1, finish);
        }
    }

    /// Ends the first waiting sequence, which has no room although no other runs: every slot, or too much of the memory,
    /// was retired.
    fn refuse_first(&mut self, footprint: usize) {
        let error = self.out_of_memory(footprint);
        if let Some(sequence) = self.queue.pop_front() {
            self.report(sequence, Finish::Failed(error));
        }
    }

    /// Truncates an idle slot to `length` tokens, or to none if the device cannot rewind. Returns the remaining length, or
    /// `None` if the slot had to be retired.
    fn rewind(&mut self, slot: SlotId, length: usize) -> Option<usize> {
        let same = self.slots.state(slot).length() == length;
        if same || (length > 0 && self.device.truncate(slot, length).is_ok()) {
            return Some(length);
        }
        self.empty(slot).then_some(0)
    }

    /// Empties idle slots until the budget has room for `length` tokens in `slot`.
    fn make_room(&mut self, slot: SlotId, length: usize) -> bool {
        while !self.slots.fits(Some(slot), length) {
            let Some(idle) = self.slots.oldest_idle(Some(slot)) else { return false };
            self.empty(idle);
        }
        true
    }

    /// Reserves room for the next tokens of every running sequence, preempting the youngest if there is not enough.
    pub(super) fn reserve(&mut self) {
        while let Some(longest) = self.running.iter().map(Sequence::footprint).max() {
            if self.slots.fits(None, longest) || self.is_dead() {
                break;
            }
            match self.slots.oldest_idle(None) {
                Some(idle) => drop(self.empty(idle)),
                None => self.preempt_youngest(),
            }
        }
        for sequence in &self.running {
            if let Some(slot) = sequence.slot {
                self.slots.hold(slot, sequence.cached, sequence.footprint());
            }
        }
    }

    /// Preempts the youngest sequence, or ends the only one, which has reached the limit of memory.
    pub(super) fn preempt_youngest(&mut self) {
        if self.running.len() == 1 {
            let finish = match self.running[0].answered() {
                0 => Finish::Failed(self.out_of_memory(self.running[0].footprint())),
                _ => Finish::Length,
            };
            return self.end(0, finish);
        }
        let Some(mut sequence) = self.running.pop() else { return };
        if let Some(slot) = sequence.slot.take() {
            self.empty(slot);
        }
        self.stats.preemptions += 1;
        self.queue.push_front(sequence);
    }

    fn out_of_memory(&self, tokens: usize) -> StepError {
        let limits = self.device.limits();
        let capacity = limits.kv.capacity_for(tokens, limits.context);
        StepError::OutOfMemory { rows: 1, capacity, wanted: limits.kv.bytes(1, capacity) }
    }
}
