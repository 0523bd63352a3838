//! The requests of the clients, in an order determined by a seed.

use std::{
    collections::VecDeque,
    net::TcpStream,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, bail, ensure};
use narthex_engine::sample::SplitMix64;
use serde_json::{Value, json};

use strum::VariantArray;
use xtask_tools::http::{self, Answer, Disconnect, Request};

use super::media::{GreedyCheck, MediaAnswers, SPEAKS};

/// The chat model.
pub(super) const CHAT: &str = "smollm2:135m";

/// The embedding model.
pub(super) const EMBED: &str = "all-minilm-l6-v2";

/// Kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray)]
pub(super) enum RequestKind {
    Chat,
    Greedy,
    Stream,
    Long,
    Dropped,
    Completion,
    Embeddings,
    Media,
    Transcription,
    Speech,
    Malformed,
    HalfSent,
    Silent,
    Status,
    Unknown,
}

impl RequestKind {
    /// Returns a description of the kind.
    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Chat => "chat, the whole answer at once",
            Self::Greedy => "greedy chat, compared with the answer to a single client",
            Self::Stream => "chat, streamed to its end",
            Self::Long => "a prompt of up to 3,000 tokens, or an answer of up to 192, streamed",
            Self::Dropped => "chat, streamed to a client that disconnects at the first bytes",
            Self::Completion => "two completions with log probabilities",
            Self::Embeddings => "embeddings of up to 16 texts",
            Self::Media => {
                "greedy chat about a picture or a sound, compared with the answer to a single client"
            }
            Self::Transcription => "transcripts of sounds, compared with the expected one",
            Self::Speech => "speech, streamed sentence by sentence",
            Self::Malformed => "bodies with changed bytes",
            Self::HalfSent => "half a request, then a disconnect",
            Self::Silent => "connections that fall silent",
            Self::Status => "health, metrics and models",
            Self::Unknown => "paths and models that do not exist",
        }
    }
}

/// Kinds of requests, repeated by frequency. A quarter of the requests are cancelled.
const SHARES: [RequestKind; 48] = {
    use RequestKind as Kind;
    [
        Kind::Chat,
        Kind::Chat,
        Kind::Chat,
        Kind::Chat,
        Kind::Greedy,
        Kind::Greedy,
        Kind::Greedy,
        Kind::Greedy,
        Kind::Greedy,
        Kind::Greedy,
        Kind::Stream,
        Kind::Stream,
        Kind::Stream,
        Kind::Long,
        Kind::Dropped,
        Kind::Dropped,
        Kind::Dropped,
        Kind::Dropped,
        Kind::Dropped,
        Kind::Dropped,
        Kind::Dropped,
        Kind::Dropped,
        Kind::HalfSent,
        Kind::HalfSent,
        Kind::HalfSent,
        Kind::HalfSent,
        Kind::Completion,
        Kind::Completion,
        Kind::Completion,
        Kind::Completion,
        Kind::Embeddings,
        Kind::Embeddings,
        Kind::Media,
        Kind::Media,
        Kind::Media,
        Kind::Media,
        Kind::Transcription,
        Kind::Transcription,
        Kind::Transcription,
        Kind::Speech,
        Kind::Malformed,
        Kind::Malformed,
        Kind::Silent,
        Kind::Silent,
        Kind::Status,
        Kind::Status,
        Kind::Unknown,
        Kind::Unknown,
    ]
};

/// Number of different greedy requests.
const GREEDY: usize = 24;

/// Maximum number of words of a long prompt; on average, a word is a token and a half.
const LONG_WORDS: usize = 2000;

/// Maximum number of tokens of a long answer.
const LONG_ANSWER: usize = 192;

/// Number of silent connections that a client keeps open.
const SILENT: usize = 3;

/// Answers to the greedy requests, collected without other load.
pub(super) struct GreedyAnswers {
    texts: Vec<String>,
    media: MediaAnswers,
}

impl GreedyAnswers {
    /// Sends every greedy request, one after another.
    pub(super) fn collect(address: &str) -> anyhow::Result<Self> {
        let alone = |index| answer_greedily(address, index)?.context("a single client is refused");
        let texts = (0..GREEDY).map(alone).collect::<anyhow::Result<_>>()?;
        Ok(Self { texts, media: MediaAnswers::collect(address)? })
    }

    /// Sends one of the requests and compares its answer.
    fn check(&self, address: &str, index: usize) -> anyhow::Result<GreedyCheck> {
        let alone = &self.texts[index];
        let Some(found) = answer_greedily(address, index)? else { return Ok(GreedyCheck::Refused) };
        ensure!(found == *alone, "expected {alone:?}, as for a single client, found {found:?}");
        Ok(GreedyCheck::Equal)
    }

    /// Sends the request with the longest text and compares its answer.
    pub(super) fn check_longest(&self, address: &str) -> anyhow::Result<GreedyCheck> {
        let longest = (0..GREEDY).max_by_key(|&index| greedy_text(index).len()).unwrap_or_default();
        self.check(address, longest)
    }
}

/// Returns the text of a greedy request.
fn greedy_text(index: usize) -> String {
    Client::new(index as u64).text(10 + 20 * index)
}

/// Returns the answer to a greedy request; `None` if the server was full.
fn answer_greedily(address: &str, index: usize) -> anyhow::Result<Option<String>> {
    let body = json!({
        "model": CHAT,
        "messages": [{"role": "user", "content": greedy_text(index)}],
        "max_tokens": 24,
        "temperature": 0,
    });
    let body = body.to_string();
    let request = Request { method: "POST", path: "/v1/chat/completions", body: body.as_bytes() };
    let answer = http::send(address, request, Disconnect::AfterAnswer)?;
    if answer.status == 429 {
        return Ok(None);
    }
    let value: Value = serde_json::from_str(&answer.body)
        .with_context(|| format!("expected an answer, found {}: {}", answer.status, answer.body))?;
    let text = value["choices"][0]["message"]["content"].as_str();
    text.map(|text| Some(text.to_owned())).with_context(|| format!("expected a text, found {value}"))
}

/// Sends the longest prompt of [`RequestKind::Long`], the same from every client.
pub(super) fn send_longest_prompt(address: &str) -> anyhow::Result<()> {
    let text = Client::new(0).words(LONG_WORDS, LONG_WORDS);
    let body =
        json!({"model": CHAT, "messages": [{"role": "user", "content": text}], "max_tokens": 1}).to_string();
    let request = Request { method: "POST", path: "/v1/chat/completions", body: body.as_bytes() };
    let answer = http::send(address, request, Disconnect::AfterAnswer)?;
    if answer.status == 429 { Ok(()) } else { expect(answer, 200, "\"finish_reason\"") }
}

/// Unloads a model, and lets the server read its settings again.
pub(super) fn reload(address: &str, model: &str) -> anyhow::Result<()> {
    let post = |path, body: Value| {
        let body = body.to_string();
        http::send(address, Request { method: "POST", path, body: body.as_bytes() }, Disconnect::AfterAnswer)
    };
    expect(post("/api/generate", json!({"model": model, "keep_alive": 0}))?, 200, "\"unload\"")?;
    expect(post("/v1/settings", json!({"reload": true}))?, 200, "the settings are unchanged")
}

/// A client whose seed determines its requests.
pub(super) struct Client {
    rng: SplitMix64,
    silent: VecDeque<TcpStream>,
}

impl Client {
    /// Creates a client.
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: SplitMix64::new(seed), silent: VecDeque::new() }
    }

    /// Returns a number below `end`.
    fn below(&mut self, end: usize) -> usize {
        (self.rng.next_u64() % end.max(1) as u64) as usize
    }

    /// Returns the kind of the next request.
    pub(super) fn next(&mut self) -> RequestKind {
        SHARES[self.below(SHARES.len())]
    }

    /// Returns a text. Many texts start with the same words.
    fn text(&mut self, most: usize) -> String {
        self.words(1, most)
    }

    /// Returns a text of `least` to `most` words.
    fn words(&mut self, least: usize, most: usize) -> String {
        const WORDS: [&str; 12] =
            ["the", "cat", "river", "seven", "of", "Paris", "why", "blue", "runs", "été", "猫", "code();"];
        let count = least + self.below(most + 1 - least);
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

    /// Returns a streamed chat with a long prompt or a long answer.
    fn long(&mut self) -> Value {
        let mut body = self.chat(true);
        if self.below(2) == 0 {
            body["messages"][0]["content"] = self.words(1 + LONG_WORDS / 4, LONG_WORDS).into();
        } else {
            body["max_tokens"] = (LONG_ANSWER / 4 + self.below(3 * LONG_ANSWER / 4)).into();
        }
        body
    }

    /// Sends a request and checks the answer. Status 429 is counted but is not a failure.
    pub(super) fn send(
        &mut self,
        address: &str,
        kind: RequestKind,
        greedy: &GreedyAnswers,
        refused: &AtomicU64,
    ) -> anyhow::Result<()> {
        let expect = |answer: Answer, status, part| {
            if answer.status == 429 {
                refused.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            expect(answer, status, part)
        };
        let post = |path, body: &Value, disconnect| {
            let body = body.to_string();
            http::send(address, Request { method: "POST", path, body: body.as_bytes() }, disconnect)
        };
        let (chat, end) = ("/v1/chat/completions", Disconnect::AfterAnswer);
        match kind {
            RequestKind::Chat => expect(post(chat, &self.chat(false), end)?, 200, "\"finish_reason\""),
            RequestKind::Greedy => {
                count_refusal(greedy.check(address, self.below(GREEDY))?, refused);
                Ok(())
            }
            RequestKind::Media => {
                count_refusal(greedy.media.chat(address, self.below(GREEDY))?, refused);
                Ok(())
            }
            RequestKind::Transcription => {
                count_refusal(greedy.media.transcription(address, self.below(GREEDY))?, refused);
                Ok(())
            }
            RequestKind::Speech => {
                let input = format!("{}. {}.", self.text(8), self.text(8));
                let body = json!({"model": SPEAKS, "input": input, "response_format": "wav"});
                expect(post("/v1/audio/speech", &body, end)?, 200, "RIFF")
            }
            RequestKind::Long => expect(post(chat, &self.long(), end)?, 200, "data: [DONE]"),
            RequestKind::Silent => {
                self.silent.push_back(http::fall_silent(address)?);
                if self.silent.len() > SILENT {
                    self.silent.pop_front();
                }
                Ok(())
            }
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
                let answer = http::send(address, Request { method: "POST", path: chat, body: &body }, end)?;
                // The request may still be valid, if only a letter in a text has changed.
                if answer.status >= 500 { expect(answer, 400, "") } else { Ok(()) }
            }
            RequestKind::Status => {
                let path = ["/health", "/metrics", "/v1/models"][self.below(3)];
                expect(http::send(address, Request { method: "GET", path, body: b"" }, end)?, 200, "")
            }
            RequestKind::Unknown => {
                let path = format!("/v1/{}", self.below(1 << 30));
                expect(
                    http::send(address, Request { method: "GET", path: &path, body: b"" }, end)?,
                    404,
                    "",
                )?;
                let body = json!({"model": path, "messages": [{"role": "user", "content": "a"}]});
                expect(post(chat, &body, end)?, 404, "\"error\"")
            }
        }
    }
}

fn count_refusal(check: GreedyCheck, refused: &AtomicU64) {
    if check == GreedyCheck::Refused {
        refused.fetch_add(1, Ordering::Relaxed);
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
        let some: Vec<_> = (1..5).flat_map(kinds).collect();
        assert!(RequestKind::VARIANTS.iter().all(|kind| some.contains(kind)));
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
