//! GGUF: one file that holds configuration, tokenizer and weights.
//!
//! `read` parses the bytes into metadata and tensor locations and is the only module that handles raw bytes. `decoder` and
//! `vocab` interpret the metadata.

pub(crate) mod decoder;
pub(crate) mod meta;
pub(crate) mod read;
pub(crate) mod vocab;

/// Bytes behind the tables that are fetched too: divisors of rotary frequencies are stored first among the weights.
const SETTINGS_BYTES: usize = 64 << 10;

/// Bytes of a file's beginning that tell its tensors, as far as those that are there say; nothing once they suffice.
pub(crate) fn wanted(beginning: &[u8]) -> Option<u64> {
    let told = beginning.len().checked_sub(SETTINGS_BYTES).and_then(|end| beginning.get(..end));
    match told {
        Some(told) if read::is_told(told) => None,
        _ => Some(4 * beginning.len().max(SETTINGS_BYTES) as u64),
    }
}
