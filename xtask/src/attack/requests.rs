//! Hostile clients against a live server with a tiny model: costly bodies, silent connections and waiting requests.

use std::{
    io::Write,
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use narthex_testkit::hub::{HubServer, Reply};
use xtask_tools::http;

use super::{
    Outcome, Subject,
    live::{Cases, Live},
};

/// Size of a hostile body in bytes.
const BODY: usize = 32_000_000;

/// Number of plain requests that are timed.
const PLAIN: usize = 20;

/// Maximum additional time of a plain request during costly ones.
const SLOWED: Duration = Duration::from_millis(100);

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

/// Number of rounds of equal bodies.
const ROUNDS: usize = 4;

/// Time after which a server has returned the memory of its requests.
const RELEASE: Duration = Duration::from_secs(4);

/// Maximum memory in bytes that a server keeps beyond its model.
const KEPT: u64 = 256 << 20;

/// Returns a body of this size, filled with repetitions of `piece`.
fn filled(size: usize, head: &str, piece: &str, tail: &str) -> Vec<u8> {
    let count = (size - head.len() - tail.len()) / piece.len();
    [head, &piece.repeat(count), tail].concat().into_bytes()
}

/// Returns a form with a file that has these bytes.
fn form(file: &str) -> Vec<u8> {
    http::form(&[("model", b"local/tiny"), ("file", file.as_bytes())])
}

/// Returns costly bodies with pictures, each with its path: a huge one, and many.
fn with_pictures() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        (
            "/v1/chat/completions",
            filled(
                BODY,
                r#"{"model":"local/tiny","messages":[{"role":"user","content":[{"type":"image_url","image_url":"data:image/png;base64,"#,
                "AAAA",
                r#""}]}]}"#,
            ),
        ),
        (
            "/v1/chat/completions",
            filled(
                1_500_000,
                r#"{"model":"local/tiny","messages":[{"role":"user","content":[{"type":"text","text":"a"}"#,
                r#",{"type":"image_url","image_url":"data:image/png;base64,AAAA"}"#,
                "]}]}",
            ),
        ),
        (
            "/api/chat",
            filled(
                BODY,
                r#"{"model":"local/tiny","messages":[{"role":"user","images":["AAAA""#,
                r#","AAAA""#,
                "]}]}",
            ),
        ),
    ]
}

/// Returns costly bodies, each with its path.
fn costly() -> Vec<(&'static str, Vec<u8>)> {
    let fill = |head: &str, piece: &str, tail: &str| filled(BODY, head, piece, tail);
    let nested = format!("{}1{},", r#"{"a":"#.repeat(100), "}".repeat(100));
    let mut bodies = with_pictures();
    bodies.extend([
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
        ("/v1/audio/transcriptions", form(&"\r\n--c".repeat(BODY / 5))),
        (
            "/v1/audio/transcriptions",
            form(&"\r\n--b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n".repeat(BODY / 60)),
        ),
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
        (
            "/v1/chat/completions",
            br#"{"model":"local/tiny","messages":[{"role":"user","content":"a"}],"max_tokens":9,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"integer","minimum":-9223372036854775808,"maximum":-9223372036854775808}}}}"#
                .to_vec(),
        ),
        (
            "/v1/chat/completions",
            br##"{"model":"local/tiny","messages":[{"role":"user","content":"a"}],"max_tokens":9,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"$ref":"#/$defs/q","$defs":{"q":{"type":"number","multipleOf":2147483648}}}}}}"##
                .to_vec(),
        ),
        (
            "/v1/completions",
            br#"{"model":"local/tiny","prompt":"a","max_tokens":64,"n":8,"regex":"(a{1000}){1000}"}"#.to_vec(),
        ),
        ("/tokenize", fill(r#"{"model":"local/tiny","content":""#, " ", r#""}"#)),
        ("/tokenize", filled(256 << 10, r#"{"model":"local/tiny","content":""#, "1 ", r#""}"#)),
        (
            "/v1/chat/completions",
            filled(
                385_000,
                r#"{"model":"local/tiny","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"x":["#,
                &nested,
                "1]}}}]}",
            ),
        ),
    ]);
    bodies
}

/// Sends a request and returns the time to the end of its answer.
fn timed(live: &Live, bytes: &[u8]) -> anyhow::Result<Duration> {
    let start = Instant::now();
    live.send(bytes).map(|_| start.elapsed())
}

/// Sends costly bodies concurrently, and plain requests at the same time. A plain request that takes [`SLOWED`] longer than
/// alone is a finding.
pub(super) fn bodies(subject: &Subject<'_>) -> anyhow::Result<Vec<Outcome>> {
    let live = Live::start(subject, ":")?;
    let bodies = costly();
    let plain =
        live.request("POST", "/v1/completions", br#"{"model":"local/tiny","prompt":"a","max_tokens":1}"#);
    let timed = |bytes: &[u8]| timed(&live, bytes);
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
        cases.add(path, end)?;
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

/// Sends groups of equal bodies in several rounds. Memory that the server keeps afterwards is a finding.
pub(super) fn rounds(subject: &Subject<'_>) -> anyhow::Result<Vec<Outcome>> {
    let live = Live::start(subject, ":")?;
    let chat_of = |bytes: usize, piece: &str| {
        let head = r#"{"model":"local/tiny","messages":[{"role":"user","content":""#;
        filled(bytes, head, piece, r#""}]}"#)
    };
    let chat = |piece: &str| chat_of(BODY, piece);
    let digits = filled(256 << 10, r#"{"model":"local/tiny","content":""#, "1 ", r#""}"#);
    let groups = [
        (8, "/v1/chat/completions", chat("hé ")),
        (8, "/v1/chat/completions", chat("x")),
        (8, "/tokenize", digits),
        (64, "/v1/chat/completions", chat_of(64 << 10, "1 ")),
        (128, "/v1/chat/completions", chat_of(16 << 10, "1 ")),
    ];
    let mut cases = Cases::default();
    for (count, path, body) in (0..ROUNDS).flat_map(|_| &groups) {
        let request = live.request("POST", path, body);
        let ends: Vec<_> = thread::scope(|scope| {
            let sent: Vec<_> = (0..*count).map(|_| scope.spawn(|| timed(&live, &request))).collect();
            sent.into_iter().map(|end| end.join()).collect()
        });
        cases.cases += count;
        for end in ends {
            cases.add(path, end)?;
        }
    }
    thread::sleep(RELEASE);
    let kept = live.memory_beyond_model().unwrap_or(0);
    cases.note = format!("{} MB beyond the model are kept afterwards", kept / 1_000_000);
    if kept > KEPT {
        cases.findings.push(format!("the server keeps {} MB", kept / 1_000_000));
    }
    Ok(vec![live.outcome("groups of equal costly bodies, in rounds".to_owned(), cases)?])
}

/// Returns the finding about a plain request that takes longer during costly bodies than alone.
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
    fn costly_bodies_are_whole() {
        for (path, body) in costly() {
            if path.starts_with("/v1/audio/") {
                assert!(
                    body.starts_with(b"--b\r\n") && body.ends_with(b"\r\n--b--\r\n"),
                    "{path}: not a form"
                );
                continue;
            }
            let read = serde_json::from_slice::<serde::de::IgnoredAny>(&body);
            assert!(read.is_ok() || body.ends_with(b"["), "{path}: neither JSON nor too deep: {read:?}");
        }
    }
}
