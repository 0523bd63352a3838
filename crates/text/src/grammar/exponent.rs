//! Limit of the exponents in JSON answers. JSON has numbers that no `f64` can hold, such as `1e999`; most parsers refuse
//! them or read them as infinity. Schemas cannot state a limit, so it is applied to the allowed tokens.

use std::sync::Arc;

use narthex_spec::TokenId;

use crate::tokenizer::Tokenizer;

/// Maximum number of digits of an exponent.
const MAX_DIGITS: usize = 2;

/// Tokens that can make an exponent too long.
pub(super) struct ExponentTokens {
    tokenizer: Tokenizer,
    /// Tokens that begin with digits, and the number of these.
    digits: Vec<(TokenId, usize)>,
    /// Tokens that contain a whole exponent that is too long.
    whole: Vec<TokenId>,
}

impl ExponentTokens {
    /// Reads the vocabulary.
    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        let (mut digits, mut whole) = (Vec::new(), Vec::new());
        for token in (0..tokenizer.vocab_size()).filter_map(|token| TokenId::try_from(token).ok()) {
            let bytes = tokenizer.token_bytes(token);
            match leading_digits(&bytes) {
                0 => {}
                count => digits.push((token, count)),
            }
            let has_exponent = (0..bytes.len()).any(|at| {
                let rest = bytes[at..].strip_prefix(b"e").or(bytes[at..].strip_prefix(b"E"));
                let rest = rest.map(|rest| match rest {
                    [b'+' | b'-', rest @ ..] => rest,
                    rest => rest,
                });
                rest.is_some_and(|rest| leading_digits(rest) > MAX_DIGITS)
            });
            if has_exponent {
                whole.push(token);
            }
        }
        Self { tokenizer: tokenizer.clone(), digits, whole }
    }
}

fn leading_digits(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Place in a JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonPosition {
    String,
    /// After a backslash in a string.
    Escape,
    /// In an exponent with this number of digits.
    Exponent(usize),
    /// Elsewhere, after this byte.
    After(u8),
}

/// Follows a JSON text and limits the exponents of its numbers.
#[derive(Clone)]
pub(super) struct ExponentLimit {
    tokens: Arc<ExponentTokens>,
    place: JsonPosition,
}

impl ExponentLimit {
    /// Begins a text.
    pub(super) fn new(tokens: Arc<ExponentTokens>) -> Self {
        Self { tokens, place: JsonPosition::After(b' ') }
    }

    /// Takes the next token of the text.
    pub(super) fn accept(&mut self, token: TokenId) {
        for byte in self.tokens.tokenizer.token_bytes(token) {
            self.place = match (self.place, byte) {
                (JsonPosition::String, b'\\') => JsonPosition::Escape,
                (JsonPosition::String, b'"') => JsonPosition::After(byte),
                (JsonPosition::String | JsonPosition::Escape, _) => JsonPosition::String,
                (JsonPosition::After(_) | JsonPosition::Exponent(_), b'"') => JsonPosition::String,
                (JsonPosition::After(b'0'..=b'9'), b'e' | b'E') => JsonPosition::Exponent(0),
                (JsonPosition::Exponent(0), b'+' | b'-') => JsonPosition::Exponent(0),
                (JsonPosition::Exponent(digits), b'0'..=b'9') => JsonPosition::Exponent(digits + 1),
                (JsonPosition::After(_) | JsonPosition::Exponent(_), _) => JsonPosition::After(byte),
            };
        }
    }

    /// Clears the bits of tokens that would make an exponent too long. A number may end after any digit, and digits
    /// are tokens of their own, so that a token remains.
    pub(super) fn apply(&self, allowed: &mut [u32]) {
        let mut clear = |token: TokenId| {
            if let Some(word) = allowed.get_mut(token as usize / 32) {
                *word &= !(1 << (token % 32));
            }
        };
        match self.place {
            JsonPosition::String | JsonPosition::Escape => return,
            JsonPosition::Exponent(digits) => {
                let left = MAX_DIGITS.saturating_sub(digits);
                self.tokens
                    .digits
                    .iter()
                    .filter(|(_, count)| *count > left)
                    .for_each(|(token, _)| clear(*token));
            }
            JsonPosition::After(_) => {}
        }
        self.tokens.whole.iter().for_each(|&token| clear(token));
    }
}
