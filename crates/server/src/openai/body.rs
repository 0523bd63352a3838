//! Request bodies: bytes to values, with errors that name the field.

use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
    http::StatusCode,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::ApiError;

/// A JSON body, whatever its content type says.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            let status = rejection.status();
            match status {
                StatusCode::PAYLOAD_TOO_LARGE => {
                    ApiError::plain(status, "the body is over 32 MiB; send less at once")
                }
                _ => ApiError::plain(StatusCode::BAD_REQUEST, rejection.body_text()),
            }
        })?;
        parse(&bytes).map(Body)
    }
}

/// Reads a body; an error names the field, or the position where the JSON itself is wrong.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| {
        ApiError::plain(StatusCode::BAD_REQUEST, format!("the body is not JSON: {error}"))
    })?;
    read(&value)
}

/// Reads a part of a body. Parts that share one object are read one by one, since a flattened part has no path.
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

fn missing_field(message: &str) -> Option<String> {
    let rest = message.strip_prefix("missing field `")?;
    Some(rest.split('`').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

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
            let error = parse::<Sample>(body.as_bytes()).unwrap_err().body();
            assert_eq!(error["error"]["param"].as_str(), param, "{error}");
            assert!(error["error"]["message"].as_str().unwrap().contains(text), "{error}");
        };
        check("{}", Some("model"), "required");
        check(r#"{"model": "m", "n": -1}"#, Some("n"), "-1");
        check(r#"{"model": 3}"#, Some("model"), "string");
        check(r#"{"model": "m""#, None, "line 1");
        check(r#"{"model": "m"} x"#, None, "trailing");
        check("[]", None, "expected");
        parse::<Sample>(br#"{"model": "m", "unknown": 1}"#).unwrap();
    }
}
