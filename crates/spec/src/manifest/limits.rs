//! Limits on the contents of a manifest, so that a malformed one takes little time and memory.

use std::{collections::BTreeMap, io};

use serde::{Deserialize, Deserializer, de::Error as _};

/// Maximum size of a manifest in bytes. Every model takes about 2 kB for each layer, and 60 kB in all if it has 30 layers.
/// A package of 100 layers with fixed shapes for twelve lengths takes about 2 MB.
pub const MAX_MANIFEST_BYTES: u64 = 4 << 20;

/// Maximum number of values in a manifest. A value takes up to about 500 bytes in memory. A manifest of
/// [`MAX_MANIFEST_BYTES`] from the compiler has about 160,000, because a value takes 26 bytes of its text.
const MAX_VALUES: usize = 1 << 18;

/// Maximum number of files of a package. The compiler writes three, one more for each graph of a part, and two for each
/// compiled context; exports with a file for each tensor have a few hundred.
const MAX_FILES: usize = 4096;

/// Maximum number of special tokens for a chat template. Real models name up to ten.
const MAX_SPECIAL_TOKENS: usize = 256;

/// A manifest with more contents than any real one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected at most {most} {what}, found {found}")]
pub struct ManifestTooLong {
    what: &'static str,
    most: u64,
    found: u64,
}

impl From<ManifestTooLong> for io::Error {
    fn from(error: ManifestTooLong) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

impl ManifestTooLong {
    pub(super) fn check(what: &'static str, found: usize, most: u64) -> Result<(), Self> {
        let found = found as u64;
        if found <= most { Ok(()) } else { Err(Self { what, most, found }) }
    }
}

/// Returns an upper bound on the number of values in a JSON text, not counting names of objects.
///
/// The text is not parsed. The bound is the number of characters that can precede a value, including those in strings.
pub fn max_json_values(text: &[u8]) -> usize {
    text.iter().filter(|byte| matches!(byte, b'[' | b'{' | b',')).count()
}

/// Fails if the text of a manifest is too long or may have too many values.
pub fn check_text(text: &[u8]) -> Result<(), ManifestTooLong> {
    ManifestTooLong::check("bytes", text.len(), MAX_MANIFEST_BYTES)?;
    ManifestTooLong::check("values", max_json_values(text), MAX_VALUES as u64)
}

/// Fails if a manifest lists too many files.
pub fn check_files<T>(files: &BTreeMap<String, T>) -> Result<(), ManifestTooLong> {
    ManifestTooLong::check("files", files.len(), MAX_FILES as u64)
}

/// Deserializes the special tokens of a chat template by name.
pub(super) fn special_tokens<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let tokens = BTreeMap::deserialize(from)?;
    ManifestTooLong::check("special tokens", tokens.len(), MAX_SPECIAL_TOKENS as u64)
        .map_err(D::Error::custom)?;
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Sha256,
        manifest::{ChatEntry, FileEntry},
    };

    #[test]
    fn texts_are_limited_before_they_are_parsed() {
        let check = |text: &[u8], expect: Option<&str>| {
            let found = check_text(text).err().map(|error| error.to_string());
            assert_eq!(found.as_deref(), expect);
        };
        check(b"", None);
        check(&vec![b' '; MAX_MANIFEST_BYTES as usize], None);
        let long = vec![b' '; MAX_MANIFEST_BYTES as usize + 1];
        check(&long, Some("expected at most 4194304 bytes, found 4194305"));
        check(&[b'['; MAX_VALUES], None);
        check(&[b','; MAX_VALUES + 1], Some("expected at most 262144 values, found 262145"));
    }

    #[test]
    fn tokens_and_files_are_counted() {
        let chat = |count: usize| {
            let tokens: BTreeMap<String, &str> = (0..count).map(|index| (index.to_string(), "t")).collect();
            let text = serde_json::json!({"template": "t", "special_tokens": tokens}).to_string();
            serde_json::from_str::<ChatEntry>(&text).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(chat(MAX_SPECIAL_TOKENS), Ok(()));
        let error = chat(MAX_SPECIAL_TOKENS + 1).unwrap_err();
        assert!(error.contains("expected at most 256 special tokens, found 257"), "{error}");
        let files = |count: usize| {
            let entry = FileEntry { bytes: 0, sha256: Sha256([0; 32]) };
            check_files(&(0..count).map(|index| (index.to_string(), entry)).collect())
        };
        assert_eq!(files(MAX_FILES), Ok(()));
        let error = files(MAX_FILES + 1).unwrap_err().to_string();
        assert_eq!(error, "expected at most 4096 files, found 4097");
    }
}
