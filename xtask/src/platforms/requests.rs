//! A server on a machine: OpenAI's client of this machine, greedy tokens and embeddings, and the removal of a model
//! that the server holds.

use std::fs;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::json;

use super::{
    first_hour::{CHAT, EMBEDDING},
    machine::Machine,
    steps::Steps,
};
use crate::sdk;
use xtask_tools::{
    http::{self, Disconnect, Request},
    process,
    server::Server,
    terminal,
};

/// Script with the requests of OpenAI's client, relative to the root.
const CLIENT: &str = "conformance/emulated_client.py";

/// Questions for greedy answers.
const QUESTIONS: [&str; 4] = [
    "What is the capital of France?",
    "Name a colour.",
    "Write a short sentence about the sea.",
    "What is two plus two?",
];

/// Texts for embeddings.
const TEXTS: [&str; 3] = ["a cat sleeps", "Stra\u{df}e in M\u{fc}nchen", "\u{65e5}\u{672c}\u{8a9e}"];

/// File with the answers in the machine's folder.
const ANSWERS: &str = "answers.json";

/// MachineAnswers of a machine, which are compared with those of another.
#[derive(Debug, Clone, PartialEq, serde::Serialize, Deserialize)]
pub(super) struct MachineAnswers {
    /// Tokens of each question.
    pub(super) tokens: Vec<Vec<Token>>,
    /// One vector for each text.
    pub(super) vectors: Vec<Vec<f32>>,
}

/// A token of a greedy answer.
#[derive(Debug, Clone, PartialEq, serde::Serialize, Deserialize)]
pub(super) struct Token {
    /// Its text.
    pub(super) text: String,
    /// Distance of its log probability from that of the next likely token.
    pub(super) margin: f64,
}

#[derive(Deserialize)]
struct ChatAnswer {
    choices: Vec<ChatChoice>,
}

#[derive(Deserialize)]
struct ChatChoice {
    logprobs: ChatLogProbabilities,
}

#[derive(Deserialize)]
struct ChatLogProbabilities {
    content: Vec<ChatToken>,
}

#[derive(Deserialize)]
struct ChatToken {
    token: String,
    top_logprobs: Vec<ChatAlternative>,
}

#[derive(Deserialize)]
struct ChatAlternative {
    logprob: f64,
}

#[derive(Deserialize)]
struct EmbeddingAnswer {
    data: Vec<Embedding>,
}

#[derive(Deserialize)]
struct Embedding {
    embedding: Vec<f32>,
}

/// Runs the steps with a server.
pub(super) fn run(steps: &mut Steps, machine: &Machine<'_>) {
    let mut server = None;
    let started = steps.run("`serve`", || {
        let command = machine.narthex(&["serve", "--port", "0", "--slots", "2"]);
        let started = Server::listen(command, &machine.folder.join("server.log"))?;
        server = Some(started);
        Ok(String::new())
    });
    let Some(server) = server.filter(|_| started) else { return };
    steps.run("greedy tokens and embeddings", || {
        let answers = ask(machine, &server.address)?;
        fs::write(machine.folder.join(ANSWERS), serde_json::to_vec(&answers)?)?;
        let tokens: usize = answers.tokens.iter().map(Vec::len).sum();
        Ok(format!("{tokens} tokens, {} vectors", answers.vectors.len()))
    });
    steps.run("OpenAI's client: stream, tools, schema, cancel, embeddings", || client(machine, &server));
    steps.run("`ps`", || machine.expect(&["ps"], CHAT).map(|_| String::new()));
    steps.run("`rm` of a model that a server holds", || remove_while_served(machine, &server.address));
}

/// Reads the answers that a machine has given.
pub(super) fn read(machine: &Machine<'_>) -> anyhow::Result<MachineAnswers> {
    let path = machine.folder.join(ANSWERS);
    let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// Asks every question and embeds every text.
fn ask(machine: &Machine<'_>, address: &str) -> anyhow::Result<MachineAnswers> {
    let mut tokens = Vec::new();
    for question in QUESTIONS.iter().take(machine.questions) {
        let messages = [json!({"role": "user", "content": question})];
        let body = json!({"model": CHAT, "messages": messages, "max_tokens": machine.tokens, "temperature": 0,
            "logprobs": true, "top_logprobs": 2});
        let answer: ChatAnswer = serde_json::from_value(post(address, "/v1/chat/completions", &body)?)?;
        let choice = answer.choices.into_iter().next().context("expected a choice, found none")?;
        tokens.push(choice.logprobs.content.into_iter().map(Token::from).collect());
    }
    let body = json!({"model": EMBEDDING, "input": TEXTS});
    let answer: EmbeddingAnswer = serde_json::from_value(post(address, "/v1/embeddings", &body)?)?;
    Ok(MachineAnswers { tokens, vectors: answer.data.into_iter().map(|one| one.embedding).collect() })
}

impl From<ChatToken> for Token {
    fn from(token: ChatToken) -> Self {
        let margin = match token.top_logprobs.as_slice() {
            [first, second, ..] => first.logprob - second.logprob,
            _ => f64::INFINITY,
        };
        // JSON has no infinity.
        Self { text: token.token, margin: margin.min(1e3) }
    }
}

/// Sends a request and returns its answer.
fn post(address: &str, path: &str, body: &serde_json::Value) -> anyhow::Result<serde_json::Value> {
    let body = body.to_string();
    let request = Request { method: "POST", path, body: body.as_bytes() };
    let answer = http::send(address, request, Disconnect::AfterAnswer)?;
    ensure!(answer.status == 200, "{path} answered {}: {}", answer.status, answer.body);
    answer.json()
}

/// Runs the script with OpenAI's client, and returns its last line.
fn client(machine: &Machine<'_>, server: &Server) -> anyhow::Result<String> {
    let session = machine.session;
    let environment = sdk::environment(session)?;
    let mut command = session.command(&environment.python);
    command.arg(session.workspace.root.join(CLIENT)).arg(format!("http://{}/v1", server.address));
    let mut verdict = String::new();
    let outcome = process::each_line(&mut command, |line| {
        terminal::line(line);
        verdict = line.to_owned();
    });
    outcome.with_context(|| server.last_lines())?;
    Ok(verdict)
}

/// Removes a model whose weights a server has mapped. The removal either succeeds, or its error names the server; the
/// server answers afterwards in both cases.
fn remove_while_served(machine: &Machine<'_>, address: &str) -> anyhow::Result<String> {
    let body = json!({"model": "local/tiny@f16", "prompt": "a", "max_tokens": 2});
    post(address, "/v1/completions", &body)?;
    let output = machine.narthex(&["rm", "local/tiny@f16", "--yes"]).output()?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let folder = machine.store().join("packages/local--tiny/f16");
    if output.status.success() {
        ensure!(!folder.exists(), "the folder still exists");
    } else {
        ensure!(error.contains("in use") && !error.contains("NARTHEX_HOME"), "{}: {error}", output.status);
        ensure!(folder.join("manifest.json").is_file(), "half of the package was removed");
    }
    post(
        address,
        "/v1/chat/completions",
        &json!({"model": CHAT, "max_tokens": 1,
        "messages": [{"role": "user", "content": "hi"}]}),
    )?;
    Ok(if output.status.success() { "removed".to_owned() } else { super::first_hour::last_line(&error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn margins_are_distances_of_the_two_best() {
        let token = |text: &str| serde_json::from_str::<ChatToken>(text).map(Token::from).unwrap();
        let two = r#"{"token": "a", "top_logprobs": [{"logprob": -0.25}, {"logprob": -1.5}]}"#;
        assert_eq!(token(two), Token { text: "a".to_owned(), margin: 1.25 });
        let one = r#"{"token": "a", "top_logprobs": [{"logprob": -0.25}]}"#;
        assert_eq!(token(one).margin, 1e3);
    }
}
