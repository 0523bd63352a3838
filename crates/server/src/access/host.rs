//! Hosts that are allowed in requests.
//!
//! A web page cannot forge `Host`. After DNS rebinding, a page's requests reach this server with the domain of the page
//! in `Host`, which is not in the list. A browser sends an IP address in `Host` only if the page's own URL has it.

use std::{net::IpAddr, str::FromStr};

use axum::{
    extract::Request,
    http::{StatusCode, Version, header::HOST},
};

use crate::error::ApiError;

/// A host that is allowed in requests in addition to this machine's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedHost {
    /// Every host.
    Any,
    /// One name or address, in lower case.
    Exactly(String),
    /// Every name under a domain, in lower case with its first dot, as in `.internal`.
    Under(String),
}

/// Text that is not an [`AllowedHost`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a host without scheme and port, as in box.lan, *.internal, 192.168.1.5 or *, found {found:?}"
)]
pub struct BadHost {
    /// The text.
    pub found: String,
}

impl BadHost {
    fn new(text: &str) -> Self {
        Self { found: text.chars().take(200).collect() }
    }
}

impl FromStr for AllowedHost {
    type Err = BadHost;

    fn from_str(text: &str) -> Result<Self, BadHost> {
        if text == "*" {
            return Ok(Self::Any);
        }
        if let Some(domain) = text.strip_prefix("*.") {
            return if is_name(domain) {
                Ok(Self::Under(format!(".{}", domain.to_ascii_lowercase())))
            } else {
                Err(BadHost::new(text))
            };
        }
        // An IPv6 address may be written without brackets here, since no port can follow.
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Exactly(address.to_string()));
        }
        match Authority::parse(text) {
            Some(Authority { host, has_port: false }) => Ok(Self::Exactly(host)),
            _ => Err(BadHost::new(text)),
        }
    }
}

impl AllowedHost {
    fn allows(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exactly(name) => name == host,
            Self::Under(domain) => host.len() > domain.len() && host.ends_with(domain.as_str()),
        }
    }
}

/// Returns whether a string can be a DNS name: letters, digits, `-`, `_` and single dots.
fn is_name(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|label| {
            !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        })
}

/// The host of `host:port`, `[v6]:port` or a bare host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Authority {
    /// A name in lower case without a final dot, or an address without brackets.
    host: String,
    has_port: bool,
}

/// Returns the host of a `Host` header, if the header is well-formed. Entry point of a fuzz target.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn host_of(header: &str) -> Option<String> {
    Authority::parse(header).map(|authority| authority.host)
}

impl Authority {
    /// Parses an authority. Returns `None` for anything that ordinary clients do not send: user names, spaces, empty
    /// hosts, ports that are not numbers.
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                let address: std::net::Ipv6Addr = address.parse().ok()?;
                (address.to_string(), port)
            }
            None => {
                let (name, port) = text.find(':').map_or((text, ""), |at| text.split_at(at));
                let name = name.strip_suffix('.').unwrap_or(name);
                if !is_name(name) {
                    return None;
                }
                (name.to_ascii_lowercase(), port)
            }
        };
        let has_port = !port.is_empty();
        let is_port = port
            .strip_prefix(':')
            .is_some_and(|digits| digits.len() <= 5 && digits.bytes().all(|byte| byte.is_ascii_digit()));
        (!has_port || is_port).then_some(Self { host, has_port })
    }
}

/// Returns whether a host is this machine's loopback interface.
pub(crate) fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Hosts that are allowed in requests.
#[derive(Debug, Clone)]
pub(crate) struct HostList {
    allowed: Vec<AllowedHost>,
    /// True if other machines can connect, which may use any of this machine's addresses.
    is_open: bool,
}

impl HostList {
    /// Creates the list of a server for this machine: loopback names and these hosts.
    pub(crate) fn local(allowed: Vec<AllowedHost>) -> Self {
        Self { allowed, is_open: false }
    }

    /// Creates the list of a server for other machines: loopback names, these hosts, every IP address, the machine's
    /// own names and the name that the server listens on.
    pub(crate) fn open(mut allowed: Vec<AllowedHost>, listens_on: &str) -> Self {
        let names = own_names().into_iter().chain([listens_on.to_owned()]);
        allowed.extend(names.filter_map(|name| name.parse().ok()));
        Self { allowed, is_open: true }
    }

    fn allows(&self, host: &str) -> bool {
        is_loopback(host)
            || (self.is_open && host.parse::<IpAddr>().is_ok())
            || self.allowed.iter().any(|allowed| allowed.allows(host))
    }

    /// Returns true if a page of this origin comes from this server: the origin names the host and the port of the
    /// request, whose host was checked. On a server for this machine, which may have no key, a host that only `*` allows
    /// is not enough: after DNS rebinding, any page has it.
    pub(crate) fn is_own_page(&self, request: &Request, origin: &str) -> bool {
        let target = request.uri().authority().map(|authority| authority.as_str());
        let header = request.headers().get(HOST).and_then(|value| value.to_str().ok());
        let page = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        let is_same = page.zip(target.or(header)).is_some_and(|(page, host)| page.eq_ignore_ascii_case(host));
        let host = page.filter(|_| is_same).and_then(Authority::parse).map(|authority| authority.host);
        host.is_some_and(|host| {
            let mut named = self.allowed.iter().filter(|allowed| **allowed != AllowedHost::Any);
            self.is_open || is_loopback(&host) || named.any(|allowed| allowed.allows(&host))
        })
    }

    /// Refuses a request unless it has exactly one well-formed host, and that host is in the list. HTTP/2 has the host
    /// in `:authority`, HTTP/1.1 in `Host` or in the request's target; if a request has both, both are checked. A request
    /// of HTTP/1.0 may have none.
    pub(crate) fn check(&self, request: &Request) -> Result<(), ApiError> {
        let bad = |message: &str| Err(ApiError::plain(StatusCode::BAD_REQUEST, message));
        let mut headers = request.headers().get_all(HOST).iter();
        let header = headers.next();
        if headers.next().is_some() {
            return bad("expected one Host header, found several");
        }

        let target = request.uri().authority().map(|authority| authority.as_str());
        let header = header.map(|value| value.to_str().unwrap_or_default());
        // HTTP/1.0 has no Host header. Browsers, which DNS rebinding needs, send HTTP/1.1 or later.
        if target.is_none() && header.is_none() && request.version() > Version::HTTP_10 {
            return bad("expected a Host header, found none; send Host: localhost");
        }

        for named in [target, header].into_iter().flatten() {
            let Some(Authority { host, .. }) = Authority::parse(named) else {
                return bad("the Host header is malformed; expected a name or an address, and a port");
            };
            if !self.allows(&host) {
                let message = format!(
                    "the Host header names {host}, which is not this machine; use localhost or 127.0.0.1, or allow the \
                     name with --allowed-host when starting the server"
                );
                return Err(ApiError::plain(StatusCode::FORBIDDEN, message));
            }
        }
        Ok(())
    }
}

/// Returns the names of this machine: its host name, its short host name, and the latter with `.local`.
fn own_names() -> Vec<String> {
    #[cfg(unix)]
    let full = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let full = std::env::var("COMPUTERNAME").unwrap_or_default();
    let short = full.split('.').next().unwrap_or_default().to_owned();
    let local = format!("{short}.local");
    vec![full, short, local]
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn allowed_hosts_have_three_forms() {
        let check = |text: &str, expect: AllowedHost| assert_eq!(text.parse(), Ok(expect), "{text}");
        let exactly = |text: &str| AllowedHost::Exactly(text.to_owned());
        check("*", AllowedHost::Any);
        check("*.Internal", AllowedHost::Under(".internal".to_owned()));
        check("Host.docker.internal", exactly("host.docker.internal"));
        check("192.168.1.5", exactly("192.168.1.5"));
        check("::1", exactly("::1"));
        check("[fe80::1]", exactly("fe80::1"));
        for bad in ["", "*.", "a*", "http://a", "a:80", "a/b", "a b", "u@a", "a..b", "[::1", "[::1]:80"] {
            assert!(bad.parse::<AllowedHost>().is_err(), "{bad}");
        }
    }

    /// Returns the status of a request with this target and these `Host` headers; 200 if the request is accepted.
    fn status(list: &HostList, target: &str, hosts: &[&str]) -> u16 {
        let mut request = Request::builder().uri(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let checked = list.check(&request.body(Body::empty()).unwrap());
        checked.err().map_or(200, |error| error.status().as_u16())
    }

    #[test]
    fn a_local_server_answers_to_loopback_names_alone() {
        let list = HostList::local(Vec::new());
        for host in ["localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST.", "[::ffff:127.0.0.1]"] {
            assert_eq!(status(&list, "/x", &[host]), 200, "{host}");
        }
        for host in ["evil.example:8000", "192.168.1.2", "127.0.0.1.evil.example", "localhost.evil.example"] {
            assert_eq!(status(&list, "/x", &[host]), 403, "{host}");
        }
    }

    #[test]
    fn missing_doubled_and_malformed_hosts_are_refused() {
        let list = HostList::local(Vec::new());
        assert_eq!(status(&list, "/x", &[]), 400);
        let old = Request::builder().version(Version::HTTP_10).uri("/x").body(Body::empty()).unwrap();
        assert!(list.check(&old).is_ok());
        assert_eq!(status(&list, "/x", &["localhost", "localhost"]), 400);
        for host in ["", "localhost:x", "localhost:800000", "u@localhost", "a b", "[::1", "localhost:80:80"] {
            assert_eq!(status(&list, "/x", &[host]), 400, "{host}");
        }
    }

    #[test]
    fn the_target_is_checked_as_well() {
        let list = HostList::local(Vec::new());
        // Absolute targets are sent as `:authority` in HTTP/2, and by HTTP/1.1 clients of a proxy.
        assert_eq!(status(&list, "http://localhost:8000/x", &[]), 200);
        assert_eq!(status(&list, "http://evil.example/x", &[]), 403);
        assert_eq!(status(&list, "http://evil.example/x", &["localhost"]), 403);
        assert_eq!(status(&list, "http://localhost/x", &["evil.example"]), 403);
        assert_eq!(status(&list, "http://u@localhost/x", &[]), 400);
    }

    #[test]
    fn a_page_of_this_server_is_recognised() {
        let request = |host: &str| Request::builder().header(HOST, host).body(Body::empty()).unwrap();
        let check = |list: &HostList, origin: &str, host: &str, expect: bool| {
            assert_eq!(list.is_own_page(&request(host), origin), expect, "{origin} at {host}");
        };
        let open = HostList::open(vec![AllowedHost::Any], "0.0.0.0");
        check(&open, "http://192.168.1.2:8000", "192.168.1.2:8000", true);
        check(&open, "https://box.lan", "Box.lan", true);
        check(&open, "http://192.168.1.2:3000", "192.168.1.2:8000", false);
        check(&open, "http://evil.example", "box.lan", false);
        check(&open, "null", "null", false);
        check(&open, "ftp://box.lan", "box.lan", false);
        check(&open, "http://", "", false);
        let named = HostList::local(vec!["*.lan".parse().unwrap()]);
        check(&named, "http://box.lan:8000", "box.lan:8000", true);
        let any = HostList::local(vec![AllowedHost::Any]);
        check(&any, "http://evil.example", "evil.example", false);
        check(&any, "http://localhost:8000", "localhost:8000", true);
    }

    #[test]
    fn an_open_server_keeps_a_list() {
        let allowed = ["host.docker.internal", "*.lan"].map(|text| text.parse().unwrap());
        let list = HostList::open(allowed.into(), "box.example");
        let own = own_names().remove(0);
        for host in ["localhost", "192.168.1.2:8000", "[fe80::1]", "box.example", "a.lan", own.as_str()] {
            assert_eq!(status(&list, "/x", &[host]), 200, "{host}");
        }
        assert_eq!(status(&list, "/x", &["host.docker.internal:80"]), 200);
        for host in ["evil.example", "lan", "a.box.example", "evil-lan"] {
            assert_eq!(status(&list, "/x", &[host]), 403, "{host}");
        }
        let any = HostList::open(vec![AllowedHost::Any], "0.0.0.0");
        assert_eq!((status(&any, "/x", &["evil.example"]), status(&any, "/x", &[])), (200, 400));
    }
}
