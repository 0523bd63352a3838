//! `narthex launch`: an agent gets a server, its settings reach only its process, and nothing stays behind.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use narthex_testkit::checkpoint::tiny_llama;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::with_runtime;

/// Stand-in for an agent. It asks the server for an answer in the protocol of its variables, and reports what it saw in
/// the file `seen` beside itself.
const AGENT: &str = r#"#!/usr/bin/env python3
import json, os, sys, urllib.request
environment = os.environ
if "ANTHROPIC_BASE_URL" in environment:
    url, field = environment["ANTHROPIC_BASE_URL"] + "/v1/messages", "content"
else:
    url, field = environment["AIDER_OPENAI_API_BASE"] + "/chat/completions", "choices"
model = sys.argv[sys.argv.index("--model") + 1].removeprefix("openai/")
body = {"model": model, "max_tokens": 3, "messages": [{"role": "user", "content": "the cat"}]}
request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
with urllib.request.urlopen(request) as response:
    answer = json.load(response)
seen = {"url": url, "arguments": sys.argv[1:], "answered": bool(answer[field])}
with open(os.path.join(os.path.dirname(sys.argv[0]), "seen"), "w") as file:
    json.dump(seen, file)
sys.exit(7 if "--fail" in sys.argv else 0)
"#;

/// Stand-in for an agent that never ends by itself. It writes its process id and the server's address to the file
/// `started` beside itself, and the number of a signal to the file `signal`. A signal ends it, unless it is told to stay.
const WAITING_AGENT: &str = r#"#!/usr/bin/env python3
import os, signal, sys, time
def write(name, text):
    path = os.path.join(os.path.dirname(sys.argv[0]), name)
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)
def end(number, frame):
    write("signal", str(number))
    if "--stay" not in sys.argv:
        sys.exit(3)
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, end)
write("started", f"{os.getpid()} {os.environ['AIDER_OPENAI_API_BASE'].split('/')[2]}")
while True:
    time.sleep(60)
"#;

/// Maximum time for anything that these tests wait for.
const HANG: Duration = Duration::from_secs(60);

/// Waits until a value exists.
fn eventually<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(began.elapsed() < HANG, "{what} does not come");
        thread::sleep(Duration::from_millis(10));
    }
}

/// `narthex launch` with a running agent.
struct RunningAgent {
    process: Child,
    agent: String,
    /// Address of the server.
    address: String,
}

impl RunningAgent {
    fn send(&self, signal: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Waits for the end of the process and of its server. Returns the exit code; `None` after SIGKILL.
    fn end(mut self) -> Option<i32> {
        let code = eventually("the end", || self.process.try_wait().unwrap()).code();
        let listens = || std::net::TcpStream::connect(&self.address).is_ok();
        eventually("the end of the server", || (!listens()).then_some(()));
        code
    }
}

fn runs(process: &str) -> bool {
    Command::new("kill").args(["-0", process]).stderr(Stdio::null()).status().unwrap().success()
}

/// A store with a model, a home folder, and a folder with programs.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap() };
        for folder in ["store", "home", "programs"] {
            fs::create_dir(machine.path(folder)).unwrap();
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn with_model(self) -> Self {
        let file = self.path("tiny.gguf");
        fs::write(&file, tiny_llama(7).to_bytes()).unwrap();
        let compiled =
            self.narthex(&["compile", "--scheme", "f32", file.to_str().unwrap()]).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        self
    }

    fn with_program(self, name: &str, program: &str) -> Self {
        let file = self.path("programs").join(name);
        fs::write(&file, program).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    fn narthex(&self, args: &[&str]) -> Command {
        let mut command = with_runtime(&self.path("store"), args);
        command.env("HOME", self.path("home")).env_remove("NARTHEX_API_KEY");
        command
    }

    /// Launches an agent that is found before all other programs, or alone.
    fn launch(&self, args: &[&str], others: bool) -> Output {
        let others = std::env::var("PATH").ok().filter(|_| others).unwrap_or_default();
        let path = format!("{}:{others}", self.path("programs").display());
        self.narthex(&[&["launch"], args].concat()).env("PATH", path).output().unwrap()
    }

    /// Launches the agent that waits, and returns when it runs.
    fn start(&self, args: &[&str]) -> RunningAgent {
        for name in ["started", "signal"] {
            let _ = fs::remove_file(self.path("programs").join(name));
        }
        let path = format!("{}:{}", self.path("programs").display(), std::env::var("PATH").unwrap());
        let mut command = self.narthex(&[&["launch", "aider", "--"], args].concat());
        let process = command.env("PATH", path).stderr(Stdio::null()).spawn().unwrap();
        let started = eventually("the agent", || fs::read_to_string(self.path("programs/started")).ok());
        let (agent, address) = started.split_once(' ').unwrap();
        RunningAgent { process, agent: agent.to_owned(), address: address.to_owned() }
    }

    /// Waits for the signal that the agent receives.
    fn signal(&self) -> String {
        eventually("the signal", || fs::read_to_string(self.path("programs/signal")).ok())
    }

    fn seen(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("programs/seen")).unwrap()).unwrap()
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_agent_runs_on_a_server_that_ends_with_it() {
    let machine = Machine::new().with_model().with_program("aider", AGENT).with_program("claude", AGENT);
    for (agent, arguments) in [
        ("aider", json!(["--model", "openai/local/tiny", "--no-show-model-warnings", "--yes"])),
        ("claude", json!(["--model", "local/tiny", "--yes"])),
    ] {
        // Without --model, the largest installed one is chosen.
        let output = machine.launch(&[agent, "--", "--yes"], true);
        assert!(output.status.success(), "{agent}: {}", error(&output));
        assert!(error(&output).contains("Starting a server with local/tiny"), "{}", error(&output));
        let seen = machine.seen();
        assert_eq!((&seen["answered"], &seen["arguments"]), (&json!(true), &arguments));
        let url = seen["url"].as_str().unwrap();
        let address = url.trim_start_matches("http://").split('/').next().unwrap();
        assert!(std::net::TcpStream::connect(address).is_err(), "{address} still listens");
    }
    let failed = machine.launch(&["aider", "--", "--fail"], true);
    assert_eq!(failed.status.code(), Some(7), "{}", error(&failed));
    assert!(error(&failed).contains("aider ended with exit status: 7"), "{}", error(&failed));
    assert_eq!(files(&machine.path("home")), Vec::<PathBuf>::new(), "settings were written");
}

#[test]
fn a_missing_program_gets_its_install_command_before_a_server_starts() {
    let machine = Machine::new();
    for (agent, install) in [
        ("codex", "npm install -g @openai/codex"),
        ("claude", "npm install -g @anthropic-ai/claude-code"),
        ("opencode", "npm install -g opencode-ai"),
        ("aider", "python -m pip install aider-chat"),
        ("open-interpreter", "python -m pip install open-interpreter"),
        ("qwen-agent", "python3 -m pip install qwen-agent"),
    ] {
        let output = machine.launch(&[agent, "--model", "smollm2:135m"], false);
        let error = error(&output);
        assert_eq!(output.status.code(), Some(127), "{agent}: {error}");
        assert!(error.contains(install), "{agent}: {error}");
        assert!(!error.contains("Starting a server"), "{agent}: {error}");
    }
}

#[test]
fn signals_reach_the_agent_and_end_the_server() {
    let machine = Machine::new().with_model().with_program("aider", WAITING_AGENT);
    for (signal, number) in [("-TERM", "15"), ("-HUP", "1")] {
        let launched = machine.start(&[]);
        let agent = launched.agent.clone();
        launched.send(signal);
        assert_eq!(launched.end(), Some(130), "{signal}");
        assert_eq!((machine.signal().as_str(), runs(&agent)), (number, false));
    }
    // A second signal kills an agent that does not end.
    let launched = machine.start(&["--stay"]);
    let agent = launched.agent.clone();
    launched.send("-TERM");
    machine.signal();
    assert!(runs(&agent));
    launched.send("-TERM");
    assert_eq!(launched.end(), Some(130));
    assert!(!runs(&agent));
}

#[test]
fn the_server_does_not_outlive_a_killed_launch() {
    let machine = Machine::new().with_model().with_program("aider", WAITING_AGENT);
    let launched = machine.start(&[]);
    let agent = launched.agent.clone();
    launched.send("-KILL");
    assert_eq!(launched.end(), None);
    assert!(Command::new("kill").arg(&agent).status().unwrap().success(), "nobody ended the agent");
}
