//! States of the fake executor's slots.

use narthex_engine::executor::Checkpoints;
use narthex_spec::TokenId;

/// State of a slot: the hash of its first tokens, and its checkpoints.
#[derive(Debug, Clone)]
pub(super) struct SlotState {
    pub(super) length: usize,
    pub(super) hash: u64,
    pub(super) checkpoints: Checkpoints<u64>,
}

impl SlotState {
    pub(super) fn empty() -> Self {
        Self { length: 0, hash: hash(&[]), checkpoints: Checkpoints::default() }
    }

    /// Returns the state after the first `length` tokens, if it is known.
    pub(super) fn at(&self, length: usize) -> Option<Self> {
        let known = if length == self.length { Some(&self.hash) } else { self.checkpoints.get(length) };
        let hash = if length == 0 { hash(&[]) } else { *known? };
        let mut checkpoints = self.checkpoints.clone();
        checkpoints.truncate(length);
        Some(Self { length, hash, checkpoints })
    }

    /// Records tokens that have run, and makes a checkpoint after them if it is wanted.
    pub(super) fn run(&mut self, tokens: &[TokenId], keeps_state: bool) {
        self.length += tokens.len();
        self.hash = hash_after(self.hash, tokens);
        if keeps_state {
            self.checkpoints.add(self.length, self.hash);
        }
    }
}

/// Returns the FNV-1a hash of tokens (Fowler, Noll and Vo 1991).
pub(crate) fn hash(tokens: &[TokenId]) -> u64 {
    hash_after(0xCBF2_9CE4_8422_2325, tokens)
}

/// Returns the hash of tokens after others with the hash `before`.
pub(super) fn hash_after(before: u64, tokens: &[TokenId]) -> u64 {
    tokens.iter().fold(before, |hash, &token| {
        (hash ^ u64::from(token).wrapping_add(1)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}
