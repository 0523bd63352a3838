//! Tokenization of long texts up to a limit.
//!
//! The time and memory of the `tokenizers` crate grow with the text, so a text that is far too long is not tokenized as
//! a whole. A prefix is tokenized, then one of twice the length, until the tokens exceed the limit or the text is
//! complete. A cut changes only tokens near it: texts are split into words before tokenization, and a token has few
//! bytes. Some text has no tokens, such as white space or characters that a normaliser removes, so the bytes have a limit,
//! too.

use narthex_spec::{TokenId, manifest::PairTemplate};

use super::{Pair, Tokenizer, TokenizerError};

/// Minimum number of bytes of the first prefix.
const FIRST: usize = 32 << 10;

/// Bytes of the first prefix for each token of the limit: about the length of a token in English.
const TYPICAL: usize = 4;

/// Maximum number of bytes of a text for each token of the limit. Tokens have fewer on average, but text may vanish, and
/// one unknown token may represent text of any length.
const MAX_PER_TOKEN: usize = 256;

/// Number of bytes from which a text has a smaller maximum, [`MAX_PER_TOKEN_OF_LONG`] for each token of the limit. A byte
/// takes 100 and more bytes of memory, even if the text becomes few tokens.
const LONG: usize = 1 << 20;

/// Maximum number of bytes of a long text for each token of the limit: four times the usual length of a token.
const MAX_PER_TOKEN_OF_LONG: usize = 16;

/// Maximum number of tokens that a cut may change; more than the characters of a word that WordPiece splits.
const CHANGED: usize = 128;

/// Bounds of one tokenization.
#[derive(Clone, Copy)]
pub struct Bounds<'a> {
    /// Maximum number of tokens.
    pub limit: usize,
    /// Returns true if the caller no longer needs the tokens. Called before each prefix is tokenized.
    pub is_cancelled: &'a dyn Fn() -> bool,
}

impl Bounds<'_> {
    /// Returns the maximum number of bytes that are tokenized at once.
    pub fn max_bytes(&self) -> usize {
        let of_long = self.limit.saturating_mul(MAX_PER_TOKEN_OF_LONG).max(LONG);
        self.limit.saturating_mul(MAX_PER_TOKEN).min(of_long).max(FIRST)
    }
}

/// Tokens of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BoundedTokens<T> {
    /// All tokens.
    Whole(T),
    /// Tokens of a prefix of a text that is longer than the limit. The first tokens, up to the limit, are those of the
    /// whole text.
    Beginning(T),
    /// No tokens, because the text has more than [`Bounds::max_bytes`]. It counts as longer than the limit.
    TooManyBytes,
}

/// A result with a number of tokens.
trait TokenCount {
    /// Returns the number of tokens.
    fn count(&self) -> usize;
}

impl TokenCount for Vec<TokenId> {
    fn count(&self) -> usize {
        self.len()
    }
}

impl TokenCount for Pair {
    fn count(&self) -> usize {
        self.tokens.len()
    }
}

impl Tokenizer {
    /// Returns the tokens as [`Self::encode`] with [`super::Specials::Parse`], within bounds.
    pub fn encode_within(
        &self,
        text: &str,
        bounds: Bounds<'_>,
    ) -> Result<BoundedTokens<Vec<TokenId>>, TokenizerError> {
        self.within(text, bounds, |text| self.run(text, false))
    }

    /// Returns the tokens as [`Self::encode_document`], within bounds.
    pub fn encode_document_within(
        &self,
        text: &str,
        bounds: Bounds<'_>,
    ) -> Result<BoundedTokens<Vec<TokenId>>, TokenizerError> {
        self.within(text, bounds, |text| self.encode_document(text))
    }

    /// Returns the tokens as [`Self::encode_document_with`], within bounds.
    pub fn encode_document_with_within(
        &self,
        text: &str,
        kept: &str,
        bounds: Bounds<'_>,
    ) -> Result<BoundedTokens<Vec<TokenId>>, TokenizerError> {
        self.within(text, bounds, |text| self.encode_document_with(text, kept))
    }

    /// Returns the tokens as [`Self::encode_pair`], within bounds on both texts together. A second text that is too
    /// long is replaced by a prefix. The first text is tokenized as a whole.
    pub fn encode_pair_within(
        &self,
        first: &str,
        second: &str,
        bounds: Bounds<'_>,
    ) -> Result<BoundedTokens<Pair>, TokenizerError> {
        self.within(second, bounds, |second| self.encode_pair(first, second))
    }

    /// Returns the tokens as [`Self::encode_templated_pair`], within bounds as [`Self::encode_pair_within`].
    pub fn encode_templated_pair_within(
        &self,
        template: &PairTemplate,
        first: &str,
        second: &str,
        bounds: Bounds<'_>,
    ) -> Result<BoundedTokens<Pair>, TokenizerError> {
        self.within(second, bounds, |second| self.encode_templated_pair(template, first, second))
    }

    /// Returns the tokens as [`Self::encode_located`], within bounds.
    pub fn encode_located_within(
        &self,
        text: &str,
        bounds: Bounds<'_>,
    ) -> Result<BoundedTokens<Pair>, TokenizerError> {
        self.within(text, bounds, |text| self.encode_located(text))
    }

    /// Tokenizes longer and longer prefixes of a text.
    fn within<T: TokenCount>(
        &self,
        text: &str,
        bounds: Bounds<'_>,
        encode: impl Fn(&str) -> Result<T, TokenizerError>,
    ) -> Result<BoundedTokens<T>, TokenizerError> {
        let longest = bounds.max_bytes();
        let Bounds { limit, is_cancelled } = bounds;
        let mut length = limit.saturating_mul(TYPICAL).max(FIRST);
        loop {
            if is_cancelled() {
                return Err(TokenizerError::Cancelled);
            }
            if length >= text.len() {
                return encode(text).map(BoundedTokens::Whole);
            }
            let tokens = encode(&text[..text.floor_char_boundary(length)])?;
            if tokens.count() > limit.saturating_add(CHANGED) {
                return Ok(BoundedTokens::Beginning(tokens));
            }
            if length >= longest {
                return Ok(BoundedTokens::TooManyBytes);
            }
            length = length.saturating_mul(2).min(longest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::tokenizer::{SHIELD, tests::tiny};

    fn bounds<'a>(limit: usize, is_cancelled: &'a dyn Fn() -> bool) -> Bounds<'a> {
        Bounds { limit, is_cancelled }
    }

    /// Returns the lengths of the prefixes that are tokenized if each token has `per_token` bytes.
    fn lengths(text: usize, limit: usize, per_token: usize) -> Vec<usize> {
        let lengths = RefCell::new(Vec::new());
        let encode = |text: &str| {
            lengths.borrow_mut().push(text.len());
            Ok(vec![0; text.len() / per_token])
        };
        tiny().within(&"x".repeat(text), bounds(limit, &|| false), encode).unwrap();
        lengths.into_inner()
    }

    #[test]
    fn no_more_is_tokenized_than_the_limit_asks_for() {
        assert_eq!(lengths(1000, 10, 4), [1000]);
        assert_eq!(lengths(FIRST, 10, 4), [FIRST]);
        assert_eq!(lengths(31 << 20, 10, 4), [FIRST]);
        assert_eq!(lengths(31 << 20, 20_000, 4), [80_000, 160_000]);
        assert_eq!(lengths(200_000, 20_000, 100), [80_000, 160_000, 200_000]);
        assert_eq!(lengths(31 << 20, 1000, 1000), [FIRST, 2 * FIRST, 4 * FIRST, 256_000]);
        assert_eq!(lengths(31 << 20, 131_072, 1000), [LONG / 2, LONG, 2 * LONG]);
    }

    #[test]
    fn text_that_vanishes_has_a_limit_in_bytes() {
        let check = |tokenizer: &Tokenizer, piece: char, expect: &[TokenId]| {
            let encode = |length: usize| {
                let text = piece.to_string().repeat(length / piece.len_utf8()) + "a";
                tokenizer.encode_document_within(&text, bounds(1000, &|| false)).unwrap()
            };
            assert_eq!(encode(400_000), BoundedTokens::TooManyBytes, "{piece:?}");
            assert_eq!(encode(200_000), BoundedTokens::Whole(expect.to_vec()), "{piece:?}");
        };
        let json = r#"{"model":{"type":"WordPiece","unk_token":"a","continuing_subword_prefix":"\u0023",
            "max_input_chars_per_word":100,"vocab":{"a":0}},"pre_tokenizer":{"type":"Whitespace"}}"#;
        check(&Tokenizer::from_json(json.as_bytes()).unwrap(), ' ', &[0]);
        // The bytes of each token are bounded here, but the character vanishes.
        let tokenizer = tiny();
        assert!(tokenizer.inner.reach.is_some());
        check(&tokenizer, SHIELD, &[tokenizer.token_id("a").unwrap()]);
    }

    #[test]
    fn the_beginning_is_that_of_the_whole_text() {
        let tokenizer = tiny();
        let text = "hello 123 hell\n".repeat(9000);
        let whole = tokenizer.encode_document(&text).unwrap();
        let BoundedTokens::Beginning(tokens) =
            tokenizer.encode_document_within(&text, bounds(5000, &|| false)).unwrap()
        else {
            panic!("the whole text");
        };
        assert!(tokens.len() < whole.len() / 2);
        assert_eq!(tokens[..5000], whole[..5000]);
    }

    #[test]
    fn cancelling_ends_it_between_steps() {
        let asked = Cell::new(0);
        let is_cancelled = || {
            asked.set(asked.get() + 1);
            asked.get() > 2
        };
        let found = tiny().within(&"x".repeat(1 << 20), bounds(1000, &is_cancelled), |_| Ok(Vec::new()));
        assert_eq!((found, asked.get()), (Err(TokenizerError::Cancelled), 3));
    }
}
