//! `narthex chat` with tools. The model has random weights, so its first answer is a call of a named tool, which a
//! grammar guarantees.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use narthex_testkit::checkpoint::{Meta, tiny_llama};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{library, terminal::Terminal};

/// An MCP server with the tool `pick`, which reports the letter that was picked.
const SERVER: &str = r#"
import json, sys
SCHEMA = {"type": "object", "properties": {"letter": {"enum": ["x", "y"]}}, "required": ["letter"], "additionalProperties": False}
for line in sys.stdin:
    message = json.loads(line)
    params = message.get("params") or {}
    if "id" not in message:
        continue
    result = {
        "initialize": lambda: {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                               "serverInfo": {"name": "stand-in", "version": "1"}},
        "tools/list": lambda: {"tools": [{"name": "pick", "inputSchema": SCHEMA}]},
        "tools/call": lambda: {"content": [{"type": "text", "text": "picked " + params["arguments"]["letter"]}]},
    }[message["method"]]()
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

/// A store with a model, and a tool that keeps its arguments in a file.
struct Tools {
    folder: TempDir,
}

impl Tools {
    fn new() -> Self {
        let tools = Self { folder: tempfile::tempdir().unwrap() };
        let mut gguf = tiny_llama(7);
        gguf.set("llama.context_length", Meta::U32(8192));
        std::fs::write(tools.path("tiny.gguf"), gguf.to_bytes()).unwrap();
        std::fs::write(tools.path("server.py"), SERVER).unwrap();
        let mut compiled =
            tools.narthex(&["compile", "--scheme", "f32", tools.path("tiny.gguf").to_str().unwrap()]);
        assert!(compiled.output().unwrap().status.success());
        let set = json!({
            "type": "function",
            "function": {"name": "set", "parameters": {
                "type": "object",
                "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 9}},
                "required": ["n"],
                "additionalProperties": false,
            }},
            "command": ["sh", "-c", "cat > \"$0\"; echo it is set", tools.arguments()],
        });
        std::fs::write(tools.path("tools.json"), json!([set]).to_string()).unwrap();
        tools
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The file with the arguments of the last call.
    fn arguments(&self) -> PathBuf {
        self.path("arguments.json")
    }

    fn narthex(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
        self.prepare(command.args(args));
        command
    }

    fn prepare(&self, command: &mut Command) {
        command.env("NARTHEX_HOME", self.path("store")).env("ORT_DYLIB_PATH", library()).stdin(Stdio::null());
    }

    /// The words of a chat.
    fn words(&self, more: &[&str]) -> Vec<String> {
        let words = ["chat", "-m", "local/tiny", "--max-tokens", "300", "hello"];
        words.iter().chain(more).map(|word| (*word).to_owned()).collect()
    }

    fn chat(&self, more: &[&str]) -> Output {
        let words = self.words(more);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.narthex(&words).output().unwrap()
    }
}

fn check(output: &Output, code: i32, expect: &[&str]) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(expect.iter().all(|expect| error.contains(expect)), "{expect:?} are not in {error}");
    error
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_model_calls_commands_and_tools_of_servers() {
    let tools = Tools::new();
    let file = tools.path("tools.json");
    let file = ["--tools", file.to_str().unwrap(), "--tool-choice", "set"];
    let report =
        check(&tools.chat(&[&file[..], &["--yes-tools"]].concat()), 0, &["tool result: set it is set"]);
    let n = read(&tools.arguments())["n"].as_i64().unwrap();
    assert!((3..=9).contains(&n), "{n}");
    assert!(report.contains("tool call: set {") && report.contains("on cpu"), "{report}");
    let quiet = tools.chat(&[&file[..], &["--yes-tools", "--quiet"]].concat());
    assert_eq!(check(&quiet, 0, &[]), "");

    let server = format!("python3 {}", tools.path("server.py").display());
    let server = ["--mcp", &server, "--yes-tools", "--tool-choice", "pick"];
    let picked = tools.chat(&server);
    check(&picked, 0, &["tool call: pick {", "tool result: pick picked "]);
    // The answer that would end the rounds is a call.
    let bounded = tools.chat(&[&server[..], &["--tool-rounds", "0"]].concat());
    check(&bounded, 2, &["still calls tools after 0 rounds; --tool-rounds allows more"]);
}

#[test]
fn calls_are_confirmed_on_a_terminal() {
    let tools = Tools::new();
    let file = tools.path("tools.json");
    let file = ["--tools", file.to_str().unwrap(), "--tool-choice", "set"];
    check(&tools.chat(&file), 2, &["expected a terminal to confirm calls, found none; --yes-tools runs"]);
    for (answer, runs) in [("n", false), ("y", true)] {
        let _ = std::fs::remove_file(tools.arguments());
        let words = tools.words(&file);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut terminal = Terminal::start(&tools.narthex(&words), 80);
        terminal.wait_for("Run this call? [y]es, [n]o");
        terminal.press(&format!("{answer}\r"));
        assert_eq!(terminal.end(), 0);
        let screen = terminal.screen();
        assert_eq!(tools.arguments().exists(), runs, "{screen}");
    }
}

#[test]
fn wrong_tools_are_refused_before_a_model_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tools.json");
    let check = |args: &[&str], code, expect: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_narthex"))
            .args([&["chat", "-m", "no-such-model", "hi", "--yes-tools"], args].concat())
            .env("NARTHEX_HOME", folder.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        check(&output, code, &[expect]);
    };
    let path = file.to_str().unwrap();
    check(&["--tools", path], 3, "cannot read");
    std::fs::write(&file, r#"[{"type": "function", "function": {"name": "f"}}]"#).unwrap();
    check(&["--tools", path], 2, "missing field `command`");
    check(&["--mcp", "/no/such/server"], 3, "\"/no/such/server\" cannot be started");
    check(&["--mcp", "https://example.com/mcp"], 2, "mcp-remote");
    check(&["--tool-choice", "required"], 2, "expected tools from --mcp or --tools, found none");
}
