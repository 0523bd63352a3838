//! Bodies of `multipart/form-data` (RFC 7578): texts and files in parts.
//!
//! The parts are slices of the received body, so that a file is held once.

use std::{convert::Infallible, fmt::Display, str::FromStr};

use axum::{
    body::Bytes,
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
};
use futures::{FutureExt, stream};
use multer::Multipart;
use serde_json::Value;

use super::{hints, ignored::IgnoredParameters};
use crate::error::ApiError;

/// Maximum number of parts.
const MAX_PARTS: usize = 64;

/// Maximum bytes of a text.
const MAX_TEXT: usize = 1 << 20;

/// A request that an endpoint reads from a form.
pub(crate) trait FromForm: Sized + Send + 'static {
    /// Reads and checks the parts of a form. Adds parameters without effect on the answer to `ignored`. Runs on a thread
    /// for blocking work.
    fn read(form: Form, ignored: &mut IgnoredParameters) -> Result<Self, ApiError>;
}

/// The parts of a form that were not read yet.
#[derive(Debug)]
pub(crate) struct Form(Vec<FormField>);

#[derive(Debug)]
struct FormField {
    name: String,
    data: Bytes,
}

/// Returns the boundary of a request's parts.
pub(crate) fn boundary(headers: &HeaderMap) -> Result<String, ApiError> {
    let found = headers.get(CONTENT_TYPE).map_or("no type", |value| value.to_str().unwrap_or("another type"));
    multer::parse_boundary(found).map_err(|_| {
        let message = format!("expected a body of multipart/form-data with a boundary, found {found}");
        ApiError::plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    })
}

/// Returns the boundary of a body, from its first line.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn boundary_of(body: &[u8]) -> String {
    let line = body.split(|byte| *byte == b'\r').next().unwrap_or_default();
    String::from_utf8_lossy(line.strip_prefix(b"--").unwrap_or_default()).into_owned()
}

impl Form {
    /// Divides a body into its parts.
    pub(crate) fn parse(body: Bytes, boundary: &str) -> Result<Self, ApiError> {
        let body = stream::once(async { Ok::<_, Infallible>(body) });
        let parts = parts(Multipart::new(body, boundary));
        // The whole body is there, so no part is waited for.
        parts.now_or_never().unwrap_or_else(|| Err(malformed("it has no end"))).map(Self)
    }

    /// Takes the file with a name.
    pub(crate) fn file(&mut self, name: &str) -> Result<Bytes, ApiError> {
        self.take(name)?.ok_or_else(|| ApiError::required(name))
    }

    /// Takes a text. An empty one counts as absent.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let data = self.take(name)?;
        let text = data.map(|data| text(name, &data)).transpose()?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    /// Takes a text that is parsed. `expected` describes the valid ones.
    pub(crate) fn value<T: FromStr>(&mut self, name: &str, expected: &str) -> Result<Option<T>, ApiError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let value = text.trim().parse();
        value.map(Some).map_err(|_| invalid(name, expected, &text))
    }

    /// Takes the texts of a list, in parts with the name, or with brackets after it.
    pub(crate) fn list(&mut self, name: &str) -> Result<Vec<String>, ApiError> {
        let (taken, rest) =
            self.0.drain(..).partition(|part| part.name.strip_suffix("[]").unwrap_or(&part.name) == name);
        self.0 = rest;
        let taken: Vec<FormField> = taken;
        taken.iter().map(|part| text(name, &part.data)).collect()
    }

    /// Refuses the parts that nothing has read, unless they have no effect in any endpoint, or are those of `own`.
    pub(crate) fn ignore_rest(
        self,
        own: &'static [&'static str],
        ignored: &mut IgnoredParameters,
    ) -> Result<(), ApiError> {
        for FormField { name, data } in self.0 {
            let of_endpoint = own.iter().find(|own| **own == name).copied();
            let value = Value::String(String::from_utf8_lossy(&data).into_owned());
            match of_endpoint.or_else(|| hints::without_effect(&name, &value)) {
                Some(known) => ignored.push(known),
                None => return Err(ApiError::unsupported(&name)),
            }
        }
        Ok(())
    }

    /// Takes the part with a name.
    fn take(&mut self, name: &str) -> Result<Option<Bytes>, ApiError> {
        let Some(at) = self.0.iter().position(|part| part.name == name) else { return Ok(None) };
        let part = self.0.remove(at);
        if self.0.iter().any(|part| part.name == name) {
            return Err(ApiError::bad_request(name, format!("{name} occurs more than once; send it once")));
        }
        Ok(Some(part.data))
    }
}

/// Returns the error of a text that is not one of the expected ones.
pub(crate) fn invalid(name: &str, expected: &str, found: &str) -> ApiError {
    ApiError::bad_request(name, format!("{name}: expected {expected}, found {found:?}"))
}

fn text(name: &str, data: &Bytes) -> Result<String, ApiError> {
    match std::str::from_utf8(data) {
        Ok(text) if text.len() <= MAX_TEXT => Ok(text.to_owned()),
        Ok(text) => {
            let message = format!("{name}: expected at most {MAX_TEXT} bytes of text, found {}", text.len());
            Err(ApiError::bad_request(name, message))
        }
        Err(_) => {
            Err(ApiError::bad_request(name, format!("{name}: expected text in UTF-8, found other bytes")))
        }
    }
}

async fn parts(mut form: Multipart<'_>) -> Result<Vec<FormField>, ApiError> {
    let mut parts = Vec::new();
    while let Some(field) = form.next_field().await.map_err(malformed)? {
        if parts.len() == MAX_PARTS {
            return Err(malformed(format!("it has more than {MAX_PARTS} parts")));
        }
        let name = field.name().ok_or_else(|| malformed("a part has no name"))?.to_owned();
        let data = field.bytes().await.map_err(malformed)?;
        parts.push(FormField { name, data });
    }
    Ok(parts)
}

fn malformed(reason: impl Display) -> ApiError {
    let message =
        format!("the body is not valid multipart/form-data: {reason}; send each field in a part of its own");
    ApiError::plain(StatusCode::BAD_REQUEST, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, data: &str) -> String {
        format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{data}\r\n")
    }

    fn form(parts: &[(&str, &str)]) -> Form {
        let parts: String = parts.iter().map(|(name, data)| part(name, data)).collect();
        Form::parse(format!("{parts}--b--\r\n").into(), "b").unwrap()
    }

    fn message<T>(outcome: Result<T, ApiError>) -> String {
        outcome.err().unwrap().message()
    }

    #[test]
    fn parts_are_read_once_by_name() {
        let mut form = form(&[
            ("file", "\0\u{1}\r\n--c"),
            ("model", "m"),
            ("temperature", " 0.5 "),
            ("language", ""),
            ("timestamp_granularities[]", "word"),
            ("timestamp_granularities", "segment"),
            ("user", "ann"),
        ]);
        assert_eq!(form.file("file").unwrap(), "\0\u{1}\r\n--c");
        assert_eq!(form.text("model").unwrap().as_deref(), Some("m"));
        assert_eq!(form.value("temperature", "a number").unwrap(), Some(0.5));
        assert_eq!(form.text("language").unwrap(), None);
        assert_eq!(form.text("prompt").unwrap(), None);
        assert_eq!(form.list("timestamp_granularities").unwrap(), ["word", "segment"]);
        let mut ignored = IgnoredParameters::default();
        form.ignore_rest(&[], &mut ignored).unwrap();
        assert_eq!(ignored.names(), ["user"]);
    }

    #[test]
    fn invalid_parts_are_named() {
        assert_eq!(message(form(&[]).file("file")), "file is required");
        assert!(message(form(&[("model", "a"), ("model", "b")]).text("model")).contains("more than once"));
        let found = message(form(&[("temperature", "hot")]).value::<f32>("temperature", "a number"));
        assert_eq!(found, "temperature: expected a number, found \"hot\"");
        let found = message(form(&[("beam", "1")]).ignore_rest(&[], &mut IgnoredParameters::default()));
        assert!(found.contains("beam is not supported"), "{found}");
        let latin = Form::parse([part("a", "").as_bytes(), b"--b--"].concat().into(), "b");
        assert!(latin.is_ok());
    }

    #[test]
    fn malformed_bodies_are_refused() {
        let whole = [part("a", "b"), "--b--\r\n".to_owned()].concat();
        assert!(Form::parse(whole.clone().into(), "b").is_ok());
        let many = [part("a", "b").repeat(MAX_PARTS + 1), "--b--".to_owned()].concat();
        let unnamed = "--b\r\nContent-Type: text/plain\r\n\r\nx\r\n--b--";
        for body in [many.as_str(), unnamed, "", "{}", &whole[..whole.len() - 9]] {
            let found = message(Form::parse(body.to_owned().into(), "b"));
            assert!(found.contains("not valid multipart/form-data"), "{found}");
        }
        assert!(message(Form::parse(whole.into(), "other")).contains("not valid multipart/form-data"));
    }

    #[test]
    fn the_boundary_is_in_the_content_type() {
        let headers = |value: &'static str| HeaderMap::from_iter([(CONTENT_TYPE, value.parse().unwrap())]);
        assert_eq!(boundary(&headers("multipart/form-data; boundary=\"x y\"")).unwrap(), "x y");
        for value in ["application/json", "multipart/form-data"] {
            assert!(message(boundary(&headers(value))).ends_with(value));
        }
        assert!(message(boundary(&HeaderMap::new())).ends_with("no type"));
    }
}
