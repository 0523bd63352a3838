//! Headers that say where an answer was computed: `x-narthex-device`, and `x-narthex-fallback` with the reasons of the
//! devices that should have done it and did not.

use axum::{
    http::HeaderValue,
    response::{IntoResponse, Response},
};
use narthex_gateway::RanOn;

/// The device's name, as `--providers` takes it, or two as `--place` does.
const DEVICE: &str = "x-narthex-device";

/// Devices and reasons: `qnn: the qnn runtime is not installed; webgpu: …`.
const FALLBACK: &str = "x-narthex-fallback";

/// The most bytes of a reason, since clients and proxies bound their headers.
const LONGEST: usize = 1024;

/// A response with the headers.
pub(crate) fn marked(ran_on: &RanOn, response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&ran_on.device) {
        headers.insert(DEVICE, value);
    }
    if let Some(reasons) = &ran_on.fallback
        && let Ok(value) = HeaderValue::from_str(&printable(reasons))
    {
        headers.insert(FALLBACK, value);
    }
    response
}

/// The text with everything but printable ASCII replaced, cut to the length of a header.
fn printable(text: &str) -> String {
    text.chars().take(LONGEST).map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fallback_is_told() {
        let check = |fallback: Option<&str>, expected: Option<&str>| {
            let ran_on = RanOn { device: "cpu".to_owned(), fallback: fallback.map(str::to_owned) };
            let response = marked(&ran_on, "answer");
            let header = |name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
            assert_eq!(header(DEVICE).as_deref(), Some("cpu"));
            assert_eq!(header(FALLBACK).as_deref(), expected);
        };
        check(None, None);
        check(Some("qnn: 2 of 9 nodes refuse"), Some("qnn: 2 of 9 nodes refuse"));
        check(Some("qnn: n\u{e9}\r\nSet-Cookie: x"), Some("qnn: n???Set-Cookie: x"));
        let long = "x".repeat(LONGEST + 1);
        check(Some(&long), Some(&long[..LONGEST]));
    }
}
