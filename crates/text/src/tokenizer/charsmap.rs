//! Compiled normalisations (SentencePiece's `precompiled_charsmap`): the length of a trie in four bytes, the trie, and
//! the texts that it refers to. The reader in the `tokenizers` crate allocates as many bytes as the length states, so
//! the length is checked first.

use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
use serde_json::Value;

use super::{TokenizerError, growth::normalisation_steps, malformed};

/// Refuses a `tokenizer.json` with a trie that is longer than the normalisation that contains it.
pub(super) fn check(json: &Value) -> Result<(), TokenizerError> {
    for step in normalisation_steps(json) {
        // The reader refuses text that is not Base64.
        let compiled = step["precompiled_charsmap"].as_str().and_then(|text| BASE64.decode(text).ok());
        let Some((length, rest)) = compiled.as_deref().and_then(<[u8]>::split_first_chunk) else { continue };
        let length = u32::from_le_bytes(*length);
        if length as usize > rest.len() {
            let most = rest.len();
            return Err(malformed(format!(
                "expected a normalisation of at most {most} bytes, found {length}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_trie_is_no_longer_than_what_it_is_in() {
        let check = |bytes: &[u8]| {
            let step = json!({"type": "Precompiled", "precompiled_charsmap": BASE64.encode(bytes)});
            let inside = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, step]});
            let twice = json!({"type": "Sequence", "normalizers": [inside]});
            [step, inside, twice].into_iter().try_for_each(|one| check(&json!({"normalizer": one})))
        };
        check(&[4, 0, 0, 0, 1, 2, 3, 4]).unwrap();
        check(&[1, 2]).unwrap();
        let error = check(&[0, 0, 0, 0x56, 1, 2, 3, 4]).unwrap_err().to_string();
        assert!(error.contains("at most 4 bytes, found 1442840576"), "{error}");
        super::check(&json!({"normalizer": null})).unwrap();
    }
}
