//! An HTTP/1.1 client (RFC 9112) that can disconnect at any point, with one connection for each request.
//!
//! It is our own because HTTP libraries cannot send an incomplete request.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context, bail};

/// Maximum time until a server sends its next byte.
const READ_TIMEOUT: Duration = Duration::from_secs(600);

/// A request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Method, as `POST`.
    pub method: &'a str,
    /// Path with its query.
    pub path: &'a str,
    /// Bytes of the body: JSON, or a [`form`].
    pub body: &'a [u8],
}

/// Time at which the client disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disconnect {
    /// After the whole answer.
    AfterAnswer,
    /// After the first bytes of the answer's body.
    AtFirstBytes,
    /// Before the request is complete.
    MidRequest,
}

/// The answer of a server.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status; 0 if the client did not wait for it.
    pub status: u16,
    /// The body as it was sent, with the chunk headers.
    pub body: String,
}

impl Answer {
    /// Parses the body as JSON. A body in several chunks is not supported.
    pub fn json(&self) -> anyhow::Result<serde_json::Value> {
        let object = self.body.find('{').zip(self.body.rfind('}'));
        let text = object.and_then(|(start, end)| self.body.get(start..=end)).unwrap_or_default();
        let start: String = self.body.chars().take(200).collect();
        serde_json::from_str(text).with_context(|| format!("expected JSON, found {} {start:?}", self.status))
    }
}

/// Returns a form with fields of these names and values (RFC 7578).
pub fn form(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let mut form = Vec::new();
    for (name, value) in fields {
        form.extend(format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n").into_bytes());
        form.extend_from_slice(value);
        form.extend(b"\r\n");
    }
    form.extend(b"--b--\r\n");
    form
}

/// Returns the media type of a body, which is that of a [`form`] if it begins as one.
pub fn media_type(body: &[u8]) -> &'static str {
    if body.starts_with(b"--") { "multipart/form-data; boundary=b" } else { "application/json" }
}

/// Opens a connection that sends only the first line of a request.
pub fn fall_silent(address: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).context("no connection")?;
    stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\n")?;
    Ok(stream)
}

/// Sends a request to the server at `address`.
pub fn send(address: &str, request: Request<'_>, disconnect: Disconnect) -> anyhow::Result<Answer> {
    let Request { method, path, body } = request;
    let mut stream = TcpStream::connect(address).context("no connection")?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        media_type(body),
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    if disconnect == Disconnect::MidRequest {
        stream.write_all(bytes.get(..bytes.len() - body.len() / 2).unwrap_or(&bytes))?;
        return Ok(Answer { status: 0, body: String::new() });
    }
    stream.write_all(&bytes)?;
    let mut received = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let read = stream.read(&mut piece).context("no answer")?;
        received.extend_from_slice(piece.get(..read).unwrap_or_default());
        let begun = received
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .is_some_and(|at| received.len() > at + 4);
        if read == 0 || (begun && disconnect == Disconnect::AtFirstBytes) {
            return parse(&received);
        }
    }
}

fn parse(bytes: &[u8]) -> anyhow::Result<Answer> {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        bail!("expected an HTTP response, found {} bytes", text.len());
    };
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let status = status.with_context(|| format!("expected a status, found {:?}", head.lines().next()))?;
    Ok(Answer { status, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    #[test]
    fn forms_have_their_fields_between_boundaries() {
        let form = form(&[("model", b"m"), ("file", b"\0\xff")]);
        let head = "--b\r\nContent-Disposition: form-data; name=";
        let expect = format!("{head}\"model\"\r\n\r\nm\r\n{head}\"file\"\r\n\r\n");
        assert_eq!(form, [expect.as_bytes(), b"\0\xff\r\n--b--\r\n"].concat());
        assert_eq!(media_type(&form), "multipart/form-data; boundary=b");
        assert_eq!(media_type(b"{}"), "application/json");
    }

    #[test]
    fn a_request_is_sent_and_its_answer_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            [(); 3].map(|()| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = Vec::new();
                let mut piece = [0; 256];
                while !asked.ends_with(b"body") {
                    match stream.read(&mut piece).unwrap() {
                        0 => break,
                        read => asked.extend_from_slice(&piece[..read]),
                    }
                }
                // A client that has disconnected does not read the answer.
                let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nx: y\r\n\r\nnone");
                String::from_utf8(asked).unwrap()
            })
        });
        let request = Request { method: "POST", path: "/p", body: b"the body" };
        let none = Answer { status: 404, body: "none".to_owned() };
        assert_eq!(send(&address, request, Disconnect::AfterAnswer).unwrap(), none);
        assert_eq!(send(&address, request, Disconnect::AtFirstBytes).unwrap().status, 404);
        assert_eq!(send(&address, request, Disconnect::MidRequest).unwrap().status, 0);
        let asked = server.join().unwrap();
        assert!(asked[0].starts_with("POST /p HTTP/1.1\r\n") && asked[0].ends_with("\r\n\r\nthe body"));
        assert!(asked[2].ends_with("\r\n\r\nthe "), "{:?}", asked[2]);
        assert!(parse(b"HTTP/1.1 200").is_err() && parse(b"nonsense\r\n\r\n").is_err());
    }
}
