//! A local stand-in for the model hub, which does what it is told: honour ranges, drop connections, lie, refuse.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use sha2::{Digest, Sha256};

/// The commit of every repository here.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
}

impl Request {
    pub(crate) fn range_start(&self) -> Option<usize> {
        self.headers.get("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }

    /// How many bytes from the first are asked for.
    pub(crate) fn range_length(&self) -> Option<usize> {
        self.headers.get("range")?.strip_prefix("bytes=0-")?.parse::<usize>().ok().map(|last| last + 1)
    }

    pub(crate) fn is(&self, method: &str, ending: &str) -> bool {
        self.method == method && self.path.ends_with(ending)
    }
}

/// An answer, true or not.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The length to declare, where it is not the body's.
    pub(crate) declared: Option<usize>,
    /// Close the connection after this many bytes of the body.
    pub(crate) cut: Option<usize>,
}

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self
    }

    pub(crate) fn cut(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }
}

type Answer = dyn Fn(&Request) -> Reply + Send + Sync;

/// A listening server; it lives as long as the process.
pub(crate) struct Server {
    pub(crate) endpoint: String,
    log: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(crate) fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let answer: Arc<Answer> = Arc::new(answer);
        let shared = Arc::clone(&log);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, log) = (Arc::clone(&answer), Arc::clone(&shared));
                thread::spawn(move || serve(stream, &*answer, &log));
            }
        });
        Self { endpoint, log }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }

    /// The starts of the ranges of all GETs for a file; 0 for whole ones.
    pub(crate) fn gets(&self, ending: &str) -> Vec<usize> {
        let gets = self.requests().into_iter().filter(|request| request.is("GET", ending));
        gets.map(|request| request.range_start().unwrap_or(0)).collect()
    }
}

fn serve(mut stream: TcpStream, answer: &Answer, log: &Mutex<Vec<Request>>) {
    let Some(request) = read_request(&stream) else { return };
    log.lock().unwrap().push(request.clone());
    let reply = answer(&request);
    let declared = reply.declared.unwrap_or(reply.body.len());
    let mut head =
        format!("HTTP/1.1 {} X\r\nConnection: close\r\nContent-Length: {declared}\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let _ = stream.write_all(format!("{head}\r\n").as_bytes());
    if request.method != "HEAD" {
        let end = reply.cut.unwrap_or(reply.body.len()).min(reply.body.len());
        // Small pieces, so that a client sees progress before the end.
        for piece in reply.body[..end].chunks(8 << 10) {
            if stream.write_all(piece).is_err() {
                return;
            }
        }
    }
    let _ = stream.flush();
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    Some(Request { method, path, headers })
}

/// A repository's files; those that end in `.safetensors` or `.gguf` are in large-file storage.
#[derive(Clone)]
pub(crate) struct Repo {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

impl Repo {
    pub(crate) fn new(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        Self { files }
    }

    pub(crate) fn etag(name: &str, bytes: &[u8]) -> String {
        let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        if name.ends_with(".safetensors") || name.ends_with(".gguf") {
            digest
        } else {
            digest[..40].to_owned()
        }
    }

    /// What an honest hub answers.
    pub(crate) fn answer(&self, request: &Request) -> Reply {
        if request.path.starts_with("/api/models/") {
            return Reply { status: 200, body: self.listing(), ..Reply::default() };
        }
        let name = request.path.split_once(&format!("/resolve/{COMMIT}/")).map_or("", |(_, name)| name);
        let Some(bytes) = self.files.get(name) else { return Reply::status(404) };
        let start = request.range_start().filter(|start| *start <= bytes.len());
        let reply = Reply { status: 200, body: bytes[start.unwrap_or(0)..].to_vec(), ..Reply::default() }
            .with("ETag", format!("\"{}\"", Self::etag(name, bytes)))
            .with("X-Linked-Etag", format!("\"{}\"", Self::etag(name, bytes)))
            .with("X-Linked-Size", bytes.len().to_string())
            .with("X-Repo-Commit", COMMIT);
        if let Some(length) = request.range_length().filter(|length| *length <= bytes.len()) {
            let range = format!("bytes 0-{}/{}", length - 1, bytes.len());
            let body = bytes[..length].to_vec();
            return Reply { status: 206, body, ..reply }.with("Content-Range", range);
        }
        match start {
            Some(start) => Reply { status: 206, ..reply }.with(
                "Content-Range",
                format!("bytes {start}-{}/{}", bytes.len().saturating_sub(1), bytes.len()),
            ),
            None => reply,
        }
    }

    fn listing(&self) -> Vec<u8> {
        let siblings: Vec<String> = self
            .files
            .iter()
            .map(|(name, bytes)| format!(r#"{{"rfilename":{name:?},"size":{}}}"#, bytes.len()))
            .collect();
        let siblings = siblings.join(",");
        format!(r#"{{"sha":"{COMMIT}","cardData":{{"license":"apache-2.0"}},"siblings":[{siblings}]}}"#)
            .into_bytes()
    }
}

/// Bytes without a pattern, the same on every call.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}
