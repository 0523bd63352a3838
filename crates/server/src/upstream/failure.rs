//! Failures of upstreams, and the errors that clients get for them.

use std::time::Duration;

use axum::http::StatusCode;

use crate::error::ApiError;

/// Reason why an upstream gave no answer that can be passed on. No text contains a key, an address, or text of the upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UpstreamFailure {
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error("sent nothing for {} s", .0.as_secs_f64())]
    Timeout(Duration),
    #[error("failed with status {0}")]
    Status(u16),
    #[error("refused the server's key with status {0}; the operator states it with `key_env` or `key_file`")]
    KeyRefused(u16),
    #[error("answered with a redirect, status {0}; the operator states the final address as `url`")]
    Redirect(u16),
    #[error("sent no valid answer: {0}")]
    Malformed(&'static str),
    #[error("ended the connection before the end of the answer")]
    Cut,
    #[error("failed several times, and is tried again in {} s", .0.as_secs().max(1))]
    Skipped(Duration),
    #[error("has {0} requests from this server, as many as it may have; try again in a moment")]
    Full(usize),
    #[error("is another machine, and this server must not use the network")]
    Offline,
}

impl UpstreamFailure {
    /// Returns true for a failure of the upstream itself, which the breaker counts.
    pub(crate) fn is_of_upstream(&self) -> bool {
        !matches!(self, Self::Skipped(_) | Self::Full(_) | Self::Offline)
    }

    /// Returns the code of the error, for programs.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "upstream_unreachable",
            Self::Timeout(_) => "upstream_timeout",
            Self::Status(_) => "upstream_error",
            Self::KeyRefused(_) => "upstream_key_refused",
            Self::Redirect(_) | Self::Malformed(_) => "upstream_malformed",
            Self::Cut => "upstream_cut",
            Self::Skipped(_) => "upstream_skipped",
            Self::Full(_) => "upstream_busy",
            Self::Offline => "upstream_offline",
        }
    }

    /// Returns the message about an upstream of this name.
    pub(crate) fn message(&self, upstream: &str) -> String {
        format!("the upstream {upstream} {self}")
    }

    /// Returns the error for the client.
    pub(crate) fn into_error(self, upstream: &str) -> ApiError {
        let status = match &self {
            Self::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Skipped(_) | Self::Offline => StatusCode::SERVICE_UNAVAILABLE,
            Self::Full(_) => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::BAD_GATEWAY,
        };
        let error = ApiError::plain(status, self.message(upstream)).with_code(self.code());
        match self {
            Self::Skipped(wait) => error.with_retry_after(wait),
            Self::Full(_) => error.with_retry_after(Duration::from_secs(1)),
            _ => error,
        }
    }
}
