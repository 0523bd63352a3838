//! JSON request bodies, read into typed structs with errors that name the field. Shared by every protocol.

use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
    http::StatusCode,
};
use serde::de::DeserializeOwned;

use crate::{blocking::run_parse, connection::ConnectionState, error::ApiError, outline::outline};

/// A request that an endpoint reads from a JSON body.
pub(crate) trait FromBody: Sized + Send + 'static {
    /// Reads and checks a body. Runs on a thread for blocking work.
    fn read(body: &[u8]) -> Result<Self, ApiError>;
}

/// The request in a body of any content type.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: FromBody> FromRequest<S> for Body<T> {
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
        run_parse(move || T::read(&bytes)).await.map(Body)
    }
}

/// Reads a body with these fields. Refuses every other field that asks for something: ignoring it would answer another
/// request than the client's.
pub(crate) fn read_body<T: DeserializeOwned>(body: &[u8], known: &[&[&str]]) -> Result<T, ApiError> {
    let outline = outline(body, known)?;
    let read = read_fields(body)?;
    match outline.unknown {
        Some(name) => Err(ApiError::unsupported(&name)),
        None => Ok(read),
    }
}

/// Reads some fields of a body that [`read_body`] has read. An error names the field. Structs that share one JSON object are
/// read one by one, because serde loses the path of flattened fields.
pub(crate) fn read_fields<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
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
        let read = |body: &str| read_body::<Sample>(body.as_bytes(), &[&["model", "n"]]);
        let check = |body: &str, param: Option<&str>, text: &str| {
            let error = read(body).unwrap_err().body();
            assert_eq!(error["error"]["param"].as_str(), param, "{error}");
            assert!(error["error"]["message"].as_str().unwrap().contains(text), "{error}");
        };
        check("{}", Some("model"), "required");
        check(r#"{"model": "m", "n": -1}"#, Some("n"), "-1");
        check(r#"{"model": 3}"#, Some("model"), "string");
        check(r#"{"model": "m""#, None, "line 1");
        check(r#"{"model": "m"} x"#, None, "trailing");
        check("[]", None, "expected");
        check(r#"{"model": "m", "x": 1}"#, Some("x"), "not supported");
        check(r#"{"model": "m", "model": "n"}"#, None, "duplicate field");
        read(r#"{"model": "m", "x": null}"#).unwrap();
    }
}
