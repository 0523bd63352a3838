//! Prefixes in a storage that outlives the engine.
//!
//! After each step, at most one complete block of a slot is offered to the storage, so that no step waits for long.
//! Blocks that the prefix tree loses are offered at once. The first waiting sequence is looked up before it is admitted. Its blocks are read while other sequences run, and
//! written to its slot before its prompt runs.

use std::ops::Range;

use narthex_spec::SlotId;

use super::EngineLoop;
use crate::{
    executor::{Executor, KvBlock, StepError},
    kv::{MIN_COPY, PrefixTree, SlotContent},
    position::Position,
    prefix_storage::{BLOCK_TOKENS, BlockKey, BlockState, PrefixRead, PrefixStorage},
};

/// Maximum number of stored blocks that are passed over in one step.
const MAX_PASSED: usize = 1024;

/// Outcome of an offer to the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OfferOutcome {
    /// No complete block is missing in the storage.
    Nothing,
    /// A block was queued, or there may be more to offer.
    Queued,
    /// A block is missing, and the queue of the storage is full.
    QueueFull,
}

/// A storage, and the progress of each slot in it.
pub(super) struct StoredPrefixes {
    storage: Box<dyn PrefixStorage>,
    /// Progress of each slot.
    cursors: Vec<Cursor>,
    lookup: Option<StorageLookup>,
    /// True if nothing more is written.
    is_closed: bool,
}

/// First blocks of a slot that have been offered to the storage.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    blocks: usize,
    last: Option<BlockKey>,
}

impl Cursor {
    /// Returns the tokens of the next block, if it is complete.
    fn next<'a>(&self, content: &SlotContent<'a>) -> Option<&'a [Position]> {
        let start = self.blocks * BLOCK_TOKENS;
        content.tokens.get(start..start + BLOCK_TOKENS)
    }
}

/// A look-up of the prompt of a waiting sequence.
struct StorageLookup {
    /// Number of the sequence.
    number: u64,
    /// Keys of the blocks that are read.
    keys: Vec<BlockKey>,
    blocks: LookupBlocks,
}

enum LookupBlocks {
    Reading(Box<dyn PrefixRead>),
    Found(Vec<KvBlock>),
}

impl StoredPrefixes {
    pub(super) fn new(storage: Box<dyn PrefixStorage>, slots: usize) -> Self {
        let cursors = vec![Cursor::default(); slots];
        Self { storage, cursors, lookup: None, is_closed: false }
    }

    /// Returns true while the blocks of a waiting sequence are read.
    fn is_reading(&self) -> bool {
        matches!(&self.lookup, Some(StorageLookup { blocks: LookupBlocks::Reading(_), .. }))
    }

    /// Starts the look-up of a sequence of which the slots have the first `held` tokens. A sequence of more than
    /// `portable` tokens needs other keys than the stored ones.
    fn start(&mut self, number: u64, tokens: &[Position], held: usize, portable: usize) {
        // The last token runs in any case.
        let most = if tokens.len() <= portable { tokens.len().saturating_sub(1) } else { 0 };
        let mut keys: Vec<BlockKey> = Vec::new();
        for block in tokens[..most].chunks_exact(BLOCK_TOKENS) {
            let Some(key) = self.storage.key(keys.last(), block) else { break };
            if self.storage.state(&key) != BlockState::Stored {
                break;
            }
            keys.push(key);
        }
        let is_longer = keys.len() * BLOCK_TOKENS >= held + MIN_COPY;
        let keys = if is_longer { keys.split_off(held / BLOCK_TOKENS) } else { Vec::new() };
        let blocks = if keys.is_empty() {
            LookupBlocks::Found(Vec::new())
        } else {
            LookupBlocks::Reading(self.storage.read(keys.clone()))
        };
        self.lookup = Some(StorageLookup { number, keys, blocks });
    }

    /// Returns true if the look-up has ended.
    fn poll(&mut self) -> bool {
        let Some(lookup) = &mut self.lookup else { return true };
        if let LookupBlocks::Reading(read) = &mut lookup.blocks {
            let Some(found) = read.poll() else { return false };
            lookup.blocks = LookupBlocks::Found(found);
        }
        true
    }

    /// Removes and returns the blocks of a sequence with their keys.
    fn take(&mut self, number: u64) -> Vec<(BlockKey, KvBlock)> {
        match self.lookup.take() {
            Some(StorageLookup { number: own, keys, blocks: LookupBlocks::Found(blocks) })
                if own == number =>
            {
                keys.into_iter().zip(blocks).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Offers the complete block that ends within `range`, the last tokens of a path of the tree.
    pub(super) fn offer_end(&mut self, tree: &PrefixTree, tokens: &[Position], range: &Range<usize>) {
        let complete = tokens.len() - tokens.len() % BLOCK_TOKENS;
        if complete > range.start {
            let mut key = None;
            for block in tokens[..complete].chunks_exact(BLOCK_TOKENS) {
                key = self.storage.key(key.as_ref(), block);
                if key.is_none() {
                    return;
                }
            }
            key.into_iter().for_each(|key| {
                self.offer(tree, tokens, key);
            });
        }
    }

    /// Offers all complete blocks of a path of the tree. Returns false if the storage accepts no more.
    pub(super) fn offer_path(&mut self, tree: &PrefixTree, tokens: &[Position]) -> bool {
        let mut last = None;
        tokens.chunks_exact(BLOCK_TOKENS).all(|block| {
            last = self.storage.key(last.as_ref(), block);
            last.is_none_or(|key| self.offer(tree, tokens, key))
        })
    }

    /// Offers a block of a path of the tree. Returns false if the storage accepts no more.
    fn offer(&mut self, tree: &PrefixTree, tokens: &[Position], key: BlockKey) -> bool {
        match self.storage.state(&key) {
            BlockState::Stored => true,
            BlockState::Missing => {
                let start = key.index as usize * BLOCK_TOKENS;
                if let Ok(block) = KvBlock::join(&tree.slices(tokens, &(start..start + BLOCK_TOKENS))) {
                    self.storage.write(key, block);
                }
                true
            }
            BlockState::QueueFull | BlockState::Closed => false,
        }
    }

    /// Returns the next block that is missing in the storage, with its slot and its first token. Only slots for which
    /// `is_portable` returns true are considered.
    fn missing(
        &mut self,
        contents: &[SlotContent<'_>],
        is_portable: impl Fn(SlotId) -> bool,
    ) -> Result<(SlotId, usize, BlockKey), OfferOutcome> {
        let mut passed = 0;
        let slots = contents.iter().enumerate();
        for (index, content) in slots.filter(|(index, _)| is_portable(SlotId(*index as u32))) {
            while let Some(tokens) = self.cursors[index].next(content) {
                let Cursor { blocks, last } = self.cursors[index];
                let Some(key) = self.storage.key(last.as_ref(), tokens) else { break };
                match self.storage.state(&key) {
                    BlockState::Stored if passed < MAX_PASSED => {
                        passed += 1;
                        self.cursors[index] = Cursor { blocks: blocks + 1, last: Some(key) };
                    }
                    BlockState::Stored => return Err(OfferOutcome::Queued),
                    BlockState::Missing => return Ok((SlotId(index as u32), blocks * BLOCK_TOKENS, key)),
                    BlockState::QueueFull => return Err(OfferOutcome::QueueFull),
                    BlockState::Closed => {
                        self.is_closed = true;
                        return Err(OfferOutcome::Nothing);
                    }
                }
            }
        }
        Err(OfferOutcome::Nothing)
    }
}

impl EngineLoop {
    /// Returns true while the only work is a read of stored blocks.
    pub(super) fn is_only_reading(&self) -> bool {
        self.running.is_empty() && self.stored.as_ref().is_some_and(StoredPrefixes::is_reading)
    }

    /// Looks up the first waiting sequence in the storage. Returns false while its blocks are read.
    pub(super) fn look_up_first(&mut self) -> bool {
        let (Some(stored), Some(first)) = (&self.stored, self.queue.front()) else { return true };
        if stored.lookup.as_ref().is_none_or(|lookup| lookup.number != first.number) {
            let held = self.longest_prefix(&self.contents(), &first.tokens).max(self.length_in_tree(first));
            let portable = self.device.portable_length();
            if let Some(stored) = &mut self.stored {
                stored.start(first.number, &first.tokens, held, portable);
            }
        }
        self.stored.as_mut().is_none_or(StoredPrefixes::poll)
    }

    /// Writes stored blocks of the first waiting sequence after the first `length` tokens of its slot. Returns the
    /// slot's length afterwards, or `None` if the slot had to be retired or the device was lost.
    pub(super) fn restore_first(&mut self, slot: SlotId, mut length: usize) -> Option<usize> {
        let Self { stored: Some(stored), queue, device, .. } = self else { return Some(length) };
        stored.cursors[slot.index()] = Cursor::default();
        let first = queue.front()?;
        let blocks = stored.take(first.number);
        // The keys in the slot may be those of a longer sequence.
        if length > 0 && !device.is_portable(slot) {
            return Some(length);
        }

        for (key, block) in blocks {
            let start = key.index as usize * BLOCK_TOKENS;
            if start + BLOCK_TOKENS <= length {
                continue;
            }
            // The slot may have fewer tokens than at the look-up.
            if start > length {
                break;
            }
            if block.tokens() != BLOCK_TOKENS {
                let found = block.tokens();
                let reason = format!("expected a block of {BLOCK_TOKENS} tokens, found {found}");
                stored.storage.remove(&key, &StepError::bad_plan(reason));
                break;
            }
            let Some(tokens) = first.tokens.get(start..start + BLOCK_TOKENS) else { break };
            match device.write_kv(slot, start, &block) {
                Ok(()) => {
                    device.record_tokens(slot, start, tokens);
                    length = start + BLOCK_TOKENS;
                }
                // The slot is unchanged.
                Err(error @ StepError::BadPlan { .. }) => {
                    stored.storage.remove(&key, &error);
                    break;
                }
                Err(error) => return self.keep_first(slot, start, &error),
            }
        }
        Some(length)
    }

    /// Offers one block to the storage.
    pub(super) fn offer_block(&mut self) -> OfferOutcome {
        let Some(mut stored) = self.stored.take() else { return OfferOutcome::Nothing };
        // The sequence of a look-up may have been cancelled.
        if self.queue.is_empty() {
            stored.lookup = None;
        }
        let offer = if stored.is_closed { OfferOutcome::Nothing } else { self.offer_to(&mut stored) };
        self.stored = Some(stored);
        offer
    }

    fn offer_to(&self, stored: &mut StoredPrefixes) -> OfferOutcome {
        let (slot, start, key) = match stored.missing(&self.contents(), |slot| self.device.is_portable(slot))
        {
            Ok(missing) => missing,
            Err(offer) => return offer,
        };
        match self.device.read_kv(slot, start..start + BLOCK_TOKENS) {
            Ok(block) => stored.storage.write(key, block),
            // The executor hands nothing over, or has failed.
            Err(_) => {
                stored.is_closed = true;
                return OfferOutcome::Nothing;
            }
        }
        stored.cursors[slot.index()] = Cursor { blocks: start / BLOCK_TOKENS + 1, last: Some(key) };
        OfferOutcome::Queued
    }

    /// Ends a wait in which the storage has made no progress: if its queue is full, nothing more is written. A read ends
    /// by itself.
    pub fn give_up_storage(&mut self) {
        if let Some(stored) = self.stored.as_mut().filter(|stored| !stored.is_reading()) {
            stored.is_closed = true;
        }
    }

    /// Offers blocks of slots and of the prefix tree to the storage until none is missing or its queue is full.
    pub(crate) fn offer_all(&mut self) {
        while !self.is_dead() && self.offer_block() == OfferOutcome::Queued {}
        self.offer_tree();
    }
}
