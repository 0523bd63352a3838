//! GGUF's tokenizer metadata as a `tokenizer.json`.
//!
//! The rules are those of llama.cpp, with which publishers of GGUF files test. Pre-tokenizers unknown to [`super::pre`]
//! are refused.

use std::{borrow::Cow, collections::HashMap};

use serde_json::{Value, json};

use super::{
    TokenizerError,
    file::MAX_ADDED,
    file_model::MAX_MERGES,
    pre::{self, IgnoreMerges, Unicode},
};

/// GGUF's `tokenizer.ggml.*` metadata.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufVocab {
    /// `model`: `gpt2`, `llama`, `gemma4` or `bert`.
    pub model: String,
    /// `pre`: the pre-tokenizer of `gpt2` vocabularies.
    pub pre: Option<String>,
    /// `tokens`, by id.
    pub tokens: Vec<String>,
    /// `scores`, by id.
    pub scores: Option<Vec<f32>>,
    /// `token_type`, by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Option<Vec<i32>>,
    /// `merges`: `left right`, in order of rank.
    pub merges: Vec<String>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `remove_extra_whitespaces`.
    pub remove_extra_whitespaces: Option<bool>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
}

/// SentencePiece's treatment of a character that is not a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fallback {
    /// One piece per byte.
    Bytes,
    /// The unknown piece.
    Unknown,
}

/// Maximum length, in characters, of a piece for which merges are derived.
const MAX_PIECE: usize = 256;

fn bad(expected: impl Into<String>, found: impl ToString) -> TokenizerError {
    TokenizerError::BadVocabulary { expected: expected.into(), found: found.to_string() }
}

/// Returns the `tokenizer.json` of a GGUF vocabulary.
pub(super) fn tokenizer_json(vocab: &GgufVocab) -> Result<Value, TokenizerError> {
    let count = vocab.tokens.len();
    let lengths = [vocab.scores.as_ref().map(Vec::len), vocab.types.as_ref().map(Vec::len)];
    if let Some(found) = lengths.into_iter().flatten().find(|&length| length != count) {
        return Err(bad(format!("{count} scores and token types"), found));
    }
    let vocab = &*without_padding(vocab);
    check_added(vocab, 0)?;
    let mut json = match vocab.model.as_str() {
        "gpt2" => byte_level(vocab)?,
        "llama" => sentence(vocab, Fallback::Bytes)?,
        "gemma4" => gemma4(vocab)?,
        "bert" => word_piece(vocab),
        other => {
            let known = "gpt2, llama, gemma4, bert".to_owned();
            return Err(TokenizerError::Unknown { what: "tokenizer model", found: other.to_owned(), known });
        }
    };
    json["version"] = json!("1.0");
    json["added_tokens"] = added_tokens(vocab, &json["model"]["vocab"]);
    Ok(json)
}

/// Returns a vocabulary without the tokens that fill it up to the rows of the model's weights, such as `[PAD151900]`. They are
/// no text.
fn without_padding(vocab: &GgufVocab) -> Cow<'_, GgufVocab> {
    let last_first = vocab.tokens.iter().enumerate().rev();
    let padding = last_first.take_while(|(id, token)| **token == format!("[PAD{id}]")).count();
    let count = vocab.tokens.len() - padding;
    if padding == 0 || count == 0 {
        return Cow::Borrowed(vocab);
    }
    let mut vocab = vocab.clone();
    vocab.tokens.truncate(count);
    vocab.scores.iter_mut().for_each(|scores| scores.truncate(count));
    vocab.types.iter_mut().for_each(|types| types.truncate(count));
    Cow::Owned(vocab)
}

pub(super) fn ids(tokens: &[String]) -> Value {
    // If a spelling occurs twice, text maps to the first id.
    let mut map = serde_json::Map::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        map.entry(token.clone()).or_insert_with(|| json!(id));
    }
    Value::Object(map)
}

/// Refuses a vocabulary with too many added tokens; `more` are those of other files.
pub(super) fn check_added(vocab: &GgufVocab, more: usize) -> Result<(), TokenizerError> {
    let found = more.saturating_add(vocab.types.iter().flatten().filter(|kind| is_added(**kind)).count());
    if found > MAX_ADDED { Err(bad(format!("at most {MAX_ADDED} added tokens"), found)) } else { Ok(()) }
}

/// Returns true for the types unknown, control and user-defined.
fn is_added(kind: i32) -> bool {
    matches!(kind, 2..=4)
}

/// Returns the added tokens. Unknown and control tokens are special, and so are BOS and EOS, which some converters
/// store as user-defined.
pub(super) fn added_tokens(vocab: &GgufVocab, ids: &Value) -> Value {
    let types = vocab.types.iter().flatten().enumerate();
    let texts = ids.as_object().into_iter().flatten();
    let texts: HashMap<usize, &str> =
        texts.filter_map(|(text, id)| Some((usize::try_from(id.as_u64()?).ok()?, text.as_str()))).collect();
    let ends = [vocab.bos, vocab.eos].map(|id| id.map(|id| id as usize));
    types
        .filter(|(_, kind)| is_added(**kind))
        .filter_map(|(id, kind)| {
            let special = *kind != 4 || ends.contains(&Some(id));
            Some(json!({
                "id": id, "content": texts.get(&id)?, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special,
            }))
        })
        .collect()
}

fn byte_level(vocab: &GgufVocab) -> Result<Value, TokenizerError> {
    let name = vocab.pre.as_deref().unwrap_or("(none)");
    let Some(rule) = pre::find(name) else {
        let found = name.to_owned();
        return Err(TokenizerError::Unknown { what: "pre-tokenizer", found, known: pre::known().join(", ") });
    };
    let merges = stated_merges(vocab)?;
    let splits = rule.splits.iter().map(
        |pattern| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}),
    );

    let mut steps: Vec<Value> = splits.collect();
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    steps.push(bytes.clone());
    Ok(json!({
        "model": {
            "type": "BPE", "vocab": ids(&vocab.tokens), "merges": merges, "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": rule.ignore_merges == IgnoreMerges::Yes,
        },
        "normalizer": if rule.unicode == Unicode::Nfc { json!({"type": "NFC"}) } else { Value::Null },
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": null,
        "decoder": bytes,
    }))
}

/// Returns the merges that a file states.
fn stated_merges(vocab: &GgufVocab) -> Result<Vec<Value>, TokenizerError> {
    let merges = vocab.merges.iter().map(|merge| {
        // The first piece may itself be a space, so the border is the first space after the first character.
        let border = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
        let at = border.ok_or_else(|| bad("merges of two pieces", merge))?;
        Ok(json!([&merge[..at], &merge[at + 1..]]))
    });
    merges.collect()
}

/// Returns the merges that are equivalent to merging pieces by descending score.
fn merges(vocab: &GgufVocab) -> Result<Vec<Value>, TokenizerError> {
    let scores = vocab.scores.as_ref().ok_or_else(|| bad("scores for a `llama` vocabulary", "none"))?;
    let by_text: HashMap<&str, usize> =
        vocab.tokens.iter().enumerate().rev().map(|(id, token)| (token.as_str(), id)).collect();
    let mut merges = Vec::new();
    for (id, token) in vocab.tokens.iter().enumerate() {
        if vocab.types.as_ref().is_some_and(|types| types[id] != 1) {
            continue;
        }
        for (at, _) in token.char_indices().skip(1).take(MAX_PIECE) {
            let (left, right) = token.split_at(at);
            if let (Some(&l), Some(&r)) = (by_text.get(left), by_text.get(right)) {
                merges.push((scores[id], l, r, left, right));
            }
        }
        if merges.len() > MAX_MERGES {
            return Err(bad(format!("pieces that give at most {MAX_MERGES} merges"), "more"));
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    Ok(merges.into_iter().map(|(_, _, _, left, right)| json!([left, right])).collect())
}

/// Returns the tokenizer of Gemma 4: SentencePiece BPE with the merges of the file, which never cross the end of a line.
fn gemma4(vocab: &GgufVocab) -> Result<Value, TokenizerError> {
    let mut json = sentence_of(vocab, stated_merges(vocab)?, Fallback::Bytes);
    json["pre_tokenizer"] =
        json!({"type": "Split", "pattern": {"Regex": "\\n+"}, "behavior": "Isolated", "invert": false});
    Ok(json)
}

/// Returns a SentencePiece BPE tokenizer with a fallback for characters that are not pieces.
pub(super) fn sentence(vocab: &GgufVocab, fallback: Fallback) -> Result<Value, TokenizerError> {
    Ok(sentence_of(vocab, merges(vocab)?, fallback))
}

fn sentence_of(vocab: &GgufVocab, merges: Vec<Value>, fallback: Fallback) -> Value {
    let space = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prefixed = vocab.add_space_prefix.unwrap_or(true);
    let normalizers =
        if prefixed { vec![json!({"type": "Prepend", "prepend": "▁"}), space] } else { vec![space] };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefixed {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }

    let unk = vocab.unk.and_then(|id| vocab.tokens.get(id as usize));
    json!({
        "model": {
            "type": "BPE", "vocab": ids(&vocab.tokens), "merges": merges, "dropout": null, "unk_token": unk,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": fallback == Fallback::Bytes, "ignore_merges": false,
        },
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
    })
}

/// Returns a BERT tokenizer. llama.cpp writes `▁word` for a piece at the start of a word and drops the `##` of the
/// others.
fn word_piece(vocab: &GgufVocab) -> Value {
    let pieces: Vec<String> = vocab
        .tokens
        .iter()
        .enumerate()
        .map(|(id, token)| match token.strip_prefix('▁') {
            Some(word) => word.to_owned(),
            None if vocab.types.as_ref().is_some_and(|types| matches!(types[id], 2..=4)) => token.clone(),
            None => format!("##{token}"),
        })
        .collect();
    let around = match ["[CLS]", "[SEP]"].map(|text| pieces.iter().position(|piece| piece == text)) {
        [Some(cls), Some(sep)] => {
            json!({"type": "BertProcessing", "sep": ["[SEP]", sep], "cls": ["[CLS]", cls]})
        }
        _ => Value::Null,
    };

    json!({
        "model": {
            "type": "WordPiece", "vocab": ids(&pieces), "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": true,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": around,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::{Specials, Tokenizer};

    fn strings(tokens: &[&str]) -> Vec<String> {
        tokens.iter().map(|token| (*token).to_owned()).collect()
    }

    #[test]
    fn gemma_4_merges_as_the_file_states_within_lines() {
        let letters = ["<unk>", "<bos>", "▁", "a", "b", "\n", "ab", "▁ab", "\n\n", "<0xC3>", "<0xA9>", "b\n"];
        let vocab = GgufVocab {
            model: "gemma4".into(),
            tokens: strings(&letters),
            types: Some(vec![2, 3, 1, 1, 1, 1, 1, 1, 1, 6, 6, 1]),
            merges: strings(&["a b", "▁ ab", "\n \n", "b \n"]),
            add_space_prefix: Some(false),
            unk: Some(0),
            ..GgufVocab::default()
        };
        let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
        let check = |text: &str, expect: &[u32]| {
            assert_eq!(tokenizer.encode(text, Specials::Parse).unwrap(), expect, "{text:?}");
        };
        check("ab ab", &[6, 7]);
        check("a\n\nb\n", &[3, 8, 4, 5]);
        check("<bos>é", &[1, 9, 10]);
    }

    #[test]
    fn unknown_kinds_are_refused_by_name() {
        let check = |vocab: GgufVocab, expected: &str| {
            let error = Tokenizer::from_gguf(&vocab).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        let gpt2 = |pre: Option<&str>| GgufVocab {
            model: "gpt2".into(),
            pre: pre.map(str::to_owned),
            tokens: strings(&["a"]),
            ..GgufVocab::default()
        };
        check(gpt2(Some("deepseek-v99")), "deepseek-v99");
        check(gpt2(None), "(none)");
        check(GgufVocab { model: "rwkv".into(), ..GgufVocab::default() }, "rwkv");
        check(GgufVocab { merges: strings(&["ab"]), ..gpt2(Some("smollm")) }, "merges of two pieces");
        check(GgufVocab { types: Some(vec![]), ..gpt2(Some("smollm")) }, "token types");
        let (tokens, types) = (vec![String::new(); MAX_ADDED + 1], Some(vec![4; MAX_ADDED + 1]));
        check(GgufVocab { tokens, types, ..gpt2(Some("smollm")) }, "at most 65536 added tokens, found 65537");
        check(GgufVocab { model: "llama".into(), ..gpt2(None) }, "scores");
    }

    #[test]
    fn sentence_pieces_merge_by_score_and_fall_back_to_bytes() {
        let mut tokens = strings(&["<unk>", "<s>", "▁", "a", "b", "ab", "▁a", "▁ab"]);
        tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
        let mut types = vec![2, 3, 1, 1, 1, 1, 1, 1];
        types.extend([6; 256]);
        let mut scores = vec![0.0, 0.0, -9.0, -9.0, -9.0, -1.0, -2.0, -3.0];
        scores.extend([0.0; 256]);
        let vocab = GgufVocab {
            model: "llama".into(),
            tokens,
            types: Some(types),
            scores: Some(scores),
            unk: Some(0),
            ..GgufVocab::default()
        };
        let t = Tokenizer::from_gguf(&vocab).unwrap();
        let check = |text: &str, expected: &[u32]| {
            let tokens = t.encode(text, Specials::AsText).unwrap();
            assert_eq!(tokens, expected, "{text}");
            assert_eq!(t.decode(&tokens), text);
        };
        check("ab", &[7]);
        check("ab ab", &[7, 7]);
        check("é", &[2, 8 + 0xC3, 8 + 0xA9]);
        assert_eq!(t.encode("<s>ab", Specials::Parse).unwrap()[0], 1);
    }

    #[test]
    fn padding_is_no_text() {
        let vocab = |tokens: &[&str]| GgufVocab {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            tokens: strings(tokens),
            types: Some(vec![1; tokens.len()]),
            ..GgufVocab::default()
        };
        let padded = Tokenizer::from_gguf(&vocab(&["a", "[PAD1]", "b", "[PAD3]", "[PAD4]"])).unwrap();
        assert_eq!((padded.vocab_size(), padded.token_id("[PAD4]")), (3, None));
        assert_eq!(padded.decode(&[0, 3, 2, 4]), "ab");
        let other = Tokenizer::from_gguf(&vocab(&["a", "[PAD3]"])).unwrap();
        assert_eq!(other.vocab_size(), 2);
    }

    #[test]
    fn types_say_which_tokens_are_special() {
        let vocab = GgufVocab {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            tokens: strings(&["<s>", "<unk>", "<tool>", "<end>", "a", "<s>"]),
            types: Some(vec![3, 2, 4, 4, 1, 3]),
            eos: Some(3),
            ..GgufVocab::default()
        };
        let t = Tokenizer::from_gguf(&vocab).unwrap();
        let special: Vec<&str> = t.special_tokens().iter().map(|token| token.text.as_str()).collect();
        assert_eq!(special, ["<s>", "<unk>", "<end>"]);
        assert_eq!(t.encode("<tool><end>a<s>", Specials::Parse).unwrap(), [2, 3, 4, 0]);
        assert_eq!(t.encode("<tool>a", Specials::AsText).unwrap(), [2, 4]);
    }

    #[test]
    fn bert_pieces() {
        let vocab = GgufVocab {
            model: "bert".into(),
            tokens: strings(&["[UNK]", "[CLS]", "[SEP]", "▁sing", "ing", "▁a"]),
            types: Some(vec![2, 3, 3, 1, 1, 1]),
            ..GgufVocab::default()
        };
        let t = Tokenizer::from_gguf(&vocab).unwrap();
        assert_eq!(t.encode_document("A singing").unwrap(), [1, 5, 3, 4, 2]);
    }
}
