//! GGUF: one file with configuration, tokenizer and weights.
//!
//! `read` is the only module that handles raw bytes: it parses them into metadata and tensor locations. `decoder` and
//! `vocab` interpret the metadata.

pub(crate) mod decoder;
pub(crate) mod meta;
pub(crate) mod read;
pub(crate) mod vocab;

/// Number of bytes after the tables that are fetched too. The divisors of rotary frequencies are the first weights.
const SETTINGS_BYTES: usize = 64 << 10;

/// Returns the number of bytes to fetch from a file's start for its metadata and tensor table, or `None` if `beginning`
/// suffices.
pub(crate) fn header_length(beginning: &[u8]) -> Option<u64> {
    let tables = beginning.len().checked_sub(SETTINGS_BYTES).and_then(|end| beginning.get(..end));
    match tables {
        Some(tables) if read::has_whole_tables(tables) => None,
        _ => Some(4 * beginning.len().max(SETTINGS_BYTES) as u64),
    }
}
