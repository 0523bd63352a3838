//! Prefixes that outlive their slots.
//!
//! Before a slot loses tokens, their keys and values are added to the prefix tree, from which a later prompt gets them
//! back. The tree takes the part of the KV budget that the slots do not need. What it loses goes to the storage of
//! prefixes, if there is one. An executor that cannot read its cache has no tree.

use narthex_spec::SlotId;

use super::EngineLoop;
use crate::{
    executor::{Executor, KvBlock, StepError},
    kv::{MIN_COPY, PIECE_TOKENS, PrefixTree, SlotState},
    position::Position,
    sequence::Sequence,
};

impl EngineLoop {
    /// Returns the bytes of the prefix tree.
    pub(super) fn tree_bytes(&self) -> usize {
        let tokens = self.tree.as_ref().map_or(0, PrefixTree::tokens);
        tokens.saturating_mul(self.device.limits().kv.bytes_per_token)
    }

    /// Returns the number of a sequence's first tokens that can be copied from the tree to a slot.
    pub(super) fn length_in_tree(&self, sequence: &Sequence) -> usize {
        let tokens = &sequence.tokens;
        // Keys of longer sequences have other rotary factors.
        let fits = tokens.len() <= self.device.portable_length() && !sequence.has_unreported_prompt();
        let Some(tree) = self.tree.as_ref().filter(|_| fits) else { return 0 };
        // The last token runs in any case.
        tree.longest(&tokens[..tokens.len().saturating_sub(1)])
    }

    /// Adds the tokens of an idle slot to the tree, of which only the first `kept` will stay in the slot. Afterwards, the
    /// slots take `reserved` bytes.
    pub(super) fn keep_idle(&mut self, slot: SlotId, kept: usize, reserved: usize) {
        let SlotState::Idle { tokens, released, .. } = self.slots.state(slot) else { return };
        if tokens.len() >= kept + MIN_COPY {
            let (tokens, used) = (tokens.clone(), *released);
            self.keep(slot, &tokens, used, reserved);
        }
    }

    /// Adds the tokens of a slot that were used last in the step `used` to the tree. Prefixes that were used before
    /// that make room.
    pub(super) fn keep(&mut self, slot: SlotId, tokens: &[Position], used: u64, reserved: usize) {
        let kv = self.device.limits().kv;
        let room = kv.budget.saturating_sub(reserved) / kv.bytes_per_token.max(1);
        let Some(tree) = self.tree.as_mut().filter(|_| !self.is_memory_full) else { return };
        if room == 0 || !self.device.is_portable(slot) {
            return;
        }

        // What the tree has of the sequence is not removed now.
        tree.touch(tokens, used);
        let missing = tokens.len() - tree.longest(tokens);
        while self.tree.as_ref().is_some_and(|tree| {
            tree.tokens() + missing > room && tree.oldest().is_some_and(|oldest| oldest < used)
        }) {
            self.remove_oldest();
        }
        let Self { tree: Some(tree), device, .. } = self else { return };
        // The executor hands nothing over, or has failed.
        if tree.insert(tokens, used, room, |range| device.read_kv(slot, range)).is_err() {
            self.tree = None;
        }
    }

    /// Copies tokens of the first waiting sequence from the tree, after the first `length` tokens of its slot. Returns
    /// the slot's length afterwards, or `None` if the slot had to be retired or the device was lost.
    pub(super) fn restore_from_tree(&mut self, slot: SlotId, length: usize) -> Option<usize> {
        let end = self.queue.front().map_or(0, |first| self.length_in_tree(first));
        // The keys in the slot may be those of a longer sequence.
        if end < length + MIN_COPY || (length > 0 && !self.device.is_portable(slot)) {
            return Some(length);
        }
        let Self { tree: Some(tree), queue, device, stats, .. } = self else { return Some(length) };
        let tokens = &queue.front()?.tokens[..end];
        tree.touch(tokens, stats.steps);

        for start in (length..end).step_by(PIECE_TOKENS) {
            let piece = start..end.min(start + PIECE_TOKENS);
            let block = KvBlock::join(&tree.slices(tokens, &piece));
            match block.and_then(|block| device.write_kv(slot, start, &block)) {
                Ok(()) => device.record_tokens(slot, start, &tokens[piece]),
                // The slot is unchanged, and nothing else of the tree fits either.
                Err(StepError::BadPlan { .. }) => {
                    self.tree = None;
                    return Some(start);
                }
                Err(error) => return self.keep_first(slot, start, &error),
            }
        }
        stats.restored_tokens += (end - length) as u64;
        Some(end)
    }

    /// Keeps the first `length` tokens of a slot after a write to it has failed. Returns the number of tokens that it
    /// has afterwards, or `None` if the slot had to be retired or the device was lost.
    pub(super) fn keep_first(&mut self, slot: SlotId, length: usize, error: &StepError) -> Option<usize> {
        match error {
            StepError::Lost { .. } => {
                self.recover(error);
                None
            }
            _ if self.device.truncate(slot, length).is_ok() => Some(length),
            _ => self.empty(slot).then_some(0),
        }
    }

    /// Reduces the tree to the part of the budget that the slots do not need. Idle slots with few tokens move to the
    /// tree first, because a slot takes as much memory as the longest one.
    pub(super) fn trim_tree(&mut self) {
        let budget = self.device.limits().kv.budget;
        while self.tree_bytes().saturating_add(self.slots.bytes()) > budget {
            if let Some(slot) = self.slots.half_empty().filter(|_| self.tree.is_some()) {
                self.keep_idle(slot, 0, self.slots.bytes_with(Some(slot), 0));
                self.empty(slot);
            } else if !self.remove_oldest() {
                return;
            }
        }
    }

    /// Removes the least recently used tokens of the tree, and offers them to the storage of prefixes. Returns false if
    /// the tree is empty.
    fn remove_oldest(&mut self) -> bool {
        let Some(tree) = &mut self.tree else { return false };
        if let Some((stored, (tokens, range))) = self.stored.as_mut().zip(tree.oldest_path()) {
            stored.offer_end(tree, &tokens, &range);
        }
        tree.remove_oldest()
    }

    /// Empties the tree, because other models need the memory.
    pub fn release_prefixes(&mut self) {
        while self.remove_oldest() {}
    }

    /// Empties the tree, because its keys and values may be wrong.
    pub(super) fn forget_tree(&mut self) {
        self.tree = self.tree.as_ref().map(|_| PrefixTree::default());
    }

    /// Offers the complete blocks of the tree to the storage, the most recently used first, until its queue is full.
    pub(super) fn offer_tree(&mut self) {
        let Self { tree: Some(tree), stored: Some(stored), .. } = self else { return };
        tree.paths().all(|tokens| stored.offer_path(tree, &tokens));
    }
}
