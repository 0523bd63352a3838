//! Settings for connections to other machines that this crate does not open itself: the proxy and the certificates that
//! downloads use.

use std::fmt;

use base64::{Engine, prelude::BASE64_STANDARD};
use ureq::ProxyProtocol;

pub use crate::error::ConnectionError;
use crate::source::http::{NamedProxy, trusted_certificates};

/// Address of an HTTP proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyAddress {
    /// Host.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Value of the header `Proxy-Authorization`, if the proxy has a user name.
    pub authorization: Option<String>,
}

impl fmt::Debug for ProxyAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProxyAddress({}:{})", self.host, self.port)
    }
}

/// Returns the proxy for a URL, from the variables of the environment or the settings of the system. Proxies that do not
/// speak HTTP are left out.
pub fn proxy_for(url: &str) -> Option<ProxyAddress> {
    let named = NamedProxy::from_environment()?;
    let is_http = named.proxy.protocol() == ProxyProtocol::Http;
    is_http.then_some(())?;
    named.applies_to(url).then(|| {
        let proxy = &named.proxy;
        let authorization = proxy.username().map(|user| {
            let pair = format!("{user}:{}", proxy.password().unwrap_or_default());
            format!("Basic {}", BASE64_STANDARD.encode(pair))
        });
        ProxyAddress { host: proxy.host().to_owned(), port: proxy.port(), authorization }
    })
}

/// Returns the certificates to trust in DER: those of the file that `SSL_CERT_FILE` names, else those of the system. An
/// empty list stands for those of Mozilla's programme.
///
/// # Errors
/// The file that the environment names has no readable certificates.
pub fn root_certificates() -> Result<Vec<Vec<u8>>, ConnectionError> {
    Ok(trusted_certificates()?.iter().map(|certificate| certificate.der().to_vec()).collect())
}
