//! Sentences in words, and the phonemes that the Python of hibari-tts 0.2.1 gives for them.
//! `conformance/speech/pronunciation.py` records the phonemes, and `conformance/speech/phoneme_ids.py` ids of phonemes and
//! what misaki makes of the output of espeak-ng.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{collections::BTreeMap, convert::Infallible};

use narthex_speech::{
    SpeechError,
    english::{Accent, English, EnglishFiles, LetterModel},
    espeak::{self, ClauseReader, Notation},
    normalize::normalize,
    phonemes::Alphabet,
};
use serde_json::Value;

const SENTENCES: &str = include_str!("goldens/sentences.tsv");
const RECORDED: &str = include_str!("goldens/english.json");
const PHONEME_IDS: &str = include_str!("goldens/phoneme_ids.json");
const KOKORO_ALPHABET: &str = include_str!("../../compile/src/voice/kokoro_alphabet.json");

#[test]
fn sentences_are_read_in_words() {
    let lines = SENTENCES.lines().filter_map(|line| line.split_once('\t'));
    let mut count = 0;
    for (sentence, expect) in lines {
        count += 1;
        assert_eq!(normalize(sentence, Accent::American), expect, "{sentence}");
    }
    assert!(count > 200, "{count} sentences");
}

#[test]
fn words_alone_are_left_after_normalisation() {
    for (sentence, expect) in SENTENCES.lines().filter_map(|line| line.split_once('\t')) {
        let is_read = |c: char| c.is_alphabetic() || " .,!?;:—…\"“”()'-".contains(c);
        assert!(expect.chars().all(is_read), "{sentence}: {expect}");
        assert_eq!(normalize(expect, Accent::American), expect, "{sentence}");
    }
}

#[test]
fn dates_of_numbers_have_the_order_of_the_accent() {
    let check = |accent, expect: &str| assert_eq!(normalize("Due 3/4/2019.", accent), expect);
    check(Accent::American, "Due March fourth, twenty nineteen.");
    check(Accent::British, "Due April third, twenty nineteen.");
}

/// Answers of the recorded model for unknown words.
struct RecordedAnswers(BTreeMap<String, Vec<i64>>);

impl LetterModel for RecordedAnswers {
    type Error = Infallible;

    fn run(&mut self, letters: &[i64]) -> Result<Vec<i64>, Infallible> {
        let key: Vec<String> = letters.iter().map(i64::to_string).collect();
        Ok(self.0.get(&key.join(" ")).cloned().unwrap_or_default())
    }
}

/// Returns the pronunciation of an accent, with the recorded answers and phonemes.
fn english(accent: Accent, recorded: &Value) -> (English, RecordedAnswers, BTreeMap<String, String>) {
    let part = match accent {
        Accent::American => &recorded["american"],
        Accent::British => &recorded["british"],
    };
    let names = ["gold", "silver", "exceptions", "letters"];
    let [gold, silver, exceptions, letters] = names.map(|name| part[name].to_string().into_bytes());
    let tagger = recorded["american"]["tagger"].to_string().into_bytes();
    let files = EnglishFiles {
        gold: &gold,
        silver: &silver,
        tagger: &tagger,
        exceptions: &exceptions,
        letters: &letters,
    };
    let answers = serde_json::from_value(part["answers"].clone()).unwrap();
    let phonemes = serde_json::from_value(part["phonemes"].clone()).unwrap();
    (English::new(accent, files).unwrap(), RecordedAnswers(answers), phonemes)
}

#[test]
fn sentences_have_the_phonemes_of_the_reference() {
    let recorded: Value = serde_json::from_str(RECORDED).unwrap();
    for accent in [Accent::American, Accent::British] {
        let (english, mut answers, phonemes) = english(accent, &recorded);
        let mut differences = Vec::new();
        for (sentence, expect) in &phonemes {
            let Ok(found) = english.phonemes(sentence, &mut answers);
            if found != *expect {
                differences.push(format!("{sentence}\n  {expect}\n  {found}"));
            }
        }
        let report = differences.join("\n");
        assert!(differences.is_empty(), "{accent:?}: {} differ:\n{report}", differences.len());
        assert!(phonemes.len() > 200, "{} sentences", phonemes.len());
    }
}

/// Recorded output of espeak-ng by clause.
struct RecordedClauses<'a>(&'a Value);

impl ClauseReader for RecordedClauses<'_> {
    type Error = String;

    fn read(&mut self, clause: &str) -> Result<String, String> {
        self.0[clause].as_str().map(str::to_owned).ok_or_else(|| format!("no clause {clause:?}"))
    }
}

fn ids(value: &Value) -> Vec<i64> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn phonemes_have_the_ids_of_kokoro() {
    let recorded: Value = serde_json::from_str(PHONEME_IDS).unwrap();
    let vocabulary: Value = serde_json::from_str(KOKORO_ALPHABET).unwrap();
    assert_eq!(vocabulary, recorded["vocabulary"]);
    let alphabet = Alphabet::from_json(KOKORO_ALPHABET.as_bytes()).unwrap();
    let sentences = recorded["kokoro"].as_object().unwrap();
    for (phonemes, expect) in sentences {
        assert_eq!(alphabet.ids(phonemes), ids(expect), "{phonemes}");
    }
    assert!(sentences.len() > 30, "{} sentences", sentences.len());
}

#[test]
fn the_output_of_espeak_has_the_phonemes_of_misaki() {
    let recorded: Value = serde_json::from_str(PHONEME_IDS).unwrap();
    let alphabet = Alphabet::from_json(KOKORO_ALPHABET.as_bytes()).unwrap();
    for sentence in recorded["sentences"].as_array().unwrap() {
        let text = sentence["text"].as_str().unwrap();
        let mut clauses = RecordedClauses(&sentence["clauses"]);
        let phonemes = espeak::phonemes(text, Notation::Kokoro, &mut clauses).unwrap();
        assert_eq!(alphabet.ids(&phonemes), ids(&sentence["ids"]), "{text}: {phonemes}");
    }
}

#[test]
fn phonemes_have_the_ids_of_piper() {
    let recorded: Value = serde_json::from_str(PHONEME_IDS).unwrap();
    let alphabet = Alphabet::from_json(recorded["piper"]["map"].to_string().as_bytes()).unwrap();
    for (phonemes, expect) in recorded["piper"]["ids"].as_object().unwrap() {
        assert_eq!(alphabet.ids_with_pads(phonemes), ids(expect), "{phonemes}");
    }
}

#[test]
fn hostile_texts_take_little_time_and_have_only_words() {
    let recorded: Value = serde_json::from_str(RECORDED).unwrap();
    let (english, mut answers, _) = english(Accent::American, &recorded);
    let check = |pattern: &str| {
        let text = pattern.repeat(40_000 / pattern.len());
        let normalized = normalize(&text, Accent::American);
        assert!(!normalized.contains(|c: char| c.is_ascii_digit()), "{pattern}");
        assert!(normalized.len() < 64 * text.len(), "{pattern}: {} bytes", normalized.len());
        let Ok(phonemes) = english.phonemes(&normalized, &mut answers);
        assert!(phonemes.len() < 64 * text.len(), "{pattern}");
    };
    let patterns = [
        "1",
        "1,",
        "1.",
        "9/",
        "a-",
        "a.",
        "A.",
        "('",
        "''",
        "-",
        ".",
        "…",
        "$1",
        "1-",
        "1:1",
        "x1",
        "@a",
        "http://",
        "a@a.",
        "I I ",
        "Henry I",
        "é",
        "\u{301}",
        "aB",
        "1e9",
        "½",
        "5'5",
        "https://a.b/?",
        "Dr. ",
        "'s",
        "AAAA",
        "\u{ff11}",
        "#1 ",
        "\u{1f600}",
        "1/2 ",
        "[1]",
    ];
    patterns.into_iter().for_each(check);
}

#[test]
fn broken_files_are_refused() {
    let good = |what: &str| match what {
        "letters" => br#"{"in": ["a"], "out": ["b"], "maxlen": 4}"#.to_vec(),
        "tagger" => br#"{"tags": ["NN"], "tagdict": {}, "vocab": [], "weights": {}}"#.to_vec(),
        _ => b"{}".to_vec(),
    };
    let names = ["gold", "silver", "tagger", "exceptions", "letters"];
    for broken in names {
        let [gold, silver, tagger, exceptions, letters] =
            names.map(|name| if name == broken { b"[1]".to_vec() } else { good(name) });
        let files = EnglishFiles {
            gold: &gold,
            silver: &silver,
            tagger: &tagger,
            exceptions: &exceptions,
            letters: &letters,
        };
        let error = English::new(Accent::American, files).err().unwrap();
        let SpeechError::BadFile { what, .. } = &error;
        assert!(error.to_string().contains(what), "{error}");
    }
}
