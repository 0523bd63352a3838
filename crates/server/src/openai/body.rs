//! Request bodies: bytes to values, with errors that name the field.

use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
    http::StatusCode,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{connection::Use, error::ApiError};

/// A JSON body, whatever its content type says.
pub(crate) struct Body(pub(crate) Value);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let extensions = request.extensions().clone();
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            let status = rejection.status();
            match status {
                StatusCode::PAYLOAD_TOO_LARGE => {
                    ApiError::plain(status, "the body is over 32 MiB; send less at once")
                }
                _ => ApiError::plain(StatusCode::BAD_REQUEST, rejection.body_text()),
            }
        })?;
        Use::answers(&extensions);
        parse(&bytes).map(Body)
    }
}

/// Reads a body's JSON; an error names the position where it is wrong.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ApiError::plain(StatusCode::BAD_REQUEST, format!("the body is not JSON: {error}")))
}

/// Reads a part of a body; an error names the field. Parts that share one object are read one by one, since a flattened
/// part has no path.
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

/// As [`read`], of a body of which these fields are read and all others refused.
pub(crate) fn read_whole<T: DeserializeOwned>(body: &Value, fields: &[&[&str]]) -> Result<T, ApiError> {
    let request = read(body)?;
    refuse_unread(body, fields)?;
    Ok(request)
}

/// Fields that say something of the caller and nothing of the answer.
const OF_THE_CALLER: &[&str] =
    &["user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"];

/// Refuses every field that is not read, unless it asks for nothing, since ignoring it would give another answer than was
/// asked for.
fn refuse_unread(body: &Value, read: &[&[&str]]) -> Result<(), ApiError> {
    let asks = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        _ => true,
    };
    let is_read = |name: &str| read.iter().chain([&OF_THE_CALLER]).any(|fields| fields.contains(&name));
    let fields = body.as_object().into_iter().flatten();
    match fields.into_iter().find(|(name, value)| !is_read(name) && asks(value)) {
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
    fn what_is_not_read_and_asks_for_something_is_refused() {
        let check = |body: Value, expect: Option<&str>| {
            let found = refuse_unread(&body, &[&["seed"], &["model"]]).err().map(|error| error.body());
            assert_eq!(found.as_ref().and_then(|body| body["error"]["param"].as_str()), expect, "{body}");
        };
        check(json!({"model": "m", "seed": 1, "user": "u", "metadata": {"a": "b"}}), None);
        check(json!({"tools": [], "suffix": null, "store": false}), None);
        check(json!({"tools": [1]}), Some("tools"));
        check(json!({"ignore_eos": true}), Some("ignore_eos"));
        check(json!({"reasoning_effort": "low"}), Some("reasoning_effort"));
    }
}
