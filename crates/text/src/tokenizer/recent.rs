//! Tokens of recent prompts. Each turn of a conversation repeats the turns before it, whose tokens are reused.
//!
//! The `tokenizers` crate first splits a text at its added tokens and tokenizes each part alone. So the tokens before a
//! special token do not depend on the text after it, and the tokens after it do not depend on the text before it. This
//! holds for special tokens that take no white space beside them and share no characters with another added token.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use narthex_spec::TokenId;
use parking_lot::{Mutex, MutexGuard};

use super::{BoundedTokens, Bounds, Tokenizer, TokenizerError};

/// Maximum number of prompts that are kept.
const MAX_PROMPTS: usize = 16;

/// Maximum number of bytes of the texts of all prompts. Their tokens take about as much.
const MAX_BYTES: usize = 1 << 20;

/// Maximum number of special tokens of a tokenizer that can divide prompts. Templates write about five.
const MAX_DIVIDERS: usize = 64;

/// Maximum number of added tokens of a tokenizer whose prompts are divided. Gemma has six thousand.
const MAX_ADDED: usize = 1 << 13;

/// Maximum number of bytes of a special token that can divide prompts.
const MAX_DIVIDER_BYTES: usize = 64;

/// A position in a prompt at which a special token begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Boundary {
    /// Number of bytes before it.
    byte: usize,
    /// Number of tokens before it.
    token: usize,
}

/// A text with its tokens.
#[derive(Debug, Default)]
struct Prompt {
    text: String,
    tokens: Vec<TokenId>,
    boundaries: Vec<Boundary>,
}

impl Prompt {
    /// Returns the last boundary up to which `text` has the same beginning. The special token there is the same, too,
    /// because the next `longest` bytes are equal or both texts end.
    fn common_boundary(&self, text: &str, longest: usize) -> Option<Boundary> {
        let common = common_bytes(self.text.as_bytes(), text.as_bytes());
        let is_equal = common == text.len() && common == self.text.len();
        let count = self.boundaries.partition_point(|at| is_equal || at.byte + longest <= common);
        self.boundaries.get(count.checked_sub(1)?).copied()
    }

    /// Returns the part before one of its boundaries.
    fn before(&self, end: Boundary) -> Self {
        let count = self.boundaries.partition_point(|at| at.byte < end.byte);
        Self {
            text: self.text[..end.byte].to_owned(),
            tokens: self.tokens[..end.token].to_vec(),
            boundaries: self.boundaries[..count].to_vec(),
        }
    }

    /// Appends the rest of the text, with its tokens and its boundaries, which are relative to its start.
    fn append(&mut self, rest: &str, tokens: &[TokenId], boundaries: &[Boundary]) {
        let start = Boundary { byte: self.text.len(), token: self.tokens.len() };
        self.text.push_str(rest);
        self.tokens.extend(tokens);
        self.boundaries.extend(
            boundaries
                .iter()
                .map(|at| Boundary { byte: start.byte + at.byte, token: start.token + at.token }),
        );
    }
}

/// Returns the number of bytes of the longest common beginning.
fn common_bytes(one: &[u8], other: &[u8]) -> usize {
    /// Number of bytes that are compared at once.
    const BLOCK: usize = 256;
    let blocks = one.chunks_exact(BLOCK).zip(other.chunks_exact(BLOCK));
    let start = blocks.take_while(|(one, other)| one == other).count() * BLOCK;
    let rest = one[start..].iter().zip(&other[start..]);
    start + rest.take_while(|(one, other)| one == other).count()
}

/// Recent prompts of a tokenizer.
#[derive(Debug)]
pub(super) struct RecentPrompts {
    /// Bytes of the longest added token.
    longest: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last used prompt is the last one.
    prompts: VecDeque<Arc<Prompt>>,
    /// Special tokens seen so far, and true for those that divide prompts.
    dividers: HashMap<TokenId, bool>,
}

impl RecentPrompts {
    /// Creates an empty list for a tokenizer whose longest added token has `longest` bytes.
    pub(super) fn new(longest: usize) -> Self {
        Self { longest, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the longest prefix of `text` that a recent prompt has, too, and that ends at a boundary. It may be empty.
    fn beginning(&self, text: &str) -> Prompt {
        let prompts: Vec<Arc<Prompt>> = self.state().prompts.iter().cloned().collect();
        let ends =
            prompts.iter().filter_map(|prompt| Some((prompt, prompt.common_boundary(text, self.longest)?)));
        let longest = ends.max_by_key(|(_, end)| end.byte);
        longest.map(|(prompt, end)| prompt.before(end)).unwrap_or_default()
    }

    /// Keeps a prompt of at most [`MAX_BYTES`], unless it has no boundaries.
    fn keep(&self, prompt: Prompt) {
        if prompt.boundaries.is_empty() {
            return;
        }
        let prompts = &mut self.state().prompts;
        prompts.retain(|other| other.text != prompt.text);
        prompts.push_back(Arc::new(prompt));
        let mut bytes: usize = prompts.iter().map(|prompt| prompt.text.len()).sum();
        while prompts.len() > MAX_PROMPTS || bytes > MAX_BYTES {
            let Some(oldest) = prompts.pop_front() else { break };
            bytes -= oldest.text.len();
        }
    }
}

/// Returns whether two spellings can share characters of a text, other than by being the same spelling at the same place.
fn overlaps(one: &str, other: &str) -> bool {
    let one = one.as_bytes();
    let other = other.as_bytes();
    [(one, other), (other, one)].into_iter().any(|(first, second)| {
        let joins = (1..first.len().min(second.len())).any(|length| first.ends_with(&second[..length]));
        let is_longer = second.len() < first.len();
        joins || is_longer && first.windows(second.len().max(1)).any(|part| part == second)
    })
}

impl Tokenizer {
    /// Returns the tokens as [`Self::encode_within`]. Those of a beginning that a recent prompt has, too, are not
    /// computed again.
    pub fn encode_prompt_within(
        &self,
        text: &str,
        bounds: Bounds<'_>,
    ) -> Result<BoundedTokens<Vec<TokenId>>, TokenizerError> {
        let recent = &self.inner.recent;
        let mut prompt = recent.beginning(text);
        let rest = &text[prompt.text.len()..];
        let limit = bounds.limit.saturating_sub(prompt.tokens.len());
        Ok(match self.encode_within(rest, Bounds { limit, ..bounds })? {
            BoundedTokens::Whole(tokens) if text.len() <= MAX_BYTES => {
                prompt.append(rest, &tokens, &self.boundaries(rest, &tokens));
                let tokens = prompt.tokens.clone();
                recent.keep(prompt);
                BoundedTokens::Whole(tokens)
            }
            BoundedTokens::Whole(tokens) => BoundedTokens::Whole([prompt.tokens, tokens].concat()),
            BoundedTokens::Beginning(tokens) => BoundedTokens::Beginning([prompt.tokens, tokens].concat()),
            BoundedTokens::TooManyBytes => BoundedTokens::TooManyBytes,
        })
    }

    /// Returns the boundaries of a text; none if its special tokens are not exactly those of its spellings.
    fn boundaries(&self, text: &str, tokens: &[TokenId]) -> Vec<Boundary> {
        let specials = &self.inner.specials;
        let spelled = text.char_indices().filter_map(|(byte, _)| {
            let spelling = specials.spellings_at(text, byte).next()?;
            Some((byte, self.token_id(spelling)?))
        });
        let spelled: Vec<(usize, TokenId)> = spelled.filter(|(_, id)| self.divides(*id)).collect();
        let found =
            tokens.iter().copied().enumerate().filter(|(_, id)| specials.contains(*id) && self.divides(*id));
        let found: Vec<(usize, TokenId)> = found.collect();
        if !spelled.iter().map(|(_, id)| id).eq(found.iter().map(|(_, id)| id)) {
            return Vec::new();
        }
        spelled.iter().zip(&found).map(|(&(byte, _), &(token, _))| Boundary { byte, token }).collect()
    }

    /// Returns whether a special token divides prompts. The answer is kept.
    fn divides(&self, id: TokenId) -> bool {
        let recent = &self.inner.recent;
        {
            let dividers = &recent.state().dividers;
            if let Some(known) = dividers.get(&id) {
                return *known;
            }
            if dividers.len() >= MAX_DIVIDERS {
                return false;
            }
        }
        let is_divider = self.is_divider(id);
        recent.state().dividers.insert(id, is_divider);
        is_divider
    }

    /// Compares a special token with all added tokens, and returns whether it divides prompts.
    fn is_divider(&self, id: TokenId) -> bool {
        let added = self.inner.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let Some(token) = added.get(&id) else { return false };
        let spelling = token.content.as_str();
        let is_exact = !(token.lstrip || token.rstrip || token.single_word || token.normalized);
        is_exact
            && spelling.len() <= MAX_DIVIDER_BYTES
            && spelling.trim() == spelling
            && added.len() <= MAX_ADDED
            && !added.values().any(|other| overlaps(spelling, &other.content))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tokenizer::{
        Specials,
        tests::{added, tiny},
    };

    const BOUNDS: Bounds<'static> = Bounds { limit: 1 << 20, is_cancelled: &|| false };

    /// Returns a tokenizer with these added tokens, which writes a `_` before a text that does not begin with one.
    fn with(added: Value) -> Tokenizer {
        let json = json!({
            "added_tokens": added,
            "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": true},
            "model": {"type": "BPE", "merges": ["a b"], "vocab": {"a": 0, "b": 1, "ab": 2, "_": 3, "<": 4, ">": 5, "s": 6}},
        });
        Tokenizer::from_json(&serde_json::to_vec(&json).unwrap()).unwrap()
    }

    /// Returns the tokens of a prompt and the number of bytes whose tokens were taken from earlier prompts.
    fn encode(tokenizer: &Tokenizer, text: &str) -> (Vec<TokenId>, usize) {
        let reused = tokenizer.inner.recent.beginning(text).text.len();
        match tokenizer.encode_prompt_within(text, BOUNDS).unwrap() {
            BoundedTokens::Whole(tokens) => (tokens, reused),
            cut => panic!("{cut:?}"),
        }
    }

    /// Encodes texts in turn, compares their tokens with those of whole texts, and returns the bytes that were reused.
    fn check(tokenizer: &Tokenizer, texts: &[&str]) -> Vec<usize> {
        let reused = texts.iter().map(|text| {
            let (tokens, reused) = encode(tokenizer, text);
            assert_eq!(tokens, tokenizer.encode(text, Specials::Parse).unwrap(), "{text:?}");
            reused
        });
        reused.collect()
    }

    #[test]
    fn a_longer_prompt_reuses_the_tokens_up_to_a_special_token() {
        let first = "hell<|end|>he<|end|>";
        let longer = "hell<|end|>he<|end|>hello 1";
        let other = "hell<|end|>hello<|end|>hell";
        assert_eq!(
            check(&tiny(), &[first, first, longer, longer, other, "he", "hell<|end|>"]),
            [0, 13, 13, 13, 4, 0, 4]
        );
    }

    #[test]
    fn the_first_part_of_a_text_is_tokenized_as_such() {
        let tokenizer = with(json!([added(7, "<s>", true)]));
        assert_eq!(
            check(&tokenizer, &["ab<s>ab", "ab<s>ab<s>b", "b<s>ab<s>b", "<s>ab", "<s>ab<s>ab"]),
            [0, 2, 0, 0, 0]
        );
        assert_eq!(check(&tokenizer, &["<s>ab<s>ab<s>"]), [5]);
    }

    #[test]
    fn special_tokens_that_depend_on_their_surroundings_are_no_boundaries() {
        let text = "ab <s> ab<s>ab";
        let divides = |added: Value| check(&with(added), &[text, text]) == [0, 9];
        assert!(divides(json!([added(7, "<s>", true)])));
        for flag in ["lstrip", "rstrip", "single_word"] {
            let mut token = added(7, "<s>", true);
            token[flag] = json!(true);
            assert!(!divides(json!([token])), "{flag}");
        }
        for other in [">a", "b<", "<s", "a<s>b", "<s>ab"] {
            assert!(!divides(json!([added(7, "<s>", true), added(8, other, true)])), "{other}");
        }
        assert!(divides(json!([added(7, "<s>", true), added(8, "<t>", true)])));
    }

    #[test]
    fn texts_that_share_characters_overlap() {
        for (one, other) in
            [("<s>", ">a"), ("<s>", "a<"), ("<s>", "s"), ("<s>", "<s"), ("<s", "<s>"), ("aba", "aba")]
        {
            assert!(overlaps(one, other) && overlaps(other, one), "{one} {other}");
        }
        for (one, other) in [("<s>", "<s>"), ("<s>", "</s>"), ("<|a|>", "<|b|>"), ("<s>", "b")] {
            assert!(!overlaps(one, other) && !overlaps(other, one), "{one} {other}");
        }
    }

    #[test]
    fn common_beginnings_are_counted_in_bytes() {
        let bytes = [b'x'; 1000];
        for length in [0, 1, 255, 256, 257, 600, 1000] {
            assert_eq!(common_bytes(&bytes, &[&bytes[..length], b"y"].concat()), length);
            assert_eq!(common_bytes(&bytes[..length], &bytes), length);
        }
    }

    #[test]
    fn recent_prompts_are_limited() {
        let tokenizer = tiny();
        let prompt = |index: usize| format!("{index}<|end|>{}", "he".repeat(40));
        for index in 0..=MAX_PROMPTS {
            check(&tokenizer, &[&prompt(index)]);
        }
        let kept = || tokenizer.inner.recent.state().prompts.len();
        assert_eq!(kept(), MAX_PROMPTS);
        assert_eq!(encode(&tokenizer, &prompt(0)).1, 0);
        assert_eq!(encode(&tokenizer, &prompt(MAX_PROMPTS)).1, 2);
        let recent = &tokenizer.inner.recent;
        let space = |bytes: usize| "<|end|>".to_owned() + &" ".repeat(bytes);
        check(&tokenizer, &[&space(MAX_BYTES - 10)]);
        assert_eq!(kept(), 1);
        check(&tokenizer, &[&space(MAX_BYTES)]);
        assert_eq!(kept(), 1);
        assert!(recent.state().prompts[0].text.len() < MAX_BYTES);
    }
}
