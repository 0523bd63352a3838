//! Settings of upstreams: other servers with OpenAI's API, which answer requests for models in place of this machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    str::FromStr,
    time::Duration,
};

use strum::{Display, EnumString, VariantArray};

/// Settings of an upstream.
///
/// ```
/// use narthex_gateway::{Config, UpstreamSettings};
///
/// let upstream = UpstreamSettings::new("http://box.lan:8000/v1".parse()?);
/// let config = Config { upstreams: [("box".to_owned(), upstream)].into(), ..Config::standard() };
/// assert_eq!(config.upstreams["box"].url.host(), "box.lan");
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// Address of its API.
    pub url: UpstreamUrl,
    /// Key that it requires.
    pub key: Option<UpstreamKey>,
    /// Names of its models in requests, each with the upstream's own name.
    pub models: BTreeMap<String, String>,
    /// Maximum time to connect.
    pub connect_timeout: Duration,
    /// Maximum time until the first byte of an answer, and between two bytes.
    pub timeout: Duration,
    /// Maximum number of concurrent requests.
    pub max_concurrent: usize,
}

impl UpstreamSettings {
    /// Default of [`Self::connect_timeout`].
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

    /// Default of [`Self::timeout`].
    pub const TIMEOUT: Duration = Duration::from_secs(300);

    /// Default of [`Self::max_concurrent`].
    pub const MAX_CONCURRENT: usize = 64;

    /// Creates the settings of an upstream without a key.
    pub fn new(url: UpstreamUrl) -> Self {
        Self {
            url,
            key: None,
            models: BTreeMap::new(),
            connect_timeout: Self::CONNECT_TIMEOUT,
            timeout: Self::TIMEOUT,
            max_concurrent: Self::MAX_CONCURRENT,
        }
    }
}

/// Address of an upstream's API: `http://` or `https://`, a host, and a path such as `/v1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamUrl {
    is_secure: bool,
    host: String,
    port: u16,
    /// Without a slash at its end.
    path: String,
}

impl UpstreamUrl {
    /// Returns true for HTTPS.
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Returns the host, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the host and the port, as in the header `Host`.
    pub fn authority(&self) -> String {
        let standard = if self.is_secure { 443 } else { 80 };
        if self.port == standard { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// Returns the path of an endpoint, such as `/chat/completions`.
    pub fn path_of(&self, endpoint: &str) -> String {
        format!("{}{endpoint}", self.path)
    }

    /// Returns true if the host is this machine.
    pub fn is_loopback(&self) -> bool {
        let host = self.host();
        host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secure { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

impl FromStr for UpstreamUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A wrong address may contain a password, so that it is not repeated.
        let bad = |found: &str| format!("expected an address as in http://box.lan:8000/v1, found {found}");
        let (scheme, rest) = text.trim().split_once("://").ok_or_else(|| bad("no http:// or https://"))?;
        let is_secure = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err(bad("another scheme")),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(bad("a user name in it; `key_file` and `key_env` state a key"));
        }
        let is_path = path.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#\"<>\\^`{|}".contains(&byte));
        if !is_path || authority.contains(['?', '#']) {
            return Err(bad("a query, a fragment or characters that a path cannot have"));
        }

        let ends_in_port = authority.rfind(':').filter(|at| authority.rfind(']').is_none_or(|end| end < *at));
        let (host, port) = match ends_in_port {
            Some(at) => (&authority[..at], authority[at + 1..].parse().ok().filter(|port| *port > 0)),
            None => (authority, Some(if is_secure { 443 } else { 80 })),
        };
        let port = port.ok_or_else(|| bad("a port that is not a number from 1 to 65535"))?;
        let is_address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match is_address {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                let mut bytes = host.bytes();
                !host.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
            }
        };
        if !is_host {
            return Err(bad("no host"));
        }
        let path = path.trim_end_matches('/').to_owned();
        Ok(Self { is_secure, host: host.to_ascii_lowercase(), port, path })
    }
}

/// Key of an upstream. No report, log or error contains it.
#[derive(Clone, PartialEq, Eq)]
pub struct UpstreamKey(String);

impl UpstreamKey {
    /// Returns the key, for the request to its upstream.
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for UpstreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpstreamKey(***)")
    }
}

impl FromStr for UpstreamKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let key = text.trim();
        if key.is_empty() || key.len() > 4096 || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(
                "expected a key of 1 to 4096 printable characters of ASCII, found another text".to_owned()
            );
        }
        Ok(Self(key.to_owned()))
    }
}

/// Rule that lets an upstream answer requests for a local model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamRule {
    /// Name of the upstream's model, as in requests.
    pub model: String,
    /// Conditions, one of which is enough.
    pub when: BTreeSet<UpstreamCondition>,
}

/// Condition under which an upstream answers in place of a local model.
///
/// ```
/// use narthex_gateway::UpstreamCondition;
///
/// assert_eq!("too-long".parse(), Ok(UpstreamCondition::TooLong));
/// assert_eq!(UpstreamCondition::Busy.to_string(), "busy");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Display, EnumString, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum UpstreamCondition {
    /// Every slot of the model is in use, or there is no room for the request.
    Busy,
    /// The prompt does not fit into the context.
    TooLong,
    /// The request has tools.
    Tools,
    /// The model is not installed, cannot be loaded, or is not loaded in time.
    Unavailable,
}

/// Model of an upstream that answers a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamRoute {
    /// Name of the upstream in the settings.
    pub upstream: String,
    /// Name of the model in requests, without aliases.
    pub name: String,
    /// Name of the model at the upstream.
    pub model: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_and_never_repeated() {
        let check = |text: &str, expect: &str| {
            assert_eq!(text.parse::<UpstreamUrl>().unwrap().to_string(), expect, "{text}");
        };
        check("http://box.lan:8000/v1/", "http://box.lan:8000/v1");
        check(" HTTPS://API.example/openai/v1", "https://api.example/openai/v1");
        check("http://[::1]:1", "http://[::1]:1");
        check("http://127.0.0.1:80/v1", "http://127.0.0.1/v1");
        for bad in [
            "box.lan:8000",
            "ftp://box",
            "http://",
            "http://u:secret@box/v1",
            "http://box/v1?key=secret",
            "http://box?secret",
            "http://box:0",
            "http://box:secret",
            "http://b ox/",
            "http://box/a b",
            "http://[::1/v1",
            "http://box\r\nsecret: x/",
        ] {
            let reason = bad.parse::<UpstreamUrl>().unwrap_err();
            assert!(
                reason.starts_with("expected an address") && !reason.contains("secret"),
                "{bad}: {reason}"
            );
        }
    }

    #[test]
    fn addresses_have_parts() {
        let url: UpstreamUrl = "https://[::1]/v1".parse().unwrap();
        assert_eq!((url.host(), url.port(), url.authority().as_str()), ("::1", 443, "[::1]"));
        assert_eq!(url.path_of("/embeddings"), "/v1/embeddings");
        assert!(url.is_loopback() && url.is_secure());
        assert!(!"http://box.lan".parse::<UpstreamUrl>().unwrap().is_loopback());
    }

    #[test]
    fn a_key_is_never_shown() {
        let key: UpstreamKey = " secret\n".parse().unwrap();
        assert_eq!((key.secret(), format!("{key:?}").as_str()), ("secret", "UpstreamKey(***)"));
        for bad in ["", "a b", "a\u{e9}", &"a".repeat(5000)] {
            let reason = bad.parse::<UpstreamKey>().unwrap_err();
            assert!(reason.contains("expected"), "{reason}");
        }
    }
}
