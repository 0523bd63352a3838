//! Anthropic's protocol: `/v1/messages` and `/v1/messages/count_tokens`.

pub(crate) mod messages;
mod request;
mod stream;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use narthex_gateway::request::{FinishReason, Summary};
use serde_json::{Value, json};

use crate::error::ApiError;

/// An error in Anthropic's form, `{"type": "error", "error": {"type", "message"}}`.
pub(crate) struct AnthropicError(ApiError);

impl From<ApiError> for AnthropicError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for AnthropicError {
    fn into_response(self) -> Response {
        let message = self.0.body()["error"]["message"].take();
        let (parts, _) = self.0.into_response().into_parts();
        let kind = match parts.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            status if status < 500 => "invalid_request_error",
            _ => "api_error",
        };
        let mut response = Json(error(kind, &message)).into_response();
        *response.status_mut() = parts.status;
        if let Some(wait) = parts.headers.get(axum::http::header::RETRY_AFTER) {
            response.headers_mut().insert(axum::http::header::RETRY_AFTER, wait.clone());
        }
        response
    }
}

fn error(kind: &str, message: &Value) -> Value {
    json!({"type": "error", "error": {"type": kind, "message": message}})
}

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
