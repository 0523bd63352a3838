//! OpenAI's protocol: one file per endpoint, and the JSON that these endpoints share.

pub(crate) mod answer;
pub(crate) mod audio;
pub(crate) mod catalogue;
pub(crate) mod chat;
pub(crate) mod chat_answer;
pub(crate) mod classify;
pub(crate) mod completions;
pub(crate) mod decisions;
pub(crate) mod embeddings;
pub(crate) mod fill;
pub(crate) mod load_forecast;
mod logprobs;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod predict;
pub(crate) mod realtime;
pub(crate) mod render;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod settings;
pub(crate) mod stream;
pub(crate) mod systemone;
pub(crate) mod token_endpoints;
pub(crate) mod upstream;

use narthex_gateway::request::{FinishReason, Summary};
use narthex_spec::date::unix_now;
use schemars::JsonSchema;
use serde::Serialize;

use crate::protocol::id;

/// Value of `system_fingerprint`: the program that computes the answers.
const FINGERPRINT: &str = concat!("narthex-", env!("CARGO_PKG_VERSION"));

/// Fields at the start of a completion, and of each of its chunks.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct CompletionHeader {
    id: String,
    /// Seconds since 1970.
    created: u64,
    model: String,
    system_fingerprint: &'static str,
}

impl CompletionHeader {
    /// Creates a header with a new id and the current time.
    pub(crate) fn new(id_prefix: &str, model: String) -> Self {
        Self { id: id::new_id(id_prefix), created: unix_now(), model, system_fingerprint: FINGERPRINT }
    }
}

/// Value of `finish_reason`. OpenAI has no value for an answer that a shutdown cut short; "length" indicates to clients
/// that it is incomplete. OpenAI has no value for a malformed tool call either; it is "stop", as in vLLM and llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WireFinishReason {
    Stop,
    Length,
    ToolCalls,
}

impl From<FinishReason> for WireFinishReason {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop | FinishReason::StopString { .. } | FinishReason::MalformedCall => Self::Stop,
            FinishReason::ToolCalls | FinishReason::MixedCalls => Self::ToolCalls,
            FinishReason::Length | FinishReason::Repetition | FinishReason::Cancelled => Self::Length,
        }
    }
}

/// `usage` of a completion.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct CompletionUsage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokens,
    completion_tokens_details: CompletionTokens,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
struct PromptTokens {
    cached_tokens: usize,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
struct CompletionTokens {
    reasoning_tokens: usize,
    accepted_prediction_tokens: usize,
    rejected_prediction_tokens: usize,
}

impl From<&Summary> for CompletionUsage {
    fn from(summary: &Summary) -> Self {
        Self {
            prompt_tokens: summary.prompt_tokens,
            completion_tokens: summary.completion_tokens,
            total_tokens: summary.prompt_tokens + summary.completion_tokens,
            prompt_tokens_details: PromptTokens { cached_tokens: summary.cached_tokens },
            completion_tokens_details: CompletionTokens {
                reasoning_tokens: summary.reasoning_tokens,
                accepted_prediction_tokens: summary.accepted_tokens,
                rejected_prediction_tokens: summary.rejected_tokens,
            },
        }
    }
}

/// `usage` of a request without generation.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct PromptUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Returns the usage of a request without generation.
pub(crate) fn usage_of_prompt(tokens: usize) -> PromptUsage {
    PromptUsage { prompt_tokens: tokens, total_tokens: tokens }
}
