//! The requests of the clients, in an order determined by a seed.

use anyhow::bail;
use narthex_engine::sample::SplitMix64;
use serde_json::{Value, json};

use strum::VariantArray;

use crate::load::client::{self, Answer, Disconnect, Request};

/// The chat model.
pub(super) const CHAT: &str = "smollm2:135m";

/// The embedding model.
pub(super) const EMBED: &str = "all-minilm-l6-v2";

/// Kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray)]
pub(super) enum RequestKind {
    Chat,
    Stream,
    Dropped,
    Completion,
    Embeddings,
    Malformed,
    HalfSent,
    Status,
    Unknown,
}

impl RequestKind {
    /// Describes the kind in words.
    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Chat => "chat, the whole answer at once",
            Self::Stream => "chat, streamed to its end",
            Self::Dropped => "chat, streamed to a client that disconnects at the first bytes",
            Self::Completion => "two completions with log probabilities",
            Self::Embeddings => "embeddings of up to 16 texts",
            Self::Malformed => "bodies with changed bytes",
            Self::HalfSent => "half a request, then a disconnect",
            Self::Status => "health, metrics and models",
            Self::Unknown => "paths and models that do not exist",
        }
    }
}

/// A client whose seed determines its requests.
pub(super) struct Client {
    rng: SplitMix64,
}

impl Client {
    /// Creates a client.
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: SplitMix64::new(seed) }
    }

    /// Returns a number below `end`.
    fn below(&mut self, end: usize) -> usize {
        (self.rng.next_u64() % end.max(1) as u64) as usize
    }

    /// Returns the kind of the next request.
    pub(super) fn next(&mut self) -> RequestKind {
        RequestKind::VARIANTS[self.below(RequestKind::VARIANTS.len())]
    }

    /// Returns some words; many texts begin with the same ones.
    fn text(&mut self, most: usize) -> String {
        const WORDS: [&str; 12] =
            ["the", "cat", "river", "seven", "of", "Paris", "why", "blue", "runs", "été", "猫", "code();"];
        let count = 1 + self.below(most);
        (0..count)
            .map(|index| WORDS[if index < 3 { index } else { self.below(WORDS.len()) }])
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn chat(&mut self, stream: bool) -> Value {
        json!({
            "model": CHAT,
            "messages": [{"role": "user", "content": self.text(120)}],
            "max_tokens": 1 + self.below(24),
            "temperature": self.below(3) as f64 / 2.0,
            "seed": self.below(1000),
            "stream": stream,
        })
    }

    /// Sends a request and checks the answer.
    pub(super) fn send(&mut self, address: &str, kind: RequestKind) -> anyhow::Result<()> {
        let post = |path, body: &Value, disconnect| {
            let body = body.to_string();
            client::send(address, Request { method: "POST", path, body: body.as_bytes() }, disconnect)
        };
        let (chat, end) = ("/v1/chat/completions", Disconnect::AfterAnswer);
        match kind {
            RequestKind::Chat => expect(post(chat, &self.chat(false), end)?, 200, "\"finish_reason\""),
            RequestKind::Stream => expect(post(chat, &self.chat(true), end)?, 200, "data: [DONE]"),
            RequestKind::Dropped => {
                expect(post(chat, &self.chat(true), Disconnect::AtFirstBytes)?, 200, "data: ")
            }
            RequestKind::HalfSent => post(chat, &self.chat(true), Disconnect::MidRequest).map(drop),
            RequestKind::Completion => {
                let body =
                    json!({"model": CHAT, "prompt": self.text(40), "max_tokens": 8, "n": 2, "logprobs": 3});
                expect(post("/v1/completions", &body, end)?, 200, "\"token_logprobs\"")
            }
            RequestKind::Embeddings => {
                let count = 1 + self.below(16);
                let texts: Vec<String> = (0..count).map(|_| self.text(200)).collect();
                let body = json!({"model": EMBED, "input": texts, "truncate": true});
                expect(post("/v1/embeddings", &body, end)?, 200, "\"embedding\"")
            }
            RequestKind::Malformed => {
                let mut body = self.chat(false).to_string().into_bytes();
                for _ in 0..4 {
                    let at = self.below(body.len());
                    body[at] = self.below(256) as u8;
                }
                let answer = client::send(address, Request { method: "POST", path: chat, body: &body }, end)?;
                // A changed letter of a text leaves a valid request.
                if answer.status >= 500 { expect(answer, 400, "") } else { Ok(()) }
            }
            RequestKind::Status => {
                let path = ["/health", "/metrics", "/v1/models"][self.below(3)];
                expect(client::send(address, Request { method: "GET", path, body: b"" }, end)?, 200, "")
            }
            RequestKind::Unknown => {
                let path = format!("/v1/{}", self.below(1 << 30));
                expect(
                    client::send(address, Request { method: "GET", path: &path, body: b"" }, end)?,
                    404,
                    "",
                )?;
                let body = json!({"model": path, "messages": [{"role": "user", "content": "a"}]});
                expect(post(chat, &body, end)?, 404, "\"error\"")
            }
        }
    }
}

fn expect(answer: Answer, status: u16, part: &str) -> anyhow::Result<()> {
    if answer.status != status || !answer.body.contains(part) {
        let found: String = answer.body.chars().take(300).collect();
        bail!("expected {status} with {part:?}, found {}: {found}", answer.status);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_requests_of_every_kind() {
        let kinds = |seed| {
            let mut client = Client::new(seed);
            (0..200).map(|_| client.next()).collect::<Vec<_>>()
        };
        assert_eq!(kinds(1), kinds(1));
        assert_ne!(kinds(1), kinds(2));
        assert!(RequestKind::VARIANTS.iter().all(|kind| kinds(1).contains(kind)));
    }

    #[test]
    fn answers_are_checked() {
        let answer = |status| Answer { status, body: "data: [DONE]".to_owned() };
        assert!(expect(answer(200), 200, "[DONE]").is_ok());
        let error = expect(answer(503), 200, "[DONE]").unwrap_err().to_string();
        assert!(error.contains("expected 200") && error.contains("found 503: data"), "{error}");
        assert!(expect(answer(200), 200, "embedding").is_err());
    }
}
