//! Times of words: the path of least cost through the attention of the alignment heads, by dynamic time warping. Follows
//! `timing.py` of OpenAI's implementation.

use std::ops::Range;

use narthex_spec::TokenId;

/// Width of the median filter over time, in rows of the encoder.
const MEDIAN_WIDTH: usize = 7;

/// Maximum median duration of a word, in seconds.
const MAX_MEDIAN: f64 = 0.7;

/// Signs that belong to the word after them.
const BEFORE: &str = "\"'“¿([{-";

/// Signs that belong to the word before them.
const AFTER: &str = "\"'.。,，!！?？:：”)]}、";

/// Signs that end a sentence.
const SENTENCE_ENDS: &str = ".。!！?？";

/// Languages that are written without spaces between words.
const WITHOUT_SPACES: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];

/// Attention of some heads from tokens to the rows of the encoder.
pub(super) struct HeadAttention<'a> {
    /// `[heads, tokens, positions]`.
    pub(super) weights: &'a [f32],
    pub(super) tokens: usize,
    pub(super) positions: usize,
    /// Tokens whose times are wanted.
    pub(super) texts: Range<usize>,
    /// Number of rows with sound.
    pub(super) sounding: usize,
}

impl HeadAttention<'_> {
    /// Returns the row at which each of the tokens starts.
    pub(super) fn starts(&self) -> Vec<usize> {
        let columns = self.sounding.min(self.positions);
        let mut mean = vec![0.0f32; self.texts.len() * columns];
        for head in self.weights.chunks_exact(self.tokens * self.positions) {
            let mut rows: Vec<Vec<f32>> =
                head.chunks_exact(self.positions).map(|row| sounding_share(&row[..columns])).collect();
            standardise(&mut rows);
            let texts = rows.iter().skip(self.texts.start).take(self.texts.len());
            for (row, sum) in texts.zip(mean.chunks_exact_mut(columns.max(1))) {
                let filtered = median_filtered(row);
                sum.iter_mut().zip(filtered).for_each(|(sum, weight)| *sum += weight);
            }
        }
        path_starts(&mean, columns)
    }
}

/// Returns a row without the attention to silence after the sound.
fn sounding_share(row: &[f32]) -> Vec<f32> {
    let sum: f32 = row.iter().sum();
    row.iter().map(|weight| weight / sum.max(f32::MIN_POSITIVE)).collect()
}

/// Subtracts the mean over the rows from each column, and divides by the deviation.
fn standardise(rows: &mut [Vec<f32>]) {
    let count = rows.len() as f32;
    let columns = rows.first().map_or(0, Vec::len);
    for column in 0..columns {
        let mean = rows.iter().map(|row| row[column]).sum::<f32>() / count;
        let variance = rows.iter().map(|row| (row[column] - mean).powi(2)).sum::<f32>() / count;
        let deviation = variance.sqrt().max(f32::MIN_POSITIVE);
        rows.iter_mut().for_each(|row| row[column] = (row[column] - mean) / deviation);
    }
}

/// Returns the medians around each element. The row is reflected at both ends.
fn median_filtered(row: &[f32]) -> Vec<f32> {
    let half = MEDIAN_WIDTH / 2;
    if row.len() <= half {
        return row.to_vec();
    }
    let last = row.len() as isize - 1;
    let at = |index: isize| {
        let reflected = if index < 0 { -index } else { index };
        let reflected = if reflected > last { 2 * last - reflected } else { reflected };
        row[reflected as usize]
    };
    let median = |center: isize| {
        let mut window: [f32; MEDIAN_WIDTH] =
            std::array::from_fn(|offset| at(center + offset as isize - half as isize));
        window.sort_by(f32::total_cmp);
        window[half]
    };
    (0..=last).map(median).collect()
}

/// Step of a path to a cell.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Both,
    Token,
    Time,
}

/// Returns the column at which the best path through `weights`, rows of `columns`, enters each row.
fn path_starts(weights: &[f32], columns: usize) -> Vec<usize> {
    if columns == 0 {
        return Vec::new();
    }
    let rows = weights.len() / columns;
    let width = columns + 1;
    let mut costs = vec![f32::INFINITY; width];
    costs[0] = 0.0;
    let mut steps = vec![Step::Time; (rows + 1) * width];
    for row in 1..=rows {
        let mut before = std::mem::replace(&mut costs, vec![f32::INFINITY; width]);
        steps[row * width] = Step::Token;
        for column in 1..=columns {
            let [both, token, time] = [before[column - 1], before[column], costs[column - 1]];
            let (cost, step) = if both < token && both < time {
                (both, Step::Both)
            } else if token < both && token < time {
                (token, Step::Token)
            } else {
                (time, Step::Time)
            };
            costs[column] = cost - weights[(row - 1) * columns + column - 1];
            steps[row * width + column] = step;
        }
        before.clear();
    }

    let mut starts = vec![0; rows];
    let mut row = rows;
    let mut column = columns;
    while row > 0 && column > 0 {
        starts[row - 1] = column - 1;
        match steps[row * width + column] {
            Step::Both => {
                row -= 1;
                column -= 1;
            }
            Step::Token => row -= 1,
            Step::Time => column -= 1,
        }
    }
    starts
}

/// Tokens of a word, as a range, with its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WordTokens {
    pub(super) text: String,
    pub(super) tokens: Range<usize>,
}

/// Divides tokens of texts into words; `decode` turns tokens into text.
pub(super) fn words(
    tokens: &[TokenId],
    language: Option<&str>,
    decode: &dyn Fn(&[TokenId]) -> String,
) -> Vec<WordTokens> {
    let joins = language.is_none_or(|code| !WITHOUT_SPACES.contains(&code));
    let mut words: Vec<WordTokens> = Vec::new();
    for unit in characters(tokens, decode) {
        let is_sign = unit.text.trim().chars().all(|sign| sign.is_ascii_punctuation());
        match words.last_mut() {
            Some(word) if joins && !unit.text.starts_with(' ') && !is_sign => {
                word.text += &unit.text;
                word.tokens.end = unit.tokens.end;
            }
            _ => words.push(unit),
        }
    }
    merged(words)
}

/// Divides tokens into the smallest parts of whole characters.
fn characters(tokens: &[TokenId], decode: &dyn Fn(&[TokenId]) -> String) -> Vec<WordTokens> {
    let mut units = Vec::new();
    let mut first = 0;
    for end in 1..=tokens.len() {
        let text = decode(&tokens[first..end]);
        if !text.contains(char::REPLACEMENT_CHARACTER) || end == tokens.len() {
            units.push(WordTokens { text, tokens: first..end });
            first = end;
        }
    }
    units
}

/// Joins signs with the words that they belong to.
fn merged(words: Vec<WordTokens>) -> Vec<WordTokens> {
    let is_one_of = |text: &str, signs: &str| {
        let text = text.trim();
        !text.is_empty() && text.chars().all(|sign| signs.contains(sign))
    };
    let mut joined: Vec<WordTokens> = Vec::new();
    for word in words {
        match joined.last_mut() {
            Some(last)
                if is_one_of(&last.text, BEFORE) && last.text.starts_with(' ')
                    || !word.text.starts_with(' ') && is_one_of(&word.text, AFTER) =>
            {
                last.text += &word.text;
                last.tokens.end = word.tokens.end;
            }
            _ => joined.push(word),
        }
    }
    joined
}

/// Shortens words that are far longer than the others at the ends of sentences, where the attention follows the pause.
pub(super) fn shorten_pauses(words: &[WordTokens], times: &mut [Range<f64>]) {
    let mut durations: Vec<f64> =
        times.iter().map(|time| time.end - time.start).filter(|&time| time > 0.0).collect();
    durations.sort_by(f64::total_cmp);
    let median = durations.get(durations.len() / 2).copied().unwrap_or(0.0).min(MAX_MEDIAN);
    let longest = 2.0 * median;
    let ends = |word: &WordTokens| word.text.ends_with(|sign| SENTENCE_ENDS.contains(sign));
    for at in 0..times.len().min(words.len()) {
        let time = &mut times[at];
        if time.end - time.start <= longest {
            continue;
        }
        if ends(&words[at]) {
            time.end = time.start + longest;
        } else if at == 0 || ends(&words[at - 1]) {
            time.start = time.end - longest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_follows_the_weights() {
        // Three tokens over six rows: two, three and one.
        let row = |own: Range<usize>| (0..6).map(move |at| if own.contains(&at) { 1.0f32 } else { -0.1 });
        let weights: Vec<f32> = row(0..2).chain(row(2..5)).chain(row(5..6)).collect();
        assert_eq!(path_starts(&weights, 6), [0, 2, 5]);
        assert!(path_starts(&[], 0).is_empty());
    }

    #[test]
    fn attention_gives_the_starts_of_tokens() {
        // One head of four tokens over 16 rows, of which 14 have sound. The first token is not a text.
        let mut weights = vec![0.01f32; 4 * 16];
        for (token, rows) in [(0, 0..1), (1, 0..4), (2, 4..8), (3, 8..14)] {
            rows.for_each(|row| weights[token * 16 + row] = 1.0);
        }
        let attention =
            HeadAttention { weights: &weights, tokens: 4, positions: 16, texts: 1..4, sounding: 14 };
        assert_eq!(attention.starts(), [0, 4, 8]);
    }

    #[test]
    fn medians_remove_single_peaks() {
        let mut row = vec![0.0; 20];
        row[5] = 9.0;
        row[12..18].fill(1.0);
        let filtered = median_filtered(&row);
        assert_eq!((filtered[5], filtered[14], filtered.len()), (0.0, 1.0, 20));
        assert_eq!(median_filtered(&[1.0, 2.0]), [1.0, 2.0]);
    }

    fn check(parts: &[&str], language: &str, expect: &[&str]) {
        let decode =
            |tokens: &[TokenId]| tokens.iter().map(|&token| parts[token as usize]).collect::<String>();
        let tokens: Vec<TokenId> = (0..parts.len() as TokenId).collect();
        let found = words(&tokens, Some(language), &decode);
        let texts: Vec<&str> = found.iter().map(|word| word.text.as_str()).collect();
        assert_eq!(texts, expect);
        let covered: Vec<usize> = found.iter().flat_map(|word| word.tokens.clone()).collect();
        assert_eq!(covered, (0..parts.len()).collect::<Vec<_>>());
    }

    #[test]
    fn words_begin_with_spaces_and_keep_their_signs() {
        check(&[" And", " so", ",", " my", " fell", "ow", "."], "en", &[" And", " so,", " my", " fellow."]);
        check(&[" He", " said", " \"", "no", "\"", "!"], "en", &[" He", " said", " \"no\"!"]);
        check(&["你", "好", "。"], "zh", &["你", "好。"]);
        check(&[], "en", &[]);
    }

    #[test]
    fn a_pause_is_not_part_of_a_word() {
        let word = |text: &str| WordTokens { text: text.to_owned(), tokens: 0..1 };
        let words = [word(" a"), word(" b."), word(" c"), word(" d")];
        let mut times = [0.0..0.25, 0.25..3.0, 3.0..6.0, 6.0..6.25];
        shorten_pauses(&words, &mut times);
        assert_eq!(times[1], 0.25..0.25 + 1.4);
        assert_eq!(times[2], 6.0 - 1.4..6.0);
        assert_eq!((&times[0], &times[3]), (&(0.0..0.25), &(6.0..6.25)));
    }
}
