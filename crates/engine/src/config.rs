//! Bounds of an engine, and the counters that it keeps. Plain values; nothing here runs.

use crate::executor::Limits;

/// How many rows of prompt a step runs beside the answers, unless told otherwise: enough to keep a CPU busy, few
/// enough that a running answer does not visibly stop.
const PREFILL_CHUNK: usize = 256;

/// Requests that may wait, unless told otherwise.
const MAX_QUEUE: usize = 64;

/// Bounds of an engine. Values that no engine can run with are raised or lowered to the nearest that one can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Requests that may wait when every place to run is taken; further ones are refused. 0 lets none wait.
    pub max_queue: usize,
    /// Sequences that may run at once; from 1 to the executor's slots.
    pub max_running: usize,
    /// Prompt tokens that one step may run beside the decoding sequences; at least 1.
    pub prefill_chunk: usize,
    /// Tokens that one step may run in all. Decoding sequences come first and prompts get what they leave, but always
    /// enough to advance; at least 1.
    pub step_token_budget: usize,
}

impl EngineConfig {
    /// The standard bounds for an executor: as many sequences as it has slots, 64 requests waiting, prompts in chunks
    /// of 256 tokens or the executor's own bound, and a step as large as one such chunk and every decoding sequence.
    pub fn for_limits(limits: &Limits) -> Self {
        let prefill_chunk = limits.chunk.min(PREFILL_CHUNK);
        Self {
            max_queue: MAX_QUEUE,
            max_running: limits.slots,
            prefill_chunk,
            step_token_budget: prefill_chunk.saturating_add(limits.batch),
        }
    }

    /// The same within what an engine can run with.
    pub(crate) fn within(self, limits: &Limits) -> Self {
        Self {
            max_queue: self.max_queue,
            max_running: self.max_running.clamp(1, limits.slots.max(1)),
            prefill_chunk: self.prefill_chunk.max(1),
            step_token_budget: self.step_token_budget.max(1),
        }
    }
}

/// Counters of an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Sequences in slots.
    pub running: usize,
    /// Sequences that wait for a slot.
    pub waiting: usize,
    /// Slots.
    pub slots: usize,
    /// KV bytes in use or reserved by running sequences, and held by idle slots for prompts that begin alike.
    pub kv_used_bytes: usize,
    /// KV bytes that may be in use.
    pub kv_budget_bytes: usize,
    /// Prompt tokens that ran; those of a sequence that made way and came back count again.
    pub prompt_tokens: u64,
    /// Prompt tokens that were in a slot already.
    pub cached_tokens: u64,
    /// Tokens generated; a final stop token does not count.
    pub generated_tokens: u64,
    /// Times that a sequence made way for older ones.
    pub preemptions: u64,
    /// Steps run, failed ones included.
    pub steps: u64,
}
