//! Requests to one server. Redirects are followed here, so that a credential goes only to that server.

use std::{env, io::Read, sync::LazyLock, time::Duration};

use ureq::{
    Agent, Body, Proxy,
    http::{HeaderMap, Response, Uri},
    tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem},
};

use super::system_proxy;
use crate::error::ConnectionError;

/// Name of this program in requests.
pub(crate) const USER_AGENT: &str = concat!("narthex/", env!("CARGO_PKG_VERSION"));

/// Maximum number of redirects of one request.
const REDIRECTS: usize = 10;

/// Time without any received byte after which a connection counts as broken.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Variables with the address of a proxy, in the order in which the client reads them.
const PROXIES: [&str; 6] =
    ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];

/// Environment variable with the certificates to trust.
pub(super) const CERTIFICATES: &str = "SSL_CERT_FILE";

/// Scheme, host and port of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    scheme: String,
    authority: String,
}

impl Origin {
    /// Returns the origin of a URL without credentials.
    pub(crate) fn of(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let authority = uri.authority()?.as_str().to_ascii_lowercase();
        (matches!(scheme.as_str(), "http" | "https") && !authority.contains('@'))
            .then_some(Self { scheme, authority })
    }

    /// Returns the host with its port.
    pub(crate) fn host(&self) -> &str {
        &self.authority
    }

    /// Returns false if a redirect to `target` would lead from HTTPS to HTTP.
    pub(crate) fn may_lead_to(&self, target: &Self) -> bool {
        target.is_secure() || !self.is_secure()
    }

    /// Returns true for HTTPS.
    fn is_secure(&self) -> bool {
        self.scheme == "https"
    }
}

/// Method of a request, with its range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Head,
    Get {
        from: u64,
    },
    /// The first `length` bytes.
    Begin {
        length: u64,
    },
}

/// A response, and the address that it came from.
pub(super) struct Answer {
    pub(super) response: Response<Body>,
    pub(super) url: String,
}

impl Answer {
    /// Returns the status.
    pub(super) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// Reads the whole body, unless it has more than `limit` bytes.
    pub(super) fn read(&mut self, what: &str, limit: u64) -> Result<Option<Vec<u8>>, ConnectionError> {
        let mut bytes = Vec::new();
        let reader = self.response.body_mut().with_config().limit(u64::MAX).reader();
        reader.take(limit + 1).read_to_end(&mut bytes).map_err(|error| broken(what, error.into()))?;
        Ok((bytes.len() as u64 <= limit).then_some(bytes))
    }
}

/// A proxy, and the setting with its address.
#[derive(Debug, Clone)]
pub(crate) struct NamedProxy {
    pub(crate) proxy: Proxy,
    setting: &'static str,
}

impl NamedProxy {
    /// Returns the proxy at an address, if it is well-formed.
    pub(super) fn new(address: &str, setting: &'static str) -> Option<Self> {
        Proxy::new(address).ok().map(|proxy| Self { proxy, setting })
    }

    /// Returns the proxy of the environment, or else that of the system.
    pub(crate) fn from_environment() -> Option<Self> {
        let Some(proxy) = Proxy::try_from_env() else {
            return system_proxy::read().map(|proxy| Self { proxy, setting: system_proxy::SETTING });
        };
        let setting = PROXIES
            .into_iter()
            .find(|name| env::var(name).is_ok_and(|address| Proxy::new(&address).is_ok()))
            .unwrap_or("HTTPS_PROXY");
        Some(Self { proxy, setting })
    }
}

/// An HTTP client for one server and the servers that it redirects to.
pub(super) struct HttpClient {
    agent: Agent,
    proxy: Option<NamedProxy>,
    home: Origin,
    /// Value of the header `Authorization` for the server.
    authorization: Option<String>,
}

impl HttpClient {
    /// Creates a client. `proxy` takes precedence over that of the environment, `certificates` over those of the system.
    pub(super) fn new(
        home: Origin,
        authorization: Option<String>,
        proxy: Option<NamedProxy>,
        certificates: Option<CertificateFile>,
    ) -> Result<Self, ConnectionError> {
        let proxy = proxy.or_else(NamedProxy::from_environment);
        let roots = match certificates {
            Some(file) => RootCerts::new_with_certs(&file.certificates()?),
            None => root_certificates()?,
        };
        let agent = Agent::config_builder()
            .user_agent(USER_AGENT)
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(proxy.as_ref().map(|named| named.proxy.clone()))
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(IDLE_TIMEOUT))
            .timeout_per_read(Some(IDLE_TIMEOUT))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build()
            .new_agent();
        Ok(Self { agent, proxy, home, authorization })
    }

    /// Returns true if requests to the server have a credential.
    pub(super) fn has_credential(&self) -> bool {
        self.authorization.is_some()
    }

    /// Sends a request and follows redirects. A `HEAD` follows only redirects to the server itself: the metadata are in
    /// the server's response. `what` names the requested item in errors.
    pub(super) fn send(
        &self,
        method: Method,
        url: &str,
        accept: Option<&str>,
        what: &str,
    ) -> Result<Answer, ConnectionError> {
        let bad = |reason| ConnectionError::BadRedirect { what: what.to_owned(), reason };
        let mut url = url.to_owned();

        for _ in 0..=REDIRECTS {
            let origin = Origin::of(&url).ok_or_else(|| bad("its target is not an HTTP address"))?;
            let response = self
                .send_once(method, &url, &origin, accept)
                .map_err(|error| self.connection_error(error, &url, &origin, what))?;
            let Some(next) = redirect(&response, &url) else { return Ok(Answer { response, url }) };
            let target = Origin::of(&next).ok_or_else(|| bad("its target is not an HTTP address"))?;
            if !origin.may_lead_to(&target) {
                return Err(bad("it leads from HTTPS to HTTP"));
            }
            if method == Method::Head && target != self.home {
                return Ok(Answer { response, url });
            }
            url = next;
        }
        Err(bad("it has more than 10 redirects"))
    }

    fn send_once(
        &self,
        method: Method,
        url: &str,
        origin: &Origin,
        accept: Option<&str>,
    ) -> Result<Response<Body>, ureq::Error> {
        let mut request = match method {
            Method::Head => self.agent.head(url),
            Method::Get { .. } | Method::Begin { .. } => self.agent.get(url),
        };
        // Compression would change the meaning of lengths and ranges.
        request = request.header("accept-encoding", "identity");

        match method {
            Method::Get { from: from @ 1.. } => request = request.header("range", format!("bytes={from}-")),
            Method::Begin { length: length @ 1.. } => {
                request = request.header("range", format!("bytes=0-{}", length - 1));
            }
            _ => {}
        }

        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        if let Some(authorization) = self.authorization.as_ref().filter(|_| *origin == self.home) {
            request = request.header("authorization", authorization);
        }
        request.call()
    }

    /// Returns the error of a request that received no response.
    fn connection_error(
        &self,
        error: ureq::Error,
        url: &str,
        origin: &Origin,
        what: &str,
    ) -> ConnectionError {
        let has_no_connection = match &error {
            ureq::Error::Io(source) => !was_connected(source),
            ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::ConnectProxyFailed(_)
            | ureq::Error::Tls(_)
            | ureq::Error::Rustls(_)
            | ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => true,
            _ => false,
        };
        if !has_no_connection {
            return broken(what, error);
        }

        let host = origin.authority.clone();
        // A proxy forwards the bytes of TLS, whose errors are not its own.
        let is_tls = matches!(error, ureq::Error::Tls(_) | ureq::Error::Rustls(_));
        let source = Box::new(error);
        match self.proxy.as_ref().filter(|named| !is_tls && named.applies_to(url)) {
            Some(NamedProxy { proxy, setting }) => {
                let proxy = format!("{}:{}", proxy.host(), proxy.port());
                ConnectionError::ProxyUnreachable { proxy, setting, host, source }
            }
            None => ConnectionError::Unreachable { host, source },
        }
    }
}

impl NamedProxy {
    /// Returns true if requests to this URL use the proxy.
    pub(crate) fn applies_to(&self, url: &str) -> bool {
        url.parse::<Uri>().is_ok_and(|uri| !self.proxy.is_no_proxy(&uri))
    }
}

/// A PEM file with certificates, which networks with a re-signing proxy need, and the setting with its path.
#[derive(Debug, Clone)]
pub(super) struct CertificateFile {
    pub(super) path: String,
    pub(super) setting: &'static str,
}

impl CertificateFile {
    fn from_environment() -> Option<Self> {
        let path = env::var(CERTIFICATES).ok().filter(|path| !path.is_empty())?;
        Some(Self { path, setting: CERTIFICATES })
    }

    /// Reads the certificates, of which there is at least one.
    fn certificates(self) -> Result<Vec<Certificate<'static>>, ConnectionError> {
        let Self { path, setting } = self;
        let bytes = narthex_files::read(path.as_ref(), 16 << 20).unwrap_or_default();
        let items = parse_pem(&bytes).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        let certificates: Vec<_> = items.collect();
        if certificates.is_empty() {
            return Err(ConnectionError::BadCertificates { path, setting });
        }
        Ok(certificates)
    }
}

/// Certificates of the system, which may have those of a company; empty if the system has none.
static ROOTS: LazyLock<Vec<Certificate<'static>>> = LazyLock::new(|| {
    let loaded = rustls_native_certs::load_native_certs();
    for error in loaded.errors {
        tracing::debug!(%error, "a certificate of the system cannot be read");
    }
    loaded.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect()
});

/// Returns the certificates to trust: those of the file that the environment names, else those of the system, else the
/// built-in ones.
pub(crate) fn root_certificates() -> Result<RootCerts, ConnectionError> {
    let roots = trusted_certificates()?;
    Ok(if roots.is_empty() { RootCerts::WebPki } else { RootCerts::new_with_certs(&roots) })
}

/// Returns the certificates to trust as [`root_certificates`] does; an empty list stands for the built-in ones.
pub(crate) fn trusted_certificates() -> Result<Vec<Certificate<'static>>, ConnectionError> {
    match CertificateFile::from_environment() {
        Some(file) => file.certificates(),
        None => Ok(ROOTS.clone()),
    }
}

/// Returns the error of a connection that ended during a response.
pub(super) fn broken(what: &str, source: ureq::Error) -> ConnectionError {
    ConnectionError::Broken { what: what.to_owned(), source: Box::new(source) }
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
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the address that the response of `url` redirects to; `None` for any other response.
pub(crate) fn redirect(response: &Response<Body>, url: &str) -> Option<String> {
    let location = header(response.headers(), "location").filter(|_| response.status().is_redirection())?;
    Some(join(url, location))
}

/// Resolves a reference against a URL (RFC 3986, section 5). The fragment of the reference is dropped.
pub(super) fn join(url: &str, location: &str) -> String {
    let location = location.split('#').next().unwrap_or_default();
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
    let mut folder = path.rfind('/').and_then(|at| path.get(..=at)).unwrap_or("/");
    let mut below = location;
    while let Some(rest) = below.strip_prefix("../") {
        below = rest;
        let parent = folder.strip_suffix('/').and_then(|path| path.rfind('/'));
        folder = parent.and_then(|at| folder.get(..=at)).unwrap_or("/");
    }
    format!("{scheme}{host}{folder}{}", below.strip_prefix("./").unwrap_or(below))
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
        check("https://a/simple/p/", "../../packages/p.whl#sha256=0", "https://a/packages/p.whl");
        check("https://a/simple/p/", "../../../../p.whl", "https://a/p.whl");
        check("https://a/simple/p/", "./p.whl", "https://a/simple/p/p.whl");
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

    #[test]
    fn a_dead_proxy_is_named_as_the_proxy() {
        let proxy = NamedProxy::new("http://user:secret@127.0.0.1:9", "PIP_PROXY");
        let home = Origin::of("http://server.invalid").unwrap();
        let client = HttpClient::new(home, None, proxy, None).unwrap();
        let sent = client.send(Method::Get { from: 0 }, "http://server.invalid/x", None, "x");
        let text = sent.err().unwrap().to_string();
        assert!(
            text.starts_with("cannot reach server.invalid through the proxy 127.0.0.1:9 (PIP_PROXY)")
                && !text.contains("secret"),
            "{text}"
        );
    }
}
