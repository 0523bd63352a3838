//! JSON request bodies, read with errors that name the field. Shared by every protocol.

use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
    http::StatusCode,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{connection::ConnectionState, error::ApiError};

/// A JSON body of any content type.
pub(crate) struct Body(pub(crate) Value);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let extensions = request.extensions().clone();
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            let status = rejection.status();
            match status {
                StatusCode::PAYLOAD_TOO_LARGE => {
                    ApiError::plain(status, "the body is larger than 32 MiB; send a smaller request")
                }
                _ => ApiError::plain(StatusCode::BAD_REQUEST, rejection.body_text()),
            }
        })?;
        ConnectionState::request_received(&extensions);
        parse(&bytes).map(Body)
    }
}

/// Parses a body's JSON. An error names the position.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ApiError::plain(StatusCode::BAD_REQUEST, format!("the body is not JSON: {error}")))
}

/// Reads a typed value from a body. An error names the field. Structs that share one JSON object are read one by one,
/// because serde loses the path of flattened fields.
pub(crate) fn read<T: DeserializeOwned>(value: &Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        match missing_field(&inner.to_string()) {
            Some(field) => ApiError::bad_request(field.clone(), format!("{field} is required")),
            None if path != "." => ApiError::bad_request(path.clone(), format!("{path}: {inner}")),
            None => {
                let message = format!("the body is not the expected JSON: {inner}");
                ApiError::plain(StatusCode::BAD_REQUEST, message)
            }
        }
    })
}

/// Refuses every field outside these lists, unless it asks for nothing: ignoring it would answer another request than the
/// client's.
pub(crate) fn refuse_unknown(body: &Value, known: &[&[&str]]) -> Result<(), ApiError> {
    let asks = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        _ => true,
    };
    let is_known = |name: &str| known.iter().any(|fields| fields.contains(&name));
    let fields = body.as_object().into_iter().flatten();
    match fields.into_iter().find(|(name, value)| !is_known(name) && asks(value)) {
        Some((name, _)) => Err(ApiError::unsupported(name)),
        None => Ok(()),
    }
}

fn missing_field(message: &str) -> Option<String> {
    let rest = message.strip_prefix("missing field `")?;
    Some(rest.split('`').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Sample {
        #[expect(dead_code, reason = "only its presence is tested")]
        model: String,
        #[expect(dead_code, reason = "only its type is tested")]
        n: Option<usize>,
    }

    #[test]
    fn errors_name_the_field() {
        let check = |body: &str, param: Option<&str>, text: &str| {
            let error = parse(body.as_bytes()).and_then(|body| read::<Sample>(&body)).unwrap_err().body();
            assert_eq!(error["error"]["param"].as_str(), param, "{error}");
            assert!(error["error"]["message"].as_str().unwrap().contains(text), "{error}");
        };
        check("{}", Some("model"), "required");
        check(r#"{"model": "m", "n": -1}"#, Some("n"), "-1");
        check(r#"{"model": 3}"#, Some("model"), "string");
        check(r#"{"model": "m""#, None, "line 1");
        check(r#"{"model": "m"} x"#, None, "trailing");
        check("[]", None, "expected");
        read::<Sample>(&json!({"model": "m", "unknown": 1})).unwrap();
    }

    #[test]
    fn unknown_fields_that_ask_for_something_are_refused() {
        let check = |body: Value, expect: Option<&str>| {
            let found = refuse_unknown(&body, &[&["seed"], &["model"], &["user", "metadata"]])
                .err()
                .map(|error| error.body());
            assert_eq!(found.as_ref().and_then(|body| body["error"]["param"].as_str()), expect, "{body}");
        };
        check(json!({"model": "m", "seed": 1, "user": "u", "metadata": {"a": "b"}}), None);
        check(json!({"tools": [], "suffix": null, "store": false}), None);
        check(json!({"tools": [1]}), Some("tools"));
        check(json!({"ignore_eos": true}), Some("ignore_eos"));
        check(json!({"reasoning_effort": "low"}), Some("reasoning_effort"));
    }
}
