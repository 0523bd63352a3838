//! `narthex serve` as a process: its log, with few file descriptors, with hostile bodies, and with a download.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::Duration,
};

use narthex_testkit::{
    checkpoint::{tiny_bert_safetensors, tiny_llama},
    hub::{HubServer, Repo},
};
use serde_json::{Value, json};

use crate::support::{ListeningServer, offline, serve, with_runtime};

/// Server without models. Dropping it ends the server.
struct Server {
    process: Child,
    address: String,
    _home: tempfile::TempDir,
}

impl Server {
    /// Starts a server with a maximum number of file descriptors.
    fn start(descriptors: usize) -> Self {
        Self::with_log(descriptors, "", drop)
    }

    /// Starts a server like [`Self::start`] with further options, and passes the lines of its log to `read`.
    fn with_log(descriptors: usize, options: &str, read: impl Fn(String) + Send + 'static) -> Self {
        let serve = format!("ulimit -n {descriptors}; exec \"$0\" serve --port 0 {options}");
        // The tests may run under `nohup`, and a program inherits that a signal is ignored.
        let mut command = Command::new(if cfg!(target_os = "linux") { "env" } else { "sh" });
        if cfg!(target_os = "linux") {
            command.args(["--default-signal=HUP", "sh"]);
        }
        command.args(["-c", &serve, env!("CARGO_BIN_EXE_narthex")]);
        Self::listen(&mut command, read)
    }

    /// Starts a server that downloads any model from this hub.
    fn with_hub(endpoint: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
        command.args(["serve", "--port", "0", "--auto-pull", "always"]);
        command.env("HF_ENDPOINT", endpoint).env_remove("HF_HUB_OFFLINE");
        Self::listen(&mut command, drop)
    }

    /// Starts a command that becomes `narthex serve`, with an empty store, and waits until it listens.
    fn listen(command: &mut Command, read: impl Fn(String) + Send + 'static) -> Self {
        let home = tempfile::tempdir().unwrap();
        command
            .env("NARTHEX_HOME", home.path())
            .env("HF_HUB_CACHE", home.path().join("hub"))
            .env("NARTHEX_PYTHON", "/nonexistent/python")
            .env_remove("RUST_LOG");
        let ListeningServer { process, address, log } = serve(command);
        // Reads the rest of the output, so that the server never blocks on a full pipe.
        thread::spawn(move || log.for_each(read));
        Self { process, address, _home: home }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream
    }

    /// Sends a request. Returns the status of the answer.
    fn send(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        String::from_utf8(answer[9..].to_vec()).unwrap()
    }

    fn health(&self) -> String {
        self.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    }

    /// Returns the peak resident memory so far, in MiB.
    #[cfg(target_os = "linux")]
    fn peak(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() >> 10
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Compiles the model `tiny` into a store in a folder. Returns the store.
fn store_with_tiny(folder: &Path) -> PathBuf {
    let (store, checkpoint) = (folder.join("store"), folder.join("tiny.gguf"));
    fs::write(&checkpoint, tiny_llama(7).to_bytes()).unwrap();
    let file = checkpoint.to_str().unwrap();
    let compile = ["compile", file, "--name", "tiny", "--scheme", "f32", "--calibrate", "none"];
    assert!(with_runtime(&store, &compile).status().unwrap().success());
    store
}

#[test]
fn a_chat_uses_the_model_of_a_running_server() {
    let home = tempfile::tempdir().unwrap();
    let store = store_with_tiny(home.path());
    let mut command = with_runtime(&store, &["serve", "--port", "0", "--model", "tiny"]);
    let ListeningServer { process, address, log } = serve(&mut command);
    thread::spawn(move || log.for_each(drop));
    let server = Server { process, address, _home: home };
    // Without ONNX Runtime, only the server can answer.
    let run = |args: &[&str]| {
        let output = offline(&store, args).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), out, err)
    };
    let chat = ["chat", "-m", "tiny", "--temperature", "0", "--max-tokens", "4", "--json", "the cat"];
    let (code, out, err) = run(&chat);
    assert_eq!(code, Some(0), "{err}");
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&answer["model"], &answer["finish_reason"]),
        (&json!("tiny@f32"), &json!("length")),
        "{answer}"
    );
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    assert_eq!(run(&chat).1.lines().count(), out.lines().count());
    let (code, _, err) = run(&["stop", "tiny"]);
    assert!(code == Some(0) && err.contains(&format!("unloaded tiny@f32 from {}", server.address)), "{err}");
    assert!(run(&["stop"]).2.contains("No running server has such a model"));
    assert_ne!(run(&chat).0, Some(0), "nothing has the model in memory");
}

#[test]
fn a_running_server_reads_its_settings_again_at_sighup() {
    let (sender, lines) = std::sync::mpsc::channel();
    let server = Server::with_log(200, "--slots 2", move |line| drop(sender.send(line)));
    let file = server._home.path().join("narthex.toml");
    let reload = |text: &str| {
        fs::write(&file, text).unwrap();
        let id = server.process.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
    };
    let next = || lines.recv_timeout(Duration::from_secs(60)).unwrap();
    let model = |name: &str| {
        server.send(
            format!("GET /v1/models/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                .as_bytes(),
        )
    };
    assert_eq!(model("short"), "404");

    // The option of the command line comes before `slots`, so nothing changes about it.
    reload("[aliases]\nshort = \"smollm2:135m\"\n[limits]\nslots = 3\nmax_queue = 7\nmax_models = 2\n");
    assert_eq!(next(), "these settings apply now: aliases");
    assert_eq!(next(), "these settings apply to models that are loaded from now on: limits.max_queue");
    assert_eq!(next(), "these settings need a restart of the server: limits.max_models");
    assert_eq!(model("short"), "200");

    // Wrong settings change nothing.
    for (text, expect) in
        [("[limits]\nmax_queue = -1\n", "limits.max_queue"), ("[aliases]\na = \"none\"\n", "none")]
    {
        reload(text);
        let warning = next();
        assert!(warning.starts_with("warning: the settings stay as they were: "), "{warning}");
        assert!(warning.contains(expect) || next().contains(expect), "{warning}");
    }
    assert_eq!((model("short"), server.health()), ("200".to_owned(), "200".to_owned()));
}

#[test]
fn a_model_that_settings_preload_is_loaded_at_a_reload() {
    let home = tempfile::tempdir().unwrap();
    let store = store_with_tiny(home.path());
    let mut command = with_runtime(&store, &["--offline", "serve", "--port", "0"]);
    let ListeningServer { process, address, log } = serve(&mut command);
    let server = Server { process, address, _home: home };

    fs::write(
        store.join("narthex.toml"),
        "[models.\"smollm2:135m\"]\npreload = true\n[models.tiny]\npreload = true\nscheme = \"f32\"\n",
    )
    .unwrap();
    let body = r#"{"reload":true}"#;
    let head = "POST /v1/settings HTTP/1.1\r\nHost: localhost\r\nConnection: close";
    let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    assert_eq!(server.send(request.as_bytes()), "200");
    let notes: Vec<String> = log.take(2).collect();
    assert!(notes[0].starts_with("warning: smollm2:135m is not in memory: "), "{notes:?}");
    assert_eq!(notes[1], "tiny: runs on the CPU");
}

#[test]
fn requests_change_the_settings_file() {
    let server = Server::with_log(200, "", drop);
    let file = server._home.path().join("narthex.toml");
    fs::write(&file, "# mine\n[limits]\nslots = 3\n").unwrap();
    let send = |method: &str, path: &str, body: &Value| {
        let body = body.to_string();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        server.send(
            format!("{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
                .as_bytes(),
        )
    };
    let change = |fields: Value| {
        let mut body = json!({"model": "smollm2:135m"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        send("POST", "/v1/settings", &body)
    };
    assert_eq!(change(json!({"pin": true, "default": true})), "200");
    let copy = json!({"source": "smollm2:135m", "destination": "gpt-4o"});
    assert_eq!(send("POST", "/api/copy", &copy), "200");
    let custom = json!({"model": "pirate", "from": "smollm2:135m", "system": "Arr.", "parameters": {"repeat_penalty": 1.5, "stop": "a"}});
    assert_eq!(send("POST", "/api/create", &custom), "200");
    let text = fs::read_to_string(&file).unwrap();
    for part in [
        "[models.pirate]\nfrom = \"smollm2:135m\"\nsystem = \"Arr.\"\nrepeat_penalty = 1.5\nstop = [\"a\"]\n",
        "# mine\n[limits]\nslots = 3\n",
        "[models.\"smollm2:135m\"]\npin = true",
        "default_model = \"smollm2:135m\"",
        "gpt-4o = \"smollm2:135m\"",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert_eq!(
        server.send(b"GET /v1/models/gpt-4o HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
        "200"
    );
    assert_eq!(send("DELETE", "/api/delete", &json!({"model": "gpt-4o"})), "200");
    assert_eq!(send("DELETE", "/api/delete", &json!({"model": "pirate"})), "200");
    let text = fs::read_to_string(&file).unwrap();
    assert!(!text.contains("gpt-4o") && !text.contains("pirate"), "{text}");

    fs::write(&file, "[limits]\nslots = 5\n").unwrap();
    assert_eq!(send("POST", "/v1/settings", &json!({"reload": true})), "200");

    // A file with faults stays as it is.
    fs::write(&file, "[limits]\nslots = 0\n").unwrap();
    assert_eq!(change(json!({"pin": false})), "409");
    assert_eq!(send("POST", "/v1/settings", &json!({"reload": true})), "409");
    assert_eq!(fs::read_to_string(&file).unwrap(), "[limits]\nslots = 0\n");
}

#[test]
fn the_log_has_a_line_for_each_request_with_v() {
    let (sender, lines) = std::sync::mpsc::channel();
    let server = Server::with_log(200, "-v", move |line| drop(sender.send(line)));
    let request = |head: &str| server.send(format!("{head} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    let next = |expect: &str| {
        let line = lines.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(line.starts_with(expect) && line.contains(" ms (") && !line.contains("secret"), "{line}");
    };
    assert_eq!(request("GET /health?token=secret"), "200");
    next("GET /health 200 in ");
    assert_eq!(request("GET /v1/nothing?key=secret"), "404");
    next("GET /v1/nothing 404 in ");
}

#[test]
fn a_server_under_nohup_outlives_its_terminal() {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" serve --port 0", env!("CARGO_BIN_EXE_narthex")]);
    let mut server = Server::listen(&mut command, drop);
    // A second signal would end the server at once.
    for _ in 0..2 {
        let id = server.process.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(server.process.try_wait().unwrap(), None);
    assert_eq!(server.health(), "200");
}

#[test]
fn a_pull_reports_the_bytes_of_its_download() {
    let folder = tempfile::tempdir().unwrap();
    tiny_bert_safetensors(folder.path(), 7).unwrap();
    let repo = Repo::of_folder(folder.path()).unwrap();
    let weights = repo.files["model.safetensors"].len() as u64;
    let hub = HubServer::start(move |request| repo.answer(request));
    let server = Server::with_hub(&hub.endpoint);
    let body = r#"{"model": "bge-small-en-v1.5"}"#;
    // HTTP/1.0 has no chunked encoding, so the lines are sent unchanged.
    let head =
        format!("POST /api/pull HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut stream = server.connect();
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let objects = answer.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<Value> = objects.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.last().unwrap()["status"], "success", "{answer}");
    let download = lines.iter().filter(|line| line["status"] == "Downloading BAAI/bge-small-en-v1.5");
    let counts: Vec<(u64, u64)> =
        download.map(|line| (line["completed"].as_u64().unwrap(), line["total"].as_u64().unwrap())).collect();
    let total = counts[0].1;
    assert!(total > weights && counts.iter().all(|(_, found)| *found == total), "{answer}");
    assert!(counts.is_sorted() && counts[0].0 == 0 && counts.last().unwrap().0 == total, "{answer}");
    assert!(counts.iter().any(|(completed, _)| (1..total).contains(completed)), "{answer}");
}

#[test]
fn more_silent_sockets_than_descriptors_leave_the_server_at_work() {
    let server = Server::start(200);
    let silent: Vec<TcpStream> = (0..260).map(|_| server.connect()).collect();
    for _ in 0..20 {
        assert_eq!(server.health(), "200");
    }
    drop(silent);
    assert_eq!(server.health(), "200");
}

/// Returns costly bodies, each with its path.
#[cfg(target_os = "linux")]
fn hostile() -> Vec<(&'static str, String)> {
    let call = |arguments: &str| {
        format!(
            r#"{{"model":"m","messages":[{{"role":"assistant","tool_calls":[{{"function":{{"name":"f","arguments":"{arguments}"}}}}]}}]}}"#
        )
    };
    vec![
        ("/v1/completions", format!(r#"{{"model":"m","prompt":[{}[0]]}}"#, "[0],".repeat(7_900_000))),
        ("/v1/embeddings", format!(r#"{{"model":"m","x":[{}0]}}"#, "{},".repeat(10_000_000))),
        (
            "/v1/chat/completions",
            format!(
                r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#,
                "a ".repeat(15_000_000)
            ),
        ),
        ("/v1/responses", format!(r#"{{"model":"m","input":[{}{{}}]}}"#, "{},".repeat(2_100_000))),
        ("/v1/chat/completions", call(&format!("[{}1]", r#"{\"a\":1},"#.repeat(830_000)))),
        ("/v1/messages", format!(r#"{{"model":"m","messages":[{}0]}}"#, "{},".repeat(2_100_000))),
        ("/tokenize", format!(r#"{{"model":"m","content":"{}"}}"#, " ".repeat(31_000_000))),
        (
            "/v1/completions",
            format!(r#"{{"model":"m","prompt":"a","n":72,"stop":"{}"}}"#, "a".repeat(2_000_000)),
        ),
        ("/v1/chat/completions", nested_tools()),
    ]
}

/// Returns a body of 385 KB with 65,000 objects in its tools.
#[cfg(target_os = "linux")]
fn nested_tools() -> String {
    let nested = format!("{}1{},", r#"{"a":"#.repeat(100), "}".repeat(100)).repeat(640);
    format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"a"}}],"tools":[{{"type":"function","function":{{"name":"f","parameters":{{"x":[{nested}1]}}}}}}]}}"#
    )
}

#[cfg(target_os = "linux")]
impl Server {
    /// Sends all bodies at once. None may be accepted, as there is no model.
    fn send_at_once<'a>(&self, bodies: impl Iterator<Item = &'a (&'static str, String)>) {
        thread::scope(|scope| {
            for (path, body) in bodies {
                let head = format!(
                    "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                scope.spawn(move || {
                    let status = self.send(&[head.as_bytes(), body.as_bytes()].concat());
                    assert!(["400", "404", "413", "429"].contains(&status.as_str()), "{path}: {status}");
                });
            }
        });
    }
}

#[cfg(target_os = "linux")]
#[test]
fn hostile_bodies_at_once_take_little_memory() {
    let server = Server::start(1024);
    assert_eq!(server.health(), "200");
    let before = server.peak();
    let bodies = hostile();
    server.send_at_once(bodies.iter().cycle().take(12));
    let grown = server.peak() - before;
    assert!(grown < 500, "{grown} MiB");
}

#[cfg(target_os = "linux")]
#[test]
fn small_bodies_with_many_values_take_little_memory() {
    let server = Server::start(1024);
    assert_eq!(server.health(), "200");
    let before = server.peak();
    let body = ("/v1/chat/completions", nested_tools());
    server.send_at_once(std::iter::repeat_n(&body, 100));
    let grown = server.peak() - before;
    // Without a budget for values, these bodies took 900 MiB in a release build.
    assert!(grown < 600, "{grown} MiB");
}
