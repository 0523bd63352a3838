//! A model's tokenizer: text to tokens and tokens to bytes, through the `tokenizers` crate.
//!
//! Special tokens in text that a user typed must stay text. [`Tokenizer::shield`] breaks their spelling with a
//! noncharacter that the normaliser takes out again after special tokens were looked for, so that the merges around
//! them are those of the unbroken text.

mod bytes;
mod gguf;

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use narthex_spec::TokenId;
use serde_json::{Value, json};

pub use gguf::GgufVocab;

use bytes::Pieces;

/// Breaks special tokens in user text; a Unicode noncharacter, which text for interchange never holds.
const SHIELD: char = '\u{FDD0}';

/// Why a tokenizer was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// Not a `tokenizer.json` that the `tokenizers` crate reads.
    #[error("tokenizer.json is not usable: {reason}")]
    Malformed {
        /// The reader's reason.
        reason: String,
    },
    /// A kind or pre-tokenizer that Narthex does not know.
    #[error("the {what} {found:?} is not supported: expected one of {known}; a guess would tokenise wrongly")]
    Unknown {
        /// Which setting.
        what: &'static str,
        /// What the checkpoint has.
        found: String,
        /// What is supported.
        known: String,
    },
    /// The GGUF vocabulary contradicts itself.
    #[error("the tokenizer in the GGUF file is malformed: expected {expected}, found {found}")]
    BadVocabulary {
        /// What the format says.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// A text could not be encoded.
    #[error("the text cannot be tokenised: {reason}")]
    Encode {
        /// The encoder's reason.
        reason: String,
    },
}

/// What special tokens in a text mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// They become their ids.
    Parse,
    /// They are text like any other.
    AsText,
}

/// A model's tokenizer. Cloning is cheap.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    tokenizer: tokenizers::Tokenizer,
    json: Vec<u8>,
    /// Spellings of the special tokens.
    specials: Vec<String>,
    /// Ids of the special tokens.
    special_ids: Vec<TokenId>,
    /// Added tokens by id: their text stands for itself.
    added: HashMap<TokenId, String>,
    pieces: Pieces,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens)", self.vocab_size())
    }
}

fn malformed(reason: impl ToString) -> TokenizerError {
    TokenizerError::Malformed { reason: reason.to_string() }
}

impl Tokenizer {
    /// Reads a Hugging Face `tokenizer.json`; truncation and padding that it asks for are left out.
    pub fn from_json(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let mut json: Value = serde_json::from_slice(bytes).map_err(malformed)?;
        let Some(fields) = json.as_object_mut() else { return Err(malformed("expected a JSON object")) };
        fields.insert("truncation".to_owned(), Value::Null);
        fields.insert("padding".to_owned(), Value::Null);
        let stored = serde_json::to_vec(&json).map_err(malformed)?;
        add_shield(&mut json);
        let pieces = Pieces::of(&json["decoder"]);
        let with_shield = serde_json::to_vec(&json).map_err(malformed)?;
        let tokenizer = tokenizers::Tokenizer::from_bytes(&with_shield).map_err(malformed)?;
        let decoder = tokenizer.get_added_tokens_decoder();
        let specials: Vec<(TokenId, String)> = decoder
            .iter()
            .filter(|(_, token)| token.special && !token.content.is_empty())
            .map(|(id, token)| (*id, token.content.clone()))
            .collect();
        Ok(Self {
            inner: Arc::new(Inner {
                special_ids: specials.iter().map(|(id, _)| *id).collect(),
                specials: specials.into_iter().map(|(_, content)| content).collect(),
                added: decoder.iter().map(|(id, token)| (*id, token.content.clone())).collect(),
                tokenizer,
                json: stored,
                pieces,
            }),
        })
    }

    /// Builds a tokenizer from GGUF metadata.
    pub fn from_gguf(vocab: &GgufVocab) -> Result<Self, TokenizerError> {
        Self::from_json(&serde_json::to_vec(&gguf::tokenizer_json(vocab)?).map_err(malformed)?)
    }

    /// A `tokenizer.json` that [`Self::from_json`] reads back.
    pub fn to_json(&self) -> Result<Vec<u8>, TokenizerError> {
        Ok(self.inner.json.clone())
    }

    /// Tokens of a text, without those that a model wants around every text.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<TokenId>, TokenizerError> {
        let text = match specials {
            Specials::Parse => Cow::Borrowed(text),
            Specials::AsText => self.shield(text),
        };
        self.run(&text, false)
    }

    /// Tokens of a document, with those that the tokenizer's post-processor puts around it (`[CLS] … [SEP]`); special
    /// tokens in the text are text.
    pub fn encode_document(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.run(&self.shield(text), true)
    }

    fn run(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, TokenizerError> {
        let failed = |error: tokenizers::Error| TokenizerError::Encode { reason: error.to_string() };
        Ok(self.inner.tokenizer.encode_fast(text, add_special_tokens).map_err(failed)?.get_ids().to_vec())
    }

    /// The text with the spelling of every special token broken, so that [`Specials::Parse`] reads them as text.
    pub fn shield<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let specials = &self.inner.specials;
        if !specials.iter().any(|special| text.contains(special.as_str())) {
            return Cow::Borrowed(text);
        }
        let mut shielded = String::with_capacity(text.len() + 16);
        for (at, c) in text.char_indices() {
            shielded.push(c);
            let rest = &text[at..];
            if specials.iter().any(|special| rest.starts_with(special.as_str())) {
                shielded.push(SHIELD);
            }
        }
        Cow::Owned(shielded)
    }

    /// The text of tokens, special ones left out.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        let mut detokenizer = crate::detokenize::Detokenizer::new(self.clone());
        let mut text: String = tokens.iter().filter_map(|&token| detokenizer.push(token)).collect();
        text.extend(detokenizer.finish());
        text
    }

    /// The exact bytes of one token; for a special token those of its spelling; none for an unknown id.
    pub fn token_bytes(&self, token: TokenId) -> Vec<u8> {
        if let Some(content) = self.inner.added.get(&token) {
            return content.clone().into_bytes();
        }
        match self.inner.tokenizer.id_to_token(token) {
            Some(piece) => self.inner.pieces.bytes(&piece),
            None => Vec::new(),
        }
    }

    /// Number of token ids, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.tokenizer.get_vocab_size(true)
    }

    /// The id of a token by its spelling.
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        self.inner.tokenizer.token_to_id(token)
    }

    /// Whether text leaves the token out.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.inner.special_ids.contains(&token)
    }

    /// Whether decoded text loses a leading space.
    pub(crate) fn strips_first_space(&self) -> bool {
        self.inner.pieces.strips_first_space()
    }
}

/// Puts the removal of [`SHIELD`] in front of the normaliser.
fn add_shield(json: &mut Value) {
    let remove = json!({"type": "Replace", "pattern": {"String": SHIELD.to_string()}, "content": ""});
    json["normalizer"] = match json["normalizer"].take() {
        Value::Null => remove,
        other => json!({"type": "Sequence", "normalizers": [remove, other]}),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A byte-level tokenizer: every byte, two merges, one special and one plain added token.
    pub(crate) fn tiny() -> Tokenizer {
        let mut tokens: Vec<String> = bytes::alphabet().iter().map(|c| c.to_string()).collect();
        tokens.extend(["he", "hell"].map(str::to_owned));
        tokens.extend(["ll", "<|end|>", "<tool>"].map(str::to_owned));
        let mut types = vec![1; tokens.len() - 2];
        types.extend([3, 4]);
        let merges = ["h e", "l l", "he ll"].map(str::to_owned).to_vec();
        let vocab = GgufVocab {
            model: "gpt2".to_owned(),
            pre: Some("smollm".to_owned()),
            tokens,
            types: Some(types),
            merges,
            ..GgufVocab::default()
        };
        Tokenizer::from_gguf(&vocab).unwrap()
    }

    #[test]
    fn typed_special_tokens_stay_text() {
        let t = tiny();
        let end = t.token_id("<|end|>").unwrap();
        assert_eq!(t.encode("hell<|end|>", Specials::Parse).unwrap(), [t.token_id("hell").unwrap(), end]);
        let typed = t.encode("hell<|end|>", Specials::AsText).unwrap();
        assert!(!typed.contains(&end));
        assert_eq!(t.decode(&typed), "hell<|end|>");
        // Shielded text in the middle of a template reads the same as the text alone.
        let shielded = format!("<|end|>{}", t.shield("a<|end|>b"));
        let mut expected = vec![end];
        expected.extend(t.encode("a<|end|>b", Specials::AsText).unwrap());
        assert_eq!(t.encode(&shielded, Specials::Parse).unwrap(), expected);
    }

    #[test]
    fn a_tokenizer_survives_its_json() {
        let t = tiny();
        let again = Tokenizer::from_json(&t.to_json().unwrap()).unwrap();
        for text in ["hello 123", "ünï ☃ 🙂", " \n\t x", "<tool>hell"] {
            let tokens = t.encode(text, Specials::Parse).unwrap();
            assert_eq!(again.encode(text, Specials::Parse).unwrap(), tokens);
            assert_eq!(again.decode(&tokens), text);
        }
    }

    #[test]
    fn token_bytes_are_exact() {
        let t = tiny();
        let tokens = t.encode("é 🙂", Specials::AsText).unwrap();
        let all: Vec<u8> = tokens.iter().flat_map(|&token| t.token_bytes(token)).collect();
        assert_eq!(all, "é 🙂".as_bytes());
        assert!(t.token_bytes(u32::MAX).is_empty());
    }

    #[test]
    fn json_from_outside_gives_errors() {
        for bad in ["", "[]", "{}", r#"{"model":{"type":"BPE","vocab":{},"merges":["a"]}}"#] {
            assert!(
                matches!(Tokenizer::from_json(bad.as_bytes()), Err(TokenizerError::Malformed { .. })),
                "{bad}"
            );
        }
    }
}
