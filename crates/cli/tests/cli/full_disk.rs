//! `narthex serve` on a disk that takes no more. With a prefix cache, it answers, warns once, leaves no part of a file behind,
//! and still reads what was stored before. Its settings stay as they were.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command},
    thread::JoinHandle,
    time::Duration,
};

use narthex_testkit::checkpoint::{Meta, tiny_llama};
use serde_json::{Value, json};

use crate::support::{ListeningServer, library, serve, with_runtime};

/// Command that becomes the server. Files cannot grow beyond a few kibibytes, and a write beyond fails like one to a full
/// disk instead of ending the process.
const LIMITED: &str = "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"";

const UNLIMITED: &str = "exec \"$0\" \"$@\"";

/// A server with a model and a prefix cache.
struct Server {
    process: Child,
    address: String,
    /// Collects the log.
    log: JoinHandle<String>,
}

impl Server {
    fn start(home: &Path, script: &str) -> Self {
        let cache = home.join("prefixes");
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                script,
                env!("CARGO_BIN_EXE_narthex"),
                "serve",
                "--port",
                "0",
                "--model",
                "local/tiny",
            ])
            .arg("--prefix-cache-dir")
            .arg(cache)
            .env("NARTHEX_HOME", home.join("store"))
            .env("ORT_DYLIB_PATH", library());
        let ListeningServer { process, address, log } = serve(&mut command);
        let log = std::thread::spawn(move || log.map(|line| line + "\n").collect());
        Self { process, address, log }
    }

    /// Returns the greedy continuation of a long text, with its number of cached tokens.
    fn ask(&self) -> (Value, u64) {
        let prompt = "the cat sat on the mat and slept ".repeat(12);
        let body =
            json!({"model": "local/tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0}).to_string();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let head = format!(
            "POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        (answer["choices"][0]["text"].clone(), cached.unwrap_or_else(|| panic!("{answer}")))
    }

    /// Ends the server, which writes the last blocks. Returns its log.
    fn end(mut self) -> String {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        assert!(self.process.wait().unwrap().success());
        self.log.join().unwrap()
    }
}

/// Number of files in the cache, complete ones and others.
fn files(home: &Path) -> usize {
    let folders = fs::read_dir(home.join("prefixes")).into_iter().flatten().flatten();
    folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten()).count()
}

#[test]
fn a_server_answers_while_its_disk_is_full() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("tiny.gguf");
    let mut gguf = tiny_llama(7);
    gguf.set("llama.context_length", Meta::U32(2048));
    fs::write(&file, gguf.to_bytes()).unwrap();
    let compile = ["compile", "--scheme", "f32", file.to_str().unwrap()];
    let compiled = with_runtime(&home.path().join("store"), &compile).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));

    let full = Server::start(home.path(), LIMITED);
    let (text, cached) = full.ask();
    assert_eq!(cached, 0);
    assert!(full.ask().1 > 0, "prefixes stay in memory");
    let log = full.end();
    assert_eq!(log.matches("no more prefixes of local/tiny are stored").count(), 1, "{log}");
    assert_eq!(files(home.path()), 0, "{log}");

    let free = Server::start(home.path(), UNLIMITED);
    assert_eq!(free.ask(), (text.clone(), 0));
    free.end();
    let stored = files(home.path());
    assert!(stored > 0);
    let full = Server::start(home.path(), LIMITED);
    let (again, cached) = full.ask();
    assert!(again == text && cached >= 64, "{cached}");
    full.end();
    assert_eq!(files(home.path()), stored);
}

#[test]
fn the_settings_stay_as_they_were_while_the_disk_is_full() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("narthex.toml");
    // The file is already larger than any file that the server can write.
    let text = format!("# {}\n[aliases]\nmine = \"smollm2:135m\"\n", "a".repeat(16 << 10));
    fs::write(&file, &text).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", LIMITED, env!("CARGO_BIN_EXE_narthex"), "serve", "--port", "0"]);
    let ListeningServer { process, address, log } = serve(command.env("NARTHEX_HOME", home.path()));
    let log = std::thread::spawn(move || log.collect());
    let server = Server { process, address, log };
    let send = |request: String| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };

    let body = json!({"source": "smollm2:135m", "destination": "other"}).to_string();
    let head = "POST /api/copy HTTP/1.0\r\nHost: localhost\r\nContent-Length:";
    let refused = send(format!("{head} {}\r\n\r\n{body}", body.len()));
    assert!(refused.starts_with("HTTP/1.0 409") && refused.contains("narthex.toml"), "{refused}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    let names: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().starts_with("narthex.toml.")), "{names:?}");
    let model = |name: &str| send(format!("GET /v1/models/{name} HTTP/1.0\r\nHost: localhost\r\n\r\n"));
    assert!(model("mine").starts_with("HTTP/1.0 200") && model("other").starts_with("HTTP/1.0 404"));
    server.end();
}
