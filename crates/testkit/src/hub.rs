//! A local server in place of the model hub. The test determines its answers: correct, cut short, wrong or refused.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use sha2::{Digest, Sha256};

/// Commit of every repository.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A received request.
#[derive(Debug, Clone)]
pub struct Request {
    /// `GET` or `HEAD`.
    pub method: String,
    /// Path, with its query.
    pub path: String,
    /// Headers by their names in lower case.
    pub headers: BTreeMap<String, String>,
}

impl Request {
    /// Returns the start of an open range.
    pub fn range_start(&self) -> Option<usize> {
        self.headers.get("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }

    /// Returns the length of a range that starts at 0.
    pub fn range_length(&self) -> Option<usize> {
        self.headers.get("range")?.strip_prefix("bytes=0-")?.parse::<usize>().ok().map(|last| last + 1)
    }

    /// Returns true if the method is `method` and the path ends with `ending`.
    pub fn is(&self, method: &str, ending: &str) -> bool {
        self.method == method && self.path.ends_with(ending)
    }
}

/// An answer.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
    /// Value of `Content-Length`, if it differs from the body's length.
    pub declared: Option<usize>,
    /// Number of bytes of the body after which the connection is closed.
    pub cut: Option<usize>,
    /// Pause after each piece of 8 KiB.
    pub pace: Duration,
}

impl Reply {
    /// Returns an answer without a body.
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    /// Sets a header.
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Removes a header.
    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self
    }

    /// Pauses after each piece of 8 KiB of the body.
    pub fn paced(mut self, pace: Duration) -> Self {
        self.pace = pace;
        self
    }

    /// Closes the connection after `bytes` bytes of the body.
    pub fn cut(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }
}

type Answer = dyn Fn(&Request) -> Reply + Send + Sync;

/// A listening server, which runs until the process ends.
#[derive(Debug)]
pub struct HubServer {
    /// Address, as `http://host:port`.
    pub endpoint: String,
    log: Arc<Mutex<Vec<Request>>>,
}

impl HubServer {
    /// Starts a server.
    ///
    /// # Panics
    /// No port is free.
    pub fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let bound = TcpListener::bind("127.0.0.1:0").and_then(|l| Ok((l.local_addr()?, l)));
        let (address, listener) = bound.unwrap_or_else(|error| panic!("no port is free: {error}"));
        let endpoint = format!("http://{address}");
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

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the start of the range of every GET for a file; 0 for requests without a range.
    pub fn gets(&self, ending: &str) -> Vec<usize> {
        let gets = self.requests().into_iter().filter(|request| request.is("GET", ending));
        gets.map(|request| request.range_start().unwrap_or(0)).collect()
    }
}

fn serve(mut stream: TcpStream, answer: &Answer, log: &Mutex<Vec<Request>>) {
    let Some(request) = read_request(&stream) else { return };
    log.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
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
            thread::sleep(reply.pace);
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

/// Files of a repository; those that end in `.safetensors` or `.gguf` are in large-file storage.
#[derive(Debug, Clone)]
pub struct Repo {
    /// Contents by path.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Repo {
    /// Returns a repository with these paths and contents.
    pub fn new(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        Self { files }
    }

    /// Returns a repository with the files of a folder.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn of_folder(folder: &Path) -> io::Result<Self> {
        let mut repo = Self { files: BTreeMap::new() };
        repo.add_folder(folder, "")?;
        Ok(repo)
    }

    fn add_folder(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = format!("{prefix}{name}");
            if path.is_dir() {
                self.add_folder(&path, &format!("{name}/"))?;
            } else {
                self.files.insert(name, fs::read(&path)?);
            }
        }
        Ok(())
    }

    /// Returns the entity tag of a file: its SHA-256 in large-file storage, otherwise 40 digits.
    pub fn etag(name: &str, bytes: &[u8]) -> String {
        let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        if name.ends_with(".safetensors") || name.ends_with(".gguf") {
            digest
        } else {
            digest[..40].to_owned()
        }
    }

    /// Returns the correct answer to a request.
    pub fn answer(&self, request: &Request) -> Reply {
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

/// Returns pseudo-random bytes, the same on every call.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}
