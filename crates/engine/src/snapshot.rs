//! A copy of the engine's state between two steps, for tests that check the engine's invariants.

use narthex_spec::SlotId;

use crate::{config::EngineStats, kv::SlotState};

/// A copy of the engine's state.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// States of all slots.
    pub slots: Vec<SlotState>,
    /// Running sequences, in order of their arrival.
    pub running: Vec<RunningSequence>,
    /// Numbers of the waiting sequences, first to last.
    pub queue: Vec<u64>,
    /// Maximum number of running sequences.
    pub max_running: usize,
    /// Number of submitted sequences.
    pub submitted: u64,
    /// Number of ended sequences.
    pub finished: u64,
    /// Counters.
    pub stats: EngineStats,
}

/// A running sequence.
#[derive(Debug, Clone)]
pub struct RunningSequence {
    /// Number in order of arrival.
    pub number: u64,
    /// Slot of the sequence.
    pub slot: Option<SlotId>,
    /// Number of its tokens in the cache, as counted by the sequence.
    pub cached: usize,
    /// Number of all its tokens.
    pub tokens: usize,
    /// Number of tokens for which its slot needs memory.
    pub footprint: usize,
}
