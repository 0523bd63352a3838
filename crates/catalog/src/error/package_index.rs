//! Errors of a package index, each with a next step.

use super::{ErrorKind, connection::ConnectionError};

/// A failure of a package index or of the connection to it.
#[derive(Debug, thiserror::Error)]
pub enum PackageIndexError {
    /// The connection failed.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The address of an index is malformed. It is not shown, because it may have a password.
    #[error("the address of the package index is malformed: expected http:// or https:// and a host")]
    BadAddress,
    /// The proxy in pip's settings is malformed.
    #[error(
        "the proxy in pip's settings is malformed: expected an address such as http://proxy.example:8080"
    )]
    BadProxy,
    /// The index refuses the request.
    #[error("the package index {host} denies access to {what} ({status})")]
    Refused {
        /// Host of the index.
        host: String,
        /// Requested item.
        what: String,
        /// HTTP status.
        status: u16,
    },
    /// The index answered with an unexpected status.
    #[error("the package index {host} answered {status} for {what}")]
    Status {
        /// Host of the index.
        host: String,
        /// Requested item.
        what: String,
        /// HTTP status.
        status: u16,
    },
    /// No index has the pinned wheel.
    #[error("{} has no wheel of {package} {version} for {platform}", hosts.join(", "))]
    NotListed {
        /// The package.
        package: String,
        /// Its version.
        version: String,
        /// Its platform tag.
        platform: String,
        /// Hosts of the indexes.
        hosts: Vec<String>,
    },
    /// A page of the index is malformed.
    #[error("the page of {package} on the package index {host} is malformed: {reason}")]
    BadPage {
        /// Host of the index.
        host: String,
        /// The package.
        package: String,
        /// Reason.
        reason: String,
    },
    /// The connection ended before the end of the file, or the file is longer than the pinned one.
    #[error("{name} has {found} bytes on {host}, expected {expected}")]
    WrongLength {
        /// The file.
        name: String,
        /// Host that sent it.
        host: String,
        /// Size of the pinned file.
        expected: u64,
        /// Number of received bytes.
        found: u64,
    },
}

impl PackageIndexError {
    /// Returns the kind of failure.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Connection(error) => error.kind(),
            Self::BadAddress | Self::BadProxy => ErrorKind::BadRequest,
            _ => ErrorKind::Fetch,
        }
    }

    /// Returns the next step.
    pub(crate) fn hint(&self) -> String {
        let text = match self {
            Self::Connection(error) => return error.hint(),
            Self::BadAddress => "correct PIP_INDEX_URL, or index-url in the settings of pip or uv",
            Self::BadProxy => "correct PIP_PROXY, or proxy in pip's settings",
            Self::Refused { .. } => "check the user name and the password in the address of the index",
            Self::Status { .. } | Self::WrongLength { .. } => "run the command again, or use another index",
            Self::NotListed { .. } => {
                "a mirror may lack this version; use the index that publishes it (PIP_INDEX_URL)"
            }
            Self::BadPage { .. } => {
                "check that PIP_INDEX_URL is the address of a package index, which often ends in /simple"
            }
        };
        text.to_owned()
    }

    /// Returns true if another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Connection(error) => error.is_transient(),
            Self::Status { status, .. } => *status >= 500 || *status == 408 || *status == 429,
            Self::WrongLength { expected, found, .. } => found < expected,
            _ => false,
        }
    }
}
