//! OpenAI's protocol: one file per endpoint, and the JSON that endpoints share.
//!
//! Another protocol is a folder beside this one, with its own JSON types and an
//! [`EventEncoder`](crate::sse::EventEncoder) for its streams. Reading bodies, starting requests, streaming and the
//! mapping of errors are shared modules outside these folders.

pub(crate) mod answer;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod fill;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod options;
pub(crate) mod prompts;
pub(crate) mod reasoning;
pub(crate) mod rerank;
pub(crate) mod response_format;
pub(crate) mod responses;
pub(crate) mod stream;
pub(crate) mod token_endpoints;
pub(crate) mod tools;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use narthex_gateway::request::{FinishReason, Summary};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{body, error::ApiError, ignored::CALLER_FIELDS};

/// Reads a body with these fields and the caller's. Refuses other fields, as [`body::read_body`] does.
pub(crate) fn read_body<T: DeserializeOwned>(body: &[u8], fields: &[&[&str]]) -> Result<T, ApiError> {
    body::read_body(body, &[fields, &[CALLER_FIELDS]].concat())
}

/// Value of `system_fingerprint`: the program that computes the answers.
const FINGERPRINT: &str = concat!("narthex-", env!("CARGO_PKG_VERSION"));

/// Fields at the start of a completion object.
pub(crate) struct CompletionHeader {
    id: String,
    created: u64,
    model: String,
}

impl CompletionHeader {
    /// Creates a header with a new id and the current time.
    pub(crate) fn new(id_prefix: &str, model: String) -> Self {
        Self { id: new_id(id_prefix), created: now(), model }
    }

    /// Returns an object of this type that has only the header's fields.
    pub(crate) fn object(&self, object: &str) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        })
    }
}

/// Returns the current time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns an id that is unique in this process.
pub(crate) fn new_id(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    use std::hash::{BuildHasher, RandomState};
    format!("{prefix}-{:016x}", RandomState::new().hash_one(COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// Returns the value of `finish_reason`. OpenAI has no reason for an answer that a shutdown cut short; "length"
/// indicates to clients that it is incomplete. There is no reason for a malformed tool call either; it is "stop", as in
/// vLLM and llama.cpp.
pub(crate) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop | FinishReason::StopString { .. } | FinishReason::MalformedCall => "stop",
        FinishReason::ToolCalls | FinishReason::MixedCalls => "tool_calls",
        FinishReason::Length | FinishReason::Cancelled => "length",
    }
}

/// Returns the value of `usage`.
pub(crate) fn usage(summary: &Summary) -> Value {
    json!({
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.completion_tokens,
        "total_tokens": summary.prompt_tokens + summary.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": summary.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": summary.reasoning_tokens,
            "accepted_prediction_tokens": summary.accepted_tokens,
            "rejected_prediction_tokens": summary.rejected_tokens,
        },
    })
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
