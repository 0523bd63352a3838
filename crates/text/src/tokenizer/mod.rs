//! A model's tokenizer: text to tokens and tokens to bytes, with the `tokenizers` crate.
//!
//! Special tokens in a user's text must stay text. [`Tokenizer::shield`] breaks their spelling with a noncharacter, and
//! [`Tokenizer::shield_outside`] does so except where a template wrote them. The normaliser removes the noncharacter
//! after special tokens have been matched, so the merges are those of the original text. If the model itself could write
//! such a spelling as one token, the noncharacter divides the text instead.
//!
//! Special tokens are those that `tokenizer.json` flags as special. Other added tokens, such as `<think>` or
//! `<tool_call>`, belong to the texts that people and models write, and are recognised in every text. There are two
//! exceptions in conversations, because a message cannot begin or end a block of the template: tokens that the prompt's
//! template itself writes, and tokens in the form of a marker, such as `<|system|>`.

mod bounded;
mod bytes;
mod charsmap;
mod file;
mod file_model;
mod gguf;
mod growth;
mod library;
mod limited_json;
mod pair;
mod patterns;
mod pre;
mod recent;
mod sentencepiece;
mod shield;
mod special;
mod token_length;

use std::{borrow::Cow, ops::Range, sync::Arc};

use narthex_spec::TokenId;
use serde_json::Value;
use tokenizers::AddedToken;

pub use bounded::{BoundedTokens, Bounds};
pub use file::MAX_FILE_BYTES;
pub use file_model::{MAX_MERGES, MAX_TOKENS};
pub use gguf::GgufVocab;
pub use pair::Pair;
pub use sentencepiece::Addition;
pub use special::SpecialToken;

pub(crate) use bytes::LeadingTrim;

use bytes::Pieces;
use file::TokenizerFile;
use recent::RecentPrompts;
use shield::{add_shield, is_marker};
use special::{SpecialTable, break_outside};
use token_length::TokenLengthBound;

use crate::catch_panic::contain;

/// Unicode noncharacter that breaks special tokens in user text. Text for interchange never contains it.
pub(crate) const SHIELD: char = '\u{FDD0}';

/// A failure to read or use a tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// The `tokenizers` crate cannot read the `tokenizer.json`.
    #[error("tokenizer.json is not usable: {reason}")]
    Malformed {
        /// The reader's error.
        reason: String,
    },
    /// A kind of tokenizer or pre-tokenizer is not supported.
    #[error(
        "the {what} {found:?} is not supported: expected one of {known}; any other rule would tokenize differently"
    )]
    Unknown {
        /// Name of the setting.
        what: &'static str,
        /// Value in the checkpoint.
        found: String,
        /// Supported values.
        known: String,
    },
    /// The GGUF vocabulary contradicts itself.
    #[error("the tokenizer in the GGUF file is malformed: expected {expected}, found {found}")]
    BadVocabulary {
        /// Value that the format requires.
        expected: String,
        /// Value in the file.
        found: String,
    },
    /// The SentencePiece model is not supported or malformed.
    #[error("tokenizer.model is not usable: expected {expected}, found {found}")]
    BadModel {
        /// Supported value.
        expected: String,
        /// Value in the file.
        found: String,
    },
    /// The request was cancelled.
    #[error("tokenizing was cancelled")]
    Cancelled,
    /// A text could not be encoded.
    #[error("the text cannot be tokenized: {reason}")]
    Encode {
        /// The encoder's error.
        reason: String,
    },
}

impl TokenizerError {
    fn panicked() -> Self {
        Self::Encode { reason: "the tokenizers crate panicked on it".to_owned() }
    }
}

/// Treatment of the spellings of special tokens in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// They become their ids.
    Parse,
    /// They are plain text.
    AsText,
}

/// A model's tokenizer. Cloning is cheap.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    tokenizer: tokenizers::Tokenizer,
    specials: SpecialTable,
    /// Added tokens that are not special.
    markup: SpecialTable,
    /// Those of them in the form of a marker.
    markers: SpecialTable,
    pieces: Pieces,
    vocab_size: usize,
    reach: Option<TokenLengthBound>,
    recent: RecentPrompts,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens)", self.vocab_size())
    }
}

fn malformed(reason: impl ToString) -> TokenizerError {
    TokenizerError::Malformed { reason: reason.to_string() }
}

/// Returns the `tokenizer.json` of GGUF metadata.
pub fn gguf_json(vocab: &GgufVocab) -> Result<Vec<u8>, TokenizerError> {
    serde_json::to_vec(&gguf::tokenizer_json(vocab)?).map_err(malformed)
}

/// Returns the `tokenizer.json` of a SentencePiece model, `tokenizer.model`, and of the tokens that other files add to it.
pub fn sentencepiece_json(model: &[u8], additions: &[Addition]) -> Result<Vec<u8>, TokenizerError> {
    serde_json::to_vec(&sentencepiece::tokenizer_json(model, additions)?).map_err(malformed)
}

/// Removes truncation and padding from a `tokenizer.json`. Packages store the result.
pub fn package_json(json: &[u8]) -> Result<Vec<u8>, TokenizerError> {
    let mut json: Value = serde_json::from_slice(json).map_err(malformed)?;
    let Some(fields) = json.as_object_mut() else { return Err(malformed("expected a JSON object")) };
    fields.insert("truncation".to_owned(), Value::Null);
    fields.insert("padding".to_owned(), Value::Null);
    serde_json::to_vec(&json).map_err(malformed)
}

impl Tokenizer {
    /// Reads a Hugging Face `tokenizer.json`. Its truncation, padding and dropout are ignored.
    pub fn from_json(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let mut file = TokenizerFile::parse(bytes)?;
        charsmap::check(&file.json)?;
        growth::check(&file.json)?;
        patterns::check(&file.json)?;
        let reach = TokenLengthBound::of(&file);
        add_shield(&mut file)?;
        let decoder = file.json["decoder"].clone();
        let vocab_size = file.vocab_size();
        let tokenizer = contain(|| library::build(file.json, file.vocab, file.merges))
            .map_err(|_| malformed("the tokenizers crate panicked on it"))?
            .map_err(malformed)?;
        file.added.check(|text| tokenizer.token_to_id(text))?;
        let added = tokenizer.get_added_tokens_decoder();
        let table = |wanted: fn(&AddedToken) -> bool| {
            let tokens = added.iter().filter(|(_, token)| wanted(token));
            SpecialTable::new(tokens.map(|(id, token)| SpecialToken { id: *id, text: token.content.clone() }))
        };

        let inner = Inner {
            specials: table(|token| token.special),
            // White space of a template is not markup. A token that is matched after normalising cannot be broken and
            // is left out. That setting remains for plain words only.
            markup: table(|token| !token.special && !token.normalized && !token.content.trim().is_empty()),
            markers: table(|token| !token.special && is_marker(&token.content)),
            pieces: Pieces::new(&tokenizer, &decoder, vocab_size)?,
            vocab_size: vocab_size as usize,
            reach,
            recent: RecentPrompts::new(added.values().map(|token| token.content.len()).max().unwrap_or(0)),
            tokenizer,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Builds a tokenizer from GGUF metadata.
    pub fn from_gguf(vocab: &GgufVocab) -> Result<Self, TokenizerError> {
        Self::from_json(&gguf_json(vocab)?)
    }

    /// Builds a tokenizer from a SentencePiece model and the tokens that other files add to it.
    pub fn from_sentencepiece(model: &[u8], additions: &[Addition]) -> Result<Self, TokenizerError> {
        Self::from_json(&sentencepiece_json(model, additions)?)
    }

    /// Returns the tokens of a text, without those that the post-processor adds.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<TokenId>, TokenizerError> {
        self.run(&self.prepared(text, specials), false)
    }

    /// Returns the tokens as [`Self::encode`], with those that the post-processor adds.
    pub fn encode_with_added(&self, text: &str, specials: Specials) -> Result<Vec<TokenId>, TokenizerError> {
        self.run(&self.prepared(text, specials), true)
    }

    /// Returns the text in which [`Self::run`] recognises special tokens, or not.
    fn prepared<'a>(&self, text: &'a str, specials: Specials) -> Cow<'a, str> {
        match specials {
            Specials::Parse => Cow::Borrowed(text),
            Specials::AsText => self.shield(text),
        }
    }

    /// Returns the tokens that the post-processor adds before and after a document.
    pub fn document_frame(&self) -> Result<[Vec<TokenId>; 2], TokenizerError> {
        let body = self.run("a", false)?;
        let mut whole = self.run("a", true)?;
        let start = whole.windows(body.len().max(1)).position(|window| window == body).unwrap_or(0);
        let after = whole.split_off((start + body.len()).min(whole.len()));
        whole.truncate(start);
        Ok([whole, after])
    }

    /// Returns the tokens of a document, with those that the post-processor adds (`[CLS] … [SEP]`). Spellings of
    /// special tokens in the text stay text.
    pub fn encode_document(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_with_added(text, Specials::AsText)
    }

    /// Returns the tokens as [`Self::encode_document`], except that `kept`, the spelling of one special token, becomes
    /// that token.
    pub fn encode_document_with(&self, text: &str, kept: &str) -> Result<Vec<TokenId>, TokenizerError> {
        let parts: Vec<Cow<'_, str>> = text.split(kept).map(|part| self.shield(part)).collect();
        self.run(&parts.join(kept), true)
    }

    /// Returns a lower bound on the number of tokens of a text without tokenizing it, or 0 if no bound is known.
    pub fn min_tokens(&self, text: &str) -> usize {
        self.inner.reach.as_ref().map_or(0, |reach| reach.fewest(text))
    }

    fn run(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, TokenizerError> {
        contain(|| self.inner.tokenizer.encode_fast(text, add_special_tokens))
            .map_err(|_| TokenizerError::panicked())?
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TokenizerError::Encode { reason: error.to_string() })
    }

    /// Returns the text with the spelling of every special token broken, so that [`Specials::Parse`] reads them as
    /// text. A partial spelling at the end of the text is broken too. A spelling of one character cannot be broken.
    pub fn shield<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let specials = &self.inner.specials;
        if specials.touches(text) { Cow::Owned(specials.break_up(text, SHIELD)) } else { Cow::Borrowed(text) }
    }

    /// Returns the text with the spelling of every special token broken, except within the ranges `written`, which are
    /// in order and not adjacent. Other added tokens that occur within these ranges or have the form of a marker are
    /// broken outside of them, too.
    pub fn shield_outside(&self, text: &str, written: &[Range<usize>]) -> String {
        let Inner { specials, markup, markers, .. } = &*self.inner;
        break_outside([specials, markers, &markup.found_in(text, written)], text, written, SHIELD)
    }

    /// Returns the exact bytes of a token inside a text: those of its spelling for a special token, none for an unknown
    /// id.
    pub fn token_bytes(&self, token: TokenId) -> Vec<u8> {
        self.inner.pieces.bytes(token).to_vec()
    }

    /// Returns one more than the largest token id.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab_size
    }

    /// Returns the id of a token by its spelling.
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        self.inner.tokenizer.token_to_id(token)
    }

    /// Returns the vocabulary's spelling of a token. [`Self::token_bytes`] returns its text.
    pub fn id_text(&self, token: TokenId) -> Option<String> {
        self.inner.tokenizer.id_to_token(token)
    }

    /// Returns the first token whose spelling differs in another tokenizer, or that only one of them has.
    pub fn first_difference(&self, other: &Self) -> Option<TokenId> {
        let size = self.vocab_size().max(other.vocab_size()) as TokenId;
        (0..size).find(|&token| self.id_text(token) != other.id_text(token))
    }

    /// Returns the special tokens, sorted by id.
    pub fn special_tokens(&self) -> &[SpecialToken] {
        self.inner.specials.tokens()
    }

    /// Returns true if a token is special, so that decoded text omits it.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.inner.specials.contains(token)
    }

    pub(crate) fn append_bytes(&self, token: TokenId, position: TokenPosition, text: &mut Vec<u8>) {
        let first = match position {
            TokenPosition::Start => self.inner.pieces.first_bytes(|| self.id_text(token)),
            TokenPosition::Inside => None,
        };
        text.extend_from_slice(first.as_deref().unwrap_or(self.inner.pieces.bytes(token)));
    }

    /// Returns the characters that decoded text drops at its start.
    pub(crate) fn leading(&self) -> LeadingTrim {
        self.inner.pieces.leading()
    }
}

/// The position of a token in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenPosition {
    /// First token.
    Start,
    /// Any other token.
    Inside,
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// Returns an entry of `added_tokens` that is matched before normalization.
    pub(crate) fn added(id: u32, content: &str, special: bool) -> Value {
        json!({"id": id, "content": content, "special": special, "normalized": false, "single_word": false,
            "lstrip": false, "rstrip": false})
    }

    /// Returns a byte-level tokenizer with every byte, two merges, one special and one plain added token.
    pub(crate) fn tiny() -> Tokenizer {
        Tokenizer::from_gguf(&tiny_vocab()).unwrap()
    }

    fn tiny_vocab() -> GgufVocab {
        let mut tokens: Vec<String> = bytes::alphabet().iter().map(|c| c.to_string()).collect();
        tokens.extend(["he", "hell"].map(str::to_owned));
        tokens.extend(["ll", "<|end|>", "<tool>"].map(str::to_owned));
        let mut types = vec![1; tokens.len() - 2];
        types.extend([3, 4]);
        let merges = ["h e", "l l", "he ll"].map(str::to_owned).to_vec();
        GgufVocab {
            model: "gpt2".to_owned(),
            pre: Some("smollm".to_owned()),
            tokens,
            types: Some(types),
            merges,
            ..GgufVocab::default()
        }
    }

    #[test]
    fn typed_special_tokens_stay_text() {
        let t = tiny();
        let end = t.token_id("<|end|>").unwrap();
        assert_eq!(t.encode("hell<|end|>", Specials::Parse).unwrap(), [t.token_id("hell").unwrap(), end]);
        let typed = t.encode("hell<|end|>", Specials::AsText).unwrap();
        assert!(!typed.contains(&end));
        assert_eq!(t.decode(&typed), "hell<|end|>");
        // Shielded text inside a template has the same tokens as the text alone.
        let shielded = format!("<|end|>{}", t.shield("a<|end|>b"));
        let mut expected = vec![end];
        expected.extend(t.encode("a<|end|>b", Specials::AsText).unwrap());
        assert_eq!(t.encode(&shielded, Specials::Parse).unwrap(), expected);
    }

    #[test]
    fn no_text_has_fewer_tokens_than_its_length_allows() {
        let t = tiny();
        // The longest spelling is `<|end|>`.
        for (text, expected) in
            [("", 0), ("hellhell", 2), ("hell<|end|> é漢🙂\n", 4), (&"he".repeat(700), 200)]
        {
            assert_eq!(t.min_tokens(text), expected, "{text}");
            assert!(t.encode(text, Specials::Parse).unwrap().len() >= expected, "{text}");
        }
    }

    #[test]
    fn one_special_token_of_a_document_may_be_kept() {
        let json = r#"{
            "added_tokens": [
                {"id": 3, "content": "<m>", "special": true, "normalized": false, "single_word": false, "lstrip": false,
                    "rstrip": false},
                {"id": 4, "content": "<s>", "special": true, "normalized": false, "single_word": false, "lstrip": false,
                    "rstrip": false}
            ],
            "model": {"type": "BPE", "vocab": {"<": 0, "s": 1, ">": 2, "<m>": 3, "<s>": 4, "m": 5}, "merges": []}
        }"#;
        let t = Tokenizer::from_json(json.as_bytes()).unwrap();
        assert_eq!(t.encode_document_with("s<m><s>", "<m>").unwrap(), [1, 3, 0, 1, 2]);
        assert_eq!(t.encode_document("<m>").unwrap(), [0, 5, 2]);
    }

    #[test]
    fn the_file_of_a_package_has_the_same_tokens_without_truncation() {
        let t = tiny();
        let mut json = gguf::tokenizer_json(&tiny_vocab()).unwrap();
        json["truncation"] =
            json!({"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
        let stored = package_json(&serde_json::to_vec(&json).unwrap()).unwrap();
        assert!(serde_json::from_slice::<Value>(&stored).unwrap()["truncation"].is_null());
        let again = Tokenizer::from_json(&stored).unwrap();
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
        let merge = r#"{"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]}}"#;
        for bad in ["", "[]", "{}", r#"{"model":{"type":"BPE","vocab":{},"merges":["a"]}}"#, merge] {
            assert!(
                matches!(Tokenizer::from_json(bad.as_bytes()), Err(TokenizerError::Malformed { .. })),
                "{bad}"
            );
        }
    }

    #[test]
    fn ids_may_have_gaps() {
        let json = r#"{"model":{"type":"WordLevel","vocab":{"a":0,"b":700},"unk_token":"a"}}"#;
        let t = Tokenizer::from_json(json.as_bytes()).unwrap();
        assert_eq!(t.vocab_size(), 701);
        assert_eq!((t.id_text(700).as_deref(), t.id_text(5)), (Some("b"), None));
        assert!(t.token_bytes(5).is_empty());
    }

    #[test]
    fn added_tokens_are_found_before_normalising_except_words() {
        let added = |id: u32, content: &str| {
            json!({"id": id, "content": content, "special": false, "normalized": true, "single_word": false,
                "lstrip": false, "rstrip": false})
        };
        let json = json!({
            "added_tokens": [added(5, "<s>"), added(6, "ss"), added(7, "▁▁")],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Lowercase"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "model": {"type": "BPE", "vocab": {"<": 0, "s": 1, ">": 2, "▁": 3, "x": 4, "<s>": 5, "ss": 6, "▁▁": 7},
                "merges": []},
        });
        let t = Tokenizer::from_json(&serde_json::to_vec(&json).unwrap()).unwrap();
        let written = |text, written: &[Range<usize>]| {
            t.encode(&t.shield_outside(text, written), Specials::Parse).unwrap()
        };
        assert_eq!(written("<s>SS  x", &[]), [5, 6, 7, 4]);
        assert_eq!(written("<s>x<s> <S>", std::slice::from_ref(&(0..3))), [5, 4, 0, 1, 2, 3, 0, 1, 2]);
    }

    #[test]
    fn an_added_token_that_is_listed_twice_is_broken_once() {
        let token = json!({"id": 1, "content": "<s>", "special": true});
        let json = json!({"added_tokens": [token, token], "normalizer": {"type": "NFC"},
            "model": {"type": "Unigram"}});
        let mut file = file::tests::parse_value(&json).unwrap();
        add_shield(&mut file).unwrap();
        let steps = file.json["normalizer"]["normalizers"].as_array().unwrap();
        let breaking = json!({"type": "Replace", "pattern": {"String": "<s>"},
            "content": format!("<{SHIELD}s>")});
        assert_eq!(steps, &[json!({"type": "NFC"}), breaking]);
    }

    #[test]
    fn special_tokens_are_found_before_normalising_only() {
        let json = r#"{
            "added_tokens": [{"id": 3, "content": "<s>", "special": true, "normalized": true,
                "single_word": false, "lstrip": false, "rstrip": false}],
            "normalizer": {"type": "Lowercase"},
            "model": {"type": "BPE", "vocab": {"<": 0, "s": 1, ">": 2, "<s>": 3, "ss": 4}, "merges": ["s s"],
                "dropout": 1.0}
        }"#;
        let t = Tokenizer::from_json(json.as_bytes()).unwrap();
        let check =
            |text, specials, expect: &[u32]| assert_eq!(t.encode(text, specials).unwrap(), expect, "{text}");
        check("<s>S", Specials::Parse, &[3, 1]);
        check("<s>S", Specials::AsText, &[0, 1, 2, 1]);
        check("<S>", Specials::AsText, &[0, 1, 2]);
        check("ss", Specials::AsText, &[4]);
        assert_eq!(t.special_tokens(), [SpecialToken { id: 3, text: "<s>".to_owned() }]);
    }

    #[test]
    fn the_spellings_that_a_normaliser_may_produce_are_limited() {
        let read = |count: usize| {
            let added = (1..=count).map(|id| added(id as u32, &format!("<extra_{id}>"), true));
            let json = json!({"added_tokens": added.collect::<Vec<_>>(),
                "normalizer": {"type": "NFC"},
                "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]}});
            Tokenizer::from_json(&serde_json::to_vec(&json).unwrap()).map(|_| ())
        };
        read(300).unwrap();
        let error = read(shield::MAX_BROKEN + 1).unwrap_err().to_string();
        assert!(error.contains("expected at most 4096 added tokens that are markup, found 4097"), "{error}");
    }
}
