//! Errors from reading an ONNX file.

/// A failure to read the bytes of an ONNX file as a graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not a protobuf message.
    #[error("not an ONNX file: {reason}")]
    NotOnnx {
        /// The protobuf decoder's message.
        reason: String,
    },
    /// The file has so many entries that reading them could exhaust memory.
    #[error("expected at most {limit} {what}, found more")]
    TooMany {
        /// Kind of entry.
        what: &'static str,
        /// Maximum number that is read.
        limit: u64,
    },
    /// A part of the model is missing or out of range.
    #[error("{what} is malformed: expected {expected}, found {found}")]
    Malformed {
        /// Part of the model.
        what: String,
        /// Value that the specification requires.
        expected: &'static str,
        /// Value in the file.
        found: String,
    },
}

pub(super) fn malformed(
    what: impl Into<String>,
    expected: &'static str,
    found: impl ToString,
) -> DecodeError {
    DecodeError::Malformed { what: what.into(), expected, found: found.to_string() }
}
