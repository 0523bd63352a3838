//! Limit of the digits of numbers in JSON. A schema without bounds allows numbers that never end, and exponents that no
//! `f64` can hold, such as `1e999`. Schemas cannot state a limit for all numbers, so it is applied to the allowed tokens.
//!
//! A token is excluded only if others remain: where the grammar forces more digits, they are written. Where only digits may
//! follow, zeros are excluded first, because a number above a bound ends with another digit.

use std::sync::Arc;

use narthex_spec::TokenId;

use crate::tokenizer::Tokenizer;

/// Maximum number of digits before the point: those of the integers of 64 bits.
const MAX_INTEGER: usize = 19;

/// Maximum number of digits after the point.
const MAX_FRACTION: usize = 20;

/// Maximum number of digits of an exponent.
const MAX_EXPONENT: usize = 2;

/// A token that begins with digits.
struct LeadingDigits {
    token: TokenId,
    count: usize,
    /// Set if the last digit is a zero.
    ends_in_zero: bool,
}

/// Tokens with digits.
pub(super) struct DigitTokens {
    tokenizer: Tokenizer,
    leading: Vec<LeadingDigits>,
    /// Tokens that contain a whole part of a number that is too long.
    whole: Vec<TokenId>,
}

impl DigitTokens {
    /// Reads the vocabulary.
    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        let mut leading = Vec::new();
        let mut whole = Vec::new();
        for token in (0..tokenizer.vocab_size()).filter_map(|token| TokenId::try_from(token).ok()) {
            let bytes = tokenizer.token_bytes(token);
            let count = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if count > 0 {
                let ends_in_zero = bytes[count - 1] == b'0';
                leading.push(LeadingDigits { token, count, ends_in_zero });
            }
            // A token may go on with a number.
            let mut position = JsonPosition::Integer(0);
            let is_too_long = bytes.into_iter().any(|byte| {
                position = position.next(byte);
                position.left().is_none()
            });
            if is_too_long {
                whole.push(token);
            }
        }
        Self { tokenizer: tokenizer.clone(), leading, whole }
    }
}

/// Position in a JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonPosition {
    String,
    /// After a backslash in a string.
    Escape,
    /// In the digits before the point, after this number of them.
    Integer(usize),
    /// After the point.
    Fraction(usize),
    /// In an exponent.
    Exponent(usize),
    /// Elsewhere, after this byte.
    After(u8),
}

impl JsonPosition {
    fn next(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::String, b'\\') => Self::Escape,
            (Self::String, b'"') => Self::After(byte),
            (Self::String | Self::Escape, _) => Self::String,
            (_, b'"') => Self::String,
            (Self::Integer(digits), b'0'..=b'9') => Self::Integer(digits + 1),
            (Self::Fraction(digits), b'0'..=b'9') => Self::Fraction(digits + 1),
            (Self::Exponent(digits), b'0'..=b'9') => Self::Exponent(digits + 1),
            (Self::Integer(_), b'.') => Self::Fraction(0),
            (Self::Integer(_) | Self::Fraction(_), b'e' | b'E') => Self::Exponent(0),
            (Self::Exponent(0), b'+' | b'-') => Self::Exponent(0),
            // Digits in a name are no number.
            (Self::After(before), b'0'..=b'9') if !before.is_ascii_alphanumeric() && before != b'_' => {
                Self::Integer(1)
            }
            (_, _) => Self::After(byte),
        }
    }

    /// Returns the number of digits that may follow; `None` if there are too many.
    fn left(self) -> Option<usize> {
        match self {
            Self::Integer(digits) => MAX_INTEGER.checked_sub(digits),
            Self::Fraction(digits) => MAX_FRACTION.checked_sub(digits),
            Self::Exponent(digits) => MAX_EXPONENT.checked_sub(digits),
            Self::String | Self::Escape | Self::After(_) => Some(MAX_FRACTION),
        }
    }
}

/// Follows a text with JSON and limits the digits of its numbers.
#[derive(Clone)]
pub(super) struct DigitLimit {
    tokens: Arc<DigitTokens>,
    position: JsonPosition,
    /// Number of open brackets, if numbers outside brackets may be of another text.
    brackets: Option<usize>,
    /// Last byte outside strings that is neither a digit nor white space, before the number.
    before: u8,
}

impl DigitLimit {
    /// Begins a text. `is_json` is false if JSON is only a part of it.
    pub(super) fn new(tokens: Arc<DigitTokens>, is_json: bool) -> Self {
        let brackets = if is_json { None } else { Some(0) };
        Self { tokens, position: JsonPosition::After(b' '), brackets, before: b' ' }
    }

    /// Takes the next token of the text.
    pub(super) fn accept(&mut self, token: TokenId) {
        for byte in self.tokens.tokenizer.token_bytes(token) {
            let is_text = matches!(self.position, JsonPosition::String | JsonPosition::Escape);
            if let Some(open) = self.brackets.as_mut().filter(|_| !is_text) {
                match byte {
                    b'{' | b'[' => *open += 1,
                    b'}' | b']' => *open = open.saturating_sub(1),
                    _ => {}
                }
            }
            self.position = self.position.next(byte);
            if let JsonPosition::After(byte) = self.position
                && !byte.is_ascii_whitespace()
                && byte != b'-'
            {
                self.before = byte;
            }
        }
    }

    /// Returns whether the number at this position is one of JSON: inside brackets, or the value of an argument that is
    /// written by itself, such as `count=5` or `<count>5`.
    fn is_in_json(&self) -> bool {
        self.brackets.is_none_or(|open| open > 0) || matches!(self.before, b'=' | b'>' | b'(')
    }

    /// Clears the bits of tokens that would make a number too long, if others remain.
    pub(super) fn apply(&self, allowed: &mut [u32]) {
        let is_text = matches!(self.position, JsonPosition::String | JsonPosition::Escape);
        if is_text || !self.is_in_json() {
            return;
        }
        let left = match self.position {
            JsonPosition::After(_) => usize::MAX,
            number => number.left().unwrap_or(0),
        };
        let mut zeros = Vec::new();
        let mut others = Vec::new();
        for digits in self.tokens.leading.iter().filter(|digits| digits.count > left) {
            let cleared = if digits.ends_in_zero { &mut zeros } else { &mut others };
            cleared.extend(clear(allowed, digits.token));
        }
        zeros.extend(self.tokens.whole.iter().filter_map(|&token| clear(allowed, token)));
        for cleared in [others, zeros] {
            if allowed.iter().all(|&word| word == 0) {
                cleared.into_iter().for_each(|(index, bit)| allowed[index] |= bit);
            }
        }
    }
}

/// Clears the bit of a token, and returns its place if it was set.
fn clear(allowed: &mut [u32], token: TokenId) -> Option<(usize, u32)> {
    let index = token as usize / 32;
    let bit = 1 << (token % 32);
    let word = allowed.get_mut(index).filter(|word| **word & bit != 0)?;
    *word &= !bit;
    Some((index, bit))
}
