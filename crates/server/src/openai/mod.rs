//! OpenAI's JSON, both ways: one file per endpoint, and what they share.

pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod fill;
pub(crate) mod models;
pub(crate) mod options;
pub(crate) mod rerank;
pub(crate) mod stream;

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use narthex_gateway::request::{FinishReason, Summary};
use serde_json::{Value, json};

use crate::error::ApiError;

/// Seconds since 1970, as every object's `created`.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// An id that no other answer of this process has.
pub(crate) fn fresh_id(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    use std::hash::{BuildHasher, RandomState};
    format!("{prefix}-{:016x}", RandomState::new().hash_one(COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// Refuses a path as a model's name: a caller must not learn which files this machine has, nor have them read.
pub(crate) fn refuse_path(model: &str) -> Result<(), ApiError> {
    let lower = model.trim().to_ascii_lowercase();
    let path = lower.starts_with(['.', '/', '~'])
        || lower.contains('\\')
        || Path::new(&lower).is_absolute()
        || (!lower.starts_with("hf:")
            && [".gguf", ".safetensors", ".whl"]
                .iter()
                .any(|end| lower.split('@').any(|part| part.ends_with(end))));
    if path { Err(ApiError::path_as_model()) } else { Ok(()) }
}

/// `finish_reason`. An answer that was cut short by a shutdown has none of OpenAI's reasons; "length" tells clients that
/// it is not whole.
pub(crate) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length | FinishReason::Cancelled => "length",
    }
}

/// `usage`.
pub(crate) fn usage(summary: &Summary) -> Value {
    json!({
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.completion_tokens,
        "total_tokens": summary.prompt_tokens + summary.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": summary.cached_tokens},
    })
}

/// `usage` of a request that only reads.
pub(crate) fn usage_of_prompt(tokens: usize) -> Value {
    json!({"prompt_tokens": tokens, "total_tokens": tokens})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_not_names() {
        let check = |model: &str, refused: bool| assert_eq!(refuse_path(model).is_err(), refused, "{model}");
        for path in
            ["/etc/passwd", "./tiny", "../tiny", " ~/tiny", "a\\b", "tiny.gguf", "Tiny.GGUF@w4", "x.whl"]
        {
            check(path, true);
        }
        for name in ["smollm2:135m", "smollm2:135m@w4", "owner/repo", "hf:owner/repo/file.gguf", "", "nope"] {
            check(name, false);
        }
    }
}
