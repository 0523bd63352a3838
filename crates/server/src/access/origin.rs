//! Origins whose web pages may send requests (CORS).
//!
//! On a server for this machine only, pages from a loopback address with any port may send requests: their web server
//! is a program of this machine, which can reach the server without a browser anyway. An open server allows no origin
//! by default, because there a loopback origin refers to the visitor's machine.

use std::str::FromStr;

use axum::{
    extract::Request,
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{
            ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
            ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_HEADERS, ORIGIN, VARY,
        },
    },
    response::{IntoResponse, Response},
};

use super::host::{HostList, is_loopback};
use crate::error::ApiError;

/// An origin whose web pages may send requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedOrigin {
    /// Every origin.
    Any,
    /// One origin as browsers write it: `https://app.example`.
    Exactly(String),
    /// Every origin of a scheme that is not the web's: `vscode-webview://`. The hosts of such apps may change with each
    /// window.
    Scheme(String),
}

/// Text that is not a valid origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a scheme, a host and perhaps a port without a path or a final slash, as in https://app.example or \
     http://localhost:3000, a scheme of apps as in vscode-webview://*, null for pages without an origin, or * for every \
     origin; found {found:?}"
)]
pub struct BadOrigin {
    /// The text.
    pub found: String,
}

impl FromStr for AllowedOrigin {
    type Err = BadOrigin;

    /// Reads an origin. Browsers write scheme and host in lower case and leave out the scheme's own port.
    fn from_str(text: &str) -> Result<Self, BadOrigin> {
        let text = text.to_ascii_lowercase();
        match text.as_str() {
            "*" => return Ok(Self::Any),
            // Browsers send this for files and sandboxed pages, and some for apps.
            "null" | "file://" => return Ok(Self::Exactly(text)),
            _ => {}
        }
        let bad = || BadOrigin { found: text.chars().take(200).collect() };
        let (scheme, authority) = text.split_once("://").ok_or_else(bad)?;
        let has_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
        if !has_scheme {
            return Err(bad());
        }
        if authority == "*" && !matches!(scheme, "http" | "https") {
            return Ok(Self::Scheme(format!("{scheme}://")));
        }
        let (host, port) = split_port(authority).ok_or_else(bad)?;
        let own_port = match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        let port = port.filter(|port| Some(*port) != own_port).map(|port| format!(":{port}"));
        Ok(Self::Exactly(format!("{scheme}://{host}{}", port.unwrap_or_default())))
    }
}

/// Returns the host and port of a well-formed authority. The host keeps its brackets.
fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let end = authority.find(']').map_or(0, |at| at + 1);
    let (host, port) = match authority.get(end..)?.find(':') {
        Some(at) => {
            let (host, port) = authority.split_at(end + at);
            (host, Some(port.strip_prefix(':')?.parse().ok()?))
        }
        None => (authority, None),
    };
    let is_host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        }
    };
    is_host.then_some((host, port))
}

/// Returns true for the origin of a page from a loopback address.
fn is_local(origin: &str) -> bool {
    let host = origin.split_once("://").and_then(|(_, authority)| split_port(authority));
    host.is_some_and(|(host, _)| is_loopback(host.trim_matches(['[', ']'])))
}

/// The origins whose pages may send requests.
#[derive(Debug, Clone)]
pub(crate) struct OriginList {
    pub(crate) allowed: Vec<AllowedOrigin>,
    /// True if pages from loopback addresses may send requests.
    pub(crate) with_loopback: bool,
}

impl OriginList {
    fn allows(&self, origin: &HeaderValue) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        self.allowed.iter().any(|allowed| match allowed {
            AllowedOrigin::Any => true,
            AllowedOrigin::Exactly(known) => known == origin,
            AllowedOrigin::Scheme(start) => origin.starts_with(start.as_str()),
        }) || (self.with_loopback && is_local(origin))
    }

    /// Returns the origin of a request from a web page. Refuses pages of other origins than the allowed ones and this
    /// server's own.
    pub(crate) fn check(&self, request: &Request, hosts: &HostList) -> Result<Option<HeaderValue>, ApiError> {
        match request.headers().get(ORIGIN) {
            Some(origin)
                if !self.allows(origin)
                    && !hosts.is_own_page(request, origin.to_str().unwrap_or_default()) =>
            {
                let origin: String = origin.to_str().unwrap_or("").chars().take(200).collect();
                let message = format!(
                    "the origin {origin:?} may not send requests; allow it with --cors-origin when starting the server"
                );
                Err(ApiError::plain(StatusCode::FORBIDDEN, message))
            }
            origin => Ok(origin.cloned()),
        }
    }
}

/// Header of the preflight request of a public page for a server in a private network, or on this machine.
const REQUEST_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");

/// Header of its answer.
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// Responds to a preflight request. Any request header is allowed, because access depends only on the origin.
pub(crate) fn preflight(origin: HeaderValue, headers: &HeaderMap) -> Response {
    let usual = HeaderValue::from_static("Authorization, Content-Type");
    let asked = headers.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned().unwrap_or(usual);
    let is_private = headers.get(REQUEST_PRIVATE_NETWORK).is_some_and(|value| value == "true");
    let mut response = StatusCode::NO_CONTENT.into_response();
    allow(origin, &mut response);
    let headers = response.headers_mut();
    if is_private {
        headers.insert(ALLOW_PRIVATE_NETWORK, HeaderValue::from_static("true"));
    }
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked);
    response
}

/// Lets the pages of an origin read a response.
pub(crate) fn expose(origin: HeaderValue, response: &mut Response) {
    allow(origin, response);
    response.headers_mut().insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
}

fn allow(origin: HeaderValue, response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(VARY, HeaderValue::from_static("Origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_read_as_browsers_write_them() {
        let check = |text: &str, expect: &str| {
            assert_eq!(text.parse(), Ok(AllowedOrigin::Exactly(expect.to_owned())), "{text}");
        };
        check("https://App.example", "https://app.example");
        check("https://app.example:443", "https://app.example");
        check("http://localhost:3000", "http://localhost:3000");
        check("http://[::1]:5173", "http://[::1]:5173");
        check("chrome-extension://abc", "chrome-extension://abc");
        check("null", "null");
        check("file://", "file://");
        assert_eq!("*".parse(), Ok(AllowedOrigin::Any));
        let webview = AllowedOrigin::Scheme("vscode-webview://".to_owned());
        assert_eq!("vscode-webview://*".parse(), Ok(webview));
        for bad in [
            "",
            "http://*",
            "https://*",
            "app.example",
            "https://app.example/",
            "https://app.example/path",
            "https://",
            "https://*.example",
            "://app.example",
            "https://u@app.example",
            "https://app.example:port",
            "https://app.example:70000",
            "https://app.example?x",
        ] {
            assert!(bad.parse::<AllowedOrigin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn foreign_origins_are_refused() {
        let list = |allowed: &str, with_loopback| OriginList {
            allowed: allowed.split_whitespace().map(|text| text.parse().unwrap()).collect(),
            with_loopback,
        };
        let check = |list: &OriginList, origin: &'static str, expect: bool| {
            assert_eq!(list.allows(&HeaderValue::from_static(origin)), expect, "{origin}");
        };
        let local = list("https://app.example https://b.example", true);
        for origin in ["http://localhost:3000", "http://[::1]:1", "https://app.example", "https://b.example"]
        {
            check(&local, origin, true);
        }
        for origin in ["https://evil.example", "null", "http://localhost.evil.example", "http://localhost/x"]
        {
            check(&local, origin, false);
        }
        let apps = list("vscode-webview://* null", false);
        check(&apps, "vscode-webview://1a2b", true);
        check(&apps, "null", true);
        check(&apps, "https://vscode-webview", false);
        let open = list("https://app.example", false);
        check(&open, "https://app.example", true);
        check(&open, "http://localhost:3000", false);
        check(&list("*", false), "https://evil.example", true);
    }
}
