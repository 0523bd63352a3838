//! Two texts in one sequence, as cross-encoders read them: with the tokenizer's own separators and segments, and the
//! position of each token in the second text.

use std::ops::Range;

use narthex_spec::{TokenId, manifest::PairTemplate};
use tokenizers::Encoding;

use super::{SHIELD, Specials, Tokenizer, TokenizerError};
use crate::catch_panic::contain;

/// A pair of texts as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// All tokens, special ones included.
    pub tokens: Vec<TokenId>,
    /// Index of the second segment's first token, or the number of tokens for tokenizers with one segment.
    pub segment: usize,
    /// Token indices of the second text.
    pub second: Range<usize>,
    /// Byte range in the second text for each of its tokens.
    pub bytes: Vec<Range<usize>>,
}

impl Pair {
    /// Returns the pair with only the tokens `kept` of the second text.
    pub fn part(&self, kept: Range<usize>) -> Self {
        let kept = kept.start.min(self.second.len())..kept.end.min(self.second.len());
        let body = &self.tokens[self.second.clone()][kept.clone()];
        let tokens = [&self.tokens[..self.second.start], body, &self.tokens[self.second.end..]].concat();
        // With one segment, its end moves by the removed tokens.
        let cut = self.second.len() - kept.len();
        let segment = if self.segment >= self.second.end { self.segment - cut } else { self.segment };
        let second = self.second.start..self.second.start + kept.len();
        Self { tokens, segment, second, bytes: self.bytes[kept].to_vec() }
    }

    /// Returns the number of tokens around the second text.
    pub fn overhead(&self) -> usize {
        self.tokens.len() - self.second.len()
    }
}

impl Tokenizer {
    /// Returns the tokens of two texts, with those that the post-processor puts around and between them (`[CLS] … [SEP]
    /// … [SEP]`). Spellings of special tokens in the texts stay text.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] for texts that the tokenizer refuses, and for a post-processor that does not keep the
    /// second text contiguous or uses segments other than 0 followed by 1.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<Pair, TokenizerError> {
        let shielded_first = self.shield(first);
        let shielded = self.shield(second);
        let input = (shielded_first.as_ref(), shielded.as_ref());
        let encoding = contain(|| self.inner.tokenizer.encode(input, true))
            .map_err(|_| TokenizerError::panicked())?
            .map_err(|error| TokenizerError::Encode { reason: error.to_string() })?;
        located(&encoding, 1, &OffsetMap::new(second, &shielded))
    }

    /// Returns the tokens of two texts with the text of a template around them. Spellings of special tokens in the texts
    /// stay text.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] for texts that the tokenizer refuses.
    pub fn encode_templated_pair(
        &self,
        template: &PairTemplate,
        first: &str,
        second: &str,
    ) -> Result<Pair, TokenizerError> {
        let shielded = self.shield(second);
        let before = format!("{}{}{}", template.first, self.shield(first), template.second);
        let body = format!("{before}{shielded}");
        let encoding = contain(|| self.inner.tokenizer.encode(body.as_str(), false))
            .map_err(|_| TokenizerError::panicked())?
            .map_err(|error| TokenizerError::Encode { reason: error.to_string() })?;

        // A word of the second text may begin with the space before it.
        let offsets = encoding.get_offsets();
        let at = offsets.iter().position(|&(_, end)| end > before.len()).unwrap_or(offsets.len());
        let unshielded = OffsetMap::new(second, &shielded);
        let place = |at: usize| unshielded.place(at.saturating_sub(before.len()));
        let bytes = offsets[at..].iter().map(|&(start, end)| place(start)..place(end)).collect();
        let mut tokens = self.encode(&template.start, Specials::Parse)?;
        let start = tokens.len() + at;
        tokens.extend(encoding.get_ids());
        let end = tokens.len();
        tokens.extend(self.encode(&template.end, Specials::Parse)?);
        Ok(Pair { segment: tokens.len(), tokens, second: start..end, bytes })
    }

    /// Returns the tokens of a document as [`Self::encode_document`], in the form of a pair that has no first text.
    ///
    /// # Errors
    /// The errors of [`Self::encode_pair`].
    pub fn encode_located(&self, text: &str) -> Result<Pair, TokenizerError> {
        let shielded = self.shield(text);
        let encoding = contain(|| self.inner.tokenizer.encode(shielded.as_ref(), true))
            .map_err(|_| TokenizerError::panicked())?
            .map_err(|error| TokenizerError::Encode { reason: error.to_string() })?;
        located(&encoding, 0, &OffsetMap::new(text, &shielded))
    }
}

/// Returns the tokens of an encoding, with the positions of those that belong to the text of an index.
fn located(encoding: &Encoding, text: usize, unshielded: &OffsetMap) -> Result<Pair, TokenizerError> {
    let tokens = encoding.get_ids().to_vec();
    let types = encoding.get_type_ids();
    let segment = types.iter().position(|&segment| segment != 0).unwrap_or(tokens.len());
    if types[segment..].iter().any(|&segment| segment != 1) {
        let reason = format!("expected segments 0 and then 1, found {types:?}");
        return Err(TokenizerError::Encode { reason });
    }

    let owners = encoding.get_sequence_ids();
    let owned = |owner: &Option<usize>| *owner == Some(text);
    let start = owners.iter().position(owned).unwrap_or(tokens.len());
    let end = owners.iter().rposition(owned).map_or(start, |last| last + 1);
    if !owners[start..end].iter().all(owned) {
        let reason = "expected the second text in one piece".to_owned();
        return Err(TokenizerError::Encode { reason });
    }
    let bytes = encoding.get_offsets()[start..end]
        .iter()
        .map(|&(start, end)| unshielded.place(start)..unshielded.place(end))
        .collect();
    Ok(Pair { tokens, segment, second: start..end, bytes })
}

/// Maps positions in a shielded text to positions in the original.
struct OffsetMap {
    /// Positions of the shield in the shielded text.
    inserted: Vec<usize>,
}

impl OffsetMap {
    fn new(text: &str, shielded: &str) -> Self {
        let mut rest = text.chars().peekable();
        let inserted = shielded.char_indices().filter(|(_, char)| rest.next_if_eq(char).is_none());
        Self { inserted: inserted.map(|(at, _)| at).collect() }
    }

    fn place(&self, shielded: usize) -> usize {
        let before = self.inserted.partition_point(|&at| at < shielded);
        shielded.saturating_sub(before * SHIELD.len_utf8())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(special: (&str, u8)) -> Tokenizer {
        let json = format!(
            r#"{{"added_tokens": [{{"id": 1, "content": "[SEP]", "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false}}],
            "pre_tokenizer": {{"type": "Whitespace"}},
            "post_processor": {{"type": "TemplateProcessing",
                "single": [{{"Sequence": {{"id": "A", "type_id": 0}}}}],
                "pair": [{{"Sequence": {{"id": "A", "type_id": 0}}}}, {{"SpecialToken": {{"id": "[SEP]", "type_id": 0}}}},
                    {{"Sequence": {{"id": "B", "type_id": {1}}}}}, {{"SpecialToken": {{"id": "[SEP]", "type_id": {1}}}}}{0}],
                "special_tokens": {{"[SEP]": {{"id": "[SEP]", "ids": [1], "tokens": ["[SEP]"]}}}}}},
            "model": {{"type": "WordLevel", "unk_token": "?", "vocab": {{"?": 0, "[SEP]": 1, "a": 2, "né": 3, "SEP": 4, "[": 5, "]": 6}}}}}}"#,
            special.0, special.1
        );
        Tokenizer::from_json(json.as_bytes()).unwrap()
    }

    #[test]
    fn pairs_have_separators_segments_and_places() {
        let pair = tokenizer(("", 1)).encode_pair("a né", "né  a").unwrap();
        assert_eq!((pair.tokens, pair.segment, pair.second), (vec![2, 3, 1, 3, 2, 1], 3, 3..5));
        assert_eq!(pair.bytes, [0..3, 5..6]);
        let one = tokenizer(("", 0)).encode_pair("a", "").unwrap();
        assert_eq!((one.tokens, one.segment, one.second, one.bytes), (vec![2, 1, 1], 3, 3..3, vec![]));
    }

    #[test]
    fn typed_special_tokens_stay_text_and_move_no_place() {
        let text = "a [SEP] né";
        let pair = tokenizer(("", 1)).encode_pair("[SEP]", text).unwrap();
        assert_eq!(pair.tokens.iter().filter(|&&token| token == 1).count(), 2);
        let words: Vec<&str> = pair.bytes.iter().map(|bytes| &text[bytes.clone()]).collect();
        assert_eq!((words.first(), words.last()), (Some(&"a"), Some(&"né")));
        assert_eq!(words.concat(), "a[SEP]né");
    }

    #[test]
    fn a_text_alone_has_places() {
        let text = "né [SEP] a";
        let found = tokenizer(("", 1)).encode_located(text).unwrap();
        let count = found.tokens.len();
        assert_eq!((found.segment, found.second.clone(), found.overhead()), (count, 0..count, 0));
        let words: Vec<&str> = found.bytes.iter().map(|bytes| &text[bytes.clone()]).collect();
        assert_eq!((words.first(), words.last()), (Some(&"né"), Some(&"a")));
        assert_eq!(words.concat(), "né[SEP]a");
    }

    #[test]
    fn a_template_stands_around_and_between_the_texts() {
        let words = tokenizer(("", 1));
        let text = |text: &str| text.to_owned();
        let template = PairTemplate {
            start: text("[SEP] a"),
            first: text("né "),
            second: text(" né "),
            end: text("[SEP]"),
        };
        let pair = words.encode_templated_pair(&template, "a [SEP]", "[SEP] a").unwrap();
        // The control tokens of the template count, those in the texts do not.
        assert_eq!(pair.tokens, [1, 2, 3, 2, 5, 4, 6, 3, 5, 4, 6, 2, 1]);
        assert_eq!((pair.segment, pair.second.clone()), (13, 8..12));
        assert_eq!(pair.bytes, [0..1, 1..4, 4..5, 6..7]);
        assert_eq!(pair.part(0..1).tokens, [1, 2, 3, 2, 5, 4, 6, 3, 5, 1]);
        let empty = words.encode_templated_pair(&template, "a", "").unwrap();
        assert_eq!((empty.tokens, empty.second), (vec![1, 2, 3, 2, 3, 1], 5..5));
    }

    #[test]
    fn a_part_keeps_what_stands_around_it() {
        let pair = tokenizer(("", 1)).encode_pair("a", "a né a né").unwrap();
        let part = pair.part(1..3);
        assert_eq!((part.tokens, part.segment, part.second), (vec![2, 1, 3, 2, 1], 2, 2..4));
        assert_eq!((part.bytes, pair.overhead()), (vec![2..5, 6..7], 3));
        assert_eq!(pair.part(0..9), pair);
        let one = tokenizer(("", 0)).encode_pair("a", "a né a né").unwrap().part(0..1);
        assert_eq!((one.tokens.len(), one.segment), (4, 4));
    }

    #[test]
    fn other_segments_are_refused() {
        let back = r#", {"SpecialToken": {"id": "[SEP]", "type_id": 0}}"#;
        let error = tokenizer((back, 1)).encode_pair("a", "a").unwrap_err().to_string();
        assert!(error.contains("expected segments 0 and then 1, found [0, 0, 1, 1, 0]"), "{error}");
    }
}
