//! JSON request bodies, read into typed structs with errors that name the field. Shared by every protocol.
//!
//! The memory of a body is reserved before the body is read, and that of its values before it is parsed. Both are
//! released after its request was handed to the gateway. Compressed bytes have a share of their own until they were
//! decompressed.

use axum::{
    extract::{FromRequest, FromRequestParts, Request},
    http::StatusCode,
};
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error};
use serde_json::Value;

use super::{ignored::IgnoredParameters, lenient_json, outline};
use crate::{
    app::{App, ServerResources},
    error::ApiError,
    http::{
        body::{BodyReader, Encoding, ReceivedBody},
        budget::Reservation,
        connection::RequestConnection,
        incomplete_bodies::BodySize,
        limits::Limits,
    },
};

/// A request that an endpoint reads from a JSON body.
pub(crate) trait FromBody: Sized + Send + 'static {
    /// Field that may be a long list of tokens.
    const TOKENS: Option<&'static str> = None;

    /// Reads and checks a body whose values were counted. Adds parameters without effect on the answer to `ignored`.
    /// Runs on a thread for blocking work.
    fn read(body: &[u8], ignored: &mut IgnoredParameters) -> Result<Self, ApiError>;
}

/// The request in a body of any content type.
pub(crate) struct Body<T> {
    pub(crate) request: T,
    /// Parameters without effect on the answer.
    pub(crate) ignored: IgnoredParameters,
    /// Memory that is reserved for the request.
    pub(crate) reservation: Reservation,
}

impl<S: Send + Sync, T: FromBody> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        let ServerResources { jobs, bodies, options, .. } =
            App::from_request_parts(&mut parts, state).await?.shared;
        let connection = RequestConnection::of(&parts.extensions).cloned();
        let encoding = Encoding::of(&parts.headers)?;
        let limit = connection.as_ref().map_or_else(|| Limits::standard().body, |it| it.limits().body);
        let reader = BodyReader { budget: &bodies, connection: connection.as_ref(), limit };
        let ReceivedBody { bytes, encoding, reservation, compressed } = reader.read(body, encoding).await?;
        if let Some(connection) = connection {
            connection.request_received();
        }

        let size = match encoding {
            Encoding::Identity => BodySize::of(bytes.len()),
            Encoding::Gzip | Encoding::Zstd => BodySize::Large,
        };
        let is_strict = options.strict_parameters;
        let read = move |bytes: &[u8]| {
            let mut ignored = IgnoredParameters::default();
            let request = T::read(bytes, &mut ignored)?;
            match ignored.strict() {
                Some(name) if is_strict => Err(ApiError::unsupported(name)),
                _ => Ok((request, ignored)),
            }
        };

        let (held, budget) = (reservation.clone(), bodies.clone());
        let count = move || {
            let mut bytes = encoding.decode(bytes)?;
            drop(compressed);
            lenient_json::normalise(&mut bytes);
            held.shrink(bytes.len());
            let values = outline::count_values(&bytes, T::TOKENS)?.bytes();
            if budget.try_reserve_values(&held, values) {
                return read(&bytes).map(CountedBody::Read);
            }
            Ok(CountedBody::Unread { bytes, values })
        };

        let (request, ignored) = match jobs.run_reader(size, count).await? {
            CountedBody::Read(read) => read,
            CountedBody::Unread { bytes, values } => {
                bodies.reserve_values(&reservation, values).await?;
                jobs.run_reader(BodySize::of(bytes.len()), move || read(&bytes)).await?
            }
        };
        Ok(Self { request, ignored, reservation })
    }
}

/// A body whose values were counted.
enum CountedBody<T> {
    /// There was memory for its values.
    Read(T),
    Unread {
        bytes: Vec<u8>,
        /// Memory of its values in bytes.
        values: usize,
    },
}

/// Reads a body as [`Body`] does, without reserving memory.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_checked<T: FromBody>(body: &[u8]) -> Result<T, ApiError> {
    let mut body = body.to_vec();
    lenient_json::normalise(&mut body);
    outline::count_values(&body, T::TOKENS)?;
    T::read(&body, &mut IgnoredParameters::default())
}

/// Reads a body with these fields. Refuses every other field with a value other than null, false or empty: if it were
/// ignored, the answer would be to a different request.
pub(crate) fn read_strict<T: DeserializeOwned>(body: &[u8], known: &[&[&str]]) -> Result<T, ApiError> {
    let unknown = outline::unknown_field(body, known)?;
    let read = read_fields(body)?;
    match unknown {
        Some(name) => Err(ApiError::unsupported(&name)),
        None => Ok(read),
    }
}

/// Reads some fields of a body that [`read_strict`] has read. An error names the field. Structs that share one JSON
/// object are read one by one, because serde loses the path of flattened fields.
pub(crate) fn read_fields<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        match missing_field(&inner.to_string()) {
            Some(field) => {
                let field = if path == "." { field } else { format!("{path}.{field}") };
                ApiError::required(&field)
            }
            None if path != "." => {
                let problem = negative_count(&path, &inner.to_string()).unwrap_or_else(|| inner.to_string());
                ApiError::bad_request(path.clone(), format!("{path}: {problem}"))
            }
            None => {
                let message = format!("the body is not the expected JSON: {inner}");
                ApiError::plain(StatusCode::BAD_REQUEST, message)
            }
        }
    })
}

/// Reads the value of a field with required parts. Null and an empty object count as absent.
pub(crate) fn filled<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    value: D,
) -> Result<Option<T>, D::Error> {
    match Option::<Value>::deserialize(value)? {
        None => Ok(None),
        Some(Value::Object(fields)) if fields.is_empty() => Ok(None),
        Some(value) => T::deserialize(value).map(Some).map_err(D::Error::custom),
    }
}

/// Fields with counts that are at least 1; other counts may be 0.
const AT_LEAST_ONE: &[&str] = &["max_tokens", "max_completion_tokens", "max_output_tokens", "n"];

/// Returns the message for a negative number in a count field. Serde's own message would name the Rust type.
fn negative_count(path: &str, message: &str) -> Option<String> {
    let rest = message.strip_prefix("invalid value: integer `")?;
    let (found, expected) = rest.split_once("`, expected ")?;
    let least = if AT_LEAST_ONE.contains(&path) { 1 } else { 0 };
    let is_count = ["usize", "u64", "u32"].iter().any(|count| expected.starts_with(count));
    // Other servers take -1 as no limit.
    let next = if path.starts_with("max_") { "; omit it for no limit" } else { "" };
    (is_count && found.starts_with('-'))
        .then(|| format!("expected an integer of at least {least}, found {found}{next}"))
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
        let read = |body: &str| read_strict::<Sample>(body.as_bytes(), &[&["model", "n"]]);
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
