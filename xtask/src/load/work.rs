//! What clients ask for: everything that a server meets in a day, in an order that a seed decides.

use anyhow::bail;
use narthex_engine::sample::SplitMix64;
use serde_json::{Value, json};

use super::client::{Answer, Request, Until, ask};

/// The chat model.
pub(super) const CHAT: &str = "smollm2:135m";

/// The embedding model.
pub(super) const EMBED: &str = "all-minilm-l6-v2";

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
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

impl Kind {
    /// Every kind.
    pub(super) const ALL: [Self; 9] = [
        Self::Chat,
        Self::Stream,
        Self::Dropped,
        Self::Completion,
        Self::Embeddings,
        Self::Malformed,
        Self::HalfSent,
        Self::Status,
        Self::Unknown,
    ];

    /// It in words.
    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Chat => "chat, the whole answer at once",
            Self::Stream => "chat, streamed to its end",
            Self::Dropped => "chat, streamed to a client that goes at the first bytes",
            Self::Completion => "two completions with log probabilities",
            Self::Embeddings => "embeddings of up to 16 texts",
            Self::Malformed => "bodies with bytes that were changed",
            Self::HalfSent => "half a request, and the client goes",
            Self::Status => "health, metrics and models",
            Self::Unknown => "paths and models that are not there",
        }
    }
}

/// A client: its seed decides what it says.
pub(super) struct Client {
    rng: SplitMix64,
}

impl Client {
    /// A client of its own.
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: SplitMix64::new(seed) }
    }

    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        (self.rng.next_u64() % end.max(1) as u64) as usize
    }

    /// Which kind comes next.
    pub(super) fn next(&mut self) -> Kind {
        Kind::ALL[self.below(Kind::ALL.len())]
    }

    /// Some words; many texts begin alike.
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

    /// Asks, and holds the answer to what it must be.
    pub(super) fn ask(&mut self, address: &str, kind: Kind) -> anyhow::Result<()> {
        let post = |path, body: &Value, until| {
            let body = body.to_string();
            ask(address, Request { method: "POST", path, body: body.as_bytes() }, until)
        };
        let (chat, end) = ("/v1/chat/completions", Until::End);
        match kind {
            Kind::Chat => expect(post(chat, &self.chat(false), end)?, 200, "\"finish_reason\""),
            Kind::Stream => expect(post(chat, &self.chat(true), end)?, 200, "data: [DONE]"),
            Kind::Dropped => expect(post(chat, &self.chat(true), Until::FirstBytes)?, 200, "data: "),
            Kind::HalfSent => post(chat, &self.chat(true), Until::HalfSent).map(drop),
            Kind::Completion => {
                let body =
                    json!({"model": CHAT, "prompt": self.text(40), "max_tokens": 8, "n": 2, "logprobs": 3});
                expect(post("/v1/completions", &body, end)?, 200, "\"token_logprobs\"")
            }
            Kind::Embeddings => {
                let count = 1 + self.below(16);
                let texts: Vec<String> = (0..count).map(|_| self.text(200)).collect();
                let body = json!({"model": EMBED, "input": texts, "truncate": true});
                expect(post("/v1/embeddings", &body, end)?, 200, "\"embedding\"")
            }
            Kind::Malformed => {
                let mut body = self.chat(false).to_string().into_bytes();
                for _ in 0..4 {
                    let at = self.below(body.len());
                    body[at] = self.below(256) as u8;
                }
                let answer = ask(address, Request { method: "POST", path: chat, body: &body }, end)?;
                // A changed letter of a text is a request like any other.
                if answer.status >= 500 { expect(answer, 400, "") } else { Ok(()) }
            }
            Kind::Status => {
                let path = ["/health", "/metrics", "/v1/models"][self.below(3)];
                expect(ask(address, Request { method: "GET", path, body: b"" }, end)?, 200, "")
            }
            Kind::Unknown => {
                let path = format!("/v1/{}", self.below(1 << 30));
                expect(ask(address, Request { method: "GET", path: &path, body: b"" }, end)?, 404, "")?;
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
    fn a_seed_decides_and_every_kind_comes() {
        let kinds = |seed| {
            let mut client = Client::new(seed);
            (0..200).map(|_| client.next()).collect::<Vec<_>>()
        };
        assert_eq!(kinds(1), kinds(1));
        assert_ne!(kinds(1), kinds(2));
        assert!(Kind::ALL.iter().all(|kind| kinds(1).contains(kind)));
    }

    #[test]
    fn answers_are_held_to_what_they_must_be() {
        let answer = |status| Answer { status, body: "data: [DONE]".to_owned() };
        assert!(expect(answer(200), 200, "[DONE]").is_ok());
        let error = expect(answer(503), 200, "[DONE]").unwrap_err().to_string();
        assert!(error.contains("expected 200") && error.contains("found 503: data"), "{error}");
        assert!(expect(answer(200), 200, "embedding").is_err());
    }
}
