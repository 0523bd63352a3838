//! The form of an error in each protocol.
//!
//! Handlers and access control make one kind of error, [`ApiError`](crate::error::ApiError), in OpenAI's form.
//! [`translate_errors`] converts it to the form of the request's protocol.

use axum::{
    Json,
    extract::Request,
    http::{HeaderName, StatusCode, header::CONTENT_LENGTH},
    middleware::Next,
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Protocol, id::RequestId};
use crate::error::{ErrorMessage, OverlongPrompt};

impl ErrorMessage {
    /// Returns the message for clients of Anthropic's protocol. They compact a conversation if they find Anthropic's
    /// words for an overlong prompt. OpenAI's words remain for proxies that look for those.
    fn of_anthropic(self) -> String {
        let Self { message, overlong, .. } = self;
        match overlong {
            Some(OverlongPrompt { prompt, context }) => {
                format!("prompt is too long: {prompt} tokens > {context} maximum. {message}")
            }
            None => message,
        }
    }
}

/// Type of the objects of Anthropic's errors.
const ERROR: &str = "error";

/// Header with the id of a request in Anthropic's protocol.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// An error of Anthropic's protocol.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AnthropicErrorBody<'a> {
    #[schemars(extend("const" = ERROR))]
    r#type: &'static str,
    error: AnthropicError<'a>,
    /// Id of the request; null in a stream.
    request_id: Option<&'a str>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct AnthropicError<'a> {
    r#type: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<ErrorDetails>,
}

/// Refusal of a feature that a client can do without.
#[derive(Debug, Serialize, JsonSchema)]
struct ErrorDetails {
    error_code: &'static str,
    unsupported: [&'static str; 1],
}

impl ErrorDetails {
    /// Returns the details of the refusal of a parameter. Anthropic's clients repeat a request without `thread`, which keeps
    /// a conversation on the server, if they find its code.
    fn of_refused(param: &str) -> Option<Self> {
        let thread = Self { error_code: "thread_unsupported_request", unsupported: ["thread"] };
        (param == "thread").then_some(thread)
    }
}

impl<'a> AnthropicErrorBody<'a> {
    /// Creates the error of a response with this status.
    pub(crate) fn new(status: StatusCode, message: &'a str) -> Self {
        let kind = match status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            400..500 => "invalid_request_error",
            _ => "api_error",
        };
        Self {
            r#type: ERROR,
            error: AnthropicError { r#type: kind, message, details: None },
            request_id: None,
        }
    }
}

/// An error of Ollama's protocol.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OllamaErrorBody<'a> {
    /// Message.
    pub(crate) error: &'a str,
}

/// Translates errors to the form of their request's protocol, and adds the request's id where that protocol has it.
pub(crate) async fn translate_errors(request: Request, next: Next) -> Response {
    let protocol = Protocol::of(request.uri().path());
    let id = request.extensions().get::<RequestId>().filter(|_| protocol == Protocol::Anthropic).cloned();
    let mut response = next.run(request).await;
    if let Some(RequestId(id)) = &id {
        response.headers_mut().insert(ANTHROPIC_REQUEST_ID, id.clone());
    }
    let Some(error) = response.extensions_mut().remove::<ErrorMessage>() else { return response };
    let status = response.status();
    let translated = match protocol {
        Protocol::OpenAi => return response,
        Protocol::Anthropic => {
            let request_id = id.as_ref().and_then(|RequestId(id)| id.to_str().ok());
            let details = error.param.as_deref().and_then(ErrorDetails::of_refused);
            let message = error.of_anthropic();
            let mut body = AnthropicErrorBody::new(status, &message);
            (body.error.details, body.request_id) = (details, request_id);
            Json(body).into_response()
        }
        Protocol::Ollama => Json(OllamaErrorBody { error: &error.message }).into_response(),
    };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, translated.into_body())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_error_of_anthropic_names_its_kind() {
        let body = AnthropicErrorBody::new(StatusCode::NOT_FOUND, "none");
        let error = json!({"type": "not_found_error", "message": "none"});
        let expect = json!({"type": "error", "error": error, "request_id": null});
        assert_eq!(serde_json::to_value(body).unwrap(), expect);
    }

    #[test]
    fn an_overlong_prompt_is_described_in_the_words_of_both_protocols() {
        let error =
            |overlong| ErrorMessage { message: "This model's maximum".to_owned(), overlong, param: None };
        let overlong = OverlongPrompt { prompt: "210".to_owned(), context: 200 };
        assert_eq!(
            error(Some(overlong)).of_anthropic(),
            "prompt is too long: 210 tokens > 200 maximum. This model's maximum"
        );
        assert_eq!(error(None).of_anthropic(), "This model's maximum");
    }
}
