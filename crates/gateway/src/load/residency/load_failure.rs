//! Failed loads, as requests receive them until another load starts.

use std::time::Duration;

use narthex_spec::{ModelName, Scheme};

use crate::{
    error::{Error, ErrorKind},
    report::models::DeviceRefusal,
};

/// Report of a failed load.
pub(super) struct LoadFailure {
    pub(super) reason: String,
    pub(super) hint: Option<String>,
    retry_after: Option<Duration>,
    /// Time during which requests receive the report before one of them loads again.
    pub(super) lasts: Duration,
    /// Every device with its reason, if no device took the model.
    pub(super) passed_over: Vec<DeviceRefusal>,
    /// Error of a model that is not installed, which requests receive unchanged.
    missing: Option<MissingModel>,
}

/// The fields of [`Error::NotInstalled`], except the name.
#[derive(Clone)]
struct MissingModel {
    scheme: Option<Scheme>,
    installed: Vec<Scheme>,
    in_catalogue: bool,
}

impl LoadFailure {
    pub(super) fn new(error: &Error, retry: Duration) -> Self {
        let passed_over = match error {
            Error::NoDevice { passed_over, .. } => passed_over.clone(),
            _ => Vec::new(),
        };
        let retry_after = is_transient(error.kind()).then_some(retry);

        // A model in use may become idle at any time, a build may end, and a new package is complete. Other requests need no
        // device map.
        let is_momentary = matches!(
            error,
            Error::ResidencyFull { .. }
                | Error::TooManyBuilds(_)
                | Error::PackageReplaced(_)
                | Error::NotInstalled { .. }
                | Error::DeviceMap { .. }
        );

        let missing = match error {
            Error::NotInstalled { scheme, installed, in_catalogue, .. } => Some(MissingModel {
                scheme: *scheme,
                installed: installed.clone(),
                in_catalogue: *in_catalogue,
            }),
            _ => None,
        };

        let lasts = if is_momentary { Duration::ZERO } else { retry };
        Self { reason: error.to_string(), hint: error.hint(), retry_after, lasts, passed_over, missing }
    }

    pub(super) fn error(&self, name: &ModelName) -> Error {
        let Self { reason, hint, retry_after, .. } = self;
        let name = name.clone();
        if let Some(MissingModel { scheme, installed, in_catalogue }) = self.missing.clone() {
            return Error::NotInstalled { name, scheme, installed, in_catalogue };
        }
        let reason = reason.clone();
        let hint = hint.clone();
        Error::LoadFailed { name, reason, hint, retry_after: *retry_after }
    }
}

/// Returns whether a failure may pass without a change by the user.
fn is_transient(kind: ErrorKind) -> bool {
    use ErrorKind as Kind;
    match kind {
        Kind::Overloaded | Kind::Loading | Kind::Fetch | Kind::Cancelled => true,
        Kind::BadRequest
        | Kind::NotFound
        | Kind::Forbidden
        | Kind::Unavailable
        | Kind::Unsupported
        | Kind::Storage
        | Kind::Malformed
        | Kind::Internal => false,
    }
}
