//! Tools of MCP servers. A Python stand-in runs as a process connected by pipes and answers from a script.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use narthex_gateway::{Cancel, request::ExactJson};
use narthex_mcp::toolbox::{ToolFile, ToolOutcome, Toolbox, ToolboxError};
use serde_json::json;
use tempfile::TempDir;

/// A server with the tools `add` (the sum), `fail` (a failure), `sleep` (no answer), `die` (the end of the process), on
/// two pages. It writes its end to the file of its second argument.
const STAND_IN: &str = r#"
import json, sys
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
PAGES = {None: (["add", "fail"], "next"), "next": (["sleep", "die/now"], None)}
print("a line of the log", file=sys.stderr)
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message:
        continue
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "stand-in", "version": "1"}}
    elif method == "tools/list":
        names, cursor = PAGES[params.get("cursor")]
        tools = [{"name": name, "description": "Says " + name, "inputSchema": SCHEMA} for name in names]
        result = {"tools": tools} | ({"nextCursor": cursor} if cursor else {})
    elif params["name"] == "sleep":
        continue
    elif params["name"] == "die/now":
        sys.exit("the last words")
    else:
        arguments = params["arguments"]
        text = str(arguments["a"] + arguments["b"]) if params["name"] == "add" else "nothing to add"
        result = {"content": [{"type": "text", "text": text}], "isError": params["name"] == "fail"}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
open(sys.argv[1], "w").close()
"#;

struct StandIn {
    folder: TempDir,
}

impl StandIn {
    fn new() -> Self {
        Self::with_script(STAND_IN)
    }

    /// A stand-in that always answers with the same page of tools, which another page follows.
    fn with_endless_pages(names: &str) -> Self {
        const PAGE: &str = r#"PAGES[params.get("cursor")]"#;
        assert!(STAND_IN.contains(PAGE));
        Self::with_script(&STAND_IN.replace(PAGE, &format!(r#"({names}, "next")"#)))
    }

    fn with_script(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("stand in.py"), script).unwrap();
        Self { folder }
    }

    fn end(&self) -> PathBuf {
        self.folder.path().join("ended")
    }

    fn command(&self) -> String {
        format!("python3 '{}' {}", self.folder.path().join("stand in.py").display(), self.end().display())
    }
}

fn names(toolbox: &Toolbox) -> Vec<String> {
    toolbox.tools().into_iter().map(|tool| tool.name).collect()
}

#[test]
fn tools_of_servers_and_files_are_called() {
    let (one, two) = (StandIn::new(), StandIn::new());
    let file =
        json!([{"type": "function", "function": {"name": "add"}, "command": ["echo", "from a command"]}]);
    let file = ToolFile::read(file.to_string().as_bytes()).unwrap();
    let toolbox = Toolbox::open(&[one.command(), two.command()], vec![file], &Cancel::new()).unwrap();
    let expect = ["add", "add_2", "fail", "sleep", "die_now", "add_3", "fail_2", "sleep_2", "die_now_2"];
    assert_eq!(names(&toolbox), expect);
    assert_eq!(toolbox.tools()[1].description.as_deref(), Some("Says add"));
    assert_eq!(toolbox.tools()[1].parameters["properties"]["a"]["type"], "integer");

    let call = |name: &str| {
        let result = toolbox.call(name, &json!({"a": 2, "b": 3}).into(), &Cancel::new());
        (result.outcome, result.text)
    };
    assert_eq!(call("add"), (ToolOutcome::Done, "from a command\n".to_owned()));
    assert_eq!(call("add_2"), (ToolOutcome::Done, "5".to_owned()));
    assert_eq!(call("add_3"), (ToolOutcome::Done, "5".to_owned()));
    assert_eq!(call("fail"), (ToolOutcome::Failed, "nothing to add".to_owned()));
    let large = ExactJson::parse(r#"{"a": 18446744073709551617, "b": 1}"#).unwrap();
    assert_eq!(toolbox.call("add_2", &large, &Cancel::new()).text, "18446744073709551618");
    assert!(call("sing").1.contains("no tool is named \"sing\"; the tools are add, add_2"));

    // The user stops a call. The server continues to run.
    let cancel = Cancel::new();
    let result = thread::scope(|scope| {
        scope.spawn(|| cancel.cancel());
        toolbox.call("sleep", &json!({}).into(), &cancel)
    });
    assert_eq!(
        (result.outcome, result.text.as_str()),
        (ToolOutcome::Failed, "the user interrupted the call")
    );
    assert_eq!(call("add_2").1, "5");
    // If a server ends, only its own tools fail.
    assert_eq!(call("die_now_2").0, ToolOutcome::Failed);
    assert_eq!((call("add_3").0, call("add_2").1), (ToolOutcome::Failed, "5".to_owned()));
    assert!(!one.end().exists());
    drop(toolbox);
    assert!(one.end().exists(), "the server ended by itself at the end of its input");
}

#[test]
fn programs_that_are_no_servers_are_named_with_their_last_words() {
    let check = |command: &str, expect: &[&str]| {
        let started = Instant::now();
        let error =
            Toolbox::open(&[command.to_owned()], Vec::new(), &Cancel::new()).err().unwrap().to_string();
        assert!(expect.iter().all(|expect| error.contains(expect)), "{error}");
        assert!(started.elapsed() < Duration::from_secs(20), "{command}");
    };
    check("/no/such/server", &["\"/no/such/server\" cannot be started", "No such file"]);
    check("sh -c 'echo a module is missing >&2; exit 3'", &["a module is missing", "run it alone"]);
    check("echo hello", &["\"echo hello\" does not answer as an MCP server"]);
    check("http://localhost:1", &["mcp-remote"]);
}

#[test]
fn a_silent_server_can_be_given_up() {
    let cancel = Cancel::new();
    let opened = thread::scope(|scope| {
        scope.spawn(|| cancel.cancel());
        Toolbox::open(&["sleep 1000".to_owned()], Vec::new(), &cancel)
    });
    assert!(matches!(opened.err(), Some(ToolboxError::Cancelled)));
}

#[test]
fn pages_of_tools_are_bounded() {
    let check = |names: &str, expect: &str| {
        let server = StandIn::with_endless_pages(names);
        let opened = Toolbox::open(&[server.command()], Vec::new(), &Cancel::new());
        let error = opened.err().unwrap().to_string();
        assert!(error.contains(expect), "{error}");
    };
    check("[]", "expected at most 512 pages of tools, found more");
    check(r#"["a"] * 100"#, "expected at most 512 tools, found more");
    // The name is in the description too.
    check(r#"["a" * 1_000_000]"#, "expected at most 4 MiB of tools, found more");
}

#[test]
fn processes_that_a_server_started_end_with_it() {
    let stand_in = StandIn::new();
    let pipe = stand_in.folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // One server runs until the toolbox is dropped, and one fails to start.
    for (server, starts) in [(&*stand_in.command(), true), ("false", false)] {
        let script = r#"exec 3> "$0"; sleep 1000 > /dev/null & exec "$@""#;
        let command = format!("sh -c '{script}' {} {server}", pipe.display());
        let (sender, ended) = mpsc::channel();
        let read = pipe.clone();
        // The pipe ends when no process has it open.
        thread::spawn(move || sender.send(fs::read(read)));
        let toolbox = Toolbox::open(&[command], Vec::new(), &Cancel::new());
        assert_eq!(toolbox.is_ok(), starts);
        drop(toolbox);
        assert!(ended.recv_timeout(Duration::from_secs(20)).is_ok(), "a process of {server} still runs");
    }
}
