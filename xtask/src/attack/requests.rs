//! Hostile clients against a live server with a tiny model: costly bodies, silent connections and waiting requests.

use std::{
    io::Write,
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use anyhow::bail;
use narthex_testkit::hub::{HubServer, Reply};

use super::{
    Outcome, Subject,
    live::{Cases, Live},
};

/// Size of a hostile body in bytes.
const BODY: usize = 32_000_000;

/// Number of silent connections, and the server's limit on open files.
const SILENT: usize = 260;
const OPEN_FILES: &str = "ulimit -n 200";

/// Number of requests that wait concurrently.
const WAITING: usize = 600;

/// Number of queries of the health and of the metrics while requests wait.
const QUERIES: usize = 50;

/// Maximum time of an answer to such a query.
const PROMPT: Duration = Duration::from_millis(100);

/// Time for which a hub does not answer.
const STALL: Duration = Duration::from_secs(600);

/// Sends eight costly bodies concurrently.
pub(super) fn bodies(subject: &Subject<'_>) -> anyhow::Result<Vec<Outcome>> {
    let live = Live::start(subject, ":")?;
    let fill = |head: &str, piece: &str, tail: &str| {
        let count = (BODY - head.len() - tail.len()) / piece.len();
        [head, &piece.repeat(count), tail].concat().into_bytes()
    };
    let bodies = [
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
    ];
    let plain =
        live.request("POST", "/v1/completions", br#"{"model":"local/tiny","prompt":"a","max_tokens":1}"#);
    let timed = |bytes: &[u8]| {
        let start = Instant::now();
        live.send(bytes).map(|_| start.elapsed())
    };
    let alone = timed(&plain)?;
    let mut cases = Cases { cases: bodies.len(), ..Cases::default() };
    let (ends, beside) = thread::scope(|scope| {
        let sent: Vec<_> = bodies
            .iter()
            .map(|(path, body)| (path, scope.spawn(|| timed(&live.request("POST", path, body)))))
            .collect();
        let beside = (0..20).map(|_| timed(&plain)).max_by_key(|time| time.as_ref().ok().copied());
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
    cases.note = match beside {
        Some(Ok(beside)) => {
            format!("a plain request takes {alone:.2?} alone, at most {beside:.2?} beside them")
        }
        _ => {
            cases.findings.push("a plain request beside them has no answer".to_owned());
            String::new()
        }
    };
    Ok(vec![live.outcome("bodies of 32 MB at once".to_owned(), cases)?])
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

/// Keeps requests waiting for a load while the server's health and metrics are queried.
pub(super) fn waiting(subject: &Subject<'_>) -> anyhow::Result<Vec<Outcome>> {
    // The model loads for the whole attack, because this hub does not answer.
    let hub = HubServer::start(|_| {
        thread::sleep(STALL);
        Reply::status(404)
    });
    let live = Live::serve(subject, "ulimit -n 4096", &["--auto-pull", "always"], Some(&hub.endpoint))?;
    let body = br#"{"model":"hf:attack/tiny","prompt":"a","max_tokens":1}"#;
    let request = live.request("POST", "/v1/completions", body);
    let mut cases = Cases { cases: WAITING, ..Cases::default() };
    let clients: Vec<_> = (0..WAITING)
        .filter_map(|_| {
            let mut stream = TcpStream::connect(&live.server.address).ok()?;
            stream.write_all(&request).ok()?;
            Some(stream)
        })
        .collect();
    let mut is_loading = false;
    for _ in 0..QUERIES {
        for path in ["/health", "/metrics"] {
            match live.get(path) {
                Ok((took, answer)) => {
                    is_loading |= path == "/health" && answer.contains("\"loading\"");
                    cases.slowest = cases.slowest.max(took);
                    if took > PROMPT {
                        cases.findings.push(format!("while they wait, {path} takes {took:.2?}"));
                    }
                }
                Err(error) => cases.findings.push(format!("while they wait, {error:#}")),
            }
        }
    }
    if !is_loading {
        cases.findings.push("the model was not loading, so that nothing waited".to_owned());
    }
    cases.note = format!("{} connected; the time is that of /health and /metrics", clients.len());
    drop(clients);
    Ok(vec![live.outcome("requests that wait for a load".to_owned(), cases)?])
}
