//! Answers of `POST /v1/chat/completions/render` and `/v1/completions/render`, as in vLLM: the prompts that the model would read.
//! Routers compare the tokens with the prefixes that servers have in their caches.

use schemars::JsonSchema;
use serde::Serialize;

use crate::protocol::id;

/// Bytes that are reserved for each byte of a rendered text: its tokens, as in `/tokenize`, and the text itself as JSON.
pub(super) const TEXT_BYTES: usize = 9 + 13;

/// Bytes that are reserved for each token of a rendered list.
pub(super) const TOKEN_BYTES: usize = 18;

/// Prompt as the model would read it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WirePrompt {
    /// A new id.
    request_id: String,
    /// Model of the request.
    model: String,
    /// Tokens of the prompt, including the start token.
    token_ids: Vec<u32>,
    /// Text of the prompt without the start token; null if the request has tokens.
    prompt: Option<String>,
}

impl WirePrompt {
    /// Creates a prompt with a new id of this prefix.
    pub(super) fn new(id_prefix: &str, model: String, token_ids: Vec<u32>, prompt: Option<String>) -> Self {
        Self { request_id: id::new_id(id_prefix), model, token_ids, prompt }
    }
}
