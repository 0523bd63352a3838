//! Errors of requests: the mapping of error kinds to HTTP statuses, and the JSON of an error in OpenAI's form,
//! `{"error": {"message", "type", "param", "code"}}`.

use std::{borrow::Cow, time::Duration};

use axum::{
    Json,
    http::{
        HeaderValue, StatusCode,
        header::{ACCEPT_ENCODING, RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use narthex_gateway::{Error, ErrorKind, UpstreamCondition, redact};
use schemars::JsonSchema;
use serde::Serialize;

/// Maximum bytes of the message of an error.
const MAX_TEXT: usize = 1000;

/// Maximum bytes of the parameter that an error names. Names of parameters are shorter than 40 bytes; the name of an
/// unknown one comes from the client.
const MAX_PARAM: usize = 100;

/// Maximum bytes of a text that are searched for credentials. They exceed [`MAX_TEXT`], so that a credential at the end
/// of a message is found whole.
const MAX_SEARCHED: usize = 4 * MAX_TEXT;

/// An error response.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    retry_after: Option<u64>,
    overlong: Option<OverlongPrompt>,
    condition: Option<UpstreamCondition>,
}

/// Type of errors that are not the client's.
const SERVER_ERROR: &str = "server_error";

/// An error of OpenAI's protocol.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OpenAiErrorBody {
    error: OpenAiError,
}

impl OpenAiErrorBody {
    /// Creates the error of an answer that failed after its beginning was sent.
    pub(crate) fn of_stream(message: String) -> Self {
        Self { error: OpenAiError { message, r#type: SERVER_ERROR, param: None, code: None } }
    }

    /// Returns the error with a code for programs.
    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.error.code = Some(code);
        self
    }
}

/// The fields of an error of OpenAI's protocol.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OpenAiError {
    message: String,
    r#type: &'static str,
    /// Parameter of the request.
    param: Option<String>,
    /// Code for programs.
    code: Option<&'static str>,
}

/// Message of an error, attached to its response for the translation to another protocol.
#[derive(Debug, Clone)]
pub(crate) struct ErrorMessage {
    pub(crate) message: String,
    pub(crate) overlong: Option<OverlongPrompt>,
    /// Parameter of the request.
    pub(crate) param: Option<String>,
}

/// A prompt that leaves no room for an answer.
#[derive(Debug, Clone)]
pub(crate) struct OverlongPrompt {
    /// Number of tokens, which may be a lower bound.
    pub(crate) prompt: String,
    /// Maximum number of tokens.
    pub(crate) context: usize,
}

fn status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::BadRequest => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Forbidden => StatusCode::FORBIDDEN,
        ErrorKind::Overloaded => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Loading
        | ErrorKind::Unavailable
        | ErrorKind::Unsupported
        | ErrorKind::Fetch
        | ErrorKind::Storage
        | ErrorKind::Malformed
        | ErrorKind::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Returns the condition of an error under which an upstream may answer instead.
fn condition(error: &Error) -> Option<UpstreamCondition> {
    match error {
        Error::ContextLength { .. } | Error::InputTooLong { .. } => Some(UpstreamCondition::TooLong),
        Error::NotInstalled { .. } => Some(UpstreamCondition::Unavailable),
        _ => match error.kind() {
            ErrorKind::Overloaded => Some(UpstreamCondition::Busy),
            ErrorKind::Loading
            | ErrorKind::Unavailable
            | ErrorKind::Unsupported
            | ErrorKind::Fetch
            | ErrorKind::Storage
            | ErrorKind::Malformed => Some(UpstreamCondition::Unavailable),
            _ => None,
        },
    }
}

impl ApiError {
    /// Creates the error of a request with an invalid parameter.
    pub(crate) fn bad_request(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            message: message.into(),
            param: Some(param.into()),
            code: None,
            retry_after: None,
            overlong: None,
            condition: None,
        }
    }

    /// Creates the error of a missing parameter.
    pub(crate) fn required(param: &str) -> Self {
        Self::bad_request(param, format!("{param} is required"))
    }

    /// Creates an error that is not about a single parameter.
    pub(crate) fn plain(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, param: None, ..Self::bad_request("", message) }
    }

    /// Creates the error of a parameter that this version does not support.
    pub(crate) fn unsupported(param: &str) -> Self {
        Self::unsupported_as(param, format!("{param} is not supported by this version of Narthex; remove it"))
    }

    /// Creates the same error as [`Self::unsupported`] with another message.
    pub(crate) fn unsupported_as(param: &str, message: String) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::bad_request(param, message) }
    }

    /// Creates the error of a request without a required key.
    pub(crate) fn unauthorized(message: &str) -> Self {
        Self::plain(StatusCode::UNAUTHORIZED, message).with_code("invalid_api_key")
    }

    /// Creates the error of a request whose handler panicked.
    pub(crate) fn panicked() -> Self {
        let message = "the code that handles this request panicked; please report this as a bug";
        Self::plain(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// Returns the error with another name of the parameter, if it is about `from`.
    pub(crate) fn renamed(mut self, from: &str, to: &str) -> Self {
        if self.param.as_deref() == Some(from) {
            self.param = Some(to.to_owned());
        }
        self
    }

    /// Returns the message, truncated to [`MAX_TEXT`].
    pub(crate) fn message(&self) -> String {
        cut(&self.message, MAX_TEXT).into_owned()
    }

    /// Returns the parameter, truncated to [`MAX_PARAM`].
    fn param(&self) -> Option<String> {
        self.param.as_deref().map(|param| cut(param, MAX_PARAM).into_owned())
    }

    /// Creates the error of a request beyond the limits of its key.
    pub(crate) fn rate_limited(message: String, wait: Duration) -> Self {
        let retry_after = Some((wait.as_secs_f64().ceil() as u64).max(1));
        let error = Self::plain(StatusCode::TOO_MANY_REQUESTS, message);
        Self { retry_after, ..error.with_code("rate_limit_exceeded") }
    }

    /// Returns the error with a code for programs.
    pub(crate) fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    #[cfg(test)]
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    #[cfg(test)]
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }

    /// Creates the error of a request for which there is no room at present.
    pub(crate) fn overloaded(message: &str, retry_after: Duration) -> Self {
        let retry_after = Some(retry_after.as_secs().max(1));
        Self { retry_after, ..Self::plain(StatusCode::TOO_MANY_REQUESTS, message) }
    }

    /// Creates the error of a request on a server whose connections are all in use.
    pub(crate) fn no_connection() -> Self {
        let message = "every connection of this server is in use; try again in a moment";
        Self { retry_after: Some(1), ..Self::plain(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    /// Returns the error with the time after which the request may succeed.
    pub(crate) fn with_retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait.as_secs().max(1)), ..self }
    }

    /// Returns the condition of this error under which an upstream may answer instead.
    pub(crate) fn condition(&self) -> Option<UpstreamCondition> {
        self.condition
    }

    /// Returns true for a prompt that does not fit into the context.
    pub(crate) fn is_overlong(&self) -> bool {
        self.overlong.is_some()
    }

    /// Returns true if the same request may succeed soon, because another one was in its way.
    pub(crate) fn is_temporary(&self) -> bool {
        self.status == StatusCode::TOO_MANY_REQUESTS
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn body(&self) -> serde_json::Value {
        serde_json::json!(self.typed_body())
    }

    fn typed_body(&self) -> OpenAiErrorBody {
        OpenAiErrorBody { error: self.to_object() }
    }

    /// Returns the fields of the error in OpenAI's protocol.
    pub(crate) fn to_object(&self) -> OpenAiError {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable",
            status if status.is_client_error() => "invalid_request_error",
            _ => SERVER_ERROR,
        };
        OpenAiError { message: self.message(), r#type: kind, param: self.param(), code: self.code }
    }
}

/// Truncates a text for an error to `most` bytes, because an error may quote text from a client.
fn cut(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}…", &text[..text.floor_char_boundary(most)]))
}

/// Returns the text for an error whose credentials are hidden, truncated as by [`cut`].
pub(crate) fn public_text(text: &str) -> String {
    let mut searched = &text[..text.floor_char_boundary(MAX_SEARCHED)];
    if searched.len() < text.len() {
        // The last word may be the beginning of a credential that continues.
        let end = searched.rfind(char::is_whitespace).filter(|end| *end >= MAX_TEXT);
        searched = &searched[..end.unwrap_or(searched.len())];
    }
    cut(&redact(searched), MAX_TEXT).into_owned()
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let mut message = error.to_string();
        if let Some(hint) = error.hint() {
            message = format!("{message} ({hint})");
        }
        let code = match &error {
            Error::UnknownModel { .. } | Error::NotInstalled { .. } | Error::PathAsModel => {
                Some("model_not_found")
            }
            Error::ContextLength { .. } | Error::InputTooLong { .. } => Some("context_length_exceeded"),
            Error::ModelNotAllowed { .. } => Some("model_not_allowed"),
            Error::MediaNotRead { .. } => Some("unsupported_parameter"),
            _ => None,
        };

        let overlong = match &error {
            Error::ContextLength { prompt, context, .. } => {
                Some(OverlongPrompt { prompt: prompt.to_string(), context: *context })
            }
            _ => None,
        };

        Self {
            status: status(error.kind()),
            message: public_text(&message),
            param: error.param().map(str::to_owned),
            code,
            retry_after: error.retry_after().map(|after| after.as_secs().max(1)),
            overlong,
            condition: condition(&error),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.typed_body())).into_response();
        response.extensions_mut().insert(ErrorMessage {
            message: self.message(),
            param: self.param(),
            overlong: self.overlong,
        });
        if response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            response.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, zstd"));
        }
        if response.status() == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut() {
        let long = "é".repeat(40_000);
        let body = ApiError::bad_request(long.clone(), format!("a{long}")).body();
        assert!(body["error"]["message"].as_str().is_some_and(|text| text.len() < MAX_TEXT + 4), "{body}");
        assert_eq!(body["error"]["param"], format!("{}…", "é".repeat(50)));
        assert_eq!(cut("é", 2), "é");
    }

    #[test]
    fn public_texts_are_short_and_without_credentials() {
        let check = |text: &str, expect: &str| {
            let found = public_text(text);
            assert!(found == expect && found.len() < MAX_TEXT + 4, "{found}");
        };
        check("cannot reach https://u:secret@h", "cannot reach https://***@h");
        let split = "a ".repeat(MAX_TEXT / 2 - 5);
        check(&format!("{split}https://u:{}@h", "secret".repeat(100)), &format!("{split}https://**…"));
        // The words before the limit become much shorter than it, and the last word is cut at the limit.
        let long = format!("https://{}@h", "s".repeat(1900));
        let last = format!("https://{}@h", "s".repeat(1000));
        check(&format!("{long} {long} {last}"), "https://***@h https://***@h");
    }
}
