//! Compression ratio of texts, which is high for repetitions.

use std::io::Write;

use flate2::{Compression, write::ZlibEncoder};

/// Returns the length of a text divided by its length after compression.
pub(super) fn compression_ratio(text: &str) -> f32 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to memory does not fail.
    let written = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    let compressed = written.map_or(1, |bytes| bytes.len().max(1));
    text.len() as f32 / compressed as f32
}
