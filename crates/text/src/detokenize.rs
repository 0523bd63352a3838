//! Streaming conversion of tokens to text, one whole character at a time.

use narthex_spec::TokenId;

use crate::tokenizer::{TokenPosition, Tokenizer};

/// Converts a stream of tokens to text. Special tokens are skipped.
///
/// The returned pieces, joined, are the lossy UTF-8 decoding of all tokens' bytes.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    /// Bytes of an incomplete character, at most three.
    partial: Vec<u8>,
    position: TokenPosition,
    /// Number of leading characters that may still be dropped.
    droppable: usize,
    /// Special tokens whose spelling is part of the text.
    shown: Vec<TokenId>,
}

impl Tokenizer {
    /// Returns the text of tokens, without special tokens.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        Detokenizer::new(self.clone()).whole(tokens)
    }
}

impl Detokenizer {
    /// Creates a detokenizer at the beginning of a text.
    pub fn new(tokenizer: Tokenizer) -> Self {
        let droppable = tokenizer.leading().count;
        Self { tokenizer, partial: Vec::new(), position: TokenPosition::Start, droppable, shown: Vec::new() }
    }

    /// Returns the detokenizer with the special tokens of these spellings shown in the text. Other spellings have no
    /// effect.
    pub fn showing(mut self, spellings: &[&str]) -> Self {
        let tokens = self.tokenizer.special_tokens().iter();
        let shown = tokens.filter(|token| spellings.contains(&token.text.as_str())).map(|token| token.id);
        self.shown.extend(shown);
        self
    }

    /// Returns the detokenizer with every special token shown in the text.
    pub fn showing_all(mut self) -> Self {
        self.shown.extend(self.tokenizer.special_tokens().iter().map(|token| token.id));
        self
    }

    /// Returns the text of tokens.
    pub fn whole(mut self, tokens: &[TokenId]) -> String {
        let mut text: String = tokens.iter().filter_map(|&token| self.push(token)).collect();
        text.extend(self.finish());
        text
    }

    /// Takes one token and returns the text that is complete now, if any.
    pub fn push(&mut self, token: TokenId) -> Option<String> {
        if self.tokenizer.is_special(token) && !self.shown.contains(&token) {
            return None;
        }
        self.tokenizer.append_bytes(token, self.position, &mut self.partial);
        self.position = TokenPosition::Inside;
        let text = self.take_whole();
        self.without_leading(text)
    }

    /// Ends the text. Incomplete bytes become the replacement character.
    pub fn finish(&mut self) -> Option<String> {
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned();
        self.without_leading(text)
    }

    fn without_leading(&mut self, mut text: String) -> Option<String> {
        while self.droppable > 0
            && let Some(first) = text.chars().next()
        {
            if first == self.tokenizer.leading().char {
                text.drain(..first.len_utf8());
                self.droppable -= 1;
            } else {
                self.droppable = 0;
            }
        }
        if text.is_empty() { None } else { Some(text) }
    }

    fn take_whole(&mut self) -> String {
        let mut text = String::new();
        let mut rest = self.partial.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(whole) => {
                    text.push_str(whole);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (whole, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(whole));
                    rest = after;
                    let Some(wrong) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[wrong..];
                }
            }
        }
        self.partial = rest.to_vec();
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::{GgufVocab, Specials};

    fn bytes_only() -> Tokenizer {
        let mut tokens: Vec<String> = vec!["<unk>".to_owned()];
        tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
        let mut types = vec![2];
        types.extend([6; 256]);
        let vocab = GgufVocab {
            model: "llama".to_owned(),
            scores: Some(vec![0.0; tokens.len()]),
            types: Some(types),
            tokens,
            unk: Some(0),
            add_space_prefix: Some(false),
            ..GgufVocab::default()
        };
        Tokenizer::from_gguf(&vocab).unwrap()
    }

    #[test]
    fn characters_come_whole() {
        let t = bytes_only();
        let mut detokenizer = Detokenizer::new(t.clone());
        let pieces: Vec<Option<String>> = t
            .encode("a🙂", Specials::AsText)
            .unwrap()
            .into_iter()
            .map(|token| detokenizer.push(token))
            .collect();
        assert_eq!(pieces, [Some("a".to_owned()), None, None, None, Some("🙂".to_owned())]);
        assert_eq!(detokenizer.finish(), None);
    }

    #[test]
    fn special_tokens_are_skipped_unless_they_are_shown() {
        let vocab = GgufVocab {
            model: "gpt2".to_owned(),
            pre: Some("smollm".to_owned()),
            tokens: ["a", "[CALL]", "[END]"].map(str::to_owned).to_vec(),
            types: Some(vec![1, 3, 3]),
            ..GgufVocab::default()
        };
        let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
        let mut shown = Detokenizer::new(tokenizer.clone()).showing(&["[CALL]", "a"]);
        assert_eq!(
            [1, 0, 2].map(|token| shown.push(token)),
            [Some("[CALL]".to_owned()), Some("a".to_owned()), None]
        );
        assert_eq!(tokenizer.decode(&[1, 0, 2]), "a");
        assert_eq!(Detokenizer::new(tokenizer).showing_all().whole(&[1, 0, 2]), "[CALL]a[END]");
    }

    proptest! {
        #[test]
        fn pieces_join_to_the_lossy_text(bytes: Vec<u8>) {
            let mut detokenizer = Detokenizer::new(bytes_only());
            let mut text: String =
                bytes.iter().filter_map(|byte| detokenizer.push(u32::from(*byte) + 1)).collect();
            text.extend(detokenizer.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
