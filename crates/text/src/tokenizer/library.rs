//! Construction of the `tokenizers` crate's tokenizer from a parsed `tokenizer.json`.
//!
//! The crate's own reader copies the vocabulary and the merges several times before it builds a model, which takes most
//! of the time and memory of reading a tokenizer. Here they are moved into the model.

use serde::Deserialize;
use serde_json::{Value, json};
use tokenizers::{
    AddedToken, ModelWrapper,
    models::{
        bpe::{BPE, Merges, Vocab},
        unigram::Unigram,
        wordlevel::WordLevel,
        wordpiece::WordPiece,
    },
};

use super::file_model::FileVocabulary;

/// Settings of a model, by the type that the file states.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum ModelSettings {
    #[serde(rename = "BPE")]
    Bpe(BpeSettings),
    Unigram {
        unk_id: Option<usize>,
        #[serde(default)]
        byte_fallback: bool,
    },
    WordPiece {
        unk_token: String,
        continuing_subword_prefix: String,
        max_input_chars_per_word: usize,
    },
    WordLevel {
        unk_token: String,
    },
}

#[derive(Deserialize)]
struct BpeSettings {
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
}

/// Builds the tokenizer of a file with these fields, vocabulary and merges.
pub(super) fn build(
    mut json: Value,
    vocab: FileVocabulary,
    merges: Option<Merges>,
) -> tokenizers::Result<tokenizers::Tokenizer> {
    let mut model = model(json["model"].take(), vocab, merges)?;
    // The crate keeps up to 10,000 words in each thread that tokenizes, each of several kilobytes at worst, and never
    // frees those of a BPE model that was dropped. Without the cache, tokenizing takes about 1.3 times as long.
    model.resize_cache(0);
    // Added tokens take their ids from the model, so they are added after it.
    let added: Vec<AddedToken> = serde_json::from_value(json["added_tokens"].take())?;
    json["added_tokens"] = json!([]);
    json["model"] = json!({"type": "WordLevel", "vocab": {}, "unk_token": ""});
    let mut tokenizer: tokenizers::Tokenizer = serde_json::from_value(json)?;
    tokenizer.with_model(model);
    tokenizer.add_tokens(added)?;
    Ok(tokenizer)
}

/// Builds a model.
fn model(
    mut settings: Value,
    vocab: FileVocabulary,
    merges: Option<Merges>,
) -> tokenizers::Result<ModelWrapper> {
    if settings.get("type").is_none() {
        settings["type"] = json!(type_of_old_file(&settings, &vocab, merges.as_ref()));
    }

    Ok(match (serde_json::from_value(settings)?, vocab) {
        (ModelSettings::Bpe(settings), FileVocabulary::Ids(vocab)) => {
            bpe(settings, vocab, merges.ok_or("expected the merges of a BPE model, found none")?)?.into()
        }
        (ModelSettings::Unigram { unk_id, byte_fallback }, FileVocabulary::Scores(tokens)) => {
            Unigram::from(tokens, unk_id, byte_fallback)?.into()
        }
        (
            ModelSettings::WordPiece { unk_token, continuing_subword_prefix, max_input_chars_per_word },
            FileVocabulary::Ids(vocab),
        ) => WordPiece::builder()
            .vocab(vocab)
            .unk_token(unk_token)
            .continuing_subword_prefix(continuing_subword_prefix)
            .max_input_chars_per_word(max_input_chars_per_word)
            .build()?
            .into(),
        (ModelSettings::WordLevel { unk_token }, FileVocabulary::Ids(vocab)) => {
            WordLevel::builder().vocab(vocab).unk_token(unk_token).build()?.into()
        }
        (ModelSettings::Unigram { .. }, _) => {
            return Err("expected a vocabulary that is an array of tokens with scores".into());
        }
        _ => return Err("expected a vocabulary that is an object of token ids".into()),
    })
}

/// Returns the type of the model of an old file, which does not state it.
fn type_of_old_file(settings: &Value, vocab: &FileVocabulary, merges: Option<&Merges>) -> &'static str {
    match vocab {
        FileVocabulary::Scores(_) => "Unigram",
        _ if merges.is_some() => "BPE",
        _ if settings.get("max_input_chars_per_word").is_some() => "WordPiece",
        _ => "WordLevel",
    }
}

fn bpe(settings: BpeSettings, vocab: Vocab, merges: Merges) -> tokenizers::Result<BPE> {
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .fuse_unk(settings.fuse_unk.unwrap_or(false))
        .byte_fallback(settings.byte_fallback.unwrap_or(false))
        .ignore_merges(settings.ignore_merges.unwrap_or(false));
    if let Some(token) = settings.unk_token {
        builder = builder.unk_token(token);
    }
    if let Some(prefix) = settings.continuing_subword_prefix {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = settings.end_of_word_suffix {
        builder = builder.end_of_word_suffix(suffix);
    }
    if let Some(dropout) = settings.dropout {
        builder = builder.dropout(dropout);
    }
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::{file::tests::parse_value, tests::added};

    fn build_file(json: &Value) -> Result<tokenizers::Tokenizer, String> {
        let file = parse_value(json).map_err(|error| error.to_string())?;
        build(file.json, file.vocab, file.merges).map_err(|error| error.to_string())
    }

    /// Checks that the tokenizer is the same as that of the crate's own reader, also for an old file, which does not state
    /// the type of the model.
    fn check(model: &Value) {
        check_file(model);
        let mut old = model.clone();
        old.as_object_mut().unwrap().shift_remove("type");
        check_file(&old);
    }

    fn check_file(model: &Value) {
        let json = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": [added(1, "b", false), added(4, "<s>", true)],
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[0-9]"}, "behavior": "Isolated", "invert": false},
            "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {}},
            "decoder": {"type": "Fuse"},
            "model": model,
        });
        let ours = build_file(&json).unwrap();
        let theirs = tokenizers::Tokenizer::from_bytes(serde_json::to_vec(&json).unwrap()).unwrap();
        assert_eq!(ours.to_string(false).unwrap(), theirs.to_string(false).unwrap(), "{model}");
        for (text, id) in [("b", Some(1)), ("<s>", Some(4)), ("ab", Some(2)), ("?", None)] {
            assert_eq!((ours.token_to_id(text), theirs.token_to_id(text)), (id, id), "{text} in {model}");
        }
    }

    #[test]
    fn tokenizers_are_those_of_the_crate_s_own_reader() {
        let vocab = json!({"a": 0, "b": 1, "ab": 2, "<u>": 3});
        let pieces = json!([["a", -0.1], ["b", -1.5e-7], ["ab", -3.25], ["<u>", 0.0]]);
        let bpe = |merges: Value| {
            json!({"type": "BPE", "dropout": null, "unk_token": "<u>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": false, "ignore_merges": true, "vocab": vocab,
            "merges": merges})
        };
        check(&bpe(json!(["a b"])));
        check(&bpe(json!([["a", "b"]])));
        check(&bpe(json!([])));
        check(&bpe(json!(["#version: 0.2", "a b"])));
        let mut prefixed = bpe(json!([]));
        prefixed["vocab"] = json!({"a": 0, "b": 1, "ab": 2, "##b": 3});
        prefixed["unk_token"] = Value::Null;
        prefixed["continuing_subword_prefix"] = json!("##");
        prefixed["end_of_word_suffix"] = json!("</w>");
        prefixed["dropout"] = json!(0.5);
        prefixed["byte_fallback"] = json!(true);
        check(&prefixed);
        check(&json!({"type": "Unigram", "unk_id": 3, "byte_fallback": false, "vocab": pieces}));
        check(&json!({"type": "WordLevel", "unk_token": "<u>", "vocab": vocab}));
        check(&json!({"type": "WordPiece", "unk_token": "<u>", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab}));
    }

    #[test]
    fn unusable_models_are_refused() {
        let check = |model: Value, expect: &str| {
            let error = build_file(&json!({"model": model})).unwrap_err();
            assert!(error.contains(expect), "{model}: {error}");
        };
        for kind in [json!("Char"), json!(1), Value::Null] {
            check(json!({"type": kind, "vocab": {}, "merges": []}), "expected");
        }
        let (vocab, scores) = (json!({"a": 0, "b": 1}), json!([["a", 0.5]]));
        check(json!({"type": "BPE", "vocab": vocab}), "expected the merges");
        check(json!({"type": "BPE", "vocab": {"a": 0, "bc": 1}, "merges": [["a", "x"]]}), "`x`");
        check(json!({"type": "BPE", "vocab": scores, "merges": []}), "an object of token ids");
        check(json!({"type": "Unigram", "vocab": vocab}), "an array of tokens with scores");
        check(json!({"type": "Unigram", "vocab": scores, "unk_id": 1}), "unk_id");
        check(json!({"type": "WordLevel", "vocab": vocab}), "unk_token");
        check(json!({"merges": []}), "an object of token ids");
    }
}
