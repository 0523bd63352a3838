//! Speech: transcripts of files, and texts that are spoken.

mod job;
pub(crate) mod speech;
pub(crate) mod stream;
pub(crate) mod transcription;
pub(crate) mod voices;

/// Name that stands for the default model, or for the model's default voice.
const DEFAULT: &str = "default";
