//! Anthropic's protocol: `/v1/messages` and `/v1/messages/count_tokens`.

pub(crate) mod messages;
pub(crate) mod request;
mod stream;

use narthex_gateway::request::{FinishReason, Summary};
use serde_json::{Value, json};

/// Value of `stop_reason`.
fn stop_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "end_turn",
        FinishReason::ToolCalls => "tool_use",
        FinishReason::Length | FinishReason::Cancelled => "max_tokens",
    }
}

/// Value of `usage`. Cached tokens are not among the input tokens.
fn usage(summary: &Summary) -> Value {
    json!({
        "input_tokens": summary.prompt_tokens - summary.cached_tokens.min(summary.prompt_tokens),
        "cache_read_input_tokens": summary.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": summary.completion_tokens,
    })
}
