//! Files at addresses that clients of a server name, such as pictures in conversations.
//!
//! A client must not reach through the server what it cannot reach itself. So a name is looked up once, and every address
//! that it has must be public; redirects are followed here, each with the same check; and no proxy is used, because it would
//! look names up by itself. Nothing but the address leaves this machine: no credentials, no cookies.

mod public_address;

use std::{
    fmt,
    io::Read,
    net::IpAddr,
    sync::OnceLock,
    time::{Duration, Instant},
};

use ureq::{
    Agent, Body,
    config::Config,
    http::{Response, Uri},
    tls::TlsConfig,
    unversioned::{
        resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver},
        transport::{DefaultConnector, NextTimeout},
    },
};

use crate::{
    CancelFlag,
    error::ConnectionError,
    redact::redact,
    source::http::{self, Origin},
};
use public_address::is_public;

/// Maximum number of redirects of a file.
const MAX_REDIRECTS: usize = 5;

/// Maximum bytes of an address.
const MAX_URL: usize = 8 << 10;

/// Maximum time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that are read between two checks for cancellation.
const PIECE: usize = 64 << 10;

/// Bounds of a file.
#[derive(Debug, Clone, Copy)]
pub struct RemoteFileLimits {
    /// Maximum bytes.
    pub bytes: u64,
    /// Time at which the download ends.
    pub deadline: Instant,
}

/// A file at an address.
#[derive(Debug)]
pub struct FetchedFile {
    /// Content.
    pub bytes: Vec<u8>,
    /// Media type that the server states, such as `image/png`.
    pub media_type: Option<String>,
}

/// The reason why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RemoteFileError {
    /// The download was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The text is not an address of a file.
    #[error(
        "expected an address such as \"https://host/picture.png\", without a user name and of at most {MAX_URL} bytes"
    )]
    BadUrl,
    /// The name has an address in a private network, or one of this machine.
    #[error("expected a public address, found {address} for {host}, which this server does not connect to")]
    Private {
        /// The host.
        host: String,
        /// One of its addresses.
        address: IpAddr,
    },
    /// No connection could be made, or it broke.
    #[error("cannot read the file from {host}: {}", redact(&source.to_string()))]
    Unreachable {
        /// The host.
        host: String,
        /// Cause.
        source: Box<ureq::Error>,
    },
    /// The server refused the request.
    #[error("{host} answered with status {status}")]
    Status {
        /// The host.
        host: String,
        /// HTTP status.
        status: u16,
    },
    /// A redirect leads from HTTPS to HTTP or to no file.
    #[error("{host} redirects to an address that is not followed")]
    BadRedirect {
        /// The host.
        host: String,
    },
    /// There are too many redirects.
    #[error("found more than {MAX_REDIRECTS} redirects")]
    TooManyRedirects,
    /// The file is too large.
    #[error("expected at most {limit} bytes, found more")]
    TooLarge {
        /// Maximum number of bytes.
        limit: u64,
    },
    /// The certificates to trust cannot be read.
    #[error(transparent)]
    Certificates(#[from] ConnectionError),
    /// The time ended.
    #[error("the file was not complete in time")]
    TimedOut,
}

/// Reads the file at an address that a client named.
///
/// # Errors
/// [`RemoteFileError`] if the address is not public, or the file cannot be read within its bounds.
pub fn fetch(
    url: &str,
    limits: RemoteFileLimits,
    cancel: &CancelFlag,
) -> Result<FetchedFile, RemoteFileError> {
    client()?.fetch(url, limits, cancel)
}

/// Returns the client of this process, which is created for its first file.
fn client() -> Result<&'static PublicClient, RemoteFileError> {
    static CLIENT: OnceLock<PublicClient> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    // An error is not kept, because the file with the certificates may be corrected.
    let client = PublicClient::new(is_public)?;
    Ok(CLIENT.get_or_init(|| client))
}

/// HTTP client that connects only to allowed addresses.
struct PublicClient {
    agent: Agent,
}

impl PublicClient {
    /// Creates a client that connects to the addresses for which `is_allowed` returns true.
    fn new(is_allowed: fn(IpAddr) -> bool) -> Result<Self, RemoteFileError> {
        let config = Agent::config_builder()
            .user_agent(http::USER_AGENT)
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            // A connection does not outlive its file, as clients of the server are independent of each other.
            .max_idle_connections(0)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .tls_config(TlsConfig::builder().root_certs(http::root_certificates()?).build())
            .build();
        let resolver = CheckedResolver { names: DefaultResolver::default(), is_allowed };
        Ok(Self { agent: Agent::with_parts(config, DefaultConnector::default(), resolver) })
    }

    fn fetch(
        &self,
        url: &str,
        limits: RemoteFileLimits,
        cancel: &CancelFlag,
    ) -> Result<FetchedFile, RemoteFileError> {
        let mut url = url.split('#').next().unwrap_or_default().to_owned();
        let mut origin = Origin::of(&url).filter(|_| url.len() <= MAX_URL).ok_or(RemoteFileError::BadUrl)?;

        for _ in 0..=MAX_REDIRECTS {
            check_cancel(cancel)?;
            let host = origin.host().to_owned();
            let response = self.send(&url, &host, limits)?;
            let Some(next) = http::redirect(&response, &url) else {
                return match response.status().as_u16() {
                    200 => read(response, &host, limits, cancel),
                    status => Err(RemoteFileError::Status { host, status }),
                };
            };
            let target = Origin::of(&next)
                .filter(|target| next.len() <= MAX_URL && origin.may_lead_to(target))
                .ok_or(RemoteFileError::BadRedirect { host })?;
            (url, origin) = (next, target);
        }
        Err(RemoteFileError::TooManyRedirects)
    }

    fn send(
        &self,
        url: &str,
        host: &str,
        limits: RemoteFileLimits,
    ) -> Result<Response<Body>, RemoteFileError> {
        let rest = limits.deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(RemoteFileError::TimedOut);
        }
        let request = self.agent.get(url).config().timeout_global(Some(rest)).build();
        // Compression would hide the size.
        let request = request.header("accept-encoding", "identity").header("accept", "image/*");
        request.call().map_err(|error| problem(host, error))
    }
}

/// Returns the error of a request or of a body.
fn problem(host: &str, error: ureq::Error) -> RemoteFileError {
    let host = host.to_owned();
    match error {
        ureq::Error::Timeout(_) => RemoteFileError::TimedOut,
        ureq::Error::Other(other) => match other.downcast::<NotAllowed>() {
            Ok(refused) => RemoteFileError::Private { host, address: refused.0 },
            Err(other) => RemoteFileError::Unreachable { host, source: Box::new(ureq::Error::Other(other)) },
        },
        error => RemoteFileError::Unreachable { host, source: Box::new(error) },
    }
}

/// Reads a body.
fn read(
    mut response: Response<Body>,
    host: &str,
    limits: RemoteFileLimits,
    cancel: &CancelFlag,
) -> Result<FetchedFile, RemoteFileError> {
    let limit = limits.bytes;
    let media_type = http::header(response.headers(), "content-type")
        .and_then(|value| value.split(';').next())
        .map(|value| value.trim().to_ascii_lowercase())
        .filter(|value| !value.is_empty());
    if response.body().content_length().is_some_and(|length| length > limit) {
        return Err(RemoteFileError::TooLarge { limit });
    }

    let mut reader = response.body_mut().with_config().limit(u64::MAX).reader();
    let mut bytes = Vec::new();
    loop {
        check_cancel(cancel)?;
        let piece = reader.by_ref().take(PIECE as u64).read_to_end(&mut bytes);
        if bytes.len() as u64 > limit {
            return Err(RemoteFileError::TooLarge { limit });
        }
        match piece {
            Ok(0) => return Ok(FetchedFile { bytes, media_type }),
            Ok(_) => {}
            Err(error) => return Err(problem(host, error.into())),
        }
    }
}

fn check_cancel(cancel: &CancelFlag) -> Result<(), RemoteFileError> {
    crate::check_cancel(cancel).map_err(|_| RemoteFileError::Cancelled)
}

/// Looks names up, and refuses those with an address that is not allowed. The connection uses the addresses that were
/// checked.
struct CheckedResolver {
    names: DefaultResolver,
    is_allowed: fn(IpAddr) -> bool,
}

/// An address that is not allowed.
#[derive(Debug, thiserror::Error)]
#[error("{0} is not a public address")]
struct NotAllowed(IpAddr);

impl fmt::Debug for CheckedResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CheckedResolver")
    }
}

impl Resolver for CheckedResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let addresses = self.names.resolve(uri, config, timeout)?;
        match addresses.iter().map(|address| address.ip()).find(|address| !(self.is_allowed)(*address)) {
            Some(address) => Err(ureq::Error::Other(Box::new(NotAllowed(address)))),
            None => Ok(addresses),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        net::{Ipv4Addr, TcpListener},
        thread,
    };

    use super::*;

    /// Starts a server on 127.0.0.1 that answers each path with a response. Returns its address.
    fn server(responses: &'static [(&'static str, &'static str)]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let request = lines.next().unwrap_or_default();
                let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                assert!(!headers.iter().any(|line| line.to_lowercase().starts_with("authorization")));
                let path = request.split(' ').nth(1).unwrap_or_default();
                let response = responses.iter().find(|(of, _)| *of == path).map(|(_, response)| *response);
                let response = response.unwrap_or("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(response.as_bytes()).unwrap();
            }
        });
        format!("http://{address}")
    }

    fn limits() -> RemoteFileLimits {
        RemoteFileLimits { bytes: 10, deadline: Instant::now() + Duration::from_secs(20) }
    }

    /// Reads a file with a client for which 127.0.0.1 alone is public.
    fn fetch_here(url: &str) -> Result<FetchedFile, RemoteFileError> {
        let client = PublicClient::new(|address| address == Ipv4Addr::LOCALHOST)?;
        client.fetch(url, limits(), &CancelFlag::new(false))
    }

    #[test]
    fn a_file_is_read_within_its_bounds() {
        let address = server(&[
            ("/a.png", "HTTP/1.1 200 OK\r\ncontent-type: Image/PNG; x=y\r\ncontent-length: 3\r\n\r\nabc"),
            ("/long", "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n01234567890"),
            ("/endless", "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n01234567890123"),
            ("/to/a", "HTTP/1.1 302 Found\r\nlocation: ../a.png\r\ncontent-length: 0\r\n\r\n"),
            ("/loop", "HTTP/1.1 302 Found\r\nlocation: /loop\r\ncontent-length: 0\r\n\r\n"),
            ("/file", "HTTP/1.1 302 Found\r\nlocation: file:///etc/passwd\r\ncontent-length: 0\r\n\r\n"),
            // Another address of this machine.
            ("/away", "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.2:9/a\r\ncontent-length: 0\r\n\r\n"),
        ]);
        for path in ["a.png", "a.png#top", "to/a"] {
            let file = fetch_here(&format!("{address}/{path}")).unwrap();
            assert_eq!(
                (file.bytes, file.media_type.as_deref()),
                (b"abc".to_vec(), Some("image/png")),
                "{path}"
            );
        }
        let check = |path: &str, expect: fn(&RemoteFileError) -> bool| {
            let error = fetch_here(&format!("{address}/{path}")).unwrap_err();
            assert!(expect(&error), "{path}: {error}");
        };
        check("none", |error| matches!(error, RemoteFileError::Status { status: 404, .. }));
        check("long", |error| matches!(error, RemoteFileError::TooLarge { limit: 10 }));
        check("endless", |error| matches!(error, RemoteFileError::TooLarge { limit: 10 }));
        check("loop", |error| matches!(error, RemoteFileError::TooManyRedirects));
        check("file", |error| matches!(error, RemoteFileError::BadRedirect { .. }));
        check("away", |error| matches!(error, RemoteFileError::Private { .. }));
    }

    #[test]
    fn private_addresses_are_never_contacted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let cancel = CancelFlag::new(false);
        for host in
            ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "0x7f.1"]
        {
            let error = fetch(&format!("http://{host}:{port}/x"), limits(), &cancel).unwrap_err();
            // Some systems do not read numbers in other forms as addresses.
            let is_refused =
                matches!(error, RemoteFileError::Private { .. } | RemoteFileError::Unreachable { .. });
            assert!(is_refused, "{host}: {error}");
        }
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "a connection was made");
    }

    #[test]
    fn other_addresses_are_refused() {
        let cancel = CancelFlag::new(false);
        let long = format!("http://a/{}", "b".repeat(MAX_URL));
        for url in ["ftp://a/b", "http://user:secret@a/b", "a/b", "", "http://", &long] {
            let error = fetch(url, limits(), &cancel).unwrap_err();
            assert!(matches!(error, RemoteFileError::BadUrl), "{url}: {error}");
            assert!(!error.to_string().contains("secret"));
        }
        let error = fetch("http://a/b", limits(), &CancelFlag::new(true)).unwrap_err();
        assert!(matches!(error, RemoteFileError::Cancelled));
        let past = RemoteFileLimits { bytes: 1, deadline: Instant::now() };
        assert!(matches!(fetch("http://a/b", past, &cancel).unwrap_err(), RemoteFileError::TimedOut));
    }
}
