//! `narthex serve` as a process: its log, with few file descriptors, and with hostile bodies.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

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
        let home = tempfile::tempdir().unwrap();
        let serve = format!("ulimit -n {descriptors}; exec \"$0\" serve --port 0 {options}");
        let mut process = Command::new("sh")
            .args(["-c", &serve, env!("CARGO_BIN_EXE_narthex")])
            .env("NARTHEX_HOME", home.path())
            .env("NARTHEX_PYTHON", "/nonexistent/python")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("http://")).expect("the server announces its address");
        // Reads the rest of the output, so that the server never blocks on a full pipe.
        thread::spawn(move || lines.for_each(read));
        let address = line.split("http://").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
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
fn more_silent_sockets_than_descriptors_leave_the_server_at_work() {
    let server = Server::start(200);
    let silent: Vec<TcpStream> = (0..260).map(|_| server.connect()).collect();
    for _ in 0..20 {
        assert_eq!(server.health(), "200");
    }
    drop(silent);
    assert_eq!(server.health(), "200");
}

#[cfg(target_os = "linux")]
#[test]
fn hostile_bodies_at_once_take_little_memory() {
    let server = Server::start(1024);
    assert_eq!(server.health(), "200");
    let before = server.peak();
    let lists = format!(r#"{{"model":"m","prompt":[{}[0]]}}"#, "[0],".repeat(7_900_000));
    let values = format!(r#"{{"model":"m","x":[{}0]}}"#, "{},".repeat(10_000_000));
    let text =
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#, "a ".repeat(15_000_000));
    let bodies = [("/v1/completions", lists), ("/v1/embeddings", values), ("/v1/chat/completions", text)];
    thread::scope(|scope| {
        for (path, body) in bodies.iter().cycle().take(8) {
            let head =
                format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
            let server = &server;
            scope.spawn(move || {
                let status = server.send(&[head.as_bytes(), body.as_bytes()].concat());
                assert!(["400", "404", "429"].contains(&status.as_str()), "{status}");
            });
        }
    });
    let grown = server.peak() - before;
    assert!(grown < 400, "{grown} MiB");
}
