//! `narthex mcp` over pipes, as an MCP client starts it, over tiny models in a store of its own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use narthex_testkit::checkpoint::tiny_llama_safetensors;
use serde_json::{Value, json};

use crate::support::{
    encoders::{Golden, Head},
    with_runtime,
};

/// Compiles a checkpoint into the store.
fn compile(home: &Path, folder: &Path) {
    let output =
        with_runtime(home, &["compile", "--scheme", "f32", folder.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The server and its pipes.
struct Client {
    process: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    last: u64,
}

impl Client {
    /// Starts the server and shakes hands.
    fn start(home: &Path, args: &[&str]) -> Self {
        let mut client = Self::begin(home, args);
        let hello = json!({
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        let welcome = client.request("initialize", hello);
        assert_eq!(welcome["result"]["serverInfo"]["name"], "narthex", "{welcome}");
        assert!(welcome["result"]["capabilities"]["tools"].is_object(), "{welcome}");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn begin(home: &Path, args: &[&str]) -> Self {
        let mut process = with_runtime(home, &[&["mcp", "-v"], args].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let requests = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self { process, requests, answers, last: 0 }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.requests.as_mut().unwrap(), "{message}").unwrap();
    }

    /// Sends a request; returns the next message, which must be its answer.
    fn request(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let id = self.last;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let answer = self.next().unwrap();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    /// Returns the next message; every line of standard output is one.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        let count = self.answers.read_line(&mut line).unwrap();
        (count > 0).then(|| serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    /// Calls a tool; returns its result.
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.request("tools/call", json!({"name": tool, "arguments": arguments}));
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
    }

    /// Waits for the end; returns standard error.
    fn end(mut self) -> String {
        drop(self.requests.take());
        assert_eq!(self.next(), None);
        let mut log = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}\n{log}");
        log
    }
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}

fn checkpoint(home: &Path, name: &str, head: Head) -> PathBuf {
    let folder = home.join(name);
    std::fs::rename(Golden::read("bert").checkpoint(head).keep(), &folder).unwrap();
    folder
}

#[test]
fn an_agent_finds_and_calls_the_tools() {
    let home = tempfile::tempdir().unwrap();
    let chat = home.path().join("tiny-chat");
    std::fs::create_dir(&chat).unwrap();
    tiny_llama_safetensors(&chat, 7).unwrap();
    let reranker = checkpoint(home.path(), "tiny-rerank", Head::Score);
    let embedder = checkpoint(home.path(), "tiny-embed", Head::Mean);
    [&chat, &reranker, &embedder].into_iter().for_each(|folder| compile(home.path(), folder));

    let reranker = reranker.to_str().unwrap();
    let mut client = Client::start(home.path(), &["--rerank-model", reranker]);
    let listed = client.request("tools/list", json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["chat", "embeddings", "rerank", "check", "plan"]);
    assert!(tools.iter().all(|tool| tool["inputSchema"]["type"] == "object"), "{listed}");

    let chat = json!({"prompt": "hello", "max_tokens": 4, "system": "Be brief."});
    let answer = client.call("chat", chat.clone());
    assert_ne!(answer["isError"], true, "{answer}");
    assert!(answer["content"][1]["text"].as_str().unwrap().contains("cut after 4 tokens"), "{answer}");
    let schema = json!({"enum": [{"a": 1}]});
    let answer = client.call("chat", json!({"prompt": "hello", "schema": schema}));
    assert_eq!(serde_json::from_str::<Value>(text(&answer)).unwrap(), json!({"a": 1}));

    let answer = client.call("embeddings", json!({"texts": ["the cat sleeps", "a dog runs"]}));
    let output = &tools[1]["outputSchema"];
    assert!(output["properties"]["embeddings"].is_object(), "{output}");
    let vectors = answer["structuredContent"]["embeddings"].as_array().unwrap();
    assert!(vectors.len() == 2 && vectors[0] != vectors[1], "{answer}");
    assert_eq!(serde_json::from_str::<Value>(text(&answer)).unwrap(), answer["structuredContent"]);

    let documents = json!(["the cat sleeps", "a dog runs"]);
    let answer = client.call("rerank", json!({"query": "what sleeps?", "documents": documents, "top_n": 1}));
    let best = &answer["structuredContent"]["results"][0];
    assert_eq!(best["document"], documents[best["index"].as_u64().unwrap() as usize]);

    let answer = client.call("check", json!({"model": "llama3.2:1b"}));
    assert!(text(&answer).contains("a decoder that Narthex compiles: 16 layers"), "{answer}");
    assert!(answer["structuredContent"].is_object());
    let answer = client.call("check", json!({"model": "llama3.2:1b", "target": "ryzen-ai"}));
    assert!(text(&answer).contains("refused: AMD's NPU"), "{answer}");
    let answer = client.call("plan", json!({"model": "llama3.3:70b", "targets": ["qnn:x-elite"]}));
    assert!(text(&answer).contains("70553706496"), "{answer}");
    client.end();
}

#[test]
fn failures_of_a_tool_are_its_results() {
    let home = tempfile::tempdir().unwrap();
    let mut client = Client::start(home.path(), &[]);
    let mut check = |tool: &str, arguments: Value, expect: &str| {
        let result = client.call(tool, arguments);
        assert_eq!(result["isError"], true, "{result}");
        assert!(text(&result).contains(expect), "{expect:?} is not in {result}");
    };
    check("chat", json!({"prompt": "hi"}), "expected the name of a chat model, found none");
    check("chat", json!({"prompt": "hi", "model": "smollm2:136m"}), "did you mean smollm2:135m");
    check(
        "chat",
        json!({"prompt": "hi", "model": "/etc/passwd"}),
        "expected the name of a model, found a path",
    );
    check("chat", json!({"question": "hi"}), "unknown field `question`");
    check("embeddings", json!({"texts": ["a"], "model": "gemma3:1b"}), "narthex pull gemma3:1b");
    check("check", json!({"model": "llama3.2:1b", "target": "toaster"}), "toaster");
    check("plan", json!({"model": "no-such-model"}), "no model is named \"no-such-model\"");
    let unknown = client.request("tools/call", json!({"name": "sing", "arguments": {}}));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    assert!(unknown["error"]["message"].as_str().unwrap().contains("chat, embeddings, rerank"), "{unknown}");
    client.end();
}

#[test]
fn the_end_of_the_input_and_a_signal_end_the_server() {
    let home = tempfile::tempdir().unwrap();
    // Before the handshake.
    Client::begin(home.path(), &[]).end();
    let mut client = Client::begin(home.path(), &[]);
    client.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}));
    drop(client.requests.take());
    client.process.wait().unwrap();
    #[cfg(unix)]
    for (is_ready, signal) in [(true, "-TERM"), (true, "-INT"), (false, "-TERM")] {
        let mut client = match is_ready {
            true => Client::start(home.path(), &[]),
            false => {
                let mut client = Client::begin(home.path(), &[]);
                // A ping is answered before the handshake.
                assert_eq!(client.request("ping", json!({}))["result"], json!({}));
                client
            }
        };
        let started = Instant::now();
        let id = client.process.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        // The input stays open.
        let status = client.process.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{signal}");
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}
