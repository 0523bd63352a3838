//! Errors of the hub and of the connection to it, each with a next step.

use std::time::Duration;

use narthex_spec::Sha256;

use super::{ErrorKind, connection::ConnectionError};
use crate::redact::redact;

/// A failure of the hub or of the connection to it.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// `HF_ENDPOINT` is not an address.
    #[error(
        "{} is not a hub's address: expected http:// or https:// and a host, without credentials",
        shown_endpoint(endpoint)
    )]
    BadEndpoint {
        /// Value of the variable.
        endpoint: String,
    },
    /// The token contains characters that are not allowed.
    #[error("the hub token is malformed: expected visible ASCII characters only")]
    BadToken,
    /// The hub denies access.
    #[error("the hub denies access to {repo} ({status}): it is gated or private{}", if *had_token { ", and the token in use may not read it" } else { "" })]
    Refused {
        /// The repository.
        repo: String,
        /// HTTP status.
        status: u16,
        /// The model's page.
        page: String,
        /// `true` if a token was sent.
        had_token: bool,
    },
    /// No such repository, revision or file.
    #[error("the hub has no {what}")]
    NotFound {
        /// Requested item: `owner/repo at main`.
        what: String,
    },
    /// The hub answered with an unexpected status.
    #[error("the hub answered {status} for {what}")]
    Status {
        /// HTTP status.
        status: u16,
        /// Requested item.
        what: String,
        /// Waiting time that the hub requests.
        retry_after: Option<Duration>,
    },
    /// The connection to the hub failed.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// A response is malformed.
    #[error("the hub's response for {repo} is not valid: {reason}")]
    BadAnswer {
        /// The repository.
        repo: String,
        /// Reason.
        reason: String,
    },
    /// The connection ended before the end of the file.
    #[error("{name} ended after {found} of {expected} bytes")]
    Short {
        /// The file.
        name: String,
        /// Size that the hub stated.
        expected: u64,
        /// Number of bytes received.
        found: u64,
    },
    /// More bytes were received than the hub stated.
    #[error("{name} is longer than the {expected} bytes that the hub stated; it was deleted")]
    Long {
        /// The file.
        name: String,
        /// Size that the hub stated.
        expected: u64,
    },
    /// The file changed during the download.
    #[error("{name} changed on the hub while it was being fetched")]
    Changed {
        /// The file.
        name: String,
    },
    /// The file has another digest than the hub stated.
    #[error("{name} has SHA-256 {found}, but the hub states {expected}; it was deleted")]
    WrongHash {
        /// The file.
        name: String,
        /// Stated digest.
        expected: Sha256,
        /// Digest of the received bytes.
        found: Sha256,
        /// `true` if part of the file came from an earlier attempt, which may be the cause.
        resumed: bool,
    },
    /// The repository has no weights that Narthex reads.
    #[error("{repo} has no .safetensors or .gguf weights")]
    NoWeights {
        /// The repository.
        repo: String,
    },
    /// The repository has an adapter and no model.
    #[error("{repo} has an adapter of PEFT, expected a model")]
    Adapter {
        /// The repository.
        repo: String,
    },
    /// The repository has no tokenizer that Narthex reads.
    #[error("{repo} has no tokenizer.json or tokenizer.model; its weights were not fetched")]
    NoTokenizer {
        /// The repository.
        repo: String,
    },
    /// The repository has weights, but not those that were named.
    #[error("{repo} has no {}; its weights are {}", listed(wanted), listed(names))]
    NoSuchWeights {
        /// The repository.
        repo: String,
        /// Requested files.
        wanted: Vec<String>,
        /// Files in the repository.
        names: Vec<String>,
    },
    /// The repository has several GGUF files.
    #[error("{repo} has {} GGUF files: {}", names.len(), listed(names))]
    ManyGguf {
        /// The repository.
        repo: String,
        /// File names.
        names: Vec<String>,
    },
    /// The repository lacks a part of a divided GGUF file.
    #[error("{repo} has no {name}, a part of its weights")]
    MissingPart {
        /// The repository.
        repo: String,
        /// Name of the missing part.
        name: String,
    },
    /// A file name would leave the folder of the cache.
    #[error("{repo} lists a file named {name:?}, which would leave its folder")]
    HostileName {
        /// The repository.
        repo: String,
        /// The name.
        name: String,
    },
    /// The repository is not in the cache, and the network may not be used.
    #[error("{repo} is not in the cache, and downloads are disabled")]
    NotCached {
        /// The repository.
        repo: String,
    },
}

fn listed(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(12).map(String::as_str).collect();
    let more = if names.len() > shown.len() { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// Returns the text for a value of `HF_ENDPOINT` in an error. A value with an `@` is not shown, because a malformed
/// address may have a password anywhere before it.
fn shown_endpoint(endpoint: &str) -> String {
    if endpoint.contains('@') {
        return "the value of HF_ENDPOINT".to_owned();
    }
    format!("{:?}", redact(endpoint))
}

impl HubError {
    /// Returns the kind of failure.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } | Self::NoSuchWeights { .. } | Self::MissingPart { .. } => {
                ErrorKind::NotFound
            }
            Self::BadEndpoint { .. } | Self::BadToken | Self::ManyGguf { .. } => ErrorKind::BadRequest,
            Self::Connection(error) => error.kind(),
            _ => ErrorKind::Fetch,
        }
    }

    /// Returns the next step, if one is known.
    pub(crate) fn hint(&self) -> Option<String> {
        let text = match self {
            Self::BadEndpoint { .. } => {
                "set HF_ENDPOINT to an address such as https://hub.example, or unset it"
            }
            Self::BadToken => "copy the token again into HF_TOKEN",
            Self::Connection(error) => return Some(error.hint()),
            Self::Refused { page, had_token, .. } => {
                let token = if *had_token {
                    "use the token of the account that accepted it"
                } else {
                    "set HF_TOKEN to a token of that account"
                };
                return Some(format!("open {page}, sign in, accept the licence, then {token}"));
            }
            Self::NotFound { .. } => "check owner, name and revision; a private repository needs HF_TOKEN",
            Self::Short { .. } | Self::Changed { .. } | Self::Status { .. } => {
                "run the command again; it continues where it stopped"
            }
            Self::Long { .. } | Self::WrongHash { .. } | Self::BadAnswer { .. } => {
                "a proxy or mirror may be altering the files; try without it, or run the command again"
            }
            Self::NoWeights { .. } => "look for a conversion of the model with .safetensors or .gguf files",
            Self::Adapter { repo } => {
                return Some(format!(
                    "compile the adapter's model with it: narthex compile MODEL --lora hf:{repo}"
                ));
            }
            Self::NoTokenizer { .. } => {
                "look for a conversion of the model with tokenizer.json, or download it and put its tokenizer.json beside \
                 the weights"
            }
            Self::ManyGguf { repo, names } | Self::NoSuchWeights { repo, names, .. } => {
                let first = names.first().map_or("FILE.gguf", String::as_str);
                return Some(format!("name one of them: hf:{repo}/{first}"));
            }
            Self::MissingPart { .. } => {
                "its publisher has not uploaded all parts; look for another conversion of the model"
            }
            Self::HostileName { .. } => "do not use this repository",
            Self::NotCached { .. } => super::ONLINE,
        };

        Some(text.to_owned())
    }

    /// Returns true if there was no connection to the hub.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Connection(error) if error.is_unreachable())
    }

    /// Returns true if another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Status { status, .. } => *status >= 500 || *status == 408 || *status == 429,
            Self::WrongHash { resumed, .. } => *resumed,
            Self::Connection(error) => error.is_transient(),
            Self::Short { .. } | Self::Changed { .. } => true,
            _ => false,
        }
    }

    /// Returns the waiting time that the hub requests, at most a minute.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => retry_after.map(|wait| wait.min(Duration::from_secs(60))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_with_credentials_is_not_shown() {
        let text = |endpoint: &str| HubError::BadEndpoint { endpoint: endpoint.to_owned() }.to_string();
        for endpoint in
            ["u:secret@h:9", "//u:secret@h", "http:/u:secret@h", "http://u:a secret@h", "u:\"secret@h"]
        {
            assert!(!text(endpoint).contains("secret"), "{}", text(endpoint));
        }
        assert!(text("u:secret@h").starts_with("the value of HF_ENDPOINT is not a hub's address"));
        assert!(text("ftp://h").starts_with("\"ftp://h\" is not"));
    }
}
