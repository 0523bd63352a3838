//! The text of speech that has not ended.
//!
//! The speech is recognised again and again while it grows. Its last words change often, so a word is final only when two
//! results in sequence have it (local agreement; Liu et al. 2020, Macháček et al. 2023). Final text never changes: later
//! results are aligned with it, and only continue it.

/// The final text of speech, and the result that the next one is compared with.
#[derive(Debug, Clone, Default)]
pub struct LiveText {
    text: String,
    /// Bytes of `text` that belong to audio that is not recognised again.
    settled: usize,
    /// Words of the last result after `text`.
    candidates: Vec<String>,
}

impl LiveText {
    /// Returns the final text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the final text of the settled audio.
    pub fn settled(&self) -> &str {
        &self.text[..self.settled]
    }

    /// Takes a result for the audio that is not settled. Returns the text that has become final.
    pub fn observe(&mut self, result: &str) -> String {
        let words = self.continuation(result);
        // The last word of a beginning is often another one than what is said.
        let count = if self.text.is_empty() { words.len().saturating_sub(1) } else { words.len() };
        let pairs = words[..count].iter().zip(&self.candidates);
        let agreed = pairs.take_while(|(word, candidate)| word == candidate).count();
        let added = self.append(&words[..agreed]);
        self.candidates = words[agreed..].iter().map(|word| (*word).to_owned()).collect();
        added
    }

    /// Takes the final result for audio that is not recognised again: all of the audio, or the part that `result` is the
    /// text of. Returns the text that has become final.
    pub fn settle(&mut self, result: &str) -> String {
        let result_words = words(result);
        let final_words = words(&self.text[self.settled..]);
        let continued = &result_words[aligned(&final_words, &result_words)..];
        if continued.is_empty() {
            // The final text may continue after the settled part.
            let covered = aligned(&result_words, &final_words);
            let bytes: usize = final_words[..covered].iter().map(|word| word.len()).sum();
            self.settled += bytes;
            return String::new();
        }

        let added = self.append(continued);
        let is_expected = continued.iter().zip(&self.candidates).all(|(word, candidate)| word == candidate);
        let expected =
            if is_expected { continued.len().min(self.candidates.len()) } else { self.candidates.len() };
        self.candidates.drain(..expected);
        self.settled = self.text.len();
        added
    }

    /// Returns the words of a result after the final text.
    fn continuation<'a>(&self, result: &'a str) -> Vec<&'a str> {
        let found = words(result);
        let start = aligned(&words(&self.text[self.settled..]), &found);
        found[start..].to_vec()
    }

    /// Appends words, without the space at the start of the text.
    fn append(&mut self, words: &[&str]) -> String {
        let joined = words.concat();
        let added = if self.text.is_empty() { joined.trim_start().to_owned() } else { joined };
        self.text += &added;
        added
    }
}

/// Divides a text into words with the space before them. A character of a script without spaces is a word. Space at the end
/// is left out.
fn words(text: &str) -> Vec<&str> {
    let text = text.trim_end();
    let mut starts = Vec::new();
    let mut before = ' ';
    for (at, sign) in text.char_indices() {
        let follows_space = before.is_whitespace() && at > 0;
        let is_start = sign.is_whitespace() || is_unspaced(sign) || is_unspaced(before);
        if at == 0 || is_start && !follows_space {
            starts.push(at);
        }
        before = sign;
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(&start, end)| &text[start..end]).collect()
}

/// Returns whether a character belongs to a script that writes no spaces between words: Thai, Lao, Burmese, Khmer, Chinese
/// and Japanese.
fn is_unspaced(sign: char) -> bool {
    matches!(
        u32::from(sign),
        0x0e00..=0x0eff | 0x1000..=0x109f | 0x1780..=0x17ff | 0x2e80..=0xa4cf | 0xf900..=0xfaff | 0xff00..=0xffef
            | 0x2_0000..=0x3_ffff
    )
}

/// Returns the number of `words` that have the same content as all of `start`: those of the prefix with the smallest edit
/// distance. Of several such prefixes, it is the longest, because a word that is left over is more likely another reading
/// of the last one than the next one.
fn aligned(start: &[&str], words: &[&str]) -> usize {
    let words: Vec<String> = words.iter().map(|word| content(word)).collect();
    let mut row: Vec<usize> = (0..=words.len()).collect();
    for (removed, word) in start.iter().enumerate() {
        let word = content(word);
        let mut diagonal = std::mem::replace(&mut row[0], removed + 1);
        for (at, other) in words.iter().enumerate() {
            let substituted = diagonal + usize::from(word != *other);
            diagonal = row[at + 1];
            row[at + 1] = substituted.min(diagonal + 1).min(row[at] + 1);
        }
    }
    let prefixes = row.iter().enumerate();
    prefixes
        .min_by_key(|(length, distance)| (**distance, usize::MAX - length))
        .map_or(0, |(length, _)| length)
}

/// Returns a word without case and signs, which differ between results for the same audio.
fn content(word: &str) -> String {
    let letters: String =
        word.chars().filter(|sign| sign.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    if letters.is_empty() { word.trim().to_owned() } else { letters }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observes results and settles the last one. Returns the text that became final after each.
    fn added(results: &[&str]) -> Vec<String> {
        let mut live = LiveText::default();
        let (last, before) = results.split_last().unwrap();
        let mut added: Vec<String> = before.iter().map(|result| live.observe(result)).collect();
        added.push(live.settle(last));
        assert_eq!(added.concat(), live.text());
        added
    }

    #[test]
    fn words_are_final_once_two_results_have_them() {
        let results = [
            " And so",
            " And so my",
            " And so, my fellow",
            " And so, my fellow Americans",
            " And so, my fellow Americans.",
        ];
        assert_eq!(added(&results), ["", "And so", " my", " fellow", " Americans."]);
        assert_eq!(added(&["", " you", "", ""]), ["", "", "", ""]);
        assert_eq!(added(&[" Hello."]), ["Hello."]);
        // The first word needs another one after it.
        assert_eq!(
            added(&[" Howdy", " Howdy", " Had he", " Had he married"]),
            ["", "", "", "Had he married"]
        );
    }

    #[test]
    fn final_words_never_change() {
        // A later result has another word, one less, or one more.
        assert_eq!(added(&[" the cat sat", " the cat sat on", " a cat sat down"])[2], " down");
        assert_eq!(added(&[" the big cat", " the big cat s", " the cat sat on"])[2], " sat on");
        assert_eq!(added(&[" the cat", " the cat s", " the big cat sat"])[2], " sat");
        assert_eq!(added(&[" the cat sat", " the cat sat on", " the cat"])[2], "");
        // A word that was cut off is read in another way.
        assert_eq!(added(&[" the mar", " the mar k", " the market"])[2], "");
    }

    #[test]
    fn characters_without_spaces_are_words() {
        assert_eq!(words(" 你好 Welt。ja"), [" 你", "好", " Welt", "。", "ja"]);
        assert_eq!(words("  a  b "), ["  a", "  b"]);
        assert!(words(" ").is_empty());
        assert_eq!(added(&["今日は", "今日はい", "今日はいい。"]), ["", "今日は", "いい。"]);
    }

    #[test]
    fn settled_audio_is_not_compared_again() {
        let mut live = LiveText::default();
        live.observe(" One two. Three");
        assert_eq!(live.observe(" One two. Three four"), "One two. Three");
        // The first sentence is settled, and the results begin after it.
        assert_eq!(live.settle(" One two."), "");
        assert_eq!(live.observe(" Three four five"), " four");
        assert_eq!(live.observe(" Three four five six"), " five");
        // A part that reaches beyond the final text.
        assert_eq!(live.settle(" Three four five six."), " six.");
        assert_eq!(live.observe(" Seven"), "");
        assert_eq!(live.settle(" Seven eight"), " Seven eight");
        assert_eq!(live.text(), "One two. Three four five six. Seven eight");
    }

    #[test]
    fn a_settled_part_keeps_the_candidates_after_it() {
        let mut live = LiveText::default();
        live.observe(" One two. Three");
        assert_eq!(live.settle(" One two."), "One two.");
        assert_eq!(live.observe(" Three four"), " Three");
    }
}
