//! SentencePiece's `tokenizer.model` as a `tokenizer.json`.
//!
//! The file is the protobuf message `ModelProto` of sentencepiece's `sentencepiece_model.proto`; field numbers and defaults
//! are that file's. What it computes is in `gguf`, which reads the same pieces out of another file.

use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
use serde_json::{Value, json};

use super::{
    GgufVocab, TokenizerError,
    gguf::{self, Fallback},
    wire::{Field, Fields},
};

/// The most pieces that are read; real models have less than 300 thousand.
const MAX_PIECES: usize = 1 << 20;

/// A token that a model's other files add to its pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addition {
    /// Its id, which may be a piece's.
    pub id: u32,
    /// How text spells it.
    pub content: String,
    /// Whether decoded text leaves it out.
    pub special: bool,
    /// Whether it stands only where no letter or digit is next to it.
    pub single_word: bool,
    /// Whether it takes the spaces before it.
    pub lstrip: bool,
    /// Whether it takes the spaces behind it.
    pub rstrip: bool,
}

/// How a model cuts text, as `TrainerSpec.model_type` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Unigram,
    Bpe,
}

/// What is read of a model.
#[derive(Debug)]
struct Model {
    /// The pieces, their scores and types.
    vocab: GgufVocab,
    algorithm: Algorithm,
    byte_fallback: bool,
    /// Replacements of characters, as a trie that sentencepiece compiled.
    charsmap: Vec<u8>,
}

fn bad(expected: impl Into<String>, found: impl ToString) -> TokenizerError {
    TokenizerError::BadModel { expected: expected.into(), found: found.to_string() }
}

/// The `tokenizer.json` of a model and the tokens added to it.
pub(super) fn tokenizer_json(bytes: &[u8], additions: &[Addition]) -> Result<Value, TokenizerError> {
    let model = read(bytes)?;
    let fallback = if model.byte_fallback { Fallback::Bytes } else { Fallback::Unknown };
    let mut json = gguf::sentence(&model.vocab, fallback).map_err(|error| match error {
        TokenizerError::BadVocabulary { expected, found } => TokenizerError::BadModel { expected, found },
        other => other,
    })?;
    if model.algorithm == Algorithm::Unigram {
        json["model"] = unigram(&model);
    }
    let mut before = Vec::new();
    if !model.charsmap.is_empty() {
        before.push(json!({"type": "Precompiled", "precompiled_charsmap": BASE64.encode(&model.charsmap)}));
    }
    if model.vocab.remove_extra_whitespaces == Some(true) {
        before.push(json!({"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""}));
        before.push(json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}));
    }
    if let Some(steps) = json["normalizer"]["normalizers"].as_array_mut() {
        steps.splice(0..0, before);
    }
    json["version"] = json!("1.0");
    json["added_tokens"] = gguf::added_tokens(&model.vocab, &gguf::ids(&model.vocab.tokens));
    add(&mut json, additions);
    Ok(json)
}

fn unigram(Model { vocab, byte_fallback, .. }: &Model) -> Value {
    let scores = vocab.scores.iter().flatten();
    let pieces: Vec<Value> =
        vocab.tokens.iter().zip(scores).map(|(text, score)| json!([text, score])).collect();
    json!({"type": "Unigram", "unk_id": vocab.unk, "vocab": pieces, "byte_fallback": byte_fallback})
}

/// Enters tokens into the list of added ones, and into a vocabulary by text, so that they keep their ids.
fn add(json: &mut Value, additions: &[Addition]) {
    for Addition { id, content, special, single_word, lstrip, rstrip } in additions {
        let token = json!({
            "id": id, "content": content, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip,
            "normalized": false, "special": special,
        });
        if let Some(vocab) = json["model"]["vocab"].as_object_mut() {
            vocab.insert(content.clone(), json!(id));
        }
        if let Some(added) = json["added_tokens"].as_array_mut() {
            added.retain(|known| known["id"] != *id);
            added.push(token);
        }
    }
    if let Some(added) = json["added_tokens"].as_array_mut() {
        added.sort_by_key(|token| token["id"].as_u64());
    }
}

fn read(bytes: &[u8]) -> Result<Model, TokenizerError> {
    let vocab = GgufVocab { model: "llama".to_owned(), ..GgufVocab::default() };
    let (mut tokens, mut scores, mut types) = (Vec::new(), Vec::new(), Vec::new());
    let mut model =
        Model { vocab, algorithm: Algorithm::Unigram, byte_fallback: false, charsmap: Vec::new() };
    model.vocab.add_space_prefix = Some(true);
    model.vocab.remove_extra_whitespaces = Some(true);
    for field in Fields::of(bytes) {
        match field? {
            (1, Field::Bytes(piece)) => {
                if tokens.len() == MAX_PIECES {
                    return Err(bad(format!("at most {MAX_PIECES} pieces"), "more"));
                }
                let (token, score, kind) = read_piece(piece)?;
                tokens.push(token);
                scores.push(score);
                types.push(kind);
            }
            (2, Field::Bytes(spec)) => read_trainer(spec, &mut model)?,
            (3, Field::Bytes(spec)) => read_normalizer(spec, &mut model)?,
            _ => {}
        }
    }
    let Some(unk) = types.iter().position(|&kind| kind == UNKNOWN) else {
        return Err(bad("a piece of type UNKNOWN", "none"));
    };
    model.vocab.unk = u32::try_from(unk).ok();
    model.vocab.tokens = tokens;
    model.vocab.scores = Some(scores);
    model.vocab.types = Some(types);
    Ok(model)
}

/// `SentencePiece.Type.UNKNOWN`, `USER_DEFINED` and `BYTE`, the last one.
const UNKNOWN: i32 = 2;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// A piece's text, score and type. User-defined pieces are looked for in the text as it came, so their spaces are spaces.
fn read_piece(bytes: &[u8]) -> Result<(String, f32, i32), TokenizerError> {
    let (mut text, mut score, mut kind) = ("", 0.0, 1);
    for field in Fields::of(bytes) {
        match field? {
            (1, Field::Bytes(bytes)) => {
                text = std::str::from_utf8(bytes).map_err(|error| bad("pieces in UTF-8", error))?;
            }
            (2, Field::Fixed32(bits)) => score = f32::from_bits(bits),
            (3, Field::Varint(number)) => {
                kind =
                    i32::try_from(number).ok().filter(|kind| (1..=BYTE).contains(kind)).unwrap_or_default();
            }
            _ => {}
        }
    }
    if text.is_empty() || !score.is_finite() || kind == 0 {
        let found = format!("{text:?} of score {score} and type {kind}");
        return Err(bad("pieces of some letters, a finite score and a type from 1 to 6", found));
    }
    let text = if kind == USER_DEFINED { text.replace('▁', " ") } else { text.to_owned() };
    Ok((text, score, kind))
}

fn read_trainer(bytes: &[u8], model: &mut Model) -> Result<(), TokenizerError> {
    for field in Fields::of(bytes) {
        match field? {
            (3, Field::Varint(1)) => model.algorithm = Algorithm::Unigram,
            (3, Field::Varint(2)) => model.algorithm = Algorithm::Bpe,
            (3, Field::Varint(other)) => return Err(bad("a model_type of 1 (UNIGRAM) or 2 (BPE)", other)),
            (24, Field::Varint(suffix)) if suffix != 0 => {
                return Err(bad("spaces before words", "treat_whitespace_as_suffix"));
            }
            (35, Field::Varint(fallback)) => model.byte_fallback = fallback != 0,
            _ => {}
        }
    }
    Ok(())
}

fn read_normalizer(bytes: &[u8], model: &mut Model) -> Result<(), TokenizerError> {
    for field in Fields::of(bytes) {
        match field? {
            (2, Field::Bytes(charsmap)) => model.charsmap = charsmap.to_vec(),
            (3, Field::Varint(prefix)) => model.vocab.add_space_prefix = Some(prefix != 0),
            (4, Field::Varint(remove)) => model.vocab.remove_extra_whitespaces = Some(remove != 0),
            (5, Field::Varint(0)) => return Err(bad("spaces written as ▁", "escape_whitespaces of false")),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::{Specials, Tokenizer};

    /// One field of the wire format.
    fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
    }

    fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
        let fields = [bytes(1, text.as_bytes()), vec![0x15], score.to_le_bytes().to_vec(), vec![0x18, kind]];
        bytes(1, &fields.concat())
    }

    fn tiny(trainer: &[u8], normalizer: &[u8]) -> Vec<u8> {
        let pieces = [
            piece("<unk>", 0.0, 2),
            piece("<s>", 0.0, 3),
            piece("▁", -3.0, 1),
            piece("a", -4.0, 1),
            piece("▁a", -1.0, 1),
            piece("▁▁", 0.0, 4),
        ];
        [pieces.concat(), bytes(2, trainer), bytes(3, normalizer)].concat()
    }

    const BPE: &[u8] = &[0x18, 2];
    const AS_WRITTEN: &[u8] = &[0x18, 0, 0x20, 0];

    fn encode(model: &[u8], additions: &[Addition], text: &str) -> Vec<u32> {
        let t = Tokenizer::from_sentencepiece(model, additions).unwrap();
        t.encode(text, Specials::Parse).unwrap()
    }

    #[test]
    fn settings_are_those_of_the_file() {
        let check = |trainer, normalizer, text, expect: &[u32]| {
            assert_eq!(encode(&tiny(trainer, normalizer), &[], text), expect, "{text:?}");
        };
        check(BPE, &[], "a a", &[4, 4]);
        check(BPE, &[], " a z ", &[4, 2, 0]);
        check(BPE, AS_WRITTEN, "a a", &[3, 4]);
        check(BPE, AS_WRITTEN, "a  a<s>", &[3, 5, 3, 1]);
        check(&[], &[], "a a", &[4, 4]);
    }

    #[test]
    fn additions_keep_their_ids() {
        let addition = |id, content: &str| Addition {
            id,
            content: content.to_owned(),
            special: true,
            single_word: content == "sop",
            lstrip: false,
            rstrip: content == "<end>",
        };
        let additions = [addition(9, "<end>"), addition(7, "sop"), addition(1, "<s>")];
        let found = |text| encode(&tiny(BPE, AS_WRITTEN), &additions, text);
        assert_eq!(found("<end> asop<s>sop"), [9, 3, 0, 1, 7]);
        let t = Tokenizer::from_sentencepiece(&tiny(BPE, &[]), &additions).unwrap();
        assert_eq!((t.vocab_size(), t.special_tokens().len()), (10, 4));
    }

    #[test]
    fn malformed_models_are_refused() {
        let check = |model: &[u8], expect: &str| {
            let error = Tokenizer::from_sentencepiece(model, &[]).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(&[], "a piece of type UNKNOWN");
        check(&tiny(&[0x18, 3], &[]), "found 3");
        check(&tiny(BPE, &[0x28, 0]), "escape_whitespaces");
        check(&tiny(&[0xC0, 1, 1], &[]), "treat_whitespace_as_suffix");
        check(&tiny(BPE, &[])[..9], "found an end");
        check(&piece("", 0.0, 1), "some letters");
        check(&piece("a", f32::NAN, 1), "finite");
        check(&piece("a", 0.0, 7), "type 0");
        check(&bytes(1, &bytes(1, &[0xFF])), "UTF-8");
        check(&tiny(&[], &bytes(2, b"no trie")), "at most 3 bytes");
    }
}
