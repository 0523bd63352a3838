//! Phonemes of sentences from the output of the program espeak-ng. This crate does not run it.
//!
//! The program leaves out punctuation, so a sentence is divided at its marks, the program reads each clause, and the marks
//! are put back. The replacements for Kokoro are those of misaki 0.9.4 (hexgrad, Apache-2.0).

use unicode_normalization::UnicodeNormalization;

/// Marks that divide a sentence into clauses where they touch a space or an end.
const MARKS: &str = ";:,.!?¡¿—…\"«»“”()。！？，、；：।";

/// Sounds of espeak-ng with a tie, and the characters that Kokoro has for them, in the order of their replacement.
const KOKORO_SOUNDS: [(&str, &str); 11] = [
    ("a^ɪ", "I"),
    ("a^ʊ", "W"),
    ("d^z", "ʣ"),
    ("d^ʒ", "ʤ"),
    ("e^ɪ", "A"),
    ("o^ʊ", "O"),
    ("s^s", "S"),
    ("t^s", "ʦ"),
    ("t^ʃ", "ʧ"),
    ("ɔ^ɪ", "Y"),
    ("ə^ʊ", "Q"),
];

/// Notation of the phonemes that a model reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Notation {
    /// That of misaki and Kokoro, with one character for each diphthong and affricate.
    Kokoro,
    /// The alphabet of the International Phonetic Association as espeak-ng writes it, in decomposed characters, as Piper
    /// reads it.
    Ipa,
}

/// Reads a clause with espeak-ng.
pub trait ClauseReader {
    /// Error of a run of the program.
    type Error;

    /// Returns the program's output for a clause. [`Notation::Kokoro`] needs `^` as the tie between two letters of a sound,
    /// and [`Notation::Ipa`] no tie.
    ///
    /// # Errors
    /// An error ends the pronunciation of the sentence.
    fn read(&mut self, clause: &str) -> Result<String, Self::Error>;
}

/// Returns the phonemes of a sentence with its punctuation.
///
/// # Errors
/// The errors of `reader`.
pub fn phonemes<E>(
    sentence: &str,
    notation: Notation,
    reader: &mut dyn ClauseReader<Error = E>,
) -> Result<String, E> {
    let mut phonemes = String::new();
    for part in parts(&cleaned(sentence)) {
        match part {
            Part::Clause(clause) => phonemes.push_str(&converted(&reader.read(clause)?, notation)),
            Part::Marks(marks) => phonemes.extend(marks.chars().filter_map(|mark| spelled(mark, notation))),
        }
    }
    Ok(phonemes.trim().to_owned())
}

/// Returns a sentence without control characters and brackets, which espeak-ng reads as commands and as phonemes. White
/// space is one space.
fn cleaned(sentence: &str) -> String {
    let spaced: String =
        sentence.chars().map(|c| if c.is_control() || matches!(c, '[' | ']') { ' ' } else { c }).collect();
    spaced.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A part of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part<'a> {
    /// Words, without surrounding spaces.
    Clause(&'a str),
    /// Marks and the spaces around them.
    Marks(&'a str),
}

/// Divides a sentence at the marks that touch a space, an end or another mark. A full stop divides only at the end, so
/// that abbreviations and numbers are not divided.
fn parts(sentence: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut offset = 0;
    while let Some(found) = sentence[offset..].find(is_separator) {
        let first = offset + found;
        let rest = sentence[first..].trim_start_matches(is_separator);
        let end = sentence.len() - rest.len();
        let run = &sentence[first..end];
        offset = end;
        if !divides(run, first == 0, rest.is_empty()) {
            continue;
        }
        if start < first {
            parts.push(Part::Clause(&sentence[start..first]));
        }
        parts.push(Part::Marks(run));
        start = end;
    }
    if start < sentence.len() {
        parts.push(Part::Clause(&sentence[start..]));
    }
    parts
}

fn is_separator(c: char) -> bool {
    c == ' ' || MARKS.contains(c)
}

/// Returns whether a run of marks and spaces ends a clause. A space alone is between two words.
fn divides(run: &str, is_first: bool, is_last: bool) -> bool {
    let marks: Vec<char> = run.chars().filter(|c| *c != ' ').collect();
    match marks.as_slice() {
        [] => false,
        ['.'] => is_last,
        _ => is_first || is_last || run.contains(' ') || marks.len() > 1 || marks == ['—'],
    }
}

/// Returns a mark in a notation; `None` if it is not spoken.
fn spelled(mark: char, notation: Notation) -> Option<char> {
    match (mark, notation) {
        ('。' | '।', _) => Some('.'),
        ('！', _) => Some('!'),
        ('？', _) => Some('?'),
        ('，' | '、', _) => Some(','),
        ('；', _) => Some(';'),
        ('：', _) => Some(':'),
        ('«', Notation::Kokoro) => Some('“'),
        ('»', Notation::Kokoro) => Some('”'),
        ('—', Notation::Ipa) => Some(','),
        ('…', Notation::Ipa) => Some('.'),
        ('"' | '«' | '»' | '“' | '”' | '(' | ')' | '¡' | '¿', Notation::Ipa) => None,
        (mark, _) => Some(mark),
    }
}

/// Converts the output of espeak-ng for a clause, which may have several lines.
fn converted(output: &str, notation: Notation) -> String {
    let text = without_languages(&output.split_whitespace().collect::<Vec<_>>().join(" "));
    match notation {
        Notation::Ipa => text.nfd().collect(),
        Notation::Kokoro => {
            let replaced =
                KOKORO_SOUNDS.iter().fold(text, |text, (sound, letter)| text.replace(sound, letter));
            replaced.replace(['^', '-'], "")
        }
    }
}

/// Removes the names of languages between which espeak-ng switches, such as `(en)`.
fn without_languages(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('(')
        && let Some(length) = rest[start..].find(')')
    {
        kept.push_str(&rest[..start]);
        rest = &rest[start + length + 1..];
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Writes each clause between bars.
    struct Bars;

    impl ClauseReader for Bars {
        type Error = Infallible;

        fn read(&mut self, clause: &str) -> Result<String, Infallible> {
            Ok(format!(" |{clause}|\n"))
        }
    }

    #[test]
    fn clauses_are_read_one_by_one_and_keep_their_marks() {
        let check = |sentence: &str, kokoro: &str, ipa: &str| {
            let [found_kokoro, found_ipa] = [Notation::Kokoro, Notation::Ipa]
                .map(|notation| phonemes(sentence, notation, &mut Bars).unwrap());
            let ipa: String = ipa.nfd().collect();
            assert_eq!((found_kokoro.as_str(), found_ipa), (kokoro, ipa), "{sentence}");
        };
        check("Hola, mundo.", "|Hola|, |mundo|.", "|Hola|, |mundo|.");
        check("¿Qué tal?", "¿|Qué tal|?", "|Qué tal|?");
        check("Cuesta 3,50 hoy", "|Cuesta 3,50 hoy|", "|Cuesta 3,50 hoy|");
        check("El Sr. Gil: a las 7:30.", "|El Sr. Gil|: |a las 7:30|.", "|El Sr. Gil|: |a las 7:30|.");
        check("Il dit « oui » !", "|Il dit| “ |oui| ” !", "|Il dit|  |oui|  !");
        check("Sì—no… (forse)", "|Sì|—|no|… (|forse|)", "|Sì|,|no|. |forse|");
        check("नमस्ते।", "|नमस्ते|.", "|नमस्ते|.");
        check("a [[b]]\u{1} c", "|a b c|", "|a b c|");
        check("…", "…", ".");
        check("", "", "");
    }

    #[test]
    fn sounds_of_the_program_are_those_of_the_notation() {
        let check = |output: &str, notation, expect: &str| assert_eq!(converted(output, notation), expect);
        check("m^u^t^ʃˈo\n a^ɪ-o^ʊ\n", Notation::Kokoro, "muʧˈo IO");
        check("lə- (^e^n)wˈiːkɛnd(^f^r) fˈi", Notation::Kokoro, "lə wˈiːkɛnd fˈi");
        check("bɔ̃ʒuʁ (en) ç", Notation::Ipa, "bɔ̃ʒuʁ  c\u{327}");
        check("open (en", Notation::Ipa, "open (en");
    }
}
