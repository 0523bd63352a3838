//! A tokenizer in the form of `toktrie`: the bytes of every token, and the tokens of forced bytes.

use llguidance::toktrie::{INVALID_TOKEN, TokRxInfo, TokTrie, TokenizerEnv};
use narthex_spec::TokenId;

use crate::tokenizer::{Specials, Tokenizer};

/// Maximum number of tokens before a text that follows a line break: one for the space that some tokenizers prepend,
/// and one for the line break.
const MAX_LEAD: usize = 2;

/// A tokenizer with its tokens as a trie.
pub(super) struct Vocabulary {
    tokenizer: Tokenizer,
    trie: TokTrie,
}

impl Vocabulary {
    pub(super) fn new(tokenizer: &Tokenizer, stop: &[TokenId]) -> Self {
        let size = tokenizer.vocab_size() as u32;
        let words: Vec<Vec<u8>> = (0..size).map(|token| word(tokenizer, token)).collect();
        let stop: Vec<TokenId> = stop.iter().copied().filter(|&token| token < size).collect();
        let info = TokRxInfo::new(size, stop.first().copied().unwrap_or(INVALID_TOKEN));
        let trie = TokTrie::from(&info, &words);
        let trie = if stop.is_empty() { trie } else { trie.with_eos_tokens(&stop) };
        Self { tokenizer: tokenizer.clone(), trie }
    }

    /// Returns the tokens of a text that continues another one, or `None` if the tokenizer changes it.
    fn inside(&self, text: &str) -> Option<Vec<TokenId>> {
        let direct = self.tokenizer.encode(text, Specials::AsText).ok()?;
        if self.spells(&direct, text) {
            return Some(direct);
        }
        // Some tokenizers prepend a space to every text; here it comes before the line break, whose tokens are removed.
        let tokens = self.tokenizer.encode(&format!("\n{text}"), Specials::AsText).ok()?;
        (1..=MAX_LEAD.min(tokens.len()))
            .find(|&lead| self.spells(&tokens[lead..], text))
            .map(|lead| tokens[lead..].to_vec())
    }

    fn spells(&self, tokens: &[TokenId], text: &str) -> bool {
        let bytes = tokens.iter().flat_map(|&token| self.trie.token(token));
        bytes.eq(text.as_bytes())
    }
}

/// Returns the bytes that a token adds to a text. Special tokens are marked, so that only a grammar that names them
/// allows them.
fn word(tokenizer: &Tokenizer, token: TokenId) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(token);
    if tokenizer.is_special(token) {
        return [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes.as_slice()].concat();
    }
    // The marker's byte does not occur in UTF-8.
    if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) { Vec::new() } else { bytes }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            self.inside(text).unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }
}
