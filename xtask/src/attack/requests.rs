//! Hostile clients against a live server with a tiny model.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use super::{
    HANG, MEMORY, Outcome, Subject,
    child::peak_memory,
    files,
    mutation::{Random, mutate},
};
use crate::{
    fuzz::{Target, seeds},
    server::Server,
};

/// Number of malformed requests.
const REQUESTS: usize = 1000;

/// Size of a hostile body in bytes.
const BODY: usize = 32_000_000;

/// Number of plain requests that are timed.
const PLAIN: usize = 20;

/// Maximum additional time of a plain request beside costly bodies.
const SLOWED: Duration = Duration::from_millis(100);

/// Number of silent connections, and the server's limit on open files.
const SILENT: usize = 260;
const OPEN_FILES: &str = "ulimit -n 200";

/// Number of requests that wait concurrently.
const WAITING: usize = 600;

const ROUTES: [(&str, &str); 12] = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/rerank"),
    ("POST", "/v1/answer"),
    ("POST", "/v1/fill"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/d%2F..%2F..%2Fetc%2Fshadow"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("DELETE", "/v1/models/local%2Ftiny"),
    ("GET", "/../../etc/passwd"),
];

/// Ways to send a request.
const FORMS: usize = 6;

/// A server with the tiny model.
struct Live {
    server: Server,
    _home: tempfile::TempDir,
    /// Memory before the attack, in bytes.
    base: u64,
}

impl Live {
    /// Starts a server under resource limits of the shell.
    fn start(subject: &Subject<'_>, limits: &str) -> anyhow::Result<Self> {
        let home = tempfile::tempdir()?;
        files::package(subject, home.path())?;
        let serve = ["serve", "--port", "0", "-m", "local/tiny", "--providers", "cpu", "--slots", "1"];
        let narthex = subject.narthex(home.path(), &serve);
        let mut shell = subject.session.command("bash");
        shell.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]).arg(narthex.get_program());
        shell.args(narthex.get_args());
        for (name, value) in narthex.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let server = Server::listen(shell, &home.path().join("log"))?;
        let base = peak_memory(server.id()).unwrap_or(0);
        Ok(Self { server, _home: home, base })
    }

    /// Sends bytes and reads the whole answer, for at most [`HANG`].
    fn send(&self, bytes: &[u8]) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(&self.server.address).context("no connection")?;
        stream.set_read_timeout(Some(HANG))?;
        stream.set_write_timeout(Some(HANG))?;
        // A server may answer and close before it has read everything.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
            {
                bail!("no end of the answer within {HANG:?}")
            }
            _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
        }
    }

    /// Requests the server's health. Returns the time of the answer.
    fn health(&self) -> anyhow::Result<Duration> {
        let start = Instant::now();
        let answer = self.send(&self.request("GET", "/health", b""))?;
        if !answer.starts_with("HTTP/1.1 200") {
            bail!("/health answers {:?}", answer.lines().next());
        }
        Ok(start.elapsed())
    }

    fn request(&self, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            self.server.address,
            body.len()
        );
        [head.as_bytes(), body].concat()
    }

    /// Returns the outcome of an attack. A server that no longer answers is a finding.
    fn outcome(mut self, what: String, cases: Cases) -> anyhow::Result<Outcome> {
        let Cases { cases, slowest, note, mut findings } = cases;
        if let Err(error) = self.health() {
            findings.push(format!("afterwards, {error:#}"));
        }
        if let Some(status) = self.server.status()? {
            findings.push(format!("the server ended with {status}"));
        }
        let peak = peak_memory(self.server.id()).unwrap_or(0);
        if peak > self.base + MEMORY {
            findings.push(format!("the server took {} MB beyond its model", (peak - self.base) / 1_000_000));
        }
        let log = fs::read_to_string(&self.server.log).unwrap_or_default();
        findings.extend(log.lines().filter(|line| line.contains("panicked")).map(str::to_owned));
        Ok(Outcome { what, cases, slowest, peak, note, findings })
    }
}

/// The cases of an attack.
#[derive(Default)]
struct Cases {
    cases: usize,
    slowest: Duration,
    note: String,
    findings: Vec<String>,
}

/// Sends malformed requests to every route.
pub(super) fn requests(subject: &Subject<'_>) -> anyhow::Result<Vec<Outcome>> {
    let live = Live::start(subject, ":")?;
    let bodies = seeds::of(Target::Request)?;
    let mut random = Random::new(subject.seed);
    let mut cases = Cases { cases: REQUESTS, ..Cases::default() };
    let mut statuses = std::collections::BTreeMap::<String, usize>::new();
    for case in 0..REQUESTS {
        let (method, path) = ROUTES[case % ROUTES.len()];
        let body = &bodies[random.below(bodies.len())].bytes;
        let named = String::from_utf8_lossy(body).replace("\"m\"", "\"local/tiny\"").into_bytes();
        let body = if random.below(3) == 0 { named } else { mutate(&named, &mut random) };
        let bytes = formed(live.request(method, path, &body), case / ROUTES.len() % FORMS, &mut random);
        let start = Instant::now();
        match bytes {
            Form::Whole(bytes) => match live.send(&bytes) {
                Ok(answer) => {
                    let status = answer.get(9..12).unwrap_or("none").to_owned();
                    *statuses.entry(status).or_default() += 1;
                }
                Err(error) => cases.findings.push(format!("request {case} to {path}: {error:#}")),
            },
            // The client disconnects at once.
            Form::Half(bytes) => drop(TcpStream::connect(&live.server.address)?.write_all(&bytes)),
        }
        cases.slowest = cases.slowest.max(start.elapsed());
    }
    let counts: Vec<String> = statuses.iter().map(|(status, count)| format!("{status}: {count}")).collect();
    cases.note = counts.join(", ");
    Ok(vec![live.outcome("requests over every route".to_owned(), cases)?])
}

/// Bytes to send.
enum Form {
    Whole(Vec<u8>),
    Half(Vec<u8>),
}

/// Returns a request in one of its forms: whole, truncated, twice in one piece, or with unusual headers.
fn formed(request: Vec<u8>, form: usize, random: &mut Random) -> Form {
    let replace = |from: &str, to: &str| {
        let end = request.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(request.len());
        let head = String::from_utf8_lossy(&request[..end]).replace(from, to);
        [head.as_bytes(), &request[end..]].concat()
    };
    match form {
        0 => Form::Whole(request),
        1 => Form::Half(request[..random.below(request.len())].to_vec()),
        2 => Form::Whole([replace("Connection: close", "Connection: keep-alive"), request.clone()].concat()),
        3 => Form::Whole(replace("Content-Type: application/json", "Content-Type: \u{7f}\u{ff}; x=\"")),
        4 => Form::Whole(replace(
            "Connection: close",
            &format!("Connection: close\r\nX: {}", "a".repeat(60_000)),
        )),
        _ => Form::Whole(replace("Content-Type:", "Transfer-Encoding: chunked\r\nContent-Type:")),
    }
}

/// Returns costly bodies, each with its path.
fn costly() -> Vec<(&'static str, Vec<u8>)> {
    let filled = |size: usize, head: &str, piece: &str, tail: &str| {
        let count = (size - head.len() - tail.len()) / piece.len();
        [head, &piece.repeat(count), tail].concat().into_bytes()
    };
    let fill = |head: &str, piece: &str, tail: &str| filled(BODY, head, piece, tail);
    let nested = format!("{}1{},", r#"{"a":"#.repeat(100), "}".repeat(100));
    vec![
        ("/v1/completions", fill(r#"{"model":"local/tiny","prompt":[[0]"#, ",[0]", "]}")),
        ("/v1/completions", fill(r#"{"model":"local/tiny","prompt":[0"#, ",0", "]}")),
        ("/v1/embeddings", fill(r#"{"model":"local/tiny","input":["a""#, r#","a""#, "]}")),
        (
            "/v1/chat/completions",
            fill(r#"{"model":"local/tiny","messages":[{"role":"user","content":""#, "hé ", r#""}]}"#),
        ),
        (
            "/v1/chat/completions",
            fill(
                r#"{"model":"local/tiny","messages":[{"role":"user","content":"a"}"#,
                r#",{"role":"user","content":"a"}"#,
                "]}",
            ),
        ),
        ("/v1/completions", fill(r#"{"model":"local/tiny","prompt":"a","stop":["b""#, r#","b""#, "]}")),
        ("/v1/completions", fill(r#"{"model":"local/tiny","prompt":"a","x":"#, "[", "")),
        ("/v1/rerank", fill(r#"{"model":"local/tiny","query":"a","documents":["a""#, r#","a""#, "]}")),
        ("/v1/responses", filled(6_300_000, r#"{"model":"local/tiny","input":[{}"#, ",{}", "]}")),
        (
            "/v1/chat/completions",
            filled(
                7_500_000,
                r#"{"model":"local/tiny","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"["#,
                r#"{\"a\":1},"#,
                r#"1]"}}]}]}"#,
            ),
        ),
        (
            "/v1/completions",
            filled(2_000_000, r#"{"model":"local/tiny","prompt":"a","n":72,"stop":""#, "b", r#""}"#),
        ),
        ("/tokenize", fill(r#"{"model":"local/tiny","content":""#, " ", r#""}"#)),
        (
            "/v1/chat/completions",
            filled(
                385_000,
                r#"{"model":"local/tiny","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"x":["#,
                &nested,
                "1]}}}]}",
            ),
        ),
    ]
}

/// Sends costly bodies concurrently, and plain requests beside them. A plain request that takes [`SLOWED`] longer than
/// alone is a finding.
pub(super) fn bodies(subject: &Subject<'_>) -> anyhow::Result<Vec<Outcome>> {
    let live = Live::start(subject, ":")?;
    let bodies = costly();
    let plain =
        live.request("POST", "/v1/completions", br#"{"model":"local/tiny","prompt":"a","max_tokens":1}"#);
    let timed = |bytes: &[u8]| {
        let start = Instant::now();
        live.send(bytes).map(|_| start.elapsed())
    };
    timed(&plain)?;
    let alone = (0..PLAIN).map(|_| timed(&plain)).collect::<anyhow::Result<Vec<_>>>()?;
    let alone = alone.into_iter().max().unwrap_or_default();
    let mut cases = Cases { cases: bodies.len(), ..Cases::default() };
    let (ends, beside) = thread::scope(|scope| {
        let sent: Vec<_> = bodies
            .iter()
            .map(|(path, body)| (path, scope.spawn(|| timed(&live.request("POST", path, body)))))
            .collect();
        let mut beside = Vec::new();
        while beside.len() < PLAIN || sent.iter().any(|(_, end)| !end.is_finished()) {
            beside.push(timed(&plain));
        }
        let ends: Vec<_> = sent.into_iter().map(|(path, end)| (*path, end.join())).collect();
        (ends, beside)
    });
    for (path, end) in ends {
        match end {
            Ok(Ok(took)) => cases.slowest = cases.slowest.max(took),
            Ok(Err(error)) => cases.findings.push(format!("{path}: {error:#}")),
            Err(_) => bail!("a client panicked"),
        }
    }
    match beside.into_iter().collect::<anyhow::Result<Vec<_>>>() {
        Ok(beside) => {
            let beside = beside.into_iter().max().unwrap_or_default();
            cases.note = format!("a plain request takes {alone:.2?} alone, at most {beside:.2?} beside them");
            cases.findings.extend(slowed(alone, beside));
        }
        Err(error) => cases.findings.push(format!("a plain request beside them: {error:#}")),
    }
    Ok(vec![live.outcome("costly bodies of up to 32 MB at once".to_owned(), cases)?])
}

/// Returns the finding about a plain request that takes longer beside costly bodies than alone.
fn slowed(alone: Duration, beside: Duration) -> Option<String> {
    let more = beside.saturating_sub(alone);
    (more > SLOWED).then(|| format!("a plain request beside them takes {more:.2?} longer than alone"))
}

/// Opens silent connections under a low limit on open files.
pub(super) fn sockets(subject: &Subject<'_>) -> anyhow::Result<Vec<Outcome>> {
    let live = Live::start(subject, OPEN_FILES)?;
    let silent: Vec<_> = (0..SILENT).map_while(|_| TcpStream::connect(&live.server.address).ok()).collect();
    let mut cases = Cases { cases: silent.len(), ..Cases::default() };
    match live.health() {
        Ok(took) => cases.slowest = took,
        Err(error) => cases.findings.push(format!("while they stay, {error:#}")),
    }
    drop(silent);
    Ok(vec![live.outcome(format!("silent connections under `{OPEN_FILES}`"), cases)?])
}

/// Keeps requests waiting while the server's health is queried.
pub(super) fn waiting(subject: &Subject<'_>) -> anyhow::Result<Vec<Outcome>> {
    let live = Live::start(subject, "ulimit -n 4096")?;
    let body =
        br#"{"model":"local/tiny","prompt":"a","max_tokens":200,"logit_bias":{"0":-100,"1":-100,"2":-100}}"#;
    let request = live.request("POST", "/v1/completions", body);
    let mut cases = Cases { cases: WAITING, ..Cases::default() };
    let clients: Vec<_> = (0..WAITING)
        .filter_map(|_| {
            let mut stream = TcpStream::connect(&live.server.address).ok()?;
            stream.write_all(&request).ok()?;
            Some(stream)
        })
        .collect();
    for _ in 0..50 {
        match live.health() {
            Ok(took) => cases.slowest = cases.slowest.max(took),
            Err(error) => cases.findings.push(format!("while they wait, {error:#}")),
        }
    }
    cases.note = format!("{} connected; the time is that of /health", clients.len());
    drop(clients);
    Ok(vec![live.outcome("waiting requests".to_owned(), cases)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_plain_request_is_a_finding() {
        let alone = Duration::from_millis(10);
        assert_eq!(slowed(alone, alone + SLOWED), None);
        assert!(slowed(alone, alone + SLOWED * 2).is_some_and(|finding| finding.contains("200.00ms")));
    }

    #[test]
    fn costly_bodies_are_json_or_too_deep() {
        for (path, body) in costly() {
            let read = serde_json::from_slice::<serde::de::IgnoredAny>(&body);
            assert!(read.is_ok() || body.ends_with(b"["), "{path}: {read:?}");
        }
    }

    #[test]
    fn requests_have_forms() {
        let request = b"POST / HTTP/1.1\r\nContent-Type: application/json\r\nConnection: close\r\n\r\nbody";
        let mut random = Random::new(1);
        let mut form = |form| match formed(request.to_vec(), form, &mut random) {
            Form::Whole(bytes) => (true, String::from_utf8_lossy(&bytes).into_owned()),
            Form::Half(bytes) => (false, String::from_utf8_lossy(&bytes).into_owned()),
        };
        assert_eq!(form(0), (true, String::from_utf8_lossy(request).into_owned()));
        assert!(form(1).1.len() < request.len());
        assert_eq!(form(2).1.matches("POST").count(), 2);
        assert!(form(5).1.contains("chunked") && form(5).1.ends_with("\r\n\r\nbody"));
    }
}
