//! Ollama's protocol: `/api/chat`, `/api/generate`, `/api/embed`, `/api/embeddings`, `/api/show`, `/api/pull`,
//! `/api/ps`, `/api/tags` and `/api/version`.

pub(crate) mod chat;
pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod lines;
pub(crate) mod models;
mod options;
pub(crate) mod pull;
mod timestamp;

use std::time::Duration;

/// Returns a time in nanoseconds.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
