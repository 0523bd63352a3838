//! One line of the log for each request, at the info level. Its fields are for logs that programs read.
//!
//! The line is written at the end of the response, so that it states the time of a whole stream. It has no query and no
//! headers, which may contain secrets.

use std::time::Instant;

use axum::http::{Method, StatusCode};

/// Target of the lines in the log. Logs for people show only their message.
pub const ACCESS: &str = "narthex::access";

/// Maximum number of characters of a path.
const MAX_PATH_CHARS: usize = 100;

/// Maximum number of characters of a method. The longest registered one has 17 (RFC 4437).
const MAX_METHOD_CHARS: usize = 20;

/// A request whose line is written when this is dropped.
pub(crate) struct AccessLine {
    request: String,
    began: Instant,
    /// Status of the response; `None` if the client disconnected before it.
    status: Option<StatusCode>,
    id: String,
}

impl AccessLine {
    /// Starts the time of a request.
    pub(crate) fn new(method: &Method, path: &str) -> Self {
        Self { request: request_line(method, path), began: Instant::now(), status: None, id: "-".to_owned() }
    }

    /// Adds the status and the id of the response.
    pub(crate) fn respond(&mut self, status: StatusCode, id: &str) {
        self.status = Some(status);
        id.clone_into(&mut self.id);
    }
}

impl Drop for AccessLine {
    fn drop(&mut self) {
        let took = self.began.elapsed().as_millis();
        let status =
            self.status.map_or_else(|| "disconnected".to_owned(), |status| status.as_str().to_owned());
        tracing::info!(
            target: ACCESS,
            request = self.request.as_str(),
            status = status.as_str(),
            milliseconds = u64::try_from(took).unwrap_or(u64::MAX),
            request_id = self.id.as_str(),
            "{} {status} in {took} ms ({})",
            self.request,
            self.id
        );
    }
}

/// Returns the method and the path of a request, each cut to a length for people.
pub(crate) fn request_line(method: &Method, path: &str) -> String {
    let path: String = path.chars().take(MAX_PATH_CHARS).collect();
    let method: String = method.as_str().chars().take(MAX_METHOD_CHARS).collect();
    format!("{method} {path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_and_paths_are_cut() {
        let long = "M".repeat(60_000);
        let line = request_line(&Method::from_bytes(long.as_bytes()).unwrap(), &long);
        assert_eq!(line, format!("{} {}", &long[..MAX_METHOD_CHARS], &long[..MAX_PATH_CHARS]));
    }
}
