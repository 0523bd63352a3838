//! The bytes of each token, computed once from the tokenizer's decoder.
//!
//! A text is the concatenation of its tokens' bytes, except that some tokenizers drop a space at its start. Decoding
//! token by token is our own because the decoders of the `tokenizers` crate need the whole text.

use std::{collections::HashMap, sync::LazyLock};

use serde_json::Value;

use super::{TokenizerError, malformed};

/// Maximum number of bytes of all tokens. Real vocabularies have up to 4 MB. A replacement of the decoder can make them
/// longer than the file.
const MAX_PIECE_BYTES: usize = 32 << 20;

/// Maximum number of replacements in a decoder. Each is applied to each token. Real files have one.
const MAX_PAIRS: usize = 16;

/// The bytes of all tokens.
#[derive(Debug, Clone)]
pub(super) struct Pieces {
    /// Concatenated bytes of all tokens.
    bytes: Vec<u8>,
    /// End of each token's bytes.
    ends: Vec<usize>,
    scheme: Scheme,
}

/// The vocabulary's spelling of bytes, and the characters dropped at the beginning of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Scheme {
    spelling: Spelling,
    leading: LeadingTrim,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Spelling {
    /// One character for each byte (GPT-2).
    ByteLevel,
    /// Text in which some strings represent others (`▁` represents a space).
    Replaced { pairs: Vec<(String, String)>, byte_tokens: ByteTokens },
    /// Words, each after a space unless it has the prefix.
    Words { prefix: Option<String>, cleanup: Cleanup },
}

/// Meaning of tokens such as `<0x0A>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByteTokens {
    Decoded,
    Literal,
}

/// Removal of spaces before punctuation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cleanup {
    Yes,
    No,
}

impl Cleanup {
    fn apply(self, text: String) -> String {
        match self {
            Self::Yes => tokenizers::decoders::wordpiece::cleanup(&text),
            Self::No => text,
        }
    }
}

/// Characters dropped from the start of a text: up to `count` times `char`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeadingTrim {
    pub(crate) char: char,
    pub(crate) count: usize,
}

const KEEP_ALL: LeadingTrim = LeadingTrim { char: ' ', count: 0 };

impl Pieces {
    /// Computes the bytes of the tokens of a `tokenizers` tokenizer.
    pub(super) fn new(
        library: &tokenizers::Tokenizer,
        decoder: &Value,
        vocab_size: u32,
    ) -> Result<Self, TokenizerError> {
        let added = library.get_added_tokens_decoder();
        let map = byte_map();
        let mut pieces = Self { bytes: Vec::new(), ends: Vec::new(), scheme: scheme(decoder)? };
        for id in 0..vocab_size {
            match (added.get(&id), library.id_to_token(id)) {
                (Some(token), _) => pieces.push_added_token(&token.content),
                (None, Some(text)) => pieces.push_model_token(&text, &map),
                (None, None) => {}
            }
            if pieces.bytes.len() > MAX_PIECE_BYTES {
                return Err(malformed(format!(
                    "expected tokens with texts of at most {MAX_PIECE_BYTES} bytes in all, found more"
                )));
            }
            pieces.ends.push(pieces.bytes.len());
        }
        Ok(pieces)
    }

    /// Appends an added token. Its text is taken literally, except that in [`Spelling::Words`] it is a word like
    /// others.
    fn push_added_token(&mut self, text: &str) {
        match self.scheme.spelling {
            Spelling::Words { .. } => self.push_model_token(text, &HashMap::new()),
            Spelling::ByteLevel | Spelling::Replaced { .. } => self.bytes.extend_from_slice(text.as_bytes()),
        }
    }

    fn push_model_token(&mut self, text: &str, map: &HashMap<char, u8>) {
        match &self.scheme.spelling {
            Spelling::ByteLevel => self.bytes.extend(byte_level(text, map)),
            Spelling::Replaced { pairs, byte_tokens } => {
                let byte = (*byte_tokens == ByteTokens::Decoded).then(|| byte_token(text)).flatten();
                match byte {
                    Some(byte) => self.bytes.push(byte),
                    None => {
                        let replaced =
                            pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
                        self.bytes.extend_from_slice(replaced.as_bytes());
                    }
                }
            }
            Spelling::Words { prefix, cleanup } => {
                let word = match prefix.as_deref().and_then(|prefix| text.strip_prefix(prefix)) {
                    Some(rest) => cleanup.apply(rest.to_owned()),
                    None => cleanup.apply(format!(" {text}")),
                };
                self.bytes.extend_from_slice(word.as_bytes());
            }
        }
    }

    /// Returns the bytes of `token` inside a text; empty for an id outside the vocabulary.
    pub(super) fn bytes(&self, token: u32) -> &[u8] {
        let token = token as usize;
        let start = token.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(token).and_then(|&end| self.bytes.get(start..end)).unwrap_or_default()
    }

    /// Returns the bytes of the token with the spelling `text` at the start of a text, if they differ from those inside
    /// a text. Characters of [`Pieces::leading`] are still included.
    pub(super) fn first_bytes(&self, text: impl FnOnce() -> Option<String>) -> Option<Vec<u8>> {
        match &self.scheme.spelling {
            Spelling::Words { cleanup, .. } => text().map(|text| cleanup.apply(text).into_bytes()),
            Spelling::ByteLevel | Spelling::Replaced { .. } => None,
        }
    }

    /// Returns the characters that are dropped from the start of a text.
    pub(super) fn leading(&self) -> LeadingTrim {
        self.scheme.leading
    }
}

/// Returns the byte of a spelling such as `<0x0A>`.
fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// Returns the bytes of a byte-level spelling; a spelling with other characters is taken literally.
fn byte_level(text: &str, map: &HashMap<char, u8>) -> Vec<u8> {
    text.chars()
        .map(|char| map.get(&char).copied())
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| text.as_bytes().to_vec())
}

/// The characters that GPT-2 writes for bytes 0 to 255: printable Latin-1 characters for themselves, U+0100 and on for
/// the others.
pub(super) fn alphabet() -> &'static [char; 256] {
    static ALPHABET: LazyLock<[char; 256]> = LazyLock::new(|| {
        let mut hidden = 0u32;
        std::array::from_fn(|byte| {
            let byte = byte as u8;
            if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
                return char::from(byte);
            }
            hidden += 1;
            char::from_u32(255 + hidden).unwrap_or(char::REPLACEMENT_CHARACTER)
        })
    });
    &ALPHABET
}

fn byte_map() -> HashMap<char, u8> {
    alphabet().iter().copied().zip(0..=255).collect()
}

fn scheme(decoder: &Value) -> Result<Scheme, TokenizerError> {
    if decoder.is_null() {
        let spelling = Spelling::Words { prefix: None, cleanup: Cleanup::No };
        return Ok(Scheme { spelling, leading: KEEP_ALL });
    }
    let mut steps = Vec::new();
    flatten(decoder, &mut steps);
    let whole = match steps.as_slice() {
        [only] => single(only),
        _ => None,
    };
    whole.or_else(|| replaced(&steps)).ok_or_else(|| TokenizerError::Unknown {
        what: "decoder",
        found: decoder.to_string().chars().take(200).collect(),
        known: "ByteLevel, Metaspace, WordPiece, or a sequence of Replace, ByteFallback, Fuse and Strip"
            .to_owned(),
    })
}

fn flatten<'a>(decoder: &'a Value, steps: &mut Vec<&'a Value>) {
    match decoder.get("decoders").and_then(Value::as_array) {
        Some(parts) => parts.iter().for_each(|part| flatten(part, steps)),
        None => steps.push(decoder),
    }
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn text<'a>(step: &'a Value, key: &str) -> Option<&'a str> {
    step.get(key).and_then(Value::as_str)
}

/// Returns the scheme of a decoder that consists of one step.
fn single(step: &Value) -> Option<Scheme> {
    match kind(step) {
        "ByteLevel" => Some(Scheme { spelling: Spelling::ByteLevel, leading: KEEP_ALL }),
        "WordPiece" => {
            let prefix = Some(text(step, "prefix")?.to_owned());
            let cleanup = if step.get("cleanup")?.as_bool()? { Cleanup::Yes } else { Cleanup::No };
            Some(Scheme { spelling: Spelling::Words { prefix, cleanup }, leading: KEEP_ALL })
        }
        "Metaspace" => {
            let pairs = vec![(text(step, "replacement")?.to_owned(), " ".to_owned())];
            let never = text(step, "prepend_scheme") == Some("never")
                || step.get("add_prefix_space").and_then(Value::as_bool) == Some(false);
            let leading = LeadingTrim { char: ' ', count: usize::from(!never) };
            Some(Scheme { spelling: Spelling::Replaced { pairs, byte_tokens: ByteTokens::Literal }, leading })
        }
        _ => None,
    }
}

/// Returns the scheme of a sequence of replacements and byte tokens, such as those of Llama and Gemma.
fn replaced(steps: &[&Value]) -> Option<Scheme> {
    let mut pairs = Vec::new();
    let mut byte_tokens = ByteTokens::Literal;
    let mut leading = KEEP_ALL;
    let mut fused = false;

    for step in steps {
        match kind(step) {
            // After `Fuse`, only a replacement of single characters equals a replacement token by token.
            "Replace" => {
                let from = step.get("pattern").and_then(|pattern| text(pattern, "String"))?;
                let is_long = fused && from.chars().count() > 1;
                if from.is_empty() || is_long || pairs.len() == MAX_PAIRS {
                    return None;
                }
                pairs.push((from.to_owned(), text(step, "content")?.to_owned()));
            }
            "ByteFallback" => byte_tokens = ByteTokens::Decoded,
            "Fuse" => fused = true,
            "Strip" => {
                let ends = step.get("stop").and_then(Value::as_u64)?;
                let mut chars = text(step, "content")?.chars();
                let (Some(char), None, true, 0) = (chars.next(), chars.next(), fused, ends) else {
                    return None;
                };
                leading = LeadingTrim { char, count: usize::try_from(step.get("start")?.as_u64()?).ok()? };
            }
            _ => return None,
        }
    }
    Some(Scheme { spelling: Spelling::Replaced { pairs, byte_tokens }, leading })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoders_become_schemes() {
        let check = |json: &str, expect: &str| {
            let found = match scheme(&serde_json::from_str(json).unwrap()) {
                Ok(scheme) => format!("{:?} {:?}", scheme.spelling, scheme.leading),
                Err(error) => error.to_string(),
            };
            assert!(found.contains(expect), "{json}: {found}");
        };
        check(r#"{"type":"ByteLevel"}"#, "ByteLevel");
        check(
            r###"{"type":"WordPiece","prefix":"##","cleanup":true}"###,
            r###"prefix: Some("##"), cleanup: Yes"###,
        );
        check(r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"}"#, "count: 1");
        check(r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"never"}"#, "count: 0");
        let llama = r#"{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},
            {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}"#;
        check(llama, r#"pairs: [("▁", " ")], byte_tokens: Decoded } LeadingTrim { char: ' ', count: 1 }"#);
        check(r#"{"type":"BPEDecoder","suffix":"</w>"}"#, "is not supported: expected one of ByteLevel");
        let replacements = |count: usize| {
            let steps = vec![r#"{"type":"Replace","pattern":{"String":"a"},"content":"b"}"#; count].join(",");
            format!(r#"{{"type":"Sequence","decoders":[{steps}]}}"#)
        };
        check(&replacements(MAX_PAIRS), r#"("a", "b")"#);
        check(&replacements(MAX_PAIRS + 1), "is not supported");
        check(r#"{"type":"Strip","content":" ","start":1,"stop":0}"#, "is not supported");
        check(r#"{"type":"Replace","pattern":{"Regex":"a+"},"content":" "}"#, "is not supported");
        check(r#"{"type":"Strip","content":"","start":1,"stop":0}"#, "is not supported");
        check("7", "is not supported");
    }

    #[test]
    fn the_bytes_of_all_tokens_are_limited() {
        let library = r#"{"version": "1.0", "added_tokens": [], "model":
            {"type": "BPE", "vocab": {"a": 0, "aa": 1, "aaa": 2}, "merges": []}}"#;
        let library = tokenizers::Tokenizer::from_bytes(library.as_bytes()).unwrap();
        let pieces = |bytes: usize| {
            let decoder = serde_json::json!({"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(bytes)},
            ]});
            Pieces::new(&library, &decoder, 3)
                .map(|pieces| pieces.bytes.len())
                .map_err(|error| error.to_string())
        };
        assert_eq!(pieces(5 << 20), Ok(30 << 20));
        let error = pieces(6 << 20).unwrap_err();
        assert!(error.contains("at most 33554432 bytes in all"), "{error}");
    }

    #[test]
    fn spellings_become_bytes() {
        let map = byte_map();
        assert_eq!(map.len(), 256);
        let check = |text: &str, expect: &[u8]| assert_eq!(byte_level(text, &map), expect, "{text}");
        check("Ġthe", b" the");
        check("ĊĊ", b"\n\n");
        check("Ã©", "é".as_bytes());
        check("Ń", &[0xAD]);
        check("a b", b"a b");
        let check = |text: &str, expect: Option<u8>| assert_eq!(byte_token(text), expect, "{text}");
        check("<0x0A>", Some(10));
        check("<0xff>", Some(255));
        check("<0x+A>", None);
        check("<0x100>", None);
        check("0x0A", None);
    }
}
