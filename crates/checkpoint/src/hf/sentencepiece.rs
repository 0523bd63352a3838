//! `tokenizer.model`, SentencePiece's own file, for folders without `tokenizer.json`: its pieces, and the tokens that
//! other files or the family's own code add to them.

use std::collections::BTreeMap;

use narthex_spec::arch::Family;
use narthex_text::tokenizer::{Addition, Tokenizer, TokenizerError, sentencepiece_json};
use serde::Deserialize;
use serde_json::Value;

use super::folder::Folder;
use crate::{
    error::Result,
    limits::{malformed, unsupported},
    special::CHATGLM3_TOKENS,
};

/// SentencePiece's model file.
pub(super) const MODEL: &str = "tokenizer.model";
const ADDED: &str = "added_tokens.json";

/// A token of `added_tokens_decoder`.
#[derive(Debug, Deserialize)]
struct AddedTokenEntry {
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

/// Builds a `tokenizer.json` from SentencePiece's file. `stated` is `tokenizer_config.json`; `special` has the texts of
/// special tokens.
pub(super) fn tokenizer_json(
    folder: &mut Folder,
    stated: &BTreeMap<String, Value>,
    special: &[&str],
    family: Option<Family>,
) -> Result<Option<Vec<u8>>> {
    let Some(model) = folder.bytes(MODEL)? else { return Ok(None) };
    let path = folder.file(MODEL);
    let refused = |error: TokenizerError| match error {
        TokenizerError::BadModel { expected, found } => malformed(&path, expected, found),
        other => malformed(&path, "a tokenizer", other),
    };
    let mut additions = additions(folder, stated, special)?;
    if family == Some(Family::ChatGlm) {
        let pieces = Tokenizer::from_sentencepiece(&model, &[]).map_err(refused)?.vocab_size();
        additions.retain(|addition| !CHATGLM3_TOKENS.contains(&addition.content.as_str()));
        additions.extend(chatglm3(pieces));
    }
    let json = sentencepiece_json(&model, &additions).map_err(refused)?;
    // A tokenizer that cannot be read is refused now.
    Tokenizer::from_json(&json).map_err(refused)?;
    Ok(Some(json))
}

/// Returns the tokens that ChatGLM3's own code numbers after the pieces. `sop` and `eop` also occur inside words.
fn chatglm3(pieces: usize) -> impl Iterator<Item = Addition> {
    let ids = (0..).map_while(move |at| u32::try_from(pieces + at).ok());
    ids.zip(CHATGLM3_TOKENS).map(|(id, content)| Addition {
        id,
        content: content.to_owned(),
        special: true,
        single_word: content.chars().all(char::is_alphabetic),
        lstrip: false,
        rstrip: false,
    })
}

/// Reads `added_tokens_decoder` of `tokenizer_config.json`, or else `added_tokens.json`, which has only texts and ids.
fn additions(
    folder: &mut Folder,
    stated: &BTreeMap<String, Value>,
    special: &[&str],
) -> Result<Vec<Addition>> {
    let Some(by_id) = stated.get("added_tokens_decoder") else {
        let ids: BTreeMap<String, u32> = folder.json(ADDED, "ids by text")?.unwrap_or_default();
        return Ok(ids
            .into_iter()
            .map(|(content, id)| {
                let special = special.contains(&content.as_str());
                Addition { id, content, special, single_word: false, lstrip: false, rstrip: false }
            })
            .collect());
    };

    let by_id = BTreeMap::<u32, AddedTokenEntry>::deserialize(by_id)
        .map_err(|error| unsupported("added_tokens_decoder", "tokens by id", error))?;
    Ok(by_id
        .into_iter()
        .map(|(id, AddedTokenEntry { content, special, single_word, lstrip, rstrip })| Addition {
            id,
            content,
            special,
            single_word,
            lstrip,
            rstrip,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use narthex_spec::Date;
    use narthex_testkit::checkpoint::tiny_llama_safetensors;
    use narthex_text::{
        prompt,
        template::{ChatTemplate, Message, RenderOptions, Role},
        tokenizer::Specials,
    };
    use serde_json::json;

    use super::*;
    use crate::checkpoint::{Checkpoint, TokenizerSource};

    /// Returns a BPE model with byte pieces: `<unk>`, `<s>`, `</s>`, a newline, and letters.
    fn model() -> Vec<u8> {
        let field = |number: u8, content: &[u8]| [&[number << 3 | 2, content.len() as u8], content].concat();
        let piece = |(at, (text, kind)): (usize, &(&str, u8))| {
            let score = [&[0x15][..], &(-(at as f32)).to_le_bytes()].concat();
            field(1, &[field(1, text.as_bytes()), score, vec![0x18, *kind]].concat())
        };
        let plain = ["▁", "h", "i", "hi", "▁hi", "s", "o", "p", "▁s"].map(|text| (text, 1));
        let pieces = [&[("<unk>", 2), ("<s>", 3), ("</s>", 3), ("<0x0A>", 6)], plain.as_slice()].concat();
        let mut model: Vec<u8> = pieces.iter().enumerate().flat_map(piece).collect();
        // BPE with byte fallback; spaces are not removed.
        model.extend(field(2, &[0x18, 2, 0x98, 2, 1]));
        model.extend(field(3, &[0x20, 0]));
        model
    }

    fn open(folder: &Path, files: &[(&str, Value)]) -> Result<Checkpoint> {
        std::fs::write(folder.join(MODEL), model()).unwrap();
        for (name, content) in files {
            std::fs::write(folder.join(name), content.to_string()).unwrap();
        }
        crate::open(folder)
    }

    fn tokenizer(checkpoint: &Checkpoint) -> Tokenizer {
        let TokenizerSource::Json(json) = &checkpoint.tokenizer else { panic!("no tokenizer.json") };
        Tokenizer::from_json(json).unwrap()
    }

    fn llama(files: &[(&str, Value)]) -> Result<Checkpoint> {
        let folder = tempfile::tempdir().unwrap();
        tiny_llama_safetensors(folder.path(), 1).unwrap();
        std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
        open(folder.path(), files)
    }

    #[test]
    fn added_tokens_come_from_either_file() {
        let check = |files: &[(&str, Value)], stop: &[u32]| {
            let checkpoint = llama(files).unwrap();
            let t = tokenizer(&checkpoint);
            assert_eq!(t.encode("hi<|end|> hi<tool>", Specials::Parse).unwrap(), [8, 13, 4, 8, 20]);
            assert_eq!((t.token_id("<|end|>"), t.is_special(13), t.is_special(20)), (Some(13), true, false));
            assert_eq!((checkpoint.special.bos, checkpoint.special.stop.as_slice()), (Some(1), stop));
        };
        let config = |more: Value| {
            let mut config = json!({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            ("tokenizer_config.json", config)
        };
        let by_id = json!({"added_tokens_decoder": {
            "13": {"content": "<|end|>", "special": true, "normalized": false},
            "20": {"content": "<tool>"},
        }});
        check(&[config(by_id)], &[2, 13]);
        let by_text = ("added_tokens.json", json!({"<|end|>": 13, "<tool>": 20}));
        check(&[config(json!({"additional_special_tokens": ["<|end|>"]})), by_text], &[2, 13]);
        let wrong = config(json!({"added_tokens_decoder": {"x": {}}}));
        let error = llama(&[wrong]).err().unwrap().to_string();
        assert!(error.contains("added_tokens_decoder"), "{error}");
    }

    #[test]
    fn a_malformed_model_is_named() {
        let folder = tempfile::tempdir().unwrap();
        tiny_llama_safetensors(folder.path(), 1).unwrap();
        std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
        std::fs::write(folder.path().join(MODEL), [0x0B]).unwrap();
        let error = crate::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains("tokenizer.model is malformed: expected fields of a protobuf"), "{error}");
    }

    #[test]
    fn chatglm3_gets_what_its_program_adds() {
        let folder = tempfile::tempdir().unwrap();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/families/chatglm3");
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(golden.join(file), folder.path().join(file)).unwrap();
        }
        // Later revisions list some of the tokens as ordinary ones.
        let listed = json!({"added_tokens_decoder": {"16": {"content": "sop"}}});
        let checkpoint = open(folder.path(), &[("tokenizer_config.json", listed)]).unwrap();
        let special = &checkpoint.special;
        // `<|user|>` and `<|observation|>`, in addition to the ids of config.json.
        assert_eq!((special.bos, special.stop.as_slice()), (None, &[1, 19, 21][..]));
        let t = tokenizer(&checkpoint);
        let template = checkpoint.chat_template.as_deref().unwrap();
        let template = ChatTemplate::new(template, special.texts.clone()).unwrap();
        let messages = [Message::new(Role::System, "hi"), Message::new(Role::User, "sop")];
        let options = RenderOptions::answer(Date { year: 2026, month: 11, day: 21 });
        let tokens = prompt::tokens(&t, &template, &messages, &options, special.bos).unwrap();
        // ChatGLM3's own code builds: [gMASK] sop, then for each message its role, "▁\n", and the content, tokenized
        // separately.
        assert_eq!(tokens, [14, 16, 18, 4, 3, 8, 19, 4, 3, 12, 10, 11, 20]);
        assert_eq!(t.encode("sops", Specials::Parse).unwrap(), [12, 10, 11, 9]);
    }
}
