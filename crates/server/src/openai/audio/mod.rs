//! Speech: transcripts of files, and texts that are spoken.

pub(crate) mod speech;
pub(crate) mod stream;
pub(crate) mod transcription;
pub(crate) mod voices;
