//! Requests to the hub. Redirects are followed here, so that the token goes only to the hub's own host.

use std::{env, io::Read, time::Duration};

use ureq::{
    Agent, Body,
    http::{HeaderMap, Response, Uri},
    tls::{PemItem, RootCerts, TlsConfig, parse_pem},
};

use super::{
    HubOptions,
    reference::{encode_component, encode_path},
};
use crate::error::HubError;

/// Maximum number of redirects of one request.
const REDIRECTS: usize = 10;

/// Time without any received byte after which a connection counts as broken.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// An HTTP client for one hub.
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    origin: Origin,
    token: Option<String>,
}

/// Scheme, host and port of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    scheme: String,
    authority: String,
}

impl Origin {
    fn of(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let authority = uri.authority()?.as_str().to_ascii_lowercase();
        (matches!(scheme.as_str(), "http" | "https") && !authority.contains('@'))
            .then_some(Self { scheme, authority })
    }
}

/// Metadata of a file on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileMetadata {
    /// ETag, as the hub sends it.
    pub(super) etag: Option<String>,
    /// Size in bytes.
    pub(super) bytes: Option<u64>,
}

/// Method of a request, with its range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Head,
    Get {
        from: u64,
    },
    /// The first `length` bytes.
    Begin {
        length: u64,
    },
}

impl Client {
    pub(super) fn new(options: &HubOptions) -> Result<Self, HubError> {
        let endpoint = options.endpoint.trim_end_matches('/').to_owned();
        let origin =
            Origin::of(&endpoint).ok_or_else(|| HubError::BadEndpoint { endpoint: endpoint.clone() })?;
        if !options.token.as_ref().is_none_or(|token| token.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(HubError::BadToken);
        }
        let agent = Agent::config_builder()
            .user_agent(concat!("narthex/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(IDLE_TIMEOUT))
            .timeout_per_read(Some(IDLE_TIMEOUT))
            .tls_config(TlsConfig::builder().root_certs(root_certificates()?).build())
            .build()
            .new_agent();
        Ok(Self { agent, endpoint, origin, token: options.token.clone() })
    }

    pub(super) fn listing_url(&self, repo: &str, revision: &str) -> String {
        format!(
            "{}/api/models/{}/revision/{}?blobs=true",
            self.endpoint,
            encode_path(repo),
            encode_component(revision)
        )
    }

    pub(super) fn file_url(&self, repo: &str, commit: &str, name: &str) -> String {
        format!(
            "{}/{}/resolve/{}/{}",
            self.endpoint,
            encode_path(repo),
            encode_component(commit),
            encode_path(name)
        )
    }

    /// Returns a whole response of at most `limit` bytes.
    pub(super) fn get_small(&self, repo: &str, url: &str, limit: u64) -> Result<Vec<u8>, HubError> {
        let mut response = self.send(Method::Get { from: 0 }, url, repo)?;
        self.expect_success(&response, repo, repo)?;
        let mut bytes = Vec::new();
        let reader = response.body_mut().with_config().limit(u64::MAX).reader();
        reader.take(limit + 1).read_to_end(&mut bytes).map_err(|error| broken(repo, error.into()))?;
        if bytes.len() as u64 > limit {
            let reason = format!("it is longer than {limit} bytes");
            return Err(HubError::BadAnswer { repo: repo.to_owned(), reason });
        }
        Ok(bytes)
    }

    /// Returns a file's metadata.
    pub(super) fn metadata(&self, repo: &str, url: &str, name: &str) -> Result<FileMetadata, HubError> {
        let response = self.send(Method::Head, url, name)?;
        let redirected = response.status().is_redirection();
        if !redirected {
            self.expect_success(&response, repo, name)?;
        }
        let headers = response.headers();
        let etag = header(headers, "x-linked-etag").or_else(|| header(headers, "etag"));
        // The length of a redirect's own response is not that of the file.
        let length = if redirected { None } else { header(headers, "content-length") };
        let bytes = header(headers, "x-linked-size").or(length).and_then(|text| text.trim().parse().ok());
        Ok(FileMetadata { etag: etag.map(str::to_owned), bytes })
    }

    /// Requests a file, starting at byte `from`.
    pub(super) fn bytes_from(
        &self,
        repo: &str,
        url: &str,
        name: &str,
        from: u64,
    ) -> Result<Response<Body>, HubError> {
        let response = self.send(Method::Get { from }, url, name)?;
        if response.status().as_u16() != 416 {
            self.expect_success(&response, repo, name)?;
        }
        Ok(response)
    }

    /// Requests a file's first bytes. A server without support for ranges sends more.
    pub(super) fn first_bytes(
        &self,
        repo: &str,
        url: &str,
        name: &str,
        length: u64,
    ) -> Result<Response<Body>, HubError> {
        let response = self.send(Method::Begin { length }, url, name)?;
        self.expect_success(&response, repo, name)?;
        Ok(response)
    }

    /// Sends a request and follows redirects. A `HEAD` follows only redirects to the hub itself: the metadata are in
    /// the hub's response.
    fn send(&self, verb: Method, url: &str, what: &str) -> Result<Response<Body>, HubError> {
        let bad = |reason| HubError::BadRedirect { what: what.to_owned(), reason };
        let mut url = url.to_owned();
        for _ in 0..=REDIRECTS {
            let origin = Origin::of(&url).ok_or_else(|| bad("its target is not an HTTP address"))?;
            let response = self.send_once(verb, &url, &origin, what)?;
            let location =
                header(response.headers(), "location").filter(|_| response.status().is_redirection());
            let Some(location) = location else { return Ok(response) };
            let next = join(&url, location);
            let target = Origin::of(&next).ok_or_else(|| bad("its target is not an HTTP address"))?;
            if origin.scheme == "https" && target.scheme == "http" {
                return Err(bad("it leads from HTTPS to HTTP"));
            }
            if verb == Method::Head && target != self.origin {
                return Ok(response);
            }
            url = next;
        }
        Err(bad("it has more than 10 redirects"))
    }

    fn send_once(
        &self,
        verb: Method,
        url: &str,
        origin: &Origin,
        what: &str,
    ) -> Result<Response<Body>, HubError> {
        let mut request = match verb {
            Method::Head => self.agent.head(url),
            Method::Get { .. } | Method::Begin { .. } => self.agent.get(url),
        };
        // Compression would change the meaning of lengths and ranges.
        request = request.header("accept-encoding", "identity");

        match verb {
            Method::Get { from: from @ 1.. } => request = request.header("range", format!("bytes={from}-")),
            Method::Begin { length: length @ 1.. } => {
                request = request.header("range", format!("bytes=0-{}", length - 1));
            }
            _ => {}
        }

        if let Some(token) = self.token.as_ref().filter(|_| *origin == self.origin) {
            request = request.header("authorization", format!("Bearer {token}"));
        }

        request.call().map_err(|error| match error {
            ureq::Error::Io(ref source) if was_connected(source) => broken(what, error),
            ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::Io(_)
            | ureq::Error::Tls(_)
            | ureq::Error::Rustls(_)
            | ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
                unreachable(origin, error)
            }
            other => broken(what, other),
        })
    }

    fn expect_success(&self, response: &Response<Body>, repo: &str, what: &str) -> Result<(), HubError> {
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let code = header(response.headers(), "x-error-code").unwrap_or("");
        let what = if what == repo { repo.to_owned() } else { format!("{what} in {repo}") };
        Err(match (status.as_u16(), code) {
            (404, _) | (401 | 403, "RepoNotFound" | "RevisionNotFound" | "EntryNotFound") => {
                HubError::NotFound { what }
            }
            (status @ (401 | 403), _) => HubError::Refused {
                repo: repo.to_owned(),
                status,
                page: format!("{}/{}", self.endpoint, encode_path(repo)),
                had_token: self.token.is_some(),
            },
            (status, _) => {
                let wait =
                    header(response.headers(), "retry-after").and_then(|text| text.trim().parse().ok());
                HubError::Status { status, what, retry_after: wait.map(Duration::from_secs) }
            }
        })
    }
}

/// Returns the certificates in `SSL_CERT_FILE`, which networks with a re-signing proxy need, or else the built-in ones.
fn root_certificates() -> Result<RootCerts, HubError> {
    let Some(path) = env::var("SSL_CERT_FILE").ok().filter(|path| !path.is_empty()) else {
        return Ok(RootCerts::WebPki);
    };
    let bytes = narthex_files::read(path.as_ref(), 16 << 20).unwrap_or_default();
    let items = parse_pem(&bytes).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = items.collect();
    if certificates.is_empty() {
        return Err(HubError::BadCertificates { path });
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

fn unreachable(origin: &Origin, source: ureq::Error) -> HubError {
    HubError::Unreachable { host: origin.authority.clone(), source: Box::new(source) }
}

pub(super) fn broken(what: &str, source: ureq::Error) -> HubError {
    HubError::Broken { what: what.to_owned(), source: Box::new(source) }
}

/// Returns true if an error ended an established connection.
fn was_connected(error: &std::io::Error) -> bool {
    use std::io::ErrorKind as Kind;
    let standing = [
        Kind::ConnectionReset,
        Kind::ConnectionAborted,
        Kind::UnexpectedEof,
        Kind::BrokenPipe,
        Kind::TimedOut,
    ];
    standing.contains(&error.kind())
}

/// Returns a header as text; `None` if it is absent or not text.
pub(super) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Resolves a `Location` against a URL (RFC 3986, section 5, without dot segments).
fn join(url: &str, location: &str) -> String {
    if location.contains("://") {
        return location.to_owned();
    }
    let after_scheme = url.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = url.split_at(after_scheme);
    if let Some(other_host) = location.strip_prefix("//") {
        return format!("{scheme}{other_host}");
    }
    let path_at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(path_at);
    if location.starts_with('/') {
        return format!("{scheme}{host}{location}");
    }
    let path = path.split('?').next().unwrap_or("");
    let folder = path.rfind('/').and_then(|at| path.get(..=at)).unwrap_or("/");
    format!("{scheme}{host}{folder}{location}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_joined() {
        let check = |url: &str, location: &str, expect: &str| assert_eq!(join(url, location), expect);
        check("https://a/b/c?d", "https://e/f", "https://e/f");
        check("https://a/b/c?d", "/f?g", "https://a/f?g");
        check("https://a/b/c?d=/x/y", "f", "https://a/b/f");
        check("https://a", "f", "https://a/f");
        check("https://a/b", "//e/f", "https://e/f");
    }

    #[test]
    fn origins_differ_by_host_port_and_scheme() {
        let check =
            |a: &str, b: &str, same: bool| assert_eq!(Origin::of(a) == Origin::of(b), same, "{a} {b}");
        check("https://h/x", "https://H/y", true);
        check("https://h/x", "http://h/x", false);
        check("http://h:1/x", "http://h:2/x", false);
        check("https://h", "https://h.evil", false);
        for bad in ["ftp://h", "h", "", "https://user@h/"] {
            assert!(Origin::of(bad).is_none(), "{bad}");
        }
    }
}
