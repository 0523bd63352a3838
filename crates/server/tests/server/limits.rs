//! Clients that hold resources: slow, silent, half-closed or hostile ones. A model runs only where an answer must take
//! time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    thread,
    time::{Duration, Instant},
};

use flate2::{Compression, write::GzEncoder};
use narthex_gateway::Config;
use narthex_server::{Limits, ServeOptions};
use narthex_spec::Speculation;
use serde_json::{Value, json};

use crate::support::{
    Answer, Head, LONG_CONTEXT, Live, PATIENCE, Stream, Tiny, chat, eventually, local, unending, with,
};

const CHAT: &str = "/v1/chat/completions";

/// Time limit for inactive clients in these tests, far below the standard limits.
const SHORT: Duration = Duration::from_millis(200);

fn live(limits: Limits) -> Live {
    Live::with_options(Tiny::new().config(), ServeOptions { limits, ..local() })
}

/// Reads until a connection ends or is reset.
fn rest(connection: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match connection.read_to_end(&mut bytes) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("it is open: {error}"),
        _ => bytes,
    }
}

#[test]
fn silent_connections_make_room_for_others() {
    let live = live(Limits { connections: 4, ..Limits::standard() });
    let silent: Vec<TcpStream> = (0..20).map(|_| live.begin("")).collect();
    let begun: Vec<TcpStream> = (0..20).map(|_| live.begin("GET /health HTTP/1.1\r\n")).collect();
    for _ in 0..8 {
        assert_eq!(live.get("/health").status, 200);
    }
    drop((silent, begun));
}

#[test]
fn a_request_comes_in_time_or_not_at_all() {
    let head = live(Limits { head: SHORT, ..Limits::standard() });
    for begun in ["", "GET /health HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        rest(&mut head.begin(begun));
    }
    let idle = live(Limits { idle: SHORT, ..Limits::standard() });
    let answer = rest(&mut idle.begin("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"));
    let body = live(Limits { body: SHORT, ..Limits::standard() });
    let begun = format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{");
    let error = Answer::parse(&rest(&mut body.begin(&begun))).error(408);
    assert!(error["message"].as_str().unwrap().contains("too slow"), "{error}");
}

#[test]
fn a_body_is_refused_by_its_length_before_it_is_read() {
    let live = live(Limits::standard());
    let head = "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 33554433\r\n\r\n";
    let mut client = live.begin(&format!("POST {CHAT} {head}"));
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut first = [0; 12];
    client.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 413");
}

#[test]
fn bodies_come_in_chunks_and_compressed() {
    let live = live(Limits::standard());
    let chunked = "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
        1\r\n{\r\n1\r\n}\r\n0\r\n\r\n";
    let error = live.raw(format!("POST {CHAT} {chunked}").as_bytes()).error(400);
    assert_eq!(error["param"], "model");
    let mut zipped = GzEncoder::new(Vec::new(), Compression::fast());
    zipped.write_all(b"{}").unwrap();
    let zipped = zipped.finish().unwrap();
    let send = |encoding: &str| live.request("POST", CHAT, &[("Content-Encoding", encoding)], &zipped);
    assert_eq!(send("gzip").error(400)["param"], "model");
    assert!(send("br").error(415)["message"].as_str().unwrap().contains("\"br\""));
    assert_eq!(send("br").header("accept-encoding"), Some("gzip, zstd"));
    // A frame with one block of two bytes.
    let frame = b"\x28\xb5\x2f\xfd\x20\x02\x11\x00\x00{}";
    let zstd = live.request("POST", CHAT, &[("Content-Encoding", "zstd")], frame);
    assert_eq!(zstd.error(400)["param"], "model");
}

#[test]
fn hostile_bodies_are_refused_early_and_at_little_cost() {
    let live = live(Limits::standard());
    let lists = format!(r#"{{"model": "m", "prompt": [{}[0]]}}"#, "[0],".repeat(1 << 20));
    let error = live.request("POST", "/v1/completions", &[], lists.as_bytes()).error(400);
    assert_eq!(error["param"], "prompt");
    assert!(error["message"].as_str().unwrap().contains("at most"), "{error}");
    let long = "x".repeat(100_000);
    for body in [json!({"model": long}), json!({"model": "m", "messages": [], long.as_str(): 1})] {
        let answer = live.post(CHAT, &body);
        assert!(answer.body.len() < 2500, "{}", answer.body.len());
    }
    assert!(live.get(&format!("/{}", &long[..20_000])).body.len() < 2500);
}

#[test]
fn names_full_of_credentials_delay_nobody() {
    let live = live(Limits::standard());
    let body = chat(&"x://a@b ".repeat(200_000), 1);
    thread::scope(|scope| {
        let hostile = [(), ()].map(|()| scope.spawn(|| live.post(CHAT, &body)));
        assert_eq!(live.get("/health").status, 200);
        for answer in hostile {
            let error = answer.join().unwrap().error(404);
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("x://***@b") && !message.contains("a@b"), "{message}");
            // The quoted name is short, so the end of the message is not cut.
            assert!(message.ends_with("shows every name)"), "{message}");
        }
    });
}

#[test]
fn requests_have_ids() {
    let live = live(Limits::standard());
    let id = |chosen: &[(&str, &str)]| {
        let answer = live.request("GET", "/health", chosen, b"");
        answer.header("x-request-id").unwrap().to_owned()
    };
    assert_eq!(id(&[("X-Request-Id", "a-1")]), "a-1");
    assert_ne!(id(&[]), id(&[]));
    assert!(id(&[("X-Request-Id", &"a".repeat(1000))]).starts_with("req_"));
    // Anthropic's clients read the id from another header, and from the error.
    let answer = live.request("POST", "/v1/messages", &[("X-Request-Id", "a-2")], b"{}");
    assert_eq!(answer.header("request-id"), Some("a-2"));
    assert_eq!(answer.json()["request_id"], "a-2");
    assert_eq!(live.request("GET", "/health", &[], b"").header("request-id"), None);
}

#[test]
fn a_client_that_sends_no_more_gets_its_answer() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(tiny.config());
    let body = chat(&model, 600);
    let expect = live.post(CHAT, &body).json()["choices"].clone();
    for version in ["1.0", "1.1"] {
        for streaming in [false, true] {
            let body = with(body.clone(), json!({"stream": streaming})).to_string();
            let head = format!("POST {CHAT} HTTP/{version}\r\nHost: localhost\r\n");
            let mut client = live.begin(&format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()));
            client.shutdown(Shutdown::Write).unwrap();
            let answer = rest(&mut client);
            let text = String::from_utf8_lossy(&answer);
            assert!(text.starts_with(&format!("HTTP/{version} 200 OK\r\n")), "{text}");
            if streaming {
                assert!(text.contains("data: [DONE]"), "{text}");
            } else {
                assert_eq!(Answer::parse(&answer).json()["choices"], expect);
            }
        }
    }
}

/// Returns an HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACKNOWLEDGE: u8 = 1;

/// Indices of HPACK's static table (RFC 7541) for the method of a request.
const GET: u8 = 0x82;
const POST: u8 = 0x83;

/// Returns the beginning of an HTTP/2 connection with these settings.
fn preface(settings: &[u8]) -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(SETTINGS, 0, 0, settings)].concat()
}

/// Returns the HPACK encoding of a request's head: the method, http and two literal fields.
fn head(method: u8, path: &str) -> Vec<u8> {
    let field = |index: u8, value: &str| [&[index, value.len() as u8], value.as_bytes()].concat();
    [vec![method, 0x86], field(0x04, path), field(0x01, "localhost")].concat()
}

#[test]
fn a_client_of_http_2_that_opens_no_window_is_given_up() {
    // The identifier of INITIAL_WINDOW_SIZE, and 0.
    const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];
    let live = live(Limits { write: Duration::from_secs(1), ..Limits::standard() });
    let mut client = live.begin("");
    let request = frame(HEADERS, END_STREAM | END_HEADERS, 1, &head(GET, "/health"));
    client.write_all(&[preface(&NO_WINDOW), request].concat()).unwrap();
    let start = Instant::now();
    let mut is_answered = false;
    let mut next = [0; 9];
    // The client proves that it is alive until the server ends the connection.
    while client.read_exact(&mut next).is_ok() {
        assert!(start.elapsed() < PATIENCE, "it is open");
        let [high, middle, low, kind, flags, ..] = next;
        let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
        if client.read_exact(&mut payload).is_err() {
            break;
        }
        is_answered |= kind == HEADERS;
        // The connection may end before the reply arrives.
        match kind {
            SETTINGS if flags & ACKNOWLEDGE == 0 => {
                drop(client.write_all(&frame(SETTINGS, ACKNOWLEDGE, 0, &[])))
            }
            PING if flags & ACKNOWLEDGE == 0 => {
                drop(client.write_all(&frame(PING, ACKNOWLEDGE, 0, &payload)))
            }
            _ => {}
        }
    }
    assert!(is_answered && start.elapsed() < PATIENCE);
}

const RST_STREAM: u8 = 3;

/// Kinds of the frames that a client receives, up to the first frame of an answer to `stream`.
fn kinds_until_answered(client: &mut TcpStream, stream: u32) -> Vec<u8> {
    let mut kinds = Vec::new();
    loop {
        let mut next = [0; 9];
        client.read_exact(&mut next).unwrap();
        let [high, middle, low, kind, _, rest @ ..] = next;
        client.read_exact(&mut vec![0; u32::from_be_bytes([0, high, middle, low]) as usize]).unwrap();
        kinds.push(kind);
        if u32::from_be_bytes(rest) == stream && matches!(kind, HEADERS | RST_STREAM) {
            return kinds;
        }
    }
}

#[test]
fn the_heads_of_concurrent_requests_have_a_budget() {
    const STREAMS: u32 = 64;
    let live = live(Limits::standard());
    // A literal field (RFC 7541, section 6.2.2) whose value has 15,000 bytes.
    let field = [&[0, 1, b'a', 0x7f, 0x99, 0x74][..], &[b'x'; 15_000]].concat();
    let large = [head(POST, CHAT), field].concat();
    let mut connections = Vec::new();
    let has_reset = (0..40).any(|_| {
        let mut client = live.begin("");
        let mut bytes = preface(&[]);
        for index in 0..STREAMS - 1 {
            bytes.extend(frame(HEADERS, END_HEADERS, 2 * index + 1, &large));
        }
        let last = 2 * STREAMS - 1;
        bytes.extend(frame(HEADERS, END_STREAM | END_HEADERS, last, &head(GET, "/health")));
        client.write_all(&bytes).unwrap();
        let kinds = kinds_until_answered(&mut client, last);
        connections.push(client);
        kinds.contains(&RST_STREAM)
    });
    assert!(has_reset && connections.len() > 10, "{} connections", connections.len());
    // The first request of a connection always has room.
    assert_eq!(live.get("/health").status, 200);
    assert_eq!(live.get("/v1/models").status, 200);
}

#[test]
fn a_shutdown_ends_half_sent_requests_of_http_2() {
    let live = live(Limits::standard());
    let preface = preface(&[]);
    let headers = frame(HEADERS, END_HEADERS, 1, &head(POST, CHAT));
    let connections = [&headers[..headers.len() / 2], &headers[..]].map(|begun| {
        let mut connection = live.begin("");
        connection.write_all(&[&preface, begun].concat()).unwrap();
        // The server's settings frame shows that it has read the preface.
        assert!(connection.read(&mut [0; 9]).unwrap() > 0);
        connection
    });
    live.signal();
    let start = Instant::now();
    live.join();
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    drop(connections);
}

#[test]
fn requests_that_do_not_arrive_make_room_for_others() {
    let live = live(Limits { connections: 4, ..Limits::standard() });
    let head = "HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n";
    let begin = || {
        let mut client = live.begin(&format!("POST {CHAT} {head}"));
        // The server asks for the body as soon as the request is active.
        assert!(client.read(&mut [0; 64]).unwrap() > 0);
        client.write_all(b"{").unwrap();
        client
    };
    let begun: Vec<TcpStream> = (0..12).map(|_| begin()).collect();
    for path in ["/health", "/metrics", "/v1/models"] {
        assert_eq!(live.get(path).status, 200, "{path}");
    }
    drop(begun);
}

#[test]
fn a_server_with_every_place_in_use_says_so_and_reports() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let limits = Limits { connections: 1, ..Limits::standard() };
    let config = Config { slots: 1, speculation: Speculation::Off, ..tiny.config() };
    let live = Live::with_options(config, ServeOptions { limits, ..local() });
    let mut running = live.stream(CHAT, &with(chat(&model, LONG_CONTEXT), json!({"stream": true})));
    assert!(running.chunk().is_some());
    for path in ["/health", "/metrics", "/v1/health"] {
        let answer = live.get(path);
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")), "{path}");
    }
    // The client gets the answer although the server does not need the body.
    let answer = live.post(CHAT, &chat(&"the cat ".repeat(1 << 20), 1));
    let error = answer.error(503);
    assert!(error["message"].as_str().unwrap().contains("every connection"), "{error}");
    assert_eq!(answer.header("retry-after"), Some("1"));
    let answer = live.post("/v1/messages", &json!({"model": model}));
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (503, &json!("overloaded_error")));
    assert!(running.chunk().is_some());
}

/// Returns a server whose requests do not wait for memory.
fn impatient(tiny: &Tiny) -> Live {
    let limits = Limits { memory: Duration::ZERO, ..Limits::standard() };
    Live::with_options(tiny.config(), ServeOptions { limits, ..local() })
}

/// Checks that a request is refused because of unread answers, and not once their clients are gone.
fn is_refused_until(unread: Vec<Stream>, live: &Live, path: &str, body: &Value) {
    let error = live.post(path, body).error(429);
    assert!(error["message"].as_str().unwrap().contains("memory for answers"), "{error}");
    assert_eq!(live.get("/health").status, 200);
    drop(unread);
    eventually("room for an answer", || live.post(path, body).status == 200);
}

/// Starts a request, and reads the first line of its answer.
fn unread(live: &Live, path: &str, body: &Value) -> Stream {
    let mut stream = live.stream(path, body);
    assert_eq!(stream.line().unwrap().as_deref(), Some("HTTP/1.0 200 OK"));
    stream
}

#[test]
fn an_answer_that_is_not_read_holds_memory() {
    let tiny = Tiny::new();
    let model = tiny.encoder("bert", Head::Score);
    let live = impatient(&tiny);
    let body = |document: &str| {
        json!({
            "model": model, "query": "what sleeps?", "documents": [document], "return_documents": true,
            "truncate": true,
        })
    };
    let large = body(&"the cat ".repeat(3 << 20));
    let unread = unread(&live, "/v1/rerank", &large);
    assert_eq!(live.post("/v1/rerank", &body("the cat")).status, 200);
    is_refused_until(vec![unread], &live, "/v1/rerank", &large);
}

#[test]
fn open_streams_hold_the_memory_of_their_settings() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = impatient(&tiny);
    // Each event of the response repeats the settings.
    let body = json!({
        "model": model, "input": "the cat", "max_output_tokens": LONG_CONTEXT / 2, "stream": true, "store": false,
        "logit_bias": unending(), "user": "x".repeat(4_000_000),
    });
    let open: Vec<Stream> = (0..8).map(|_| unread(&live, "/v1/responses", &body)).collect();
    let short = with(body, json!({"max_output_tokens": 1}));
    is_refused_until(open, &live, "/v1/responses", &short);
}
