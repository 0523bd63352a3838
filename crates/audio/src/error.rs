//! The errors of this crate.

use std::io;

/// Audio that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AudioError {
    /// The reader failed.
    #[error("reading the audio failed: {0}")]
    Read(#[from] io::Error),
}
