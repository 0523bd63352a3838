//! SentencePiece's `tokenizer.model` as a `tokenizer.json`.
//!
//! The file is the protobuf message `ModelProto` of sentencepiece's `sentencepiece_model.proto`; field numbers and
//! defaults are those of that file. The JSON is built by `gguf`, which reads the same pieces from another format.
//!
//! The fields of `ModelProto` are decoded one by one with `prost`'s primitives, because a derived message would store
//! every piece before their number can be limited. The messages in these fields are derived.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
use prost::{
    Message,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use serde_json::{Value, json};

use super::{
    GgufVocab, TokenizerError,
    file_model::MAX_TOKENS,
    gguf::{self, Fallback},
};

/// A token that a model's other files add to its pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addition {
    /// Id, which may be that of a piece.
    pub id: u32,
    /// Spelling.
    pub content: String,
    /// `true` if decoded text omits it.
    pub special: bool,
    /// `true` if it matches only without a letter or digit beside it.
    pub single_word: bool,
    /// `true` if it absorbs the spaces before it.
    pub lstrip: bool,
    /// `true` if it absorbs the spaces after it.
    pub rstrip: bool,
}

/// A model's algorithm, `TrainerSpec.model_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Unigram,
    Bpe,
}

/// The parts of a model that are used.
#[derive(Debug)]
struct Model {
    /// The pieces, their scores and types.
    vocab: GgufVocab,
    algorithm: Algorithm,
    byte_fallback: bool,
    /// Character replacements, as a trie compiled by sentencepiece.
    charsmap: Vec<u8>,
}

fn bad(expected: impl Into<String>, found: impl ToString) -> TokenizerError {
    TokenizerError::BadModel { expected: expected.into(), found: found.to_string() }
}

/// Returns an error of the vocabulary as one of the model.
fn of_model(error: TokenizerError) -> TokenizerError {
    match error {
        TokenizerError::BadVocabulary { expected, found } => TokenizerError::BadModel { expected, found },
        other => other,
    }
}

/// Returns the `tokenizer.json` of a model with added tokens.
pub(super) fn tokenizer_json(bytes: &[u8], additions: &[Addition]) -> Result<Value, TokenizerError> {
    let model = read(bytes)?;
    gguf::check_added(&model.vocab, additions.len()).map_err(of_model)?;
    let fallback = if model.byte_fallback { Fallback::Bytes } else { Fallback::Unknown };
    let mut json = gguf::sentence(&model.vocab, fallback).map_err(of_model)?;
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

/// Adds tokens to the added ones and to the vocabulary, with the given ids.
fn add(json: &mut Value, additions: &[Addition]) {
    let mut tokens = BTreeMap::new();
    for Addition { id, content, special, single_word, lstrip, rstrip } in additions {
        let token = json!({
            "id": id, "content": content, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip,
            "normalized": false, "special": special,
        });
        if let Some(vocab) = json["model"]["vocab"].as_object_mut() {
            vocab.insert(content.clone(), json!(id));
        }
        tokens.insert(u64::from(*id), token);
    }
    if let Some(added) = json["added_tokens"].as_array_mut() {
        added.retain(|known| known["id"].as_u64().is_none_or(|id| !tokens.contains_key(&id)));
        added.extend(tokens.into_values());
        added.sort_by_key(|token| token["id"].as_u64());
    }
}

/// `SentencePiece` of `ModelProto`.
#[derive(Clone, PartialEq, Message)]
struct PieceProto {
    #[prost(string, tag = "1")]
    piece: String,
    #[prost(float, tag = "2")]
    score: f32,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

/// The fields of `TrainerSpec` that affect tokenization.
#[derive(Clone, PartialEq, Message)]
struct TrainerSpec {
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
    #[prost(bool, tag = "24")]
    treat_whitespace_as_suffix: bool,
    #[prost(bool, optional, tag = "35")]
    byte_fallback: Option<bool>,
}

/// The fields of `NormalizerSpec` that affect tokenization.
#[derive(Clone, PartialEq, Message)]
struct NormalizerSpec {
    #[prost(bytes = "vec", optional, tag = "2")]
    precompiled_charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3")]
    add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    escape_whitespaces: Option<bool>,
}

/// Reads a model.
fn read(mut bytes: &[u8]) -> Result<Model, TokenizerError> {
    let vocab = GgufVocab { model: "llama".to_owned(), ..GgufVocab::default() };
    let mut tokens = Vec::new();
    let mut scores = Vec::new();
    let mut types = Vec::new();
    let mut model =
        Model { vocab, algorithm: Algorithm::Unigram, byte_fallback: false, charsmap: Vec::new() };
    model.vocab.add_space_prefix = Some(true);
    model.vocab.remove_extra_whitespaces = Some(true);
    while !bytes.is_empty() {
        let (field, wire_type) = decode_key(&mut bytes).map_err(malformed)?;
        if wire_type != WireType::LengthDelimited {
            skip_field(wire_type, field, &mut bytes, DecodeContext::default()).map_err(malformed)?;
            continue;
        }
        let length = usize::try_from(decode_varint(&mut bytes).map_err(malformed)?).unwrap_or(usize::MAX);
        let split = bytes.split_at_checked(length);
        let (message, rest) = split.ok_or_else(|| malformed("an end inside a field"))?;
        bytes = rest;
        match field {
            1 => {
                if tokens.len() == MAX_TOKENS {
                    return Err(bad(format!("at most {MAX_TOKENS} pieces"), "more"));
                }
                let (token, score, kind) = read_piece(message)?;
                tokens.push(token);
                scores.push(score);
                types.push(kind);
            }
            2 => read_trainer(message, &mut model)?,
            3 => read_normalizer(message, &mut model)?,
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

fn malformed(found: impl ToString) -> TokenizerError {
    bad("fields of a protobuf message", found)
}

/// `SentencePiece.Type.UNKNOWN`.
const UNKNOWN: i32 = 2;
/// `SentencePiece.Type.USER_DEFINED`.
const USER_DEFINED: i32 = 4;
/// `SentencePiece.Type.BYTE`, the last type.
const BYTE: i32 = 6;

/// Returns a piece's text, score and type. User-defined pieces are matched before normalisation, so their `▁` is
/// converted back to a space.
fn read_piece(bytes: &[u8]) -> Result<(String, f32, i32), TokenizerError> {
    let PieceProto { piece, score, kind } = PieceProto::decode(bytes).map_err(malformed)?;
    let kind = kind.unwrap_or(1);
    if piece.is_empty() || !score.is_finite() || !(1..=BYTE).contains(&kind) {
        let found = format!("{piece:?} of score {score} and type {kind}");
        return Err(bad("non-empty pieces, a finite score and a type from 1 to 6", found));
    }
    let text = if kind == USER_DEFINED { piece.replace('▁', " ") } else { piece };
    Ok((text, score, kind))
}

fn read_trainer(bytes: &[u8], model: &mut Model) -> Result<(), TokenizerError> {
    let spec = TrainerSpec::decode(bytes).map_err(malformed)?;
    match spec.model_type {
        Some(1) => model.algorithm = Algorithm::Unigram,
        Some(2) => model.algorithm = Algorithm::Bpe,
        Some(other) => return Err(bad("a model_type of 1 (UNIGRAM) or 2 (BPE)", other)),
        None => {}
    }
    if spec.treat_whitespace_as_suffix {
        return Err(bad("spaces before words", "treat_whitespace_as_suffix"));
    }
    model.byte_fallback = spec.byte_fallback.unwrap_or(model.byte_fallback);
    Ok(())
}

fn read_normalizer(bytes: &[u8], model: &mut Model) -> Result<(), TokenizerError> {
    let spec = NormalizerSpec::decode(bytes).map_err(malformed)?;
    if spec.escape_whitespaces == Some(false) {
        return Err(bad("spaces written as ▁", "escape_whitespaces of false"));
    }
    model.charsmap = spec.precompiled_charsmap.unwrap_or(std::mem::take(&mut model.charsmap));
    model.vocab.add_space_prefix = spec.add_dummy_prefix.or(model.vocab.add_space_prefix);
    model.vocab.remove_extra_whitespaces =
        spec.remove_extra_whitespaces.or(model.vocab.remove_extra_whitespaces);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::{Specials, Tokenizer, file};

    /// Returns one field in the wire format.
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
        let many = vec![addition(9, "<end>"); file::MAX_ADDED];
        let error = Tokenizer::from_sentencepiece(&tiny(BPE, &[]), &many).unwrap_err().to_string();
        assert!(error.contains("at most 65536 added tokens, found 65539"), "{error}");
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
        check(&piece("", 0.0, 1), "non-empty pieces");
        check(&piece("a", f32::NAN, 1), "finite");
        check(&piece("a", 0.0, 7), "type 7");
        check(&bytes(1, &bytes(1, &[0xFF])), "UTF-8");
        check(&tiny(&[], &bytes(2, b"no trie")), "at most 3 bytes");
    }
}
