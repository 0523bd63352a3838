//! Errors of connections to servers, each with a next step.

use super::ErrorKind;
use crate::redact::redact;

/// A failure of the connection to a server, or of its redirects.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The file with certificates cannot be read.
    #[error("{setting} names {path:?}, which contains no readable certificates")]
    BadCertificates {
        /// Path of the file.
        path: String,
        /// Variable or option with the path.
        setting: &'static str,
    },
    /// No connection could be made.
    #[error("cannot reach {host}: {}", redact(&source.to_string()))]
    Unreachable {
        /// The host.
        host: String,
        /// Cause.
        source: Box<ureq::Error>,
    },
    /// The proxy could not be reached, or refused the connection.
    #[error("cannot reach {host} through the proxy {proxy} ({setting}): {}", redact(&source.to_string()))]
    ProxyUnreachable {
        /// Host and port of the proxy.
        proxy: String,
        /// Variable or option with the proxy.
        setting: &'static str,
        /// The host.
        host: String,
        /// Cause.
        source: Box<ureq::Error>,
    },
    /// The connection broke.
    #[error("the connection broke while fetching {what}: {}", redact(&source.to_string()))]
    Broken {
        /// Requested item.
        what: String,
        /// Cause.
        source: Box<ureq::Error>,
    },
    /// A redirect cannot or must not be followed.
    #[error("the server redirects {what} in a way that cannot be followed: {reason}")]
    BadRedirect {
        /// Requested item.
        what: String,
        /// Reason.
        reason: &'static str,
    },
}

impl ConnectionError {
    /// Returns the kind of failure.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::BadCertificates { .. } => ErrorKind::BadRequest,
            _ => ErrorKind::Fetch,
        }
    }

    /// Returns the next step.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::BadCertificates { setting, .. } => format!("set {setting} to a PEM file, or unset it"),
            Self::Unreachable { source, .. } if is_about_certificates(source) => {
                "if your network inspects TLS, set SSL_CERT_FILE to a PEM file with its root certificate"
                    .to_owned()
            }
            Self::Unreachable { .. } => {
                "check the network and its proxy (HTTPS_PROXY), then run the command again".to_owned()
            }
            Self::ProxyUnreachable { setting, .. } => format!(
                "check that the proxy runs and accepts the connection; unset {setting} if the network needs no proxy"
            ),
            Self::Broken { .. } => "run the command again; it continues where it stopped".to_owned(),
            Self::BadRedirect { .. } => {
                "a proxy or mirror may be altering the files; try without it, or run the command again"
                    .to_owned()
            }
        }
    }

    /// Returns true if there was no connection.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::ProxyUnreachable { .. })
    }

    /// Returns true if another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        self.is_unreachable() || matches!(self, Self::Broken { .. })
    }
}

/// Returns true if the certificate of the server was refused.
fn is_about_certificates(error: &ureq::Error) -> bool {
    error.to_string().to_ascii_lowercase().contains("certificate")
}
