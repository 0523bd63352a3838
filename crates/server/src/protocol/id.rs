//! Ids of requests and of objects in answers.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::HeaderValue;

/// Id of a request, in its extensions.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) HeaderValue);

/// Returns an id that is unique in this process. Clients test the prefix, with its separator.
pub(crate) fn new_id(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    use std::hash::{BuildHasher, RandomState};
    format!("{prefix}{:016x}", RandomState::new().hash_one(COUNT.fetch_add(1, Ordering::Relaxed)))
}
