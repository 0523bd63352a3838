//! Words and segments of the tokens of a window.

use std::ops::Range;

use narthex_spec::TokenId;

use crate::load::transcriber::{RecognizedToken, Transcriber};

/// Signs that end a sentence.
const SENTENCE_ENDS: [char; 8] = ['.', '?', '!', '…', '。', '？', '！', '।'];

/// Pause in seconds that ends a segment.
const PAUSE: f64 = 1.0;

/// A word of a window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SpokenWord {
    pub(super) text: String,
    /// Its tokens, as a range of the window's.
    pub(super) tokens: Range<usize>,
    /// Samples of the window in which it is spoken.
    pub(super) samples: Range<usize>,
    /// Mean probability of its tokens.
    pub(super) probability: f32,
}

/// Turns tokens into text, and finds the starts of words.
pub(super) trait TokenTexts {
    /// Returns the text of tokens.
    fn text(&self, tokens: &[TokenId]) -> String;

    /// Returns whether a token starts a word.
    fn starts_word(&self, token: TokenId) -> bool;
}

impl TokenTexts for Transcriber {
    fn text(&self, tokens: &[TokenId]) -> String {
        self.text(tokens)
    }

    fn starts_word(&self, token: TokenId) -> bool {
        self.starts_word(token)
    }
}

/// Returns the words of the tokens. Signs belong to the word before them. The result is empty if no token starts a word.
pub(super) fn words(texts: &dyn TokenTexts, tokens: &[RecognizedToken]) -> Vec<SpokenWord> {
    let starts: Vec<usize> = (0..tokens.len()).filter(|&at| texts.starts_word(tokens[at].id)).collect();
    if starts.is_empty() {
        return Vec::new();
    }
    let mut parts: Vec<Range<usize>> = Vec::new();
    for (start, end) in starts.iter().zip(starts.iter().skip(1).chain([&tokens.len()])) {
        let is_word = text_of(texts, &tokens[*start..*end]).contains(char::is_alphanumeric);
        match parts.last_mut() {
            None => parts.push(0..*end),
            Some(last) if !is_word => last.end = *end,
            Some(_) => parts.push(*start..*end),
        }
    }

    let words = parts.into_iter().map(|part| {
        let spoken = &tokens[part.clone()];
        let probabilities: f32 = spoken.iter().map(|token| token.log_probability.exp()).sum();
        SpokenWord {
            text: text_of(texts, spoken),
            tokens: part,
            samples: spoken[0].samples.start..spoken[spoken.len() - 1].samples.end,
            probability: probabilities / spoken.len() as f32,
        }
    });
    words.filter(|word| !word.text.is_empty()).collect()
}

/// Returns segments as ranges of the tokens, with their texts: sentences, and the parts between long pauses. `pause` returns
/// the time from the end of speech to its next start, in seconds. Without words, all tokens are one segment.
pub(super) fn segments(
    texts: &dyn TokenTexts,
    tokens: &[RecognizedToken],
    words: &[SpokenWord],
    pause: &dyn Fn(usize, usize) -> f64,
) -> Vec<(Range<usize>, String)> {
    let ends = words.iter().zip(words.iter().skip(1)).filter(|(word, next)| {
        word.text.ends_with(SENTENCE_ENDS) || pause(word.samples.end, next.samples.start) >= PAUSE
    });
    let mut first = 0;
    let mut parts: Vec<Range<usize>> = Vec::new();
    for end in ends.map(|(word, _)| word.tokens.end).chain([tokens.len()]) {
        parts.push(first..end);
        first = end;
    }
    let segments = parts.into_iter().map(|part| (part.clone(), text_of(texts, &tokens[part])));
    segments.filter(|(_, text)| !text.trim().is_empty()).collect()
}

fn text_of(texts: &dyn TokenTexts, tokens: &[RecognizedToken]) -> String {
    texts.text(&tokens.iter().map(|token| token.id).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens whose texts are in a list.
    struct Listed(Vec<&'static str>);

    impl TokenTexts for Listed {
        fn text(&self, tokens: &[TokenId]) -> String {
            let whole: String = tokens.iter().map(|&token| self.0[token as usize]).collect();
            whole.trim().replace(" ?", "?")
        }

        fn starts_word(&self, token: TokenId) -> bool {
            self.0[token as usize].starts_with(' ')
        }
    }

    /// Tokens of 100 samples each, with a pause before those in `after_pauses`.
    fn tokens(count: usize, after_pauses: &[usize]) -> Vec<RecognizedToken> {
        let mut start = 0;
        let tokens = (0..count).map(|at| {
            start += if after_pauses.contains(&at) { 20_000 } else { 0 };
            start += 100;
            RecognizedToken {
                id: at as TokenId,
                log_probability: if at == 1 { 0.5f32.ln() } else { 0.0 },
                samples: start - 100..start,
            }
        });
        tokens.collect()
    }

    fn pause(before: usize, after: usize) -> f64 {
        (after - before) as f64 / 16_000.0
    }

    #[test]
    fn words_have_their_tokens_and_signs() {
        let texts = Listed(vec![" Hal", "lo", ",", " Welt", " ?", " Ja"]);
        let tokens = tokens(6, &[]);
        let found = words(&texts, &tokens);
        let parts: Vec<(&str, Range<usize>, Range<usize>)> = found
            .iter()
            .map(|word| (word.text.as_str(), word.tokens.clone(), word.samples.clone()))
            .collect();
        assert_eq!(parts, [("Hallo,", 0..3, 0..300), ("Welt?", 3..5, 300..500), ("Ja", 5..6, 500..600)]);
        assert!((found[0].probability - 2.5 / 3.0).abs() < 1e-6);

        let found = segments(&texts, &tokens, &found, &pause);
        assert_eq!(found, [(0..5, "Hallo, Welt?".to_owned()), (5..6, "Ja".to_owned())]);
    }

    #[test]
    fn long_pauses_end_segments() {
        let texts = Listed(vec!["ab", " c", " d", " "]);
        let tokens = tokens(4, &[2]);
        let found = words(&texts, &tokens);
        assert_eq!(found.iter().map(|word| word.tokens.clone()).collect::<Vec<_>>(), [0..2, 2..4]);
        let found = segments(&texts, &tokens, &found, &pause);
        assert_eq!(found, [(0..2, "ab c".to_owned()), (2..4, "d".to_owned())]);
    }

    #[test]
    fn tokens_without_words_are_one_segment() {
        let texts = Listed(vec!["ab", "c", ""]);
        assert!(words(&texts, &tokens(2, &[1])).is_empty());
        assert_eq!(segments(&texts, &tokens(2, &[1]), &[], &pause), [(0..2, "abc".to_owned())]);
        assert!(segments(&texts, &tokens(0, &[]), &[], &pause).is_empty());
    }
}
