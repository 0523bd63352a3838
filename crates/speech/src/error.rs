//! Errors of files that describe a pronunciation.

/// Error of a pronunciation file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpeechError {
    /// A file does not have the expected contents.
    #[error("cannot read the {what}: {reason}; import the voice again")]
    BadFile {
        /// Kind of the file, such as `dictionary`.
        what: &'static str,
        /// Reason, with the position in the file.
        reason: String,
    },
}

impl SpeechError {
    pub(crate) fn json(what: &'static str) -> impl FnOnce(serde_json::Error) -> Self {
        move |error| Self::BadFile { what, reason: error.to_string() }
    }
}
