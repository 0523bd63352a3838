//! Ids of requests and of objects in answers.

use axum::http::HeaderValue;
use narthex_gateway::unique_number;

/// Id of a request, in its extensions.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) HeaderValue);

/// Returns an id that is unique in this process. Clients test the prefix, with its separator.
pub(crate) fn new_id(prefix: &str) -> String {
    format!("{prefix}{:016x}", unique_number())
}
