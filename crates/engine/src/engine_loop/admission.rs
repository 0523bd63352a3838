//! Assignment of slots, and preemption.
//!
//! Slots are assigned in order of arrival. If memory is insufficient, idle slots are emptied first. If the running
//! sequences still do not fit, the youngest one is preempted: it returns to the head of the queue and keeps its tokens.

use super::EngineLoop;
use crate::{
    executor::{Executor, KvCopy, StepError},
    kv::{MIN_COPY, Prefix, PromptEnd, Reuse, SlotChoice, SlotContent, SlotState, Slots, common_prefix},
    position::Position,
    request::Finish,
    sequence::Sequence,
};
use narthex_spec::SlotId;

impl EngineLoop {
    /// Assigns slots to waiting sequences.
    pub(super) fn admit(&mut self) {
        while self.running.len() < self.config.max_running && !self.is_memory_full && !self.is_dead() {
            let Some(sequence) = self.queue.front() else { return };
            let reuse = if sequence.has_unreported_prompt() { Reuse::Nothing } else { Reuse::Prefix };
            let footprint = sequence.footprint();
            let in_tree = self.length_in_tree(sequence);
            let contents = self.contents();
            if reuse == Reuse::Prefix && self.is_prefix_coming(&sequence.tokens, &contents, in_tree) {
                return;
            }
            if reuse == Reuse::Prefix && !self.look_up_first() {
                return;
            }
            let Some(sequence) = self.queue.front() else { return };
            let contents = self.contents();
            let choice = self.slots.choose(&sequence.tokens, reuse, &contents, in_tree, |slot, len| {
                self.device.rewind_length(slot, len)
            });
            let choice = choice.and_then(|choice| self.make_room(choice, footprint));
            match choice {
                Some(choice) => self.start_first(choice, footprint),
                None if self.running.is_empty() => self.refuse_first(footprint),
                None => return,
            }
        }
    }

    /// Returns the tokens in each slot.
    pub(super) fn contents(&self) -> Vec<SlotContent<'_>> {
        self.slots.contents(self.running.iter().filter_map(|s| {
            let prompt_end = s.prompt_end.as_ref();
            Some((s.slot?, SlotContent { tokens: &s.tokens[..s.cached], prompt_end }))
        }))
    }

    /// Returns the length of the longest prefix of a prompt that can be taken from a slot.
    pub(super) fn longest_prefix(&self, contents: &[SlotContent<'_>], prompt: &[Position]) -> usize {
        let longest =
            Slots::longest_prefix(contents, prompt, |slot, len| self.device.rewind_length(slot, len));
        longest.map_or(0, |prefix| prefix.length)
    }

    /// Returns true if a running sequence is about to compute a longer prefix of the prompt than any slot and the tree
    /// have. The prompt then waits for it instead of running the same tokens a second time.
    fn is_prefix_coming(&self, prompt: &[Position], contents: &[SlotContent<'_>], in_tree: usize) -> bool {
        let held = self.longest_prefix(contents, prompt).max(in_tree);
        self.running.iter().any(|sequence| {
            let coming = common_prefix(&sequence.tokens, prompt).min(prompt.len().saturating_sub(1));
            // A slot with states may have the prefix without a checkpoint at its end.
            sequence.pending() > 1 && coming > held.max(MIN_COPY) && coming > sequence.cached
        })
    }

    /// Assigns a slot to the first waiting sequence, unless the slot had to be retired or the device was lost.
    fn start_first(&mut self, choice: SlotChoice, footprint: usize) {
        let SlotChoice { slot, reused, copied, value } = choice;
        let prompt_end = match copied {
            Some(prefix) => self.copy_prompt_end(prefix),
            None => self.slots.take_prompt_end(slot),
        };
        let branch = self.branch_of_first();
        self.slots.evict(value);
        self.keep_idle(slot, reused, self.slots.bytes_with(Some(slot), footprint));

        let held = self.rewind(slot, reused);
        let copied = held.and_then(|held| self.copy_prefix(slot, held, copied));
        let restored = copied.and_then(|length| self.restore_from_tree(slot, length));
        let Some(length) = restored.and_then(|length| self.restore_first(slot, length)) else { return };
        let Some(mut sequence) = self.queue.pop_front() else { return };
        sequence.branch = branch;
        self.slots.hold(slot, length, footprint);
        self.stats.cached_tokens += sequence.start(slot, length) as u64;
        let before = sequence.generated();
        let end = match prompt_end {
            Some(prompt_end) if sequence.pending() == 0 => sequence.resume(prompt_end, &mut self.scratch),
            _ => None,
        };
        self.stats.generated_tokens += (sequence.generated() - before) as u64;
        self.running.push(sequence);
        if let Some(finish) = end {
            self.end(self.running.len() - 1, finish);
        }
    }

    /// Returns the number of tokens that the first waiting sequence has in common with a slot, even if it starts with
    /// fewer because there is no checkpoint; 0 for an executor without states.
    fn branch_of_first(&self) -> usize {
        let first = self.queue.front().filter(|_| self.device.limits().kv.has_states());
        let Some(first) = first else { return 0 };
        let contents = self.contents();
        contents.iter().map(|content| common_prefix(content.tokens, &first.tokens)).max().unwrap_or(0)
    }

    /// Returns a copy of the stored end of a prompt, if the prefix is that prompt.
    fn copy_prompt_end(&self, prefix: Prefix) -> Option<PromptEnd> {
        let end = self.contents()[prefix.slot.index()].prompt_end?;
        (end.length == prefix.length).then(|| end.clone())
    }

    /// Copies the tokens of a prefix after the first `held` ones into `slot`. Returns the slot's length afterwards,
    /// which is `held` if the copy fails, or `None` if the slot had to be retired or the device was lost.
    fn copy_prefix(&mut self, slot: SlotId, held: usize, prefix: Option<Prefix>) -> Option<usize> {
        let Some(Prefix { slot: from, length }) = prefix else { return Some(held) };
        match self.device.copy_kv(&KvCopy { from, to: slot, tokens: held..length }) {
            Ok(()) => Some(length),
            Err(error) => self.keep_first(slot, held, &error),
        }
    }

    /// Ends the first waiting sequence if it does not fit although no other sequence runs, because all slots or too
    /// much of the memory were retired.
    fn refuse_first(&mut self, footprint: usize) {
        let error = self.out_of_memory(footprint);
        if let Some(sequence) = self.queue.pop_front() {
            self.report(sequence, Finish::Failed(error));
        }
    }

    /// Truncates an idle slot to `length` tokens, or empties it if the device cannot rewind. Returns the remaining
    /// length, or `None` if the slot had to be retired.
    fn rewind(&mut self, slot: SlotId, length: usize) -> Option<usize> {
        let same = self.slots.state(slot).length() == length;
        if same || (length > 0 && self.device.truncate(slot, length).is_ok()) {
            return Some(length);
        }
        self.empty(slot).then_some(0)
    }

    /// Evicts idle slots until the budget has room for `length` tokens in the chosen slot. The slot with the prefix is
    /// kept until last; if it must go too, the sequence takes over that slot instead of copying its prefix.
    fn make_room(&mut self, mut choice: SlotChoice, length: usize) -> Option<SlotChoice> {
        while !self.slots.fits(Some(choice.slot), length) {
            let source = choice.copied.map_or(choice.slot, |prefix| prefix.slot);
            if self.evict_least(&[choice.slot, source]) {
                continue;
            }
            let prefix = choice.copied.take()?;
            if !matches!(self.slots.state(prefix.slot), SlotState::Idle { .. }) {
                return None;
            }
            choice = SlotChoice { slot: prefix.slot, reused: prefix.length, ..choice };
        }
        Some(choice)
    }

    /// Empties the idle slot with the lowest value, except those in `except`. Returns false if no slot qualifies.
    pub(super) fn evict_least(&mut self, except: &[SlotId]) -> bool {
        let Some((slot, value)) = self.slots.least_idle(except, &self.contents()) else { return false };
        self.slots.evict(value);
        self.keep_idle(slot, 0, self.slots.bytes_with(Some(slot), 0));
        self.empty(slot);
        true
    }

    /// Reserves memory for the next tokens of every running sequence, and preempts the youngest if there is not enough.
    pub(super) fn reserve(&mut self) {
        while let Some(longest) = self.running.iter().map(Sequence::footprint).max() {
            if self.slots.fits(None, longest) || self.is_dead() {
                break;
            }
            if !self.evict_least(&[]) {
                self.preempt_youngest();
            }
        }
        for sequence in &self.running {
            if let Some(slot) = sequence.slot {
                self.slots.hold(slot, sequence.cached, sequence.footprint());
            }
        }
    }

    /// Preempts the youngest sequence. Ends it instead if it is the only one, because it has then reached the memory
    /// limit.
    pub(super) fn preempt_youngest(&mut self) {
        if self.running.len() == 1 {
            let finish = match self.running[0].generated() {
                0 => Finish::Failed(self.out_of_memory(self.running[0].footprint())),
                _ => Finish::Length,
            };
            return self.end(0, finish);
        }
        let Some(sequence) = self.pop_running() else { return };
        self.stats.preemptions += 1;
        self.queue.push_front(sequence);
    }

    /// Removes the youngest running sequence, and empties its slot.
    pub(super) fn pop_running(&mut self) -> Option<Sequence> {
        let mut sequence = self.running.pop()?;
        if let Some(slot) = sequence.slot.take() {
            let reserved = self.slots.bytes_with(Some(slot), 0);
            self.keep(slot, &sequence.tokens[..sequence.cached], self.stats.steps, reserved);
            self.empty(slot);
        }
        Some(sequence)
    }

    fn out_of_memory(&self, tokens: usize) -> StepError {
        let limits = self.device.limits();
        let capacity = limits.kv.capacity_for(tokens, limits.context);
        StepError::OutOfMemory { rows: 1, capacity, wanted: limits.kv.bytes(1, capacity) }
    }
}
