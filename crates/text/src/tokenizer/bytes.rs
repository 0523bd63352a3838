//! A token's bytes, by the way its vocabulary spells them.

use std::sync::LazyLock;

use serde_json::Value;

/// How a vocabulary spells bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pieces {
    /// Each character of a piece stands for a byte (GPT-2).
    ByteLevel,
    /// `▁` stands for a space, `<0x41>` for a byte (SentencePiece).
    Sentence { strips_first_space: bool },
    /// `##` joins a piece to the one before, others begin a word (BERT).
    WordPiece,
}

impl Pieces {
    /// The spelling that a `tokenizer.json` decoder reads.
    pub(super) fn of(decoder: &Value) -> Self {
        let kinds = kinds(decoder);
        let has = |kind: &str| kinds.iter().any(|k| k == kind);
        if has("ByteFallback") || has("Metaspace") {
            Self::Sentence { strips_first_space: has("Strip") || has("Metaspace") }
        } else if has("WordPiece") {
            Self::WordPiece
        } else {
            Self::ByteLevel
        }
    }

    pub(super) fn strips_first_space(self) -> bool {
        matches!(self, Self::Sentence { strips_first_space: true } | Self::WordPiece)
    }

    pub(super) fn bytes(self, piece: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel => byte_level(piece),
            Self::Sentence { .. } => match byte_piece(piece) {
                Some(byte) => vec![byte],
                None => piece.replace('▁', " ").into_bytes(),
            },
            Self::WordPiece => match piece.strip_prefix("##") {
                Some(rest) => rest.as_bytes().to_vec(),
                None => format!(" {piece}").into_bytes(),
            },
        }
    }
}

fn kinds(decoder: &Value) -> Vec<String> {
    let own = decoder["type"].as_str().map(str::to_owned);
    let inner = decoder["decoders"].as_array().into_iter().flatten().flat_map(kinds);
    own.into_iter().chain(inner).collect()
}

/// The byte of `<0x41>`.
fn byte_piece(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// The characters that GPT-2 writes for bytes 0 to 255.
pub(super) fn alphabet() -> &'static [char; 256] {
    static ALPHABET: LazyLock<[char; 256]> = LazyLock::new(|| {
        let visible = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let mut hidden = 0u32;
        std::array::from_fn(|byte| {
            let byte = byte as u8;
            if visible(byte) {
                return char::from(byte);
            }
            hidden += 1;
            char::from_u32(255 + hidden).unwrap_or(char::REPLACEMENT_CHARACTER)
        })
    });
    &ALPHABET
}

fn byte_level(piece: &str) -> Vec<u8> {
    let byte = |c: char| match u32::from(c) {
        code @ 0..=0xFF => u8::try_from(code).ok().filter(|&b| alphabet()[usize::from(b)] == c),
        _ => alphabet().iter().position(|&letter| letter == c).and_then(|at| u8::try_from(at).ok()),
    };
    let bytes: Option<Vec<u8>> = piece.chars().map(byte).collect();
    // A piece with another character was not byte-level; it stands for itself.
    bytes.unwrap_or_else(|| piece.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        let sentence = Pieces::Sentence { strips_first_space: true };
        let check = |pieces: Pieces, piece: &str, expected: &[u8]| {
            assert_eq!(pieces.bytes(piece), expected, "{piece}")
        };
        check(Pieces::ByteLevel, "Ġhi", b" hi");
        check(Pieces::ByteLevel, "Ċ", b"\n");
        check(Pieces::ByteLevel, "Ã©", "é".as_bytes());
        check(Pieces::ByteLevel, "▁x", "▁x".as_bytes());
        check(sentence, "▁hi", b" hi");
        check(sentence, "<0xE2>", &[0xE2]);
        check(sentence, "<0xE2x>", b"<0xE2x>");
        check(Pieces::WordPiece, "##ing", b"ing");
        check(Pieces::WordPiece, "sing", b" sing");
    }

    #[test]
    fn the_alphabet_is_a_bijection() {
        let mut letters = alphabet().to_vec();
        letters.sort_unstable();
        letters.dedup();
        assert_eq!(letters.len(), 256);
        assert_eq!(alphabet()[usize::from(b' ')], 'Ġ');
    }
}
