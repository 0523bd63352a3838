//! Configuration and counters of an engine, as plain values.

use std::time::Duration;

use narthex_spec::Speculation;

use crate::executor::Limits;

/// Default number of prompt tokens in a step: large enough to use the CPU well, small enough that running answers do
/// not visibly pause.
const PREFILL_CHUNK: usize = 256;

/// Default limit of waiting requests.
const MAX_QUEUE: usize = 64;

/// Configuration of an engine. Values out of range are clamped to the nearest valid one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Maximum number of waiting requests. Further requests are refused.
    pub max_queue: usize,
    /// Maximum number of tokens of a sequence. The executor's limits apply too.
    pub context: usize,
    /// Maximum number of running sequences, from 1 to the executor's slots.
    pub max_running: usize,
    /// Maximum number of prompt tokens in one step together with decoding sequences; at least 1.
    pub prefill_chunk: usize,
    /// Maximum number of tokens in one step; at least 1. Decoding sequences come first. Prompts get the remaining
    /// tokens, and always enough to advance.
    pub step_token_budget: usize,
    /// Maximum time of a step in which answers run together with prompts, if the executor's times are known. Prompts
    /// then run in smaller chunks. `None` for no maximum.
    pub token_latency: Option<Duration>,
    /// Verification of several tokens in one step.
    pub speculation: Speculation,
}

impl EngineConfig {
    /// Returns the default configuration for an executor: as many sequences as it has slots, 64 waiting requests,
    /// prompts in chunks of 256 tokens or the executor's maximum, and a step of one such chunk plus one token for each
    /// decoding sequence.
    pub fn for_limits(limits: &Limits) -> Self {
        let prefill_chunk = limits.chunk.min(PREFILL_CHUNK);
        Self {
            max_queue: MAX_QUEUE,
            context: limits.context,
            max_running: limits.slots,
            prefill_chunk,
            step_token_budget: prefill_chunk.saturating_add(limits.batch),
            token_latency: None,
            speculation: Speculation::Auto,
        }
    }

    /// Clamps values to their ranges.
    pub(crate) fn within(self, limits: &Limits) -> Self {
        Self {
            max_running: self.max_running.clamp(1, limits.slots.max(1)),
            prefill_chunk: self.prefill_chunk.max(1),
            step_token_budget: self.step_token_budget.max(1),
            ..self
        }
    }
}

/// Counters of an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Number of sequences in slots.
    pub running: usize,
    /// Number of sequences that wait for a slot.
    pub waiting: usize,
    /// Number of slots.
    pub slots: usize,
    /// KV bytes in use or reserved by running sequences, those of idle slots and of the prefix tree, which keep them for
    /// later prompts with the same prefix, and those of the draft model.
    pub kv_used_bytes: usize,
    /// KV bytes of the prefix tree.
    pub prefix_bytes: usize,
    /// Maximum number of KV bytes in use, including those of the draft model.
    pub kv_budget_bytes: usize,
    /// KV bytes of one token, without those of the draft model.
    pub kv_token_bytes: usize,
    /// KV bytes of the states of one slot with its checkpoints, without those of the draft model.
    pub kv_slot_bytes: usize,
    /// Number of prompt tokens that ran. Those of a preempted sequence are counted again.
    pub prompt_tokens: u64,
    /// Number of prompt tokens that did not run, because a slot, the prefix tree or the storage of prefixes had them.
    pub cached_tokens: u64,
    /// Number of tokens that were copied from the prefix tree to slots.
    pub restored_tokens: u64,
    /// Number of generated tokens, without final stop tokens.
    pub generated_tokens: u64,
    /// Number of draft tokens that the model accepted.
    pub accepted_tokens: u64,
    /// Number of draft tokens that the model rejected.
    pub rejected_tokens: u64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Number of steps, including failed ones.
    pub steps: u64,
}
