//! Access control: a server that listens on a local address is for programs of this machine.
//!
//! A web page can send requests to a local port. The browser marks them: `Origin` names the page, and after DNS rebinding
//! `Host` names the page's domain. Both must be local, or the origin allowed.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, HeaderValue, Method, StatusCode,
        header::{
            ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
            ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_HEADERS, HOST, ORIGIN, VARY,
        },
    },
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::error::ApiError;

/// Access rules beside local clients.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    /// Host that the server listens on.
    pub(crate) host: String,
    /// Origin whose pages may send requests.
    pub(crate) cors_origin: Option<String>,
}

/// Returns the host of `host:port`, `[v6]:port` or a bare host.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

fn is_local(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl Guard {
    /// Returns true if the server deliberately listens for other machines.
    fn is_open(&self) -> bool {
        !is_local(&self.host)
    }

    fn allows_host(&self, headers: &HeaderMap) -> bool {
        let Some(host) = headers.get(HOST) else { return true };
        self.is_open() || host.to_str().is_ok_and(|host| is_local(host_of(host)))
    }

    fn allows_origin(&self, origin: &HeaderValue) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        let authority = origin.split_once("://").map_or(origin, |(_, rest)| rest);
        self.cors_origin.as_deref() == Some(origin) || is_local(host_of(authority))
    }
}

/// Refuses foreign pages, answers preflight requests, and adds CORS headers for the allowed origin.
pub(crate) async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let origin = request.headers().get(ORIGIN).cloned();
    if !guard.allows_host(request.headers()) {
        return refuse("the Host header does not name this machine; use localhost or 127.0.0.1");
    }
    let Some(origin) = origin else { return next.run(request).await };
    if !guard.allows_origin(&origin) {
        return refuse(
            "this origin may not send requests; allow it with --cors-origin when starting the server",
        );
    }
    let preflight = request.method() == Method::OPTIONS;
    // Any request header is allowed: the origin is what protects this machine.
    let asked = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut response =
        if preflight { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    if preflight {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
        let usual = HeaderValue::from_static("Authorization, Content-Type");
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(usual));
    } else {
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    }
    response
}

fn refuse(message: &str) -> Response {
    ApiError::plain(StatusCode::FORBIDDEN, message).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_hosts_and_origins_are_refused() {
        let guard = Guard { host: "127.0.0.1".into(), cors_origin: Some("https://app.example".into()) };
        let host = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_str(value).unwrap());
            guard.allows_host(&headers)
        };
        assert!(host("localhost:8000") && host("127.0.0.1:8000") && host("[::1]:8000") && host("LOCALHOST"));
        assert!(!host("evil.example:8000") && !host("192.168.1.2:8000"));
        let origin =
            |guard: &Guard, value: &'static str| guard.allows_origin(&HeaderValue::from_static(value));
        assert!(origin(&guard, "http://localhost:3000") && origin(&guard, "https://app.example"));
        assert!(!origin(&guard, "https://evil.example") && !origin(&guard, "null"));
        let open = Guard { host: "0.0.0.0".into(), cors_origin: None };
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("box.lan:8000"));
        assert!(open.allows_host(&headers) && !origin(&open, "https://evil.example"));
    }
}
