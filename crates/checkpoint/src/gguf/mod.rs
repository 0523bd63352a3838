//! GGUF: configuration, tokenizer and weights in one file, or divided into parts.
//!
//! `read` is the only module that handles raw bytes: it parses them into metadata and tensor locations. `parts` opens
//! all files of a checkpoint. `decoder` and `vocab` interpret the metadata.

mod data_section;
pub(crate) mod decoder;
pub(crate) mod meta;
pub(crate) mod parts;
pub(crate) mod read;
pub(crate) mod vocab;

/// Number of bytes after the tables that are fetched too. The divisors of rotary frequencies are the first weights.
const SETTINGS_BYTES: usize = 64 << 10;

/// Returns the number of bytes to fetch from a file's start for its metadata and tensor table, or `None` if `beginning`
/// suffices or shows that the file is refused.
pub(crate) fn header_length(beginning: &[u8]) -> Option<u64> {
    let tables = beginning.len().checked_sub(SETTINGS_BYTES).and_then(|end| beginning.get(..end));
    match tables {
        // Reading a file with a bad header reports the error.
        Some(tables) if read::has_bad_header(beginning) || read::has_whole_tables(tables) => None,
        _ => Some(4 * beginning.len().max(SETTINGS_BYTES) as u64),
    }
}

#[cfg(test)]
mod tests {
    use narthex_testkit::checkpoint::tiny_llama_gguf;

    use super::*;

    #[test]
    fn the_tables_are_fetched_unless_the_file_is_refused() {
        let whole = tiny_llama_gguf(1);
        let more = |length: usize| Some(4 * length as u64);
        // The first bytes of a file whose tables are longer, with those from `at` on replaced by `with`.
        let check = |at: usize, with: &[u8], expect: Option<u64>| {
            let mut bytes = whole[..100].to_vec();
            bytes.resize(SETTINGS_BYTES + 100, 0);
            bytes[at..at + with.len()].copy_from_slice(with);
            assert_eq!(header_length(&bytes), expect, "{with:?} at {at}");
        };
        check(0, b"GGUF", more(SETTINGS_BYTES + 100));
        check(4, &2u32.to_le_bytes(), more(SETTINGS_BYTES + 100));
        check(0, b"GGML", None);
        check(4, &9u32.to_le_bytes(), None);
        check(8, &u64::MAX.to_le_bytes(), None);
        assert_eq!(header_length(&whole[..8]), more(SETTINGS_BYTES));
        let mut padded = whole.clone();
        padded.resize(whole.len() + SETTINGS_BYTES, 0);
        assert_eq!(header_length(&padded), None);
    }
}
