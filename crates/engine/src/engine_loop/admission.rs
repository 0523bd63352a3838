//! Who gets a slot, and who makes way.
//!
//! First come, first served: nobody runs before one that came earlier. Memory is found by emptying idle slots first;
//! when running sequences outgrow it, the youngest one goes back to the head of the queue and keeps its tokens.

use super::Core;
use crate::{
    executor::{Executor, StepError},
    kv::{Choice, Reuse},
    request::Finish,
    sequence::Sequence,
};
use narthex_spec::SlotId;

impl Core {
    /// Gives slots to waiting sequences.
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

    /// Gives the first waiting sequence a slot, unless that slot turns out to be of no use any more.
    fn start_first(&mut self, choice: Choice, footprint: usize) {
        let Choice { slot, reused } = choice;
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

    /// Ends the first waiting sequence, for which there is no place though nobody else runs: every slot, or too much
    /// of the memory, has been given up.
    fn refuse_first(&mut self, footprint: usize) {
        let error = self.out_of_memory(footprint);
        if let Some(sequence) = self.queue.pop_front() {
            self.report(sequence, Finish::Failed(error));
        }
    }

    /// Leaves the first `length` tokens in an idle slot, or none where the device cannot rewind; gives how many are
    /// left, or `None` where the slot had to be given up.
    fn rewind(&mut self, slot: SlotId, length: usize) -> Option<usize> {
        let same = self.slots.state(slot).length() == length;
        if same || (length > 0 && self.device.truncate(slot, length).is_ok()) {
            return Some(length);
        }
        self.empty(slot).then_some(0)
    }

    /// Empties idle slots until the budget allows for `slot` to have room for `length` tokens.
    fn make_room(&mut self, slot: SlotId, length: usize) -> bool {
        while !self.slots.fits(Some(slot), length) {
            let Some(idle) = self.slots.oldest_idle(Some(slot)) else { return false };
            self.empty(idle);
        }
        true
    }

    /// Sees to it that every running sequence has room for its next tokens; where there is none, the youngest makes
    /// way.
    pub(super) fn reserve(&mut self) {
        while let Some(longest) = self.running.iter().map(Sequence::footprint).max() {
            if self.slots.fits(None, longest) || self.is_dead() {
                break;
            }
            match self.slots.oldest_idle(None) {
                Some(idle) => drop(self.empty(idle)),
                None => self.yield_youngest(),
            }
        }
        for sequence in &self.running {
            if let Some(slot) = sequence.slot {
                self.slots.hold(slot, sequence.cached, sequence.footprint());
            }
        }
    }

    /// Takes the slot of the youngest sequence, which waits to run again; a lone one has come as far as it can.
    pub(super) fn yield_youngest(&mut self) {
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
