//! Steps of a tokenizer that keep the spellings of special tokens in a user's text from becoming tokens.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Value, json};
use tokenizers::models::bpe::Merges;

use super::{
    SHIELD, TokenizerError, file::TokenizerFile, file_model::FileVocabulary, malformed, token_length::steps,
};

/// Maximum number of added tokens whose spelling is broken after normalising, each by a step over the whole text. T5
/// has a hundred.
pub(super) const MAX_BROKEN: usize = 1 << 12;

/// Adds the removal of [`SHIELD`] at the front of the normaliser or the pre-tokenizer, and resets two settings: added
/// tokens matched after normalising would be found in shielded text, and dropout makes tokens random. Added words keep
/// the first setting, because a tokenizer that lowers letters finds them in any case.
pub(super) fn add_shield(file: &mut TokenizerFile) -> Result<(), TokenizerError> {
    let pattern = json!({"String": SHIELD.to_string()});
    let words = words_of_model(file);
    let is_unigram = is_unigram(file);
    let json = &mut file.json;
    let is_normalized = !json["normalizer"].is_null();
    // The spellings must stay broken while the model runs, even those that a normaliser produces from other characters.
    if is_unigram || !words.is_empty() {
        break_normalized(json, words)?;
        let split = json!({"type": "Split", "pattern": pattern, "behavior": "Removed", "invert": false});
        json["pre_tokenizer"] = match json["pre_tokenizer"].take() {
            Value::Null => split,
            other => json!({"type": "Sequence", "pretokenizers": [split, other]}),
        };
    } else {
        let remove = json!({"type": "Replace", "pattern": pattern, "content": ""});
        json["normalizer"] = match json["normalizer"].take() {
            Value::Null => remove,
            other => json!({"type": "Sequence", "normalizers": [remove, other]}),
        };
    }

    for token in json.get_mut("added_tokens").and_then(Value::as_array_mut).into_iter().flatten() {
        let is_plain = token["content"].as_str().is_some_and(is_plain);
        if token["special"] == true || !is_normalized || !is_plain {
            token["normalized"] = Value::Bool(false);
        }
    }
    if let Some(dropout) = json.get_mut("model").and_then(|model| model.get_mut("dropout")) {
        *dropout = Value::Null;
    }
    Ok(())
}

/// Returns true for words and white space, which are no markup.
fn is_plain(content: &str) -> bool {
    content.chars().all(|char| char.is_alphanumeric() || char.is_whitespace() || char == '▁')
}

/// Returns true for a text in the form of a marker: `<|system|>`, `<｜User｜>`, `[|user|]`.
pub(super) fn is_marker(content: &str) -> bool {
    [("<|", "|>"), ("<｜", "｜>"), ("[|", "|]")].iter().any(|(open, close)| {
        content
            .strip_prefix(open)
            .and_then(|rest| rest.strip_suffix(close))
            .is_some_and(|name| !name.is_empty())
    })
}

/// Returns the spellings of added tokens, except of plain words, that the model itself could write as one token. Those
/// of one character cannot be broken and are left out.
fn words_of_model(file: &TokenizerFile) -> BTreeSet<String> {
    let json = &file.json;
    let added = json["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
    let spellings = added.iter().filter_map(|token| Some((token, token["content"].as_str()?)));
    let markup = spellings.filter(|(token, text)| token["special"] == true || !is_plain(text));
    let texts = markup.map(|(_, text)| text).filter(|text| text.chars().nth(1).is_some());
    // The pieces of a unigram model include special tokens.
    if is_unigram(file) {
        return texts.map(str::to_owned).collect();
    }
    // This pre-tokenizer makes a word of each punctuation mark.
    let divides =
        steps(&json["pre_tokenizer"], "pretokenizers").iter().any(|step| step["type"] == "BertPreTokenizer");
    let whole = texts.filter(|text| !divides || !text.contains(|char: char| char.is_ascii_punctuation()));
    let words: HashSet<&str> = whole.filter(|text| file.vocab.has_id(text)).collect();
    match &file.merges {
        Some(merges) if json["model"]["ignore_merges"] != true => merged(merges, &words),
        _ => words.into_iter().map(str::to_owned).collect(),
    }
}

/// Returns true for a unigram model. Old files do not state the type, but no other vocabulary is a list.
fn is_unigram(file: &TokenizerFile) -> bool {
    file.json["model"]["type"] == "Unigram" || matches!(file.vocab, FileVocabulary::Scores(_))
}

/// Returns those of the words that result from a merge.
fn merged(merges: &Merges, words: &HashSet<&str>) -> BTreeSet<String> {
    let firsts: HashSet<u8> = words.iter().filter_map(|word| word.bytes().next()).collect();
    let candidates =
        merges.iter().filter(|(left, _)| left.bytes().next().is_some_and(|first| firsts.contains(&first)));
    let texts = candidates.map(|(left, right)| format!("{left}{right}"));
    texts.filter(|text| words.contains(text.as_str())).collect()
}

/// Adds steps to the end of the normaliser that break these spellings.
fn break_normalized(json: &mut Value, texts: BTreeSet<String>) -> Result<(), TokenizerError> {
    let breaking = texts.into_iter().map(|text| {
        let border = text.chars().next().map_or(0, char::len_utf8);
        let (first, rest) = text.split_at(border);
        json!({"type": "Replace", "pattern": {"String": text}, "content": format!("{first}{SHIELD}{rest}")})
    });
    let mut steps: Vec<Value> = breaking.collect();
    if json["normalizer"].is_null() || steps.is_empty() {
        return Ok(());
    }
    if steps.len() > MAX_BROKEN {
        let found = steps.len();
        return Err(malformed(format!(
            "expected at most {MAX_BROKEN} added tokens that are markup, found {found}"
        )));
    }
    steps.insert(0, json["normalizer"].take());
    json["normalizer"] = json!({"type": "Sequence", "normalizers": steps});
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::{Specials, Tokenizer};

    #[test]
    fn a_model_that_knows_a_special_token_as_a_word_gets_only_parts_of_it() {
        let read = |model: Value, normalizer: Value, pre_tokenizer: Value| {
            let json = json!({
                "added_tokens": [{"id": 1, "content": "<s>", "special": true, "normalized": false,
                    "single_word": false, "lstrip": false, "rstrip": false}],
                "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": model,
            });
            Tokenizer::from_json(&serde_json::to_vec(&json).unwrap()).unwrap()
        };
        let spaces = || json!({"type": "WhitespaceSplit"});
        let vocab = || json!({"?": 0, "<s>": 1, "a": 2, "b": 3, "<": 4, "s": 5, ">": 6, "<s": 7});
        let bpe = |ignore_merges: bool, merges: &[&str]| json!({"type": "BPE", "vocab": vocab(), "unk_token": "?", "ignore_merges": ignore_merges, "merges": merges});
        let words = json!({"type": "WordLevel", "vocab": vocab(), "unk_token": "?"});
        let pieces = json!({"type": "WordPiece", "vocab": vocab(), "unk_token": "?",
            "continuing_subword_prefix": "##", "max_input_chars_per_word": 100});
        let untyped = json!({"unk_id": 0, "vocab": [["?", 0.0], ["<s>", -1.0], ["a", -1.0], ["b", -1.0], ["<", -3.0],
            ["s", -3.0], [">", -3.0], ["<s", -3.0]]});
        for model in [
            words,
            pieces,
            bpe(true, &[]),
            bpe(false, &["< s", "<s >"]),
            json!({"type": "BPE", "vocab": vocab(), "unk_token": "?", "merges": [["<", "s"], ["<s", ">"]]}),
            untyped,
        ] {
            for normalizer in [
                Value::Null,
                json!({"type": "NFKC"}),
                json!({"type": "Lowercase"}),
                json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": false,
                    "strip_accents": false, "lowercase": true}),
            ] {
                let t = read(model.clone(), normalizer.clone(), spaces());
                assert_eq!(t.encode("a <s> b", Specials::Parse).unwrap(), [2, 1, 3], "{model}, {normalizer}");
                for text in ["a <s> b", "a ＜s＞ b", "a <S> b", "a <s>", "<s>"] {
                    let found = t.encode(text, Specials::AsText).unwrap();
                    assert!(!found.contains(&1), "{model}, {normalizer}, {text}: {found:?}");
                }
            }
        }
        // A model that cannot write the token gets the whole text, so that its merges are those of the text.
        let t = read(bpe(false, &["< s"]), Value::Null, spaces());
        assert_eq!(t.encode("<s>", Specials::AsText).unwrap(), [7, 6]);
    }

    #[test]
    fn markers_of_a_template_are_text_in_every_conversation() {
        let check = |text: &str, expect| assert_eq!(is_marker(text), expect, "{text}");
        for marker in ["<|system|>", "<｜User｜>", "[|user|]"] {
            check(marker, true);
        }
        for other in ["<think>", "<tool_call>", "[INST]", "<|", "|>", "<|>", "<||>", "   ", "\n\n", "word"] {
            check(other, false);
        }
    }
}
