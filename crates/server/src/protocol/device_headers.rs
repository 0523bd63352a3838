//! Response headers about the device that computed an answer: `x-narthex-device`, `x-narthex-placement` with its share of
//! the model, and `x-narthex-fallback` with the reasons why preferred devices were not used.

use axum::{
    http::HeaderValue,
    response::{IntoResponse, Response},
};
use narthex_gateway::AnsweringDevice;

/// Name of the device as in `--providers`, or of two devices as in `--place`.
pub(crate) const DEVICE: &str = "x-narthex-device";

/// Nodes and work on the device: `qnn 1470/1470 nodes, 100 % of MACs`.
const PLACEMENT: &str = "x-narthex-placement";

/// Devices and reasons: `qnn: the qnn runtime is not installed; webgpu: …`. For an upstream that answered in place of this
/// machine, the condition: `local: busy`.
pub(crate) const FALLBACK: &str = "x-narthex-fallback";

/// Maximum length of the reasons: clients and proxies limit their headers.
const MAX_REASONS: usize = 1024;

pub(crate) fn with_device_headers(ran_on: &AnsweringDevice, response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&ran_on.device) {
        headers.insert(DEVICE, value);
    }
    if let Ok(value) = HeaderValue::from_str(&ran_on.placement) {
        headers.insert(PLACEMENT, value);
    }
    if let Some(reasons) = &ran_on.fallback
        && let Ok(value) = HeaderValue::from_str(&printable(reasons))
    {
        headers.insert(FALLBACK, value);
    }
    response
}

/// Replaces all characters but printable ASCII, and truncates the text to the maximum length of the header.
fn printable(text: &str) -> String {
    text.chars().take(MAX_REASONS).map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fallback_is_reported() {
        let check = |fallback: Option<&str>, expected: Option<&str>| {
            let ran_on = AnsweringDevice {
                device: "cpu".to_owned(),
                placement: "cpu 9/9 nodes, 100 % of MACs".to_owned(),
                fallback: fallback.map(str::to_owned),
            };
            let response = with_device_headers(&ran_on, "answer");
            let header = |name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
            assert_eq!(header(DEVICE).as_deref(), Some("cpu"));
            assert_eq!(header(PLACEMENT).as_deref(), Some("cpu 9/9 nodes, 100 % of MACs"));
            assert_eq!(header(FALLBACK).as_deref(), expected);
        };
        check(None, None);
        check(Some("qnn: 2 of 9 nodes refuse"), Some("qnn: 2 of 9 nodes refuse"));
        check(Some("qnn: n\u{e9}\r\nSet-Cookie: x"), Some("qnn: n???Set-Cookie: x"));
        let long = "x".repeat(MAX_REASONS + 1);
        check(Some(&long), Some(&long[..MAX_REASONS]));
    }
}
