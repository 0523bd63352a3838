//! Construction of the `tokenizers` crate's tokenizer from a parsed `tokenizer.json`.
//!
//! The crate's own reader copies the vocabulary and the merges twice before it builds a model, which takes most of the
//! time and memory of opening a package. This module reads each part once and moves the strings.

use std::mem;

use serde_json::{Value, json};
use tokenizers::{
    AddedToken, ModelWrapper,
    models::{
        bpe::{BPE, Vocab},
        unigram::Unigram,
        wordlevel::WordLevel,
        wordpiece::WordPiece,
    },
};

/// Builds the tokenizer of a `tokenizer.json`.
pub(super) fn build(mut json: Value) -> tokenizers::Result<tokenizers::Tokenizer> {
    let mut model = model(json["model"].take())?;
    // The crate keeps up to 10,000 words in each thread that tokenizes, each of several kilobytes at worst, and never
    // frees those of a BPE model that was dropped. Without the cache, tokenizing takes about 1.3 times as long.
    model.resize_cache(0);
    // Added tokens take their ids from the model, so they are added after it.
    let added = json.as_object_mut().and_then(|fields| fields.shift_remove("added_tokens"));
    let added: Option<Vec<AddedToken>> = serde_json::from_value(added.unwrap_or_default())?;
    json["model"] = json!({"type": "WordLevel", "vocab": {}, "unk_token": ""});
    let mut tokenizer: tokenizers::Tokenizer = serde_json::from_value(json)?;
    tokenizer.with_model(model);
    tokenizer.add_tokens(added.unwrap_or_default())?;
    Ok(tokenizer)
}

/// Builds a model. Files without a type are left to the crate, which tries one kind after another.
fn model(mut json: Value) -> tokenizers::Result<ModelWrapper> {
    let Some(kind) = json.get_mut("type").map(Value::take) else { return Ok(serde_json::from_value(json)?) };
    if let Some(fields) = json.as_object_mut() {
        fields.shift_remove("type");
    }
    Ok(match kind.as_str() {
        Some("BPE") => bpe(json)?.into(),
        Some("Unigram") => serde_json::from_value::<Unigram>(json)?.into(),
        Some("WordPiece") => serde_json::from_value::<WordPiece>(json)?.into(),
        Some("WordLevel") => serde_json::from_value::<WordLevel>(json)?.into(),
        _ => {
            return Err(
                format!("expected the model BPE, Unigram, WordPiece or WordLevel, found {kind}").into()
            );
        }
    })
}

/// Builds a BPE model. The crate's own reader tries several forms of merges and copies them each time, so merges of
/// the usual forms are read here, and all other files there.
fn bpe(mut json: Value) -> tokenizers::Result<BPE> {
    let Some(merges) = take_merges(&mut json) else { return Ok(serde_json::from_value(json)?) };
    let vocab: Vocab = serde_json::from_value(mem::replace(&mut json["vocab"], json!({})))?;
    let settings: BPE = serde_json::from_value(json)?;
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .fuse_unk(settings.fuse_unk)
        .byte_fallback(settings.byte_fallback)
        .ignore_merges(settings.ignore_merges);
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

/// Takes the merges out of a model with a vocabulary, if all of them are pairs, or texts with one space.
fn take_merges(json: &mut Value) -> Option<Vec<(String, String)>> {
    let is_pair = |merge: &Value| {
        matches!(merge.as_array().map(Vec::as_slice), Some([Value::String(_), Value::String(_)]))
    };
    let is_text = |merge: &Value| {
        merge.as_str().is_some_and(|text| !text.starts_with("#version") && text.split(' ').count() == 2)
    };
    json.get("vocab").filter(|vocab| vocab.is_object())?;
    let merges = json.get_mut("merges")?.as_array_mut()?;
    let is_usual = merges.iter().all(is_pair) || merges.iter().all(is_text);
    is_usual.then(|| mem::take(merges).into_iter().filter_map(pair).collect())
}

fn pair(merge: Value) -> Option<(String, String)> {
    match merge {
        Value::String(text) => text.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned())),
        Value::Array(parts) => match <[Value; 2]>::try_from(parts) {
            Ok([Value::String(left), Value::String(right)]) => Some((left, right)),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::tests::added;

    /// Checks that the tokenizer is the same as that of the crate's own reader.
    fn check(model: &Value) {
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
        let ours = build(json.clone()).unwrap();
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
        let mut prefixed = bpe(json!([["a", "##b"]]));
        prefixed["vocab"] = json!({"a": 0, "b": 1, "ab": 2, "##b": 3});
        prefixed["unk_token"] = Value::Null;
        prefixed["continuing_subword_prefix"] = json!("##");
        prefixed["end_of_word_suffix"] = json!("</w>");
        prefixed["dropout"] = json!(0.5);
        prefixed["byte_fallback"] = json!(true);
        check(&prefixed);
        check(&json!({"type": "Unigram", "unk_id": 3, "byte_fallback": false, "vocab": pieces}));
        check(&json!({"type": "WordLevel", "unk_token": "<u>", "vocab": vocab}));
        let mut word_piece = json!({"type": "WordPiece", "unk_token": "<u>", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab});
        check(&word_piece);
        // Old files do not state the type.
        word_piece.as_object_mut().unwrap().shift_remove("type");
        check(&word_piece);
    }

    #[test]
    fn malformed_merges_are_refused_as_by_the_crate_s_own_reader() {
        let vocab = json!({"a": 0, "b": 1, "ab": 2});
        let merges =
            [json!(["a b", ["a", "b"]]), json!(["a b c"]), json!([["a"]]), json!([["a", "x"]]), json!([1])];
        let mut models: Vec<Value> = merges.map(|merges| json!({"vocab": vocab, "merges": merges})).into();
        models.extend([
            json!({"merges": []}),
            json!({"vocab": vocab}),
            json!({"vocab": {"a": -1}, "merges": []}),
        ]);
        for model in models {
            let theirs = serde_json::from_value::<BPE>(model.clone()).unwrap_err().to_string();
            assert_eq!(bpe(model.clone()).unwrap_err().to_string(), theirs, "{model}");
        }
    }

    #[test]
    fn unknown_models_are_refused() {
        for kind in [json!("Char"), json!(1), Value::Null] {
            let error = build(json!({"model": {"type": kind, "vocab": {}, "merges": []}})).unwrap_err();
            assert!(error.to_string().contains(&kind.to_string()), "{error}");
        }
    }
}
