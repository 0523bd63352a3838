//! A client of `/v1/completions`.

use anyhow::{Context, bail};
use serde_json::json;
use xtask_tools::{
    http::{self, Disconnect, Request},
    server::Server,
};

/// Sender of completions to one model of a server.
pub(super) struct CompletionClient<'a> {
    pub(super) server: &'a Server,
    pub(super) model: &'a str,
}

/// A prompt and its settings.
#[derive(Debug, Clone, Copy)]
pub(super) struct CompletionRequest<'a> {
    pub(super) prompt: &'a str,
    /// Number of tokens of the answer.
    pub(super) tokens: usize,
    /// Temperature; 0 for the likeliest tokens.
    pub(super) temperature: f64,
    /// Field that only Narthex knows; it is not sent if it is `None`.
    pub(super) draft: Option<bool>,
}

impl<'a> CompletionRequest<'a> {
    /// Returns a request for a greedy answer.
    pub(super) fn greedy(prompt: &'a str, tokens: usize) -> Self {
        Self { prompt, tokens, temperature: 0.0, draft: None }
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Completion {
    pub(super) text: String,
    /// Number of tokens of the prompt.
    pub(super) prompt_tokens: u64,
    /// Number of generated tokens.
    pub(super) tokens: u64,
    /// Generated tokens per second after the first, if the server reports them.
    pub(super) decode: Option<f64>,
    /// Number of accepted draft tokens.
    pub(super) accepted: u64,
}

impl CompletionClient<'_> {
    /// Completes a prompt. Stop tokens do not end the answer.
    pub(super) fn complete(&self, request: CompletionRequest<'_>) -> anyhow::Result<Completion> {
        let CompletionRequest { prompt, tokens, temperature, draft } = request;
        let mut body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": temperature,
            "ignore_eos": true,
        });
        if let (Some(draft), Some(fields)) = (draft, body.as_object_mut()) {
            fields.insert("draft".to_owned(), draft.into());
        }
        let body = body.to_string();
        let request = Request { method: "POST", path: "/v1/completions", body: body.as_bytes() };
        let answer = http::send(&self.server.address, request, Disconnect::AfterAnswer)?;
        if answer.status != 200 {
            bail!("expected an answer, found {} {}", answer.status, answer.body);
        }
        Completion::of(&answer.json()?)
            .with_context(|| format!("expected a completion, found {}", answer.body))
    }

    /// Returns the size of one token in the server's KV cache, in bytes. The model must be loaded.
    pub(super) fn kv_token_bytes(&self) -> anyhow::Result<u64> {
        let request = Request { method: "GET", path: "/health", body: b"" };
        let answer = http::send(&self.server.address, request, Disconnect::AfterAnswer)?;
        let health = answer.json()?;
        let models = health["models"].as_array().into_iter().flatten();
        let sizes = models.filter_map(|model| model["engine"]["kv_token_bytes"].as_u64());
        sizes.max().with_context(|| format!("expected the size of a cached token, found {}", answer.body))
    }
}

impl Completion {
    fn of(answer: &serde_json::Value) -> Option<Self> {
        let (usage, timings) = (&answer["usage"], &answer["timings"]);
        Some(Self {
            text: answer["choices"][0]["text"].as_str()?.to_owned(),
            prompt_tokens: usage["prompt_tokens"].as_u64()?,
            tokens: usage["completion_tokens"].as_u64()?,
            decode: timings["predicted_per_second"].as_f64(),
            accepted: timings["draft_n_accepted"].as_u64().unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_parsed() {
        let mut answer = json!({
            "choices": [{"text": "a river", "index": 0}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 2},
        });
        let text = "a river".to_owned();
        let plain = Completion { text, prompt_tokens: 5, tokens: 2, decode: None, accepted: 0 };
        assert_eq!(Completion::of(&answer), Some(plain.clone()));
        answer["timings"] = json!({"predicted_per_second": 80.5, "draft_n": 9, "draft_n_accepted": 7});
        assert_eq!(Completion::of(&answer), Some(Completion { decode: Some(80.5), accepted: 7, ..plain }));
        assert_eq!(Completion::of(&json!({"error": "none"})), None);
    }
}
