//! The tokenizer files of a folder: `tokenizer.json`, or the one that `sentencepiece` builds, and the rules of its
//! special tokens.
//!
//! Follows the precedence of `transformers`: `tokenizer_config.json` before `special_tokens_map.json`,
//! `generation_config.json` before `config.json`. Tokenization itself is in `narthex-text`.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use narthex_spec::{arch::Family, manifest::PublishedSampling};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};
use serde_json::Value;

use super::{
    config::TokenIds,
    folder::Folder,
    generation::{self, GenerationConfig},
    pooling::SentenceEmbedding,
    sentencepiece,
};
use crate::{
    error::Result,
    limits::{malformed, unsupported},
    special::{SpecialTokens, ends_of, sorted, template_of},
};

/// Roles of special tokens that templates use.
const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token"];

/// Tokenizer of a folder.
#[derive(Debug)]
pub struct FolderTokenizer {
    /// The bytes of `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// Special tokens.
    pub special: SpecialTokens,
    /// The chat template, if there is one.
    pub chat_template: Option<String>,
    /// Sampling that `generation_config.json` states, for a decoder.
    pub sampling: PublishedSampling,
}

/// Number of a model's vocabulary entries, and a decoder's family if it is known.
#[derive(Debug, Clone, Copy)]
pub enum Vocab {
    /// For a decoder, with its family if it is known.
    Decoder(usize, Option<Family>),
    /// For an encoder.
    Encoder(usize),
}

impl Vocab {
    fn family(self) -> Option<Family> {
        match self {
            Self::Decoder(_, family) => family,
            Self::Encoder(_) => None,
        }
    }
}

/// `tokenizer_config.json`.
#[derive(Debug, Default, Deserialize)]
struct TokenizerConfig {
    add_bos_token: Option<bool>,
    tokenizer_class: Option<String>,
    model_max_length: Option<f64>,
    chat_template: Option<ChatTemplate>,
    /// All other keys, including the roles.
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// One template, or several with names.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ChatTemplate {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

/// The parts of `tokenizer.json` that name special tokens; the vocabulary itself is not parsed here.
#[derive(Debug, Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    post_processor: Option<PostProcessor>,
}

/// The special token that a post-processor inserts before a text. The file may be large, so nothing else of it is kept.
#[derive(Debug, Deserialize)]
#[serde(from = "Step")]
struct PostProcessor {
    first_special: Option<String>,
}

/// The parts of a post-processor that state tokens before a text.
#[derive(Deserialize)]
struct Step {
    #[serde(rename = "type")]
    kind: Option<String>,
    single: Option<FirstMatch<Piece>>,
    processors: Option<FirstMatch<PostProcessor>>,
}

impl From<Step> for PostProcessor {
    fn from(step: Step) -> Self {
        let first_special = match step.kind.as_deref() {
            Some("TemplateProcessing") => {
                step.single.and_then(|pieces| pieces.0?.special.map(|special| special.id))
            }
            Some("Sequence") => step.processors.and_then(|steps| steps.0?.first_special),
            _ => None,
        };
        Self { first_special }
    }
}

/// Element of the template of a post-processor.
#[derive(Deserialize)]
struct Piece {
    #[serde(rename = "SpecialToken")]
    special: Option<SpecialPiece>,
}

#[derive(Deserialize)]
struct SpecialPiece {
    id: String,
}

/// Element of a list that is read only up to the first element with a result.
trait ListResult {
    /// Returns true if the element is the result of its list.
    fn is_result(&self) -> bool;
}

impl ListResult for Piece {
    fn is_result(&self) -> bool {
        true
    }
}

impl ListResult for PostProcessor {
    fn is_result(&self) -> bool {
        self.first_special.is_some()
    }
}

/// First element of a list with a result.
struct FirstMatch<T>(Option<T>);

impl<'de, T: ListResult + Deserialize<'de>> Deserialize<'de> for FirstMatch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_seq(FirstMatchVisitor(PhantomData))
    }
}

struct FirstMatchVisitor<T>(PhantomData<T>);

impl<'de, T: ListResult + Deserialize<'de>> Visitor<'de> for FirstMatchVisitor<T> {
    type Value = FirstMatch<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<FirstMatch<T>, A::Error> {
        let mut first = None;
        while first.is_none() {
            let Some(element) = list.next_element::<T>()? else { return Ok(FirstMatch(None)) };
            first = Some(element).filter(T::is_result);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(FirstMatch(first))
    }
}

#[derive(Debug, Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const SPECIAL_MAP: &str = "special_tokens_map.json";

/// Reads the tokenizer, its special tokens and the chat template.
///
/// For encoders, the tokenizer itself adds `[CLS]` and `[SEP]` around a text, so [`SpecialTokens::bos`] is `None`.
/// `ids` are used for special tokens that the tokenizer's files do not state.
pub fn read(folder: &mut Folder, ids: &TokenIds, vocab: Vocab) -> Result<FolderTokenizer> {
    let stated = tokenizer_config(folder)?;
    let map: BTreeMap<String, Value> =
        folder.json(SPECIAL_MAP, "special tokens by role")?.unwrap_or_default();
    let texts = texts(&stated, &map);
    let tokenizer = tokenizer_bytes(folder, &stated, &map, vocab.family())?;
    let json: TokenizerJson = match serde_json::from_slice(&tokenizer) {
        Ok(json) => json,
        Err(error) => return Err(malformed(&folder.file(TOKENIZER), "a tokenizer", error)),
    };
    let GenerationConfig { ids: generation, sampling } = generation::read(folder)?;
    let rules = Rules { json, stated, texts, generation, fallback: ids.clone() };
    let (special, sampling) = match vocab {
        Vocab::Decoder(entries, family) => (rules.decoder(entries, family), sampling.published()),
        Vocab::Encoder(entries) => (rules.encoder(entries), PublishedSampling::default()),
    };
    let chat_template = chat_template(folder, rules.stated)?.or_else(|| template_of(vocab.family()));
    Ok(FolderTokenizer { tokenizer, special, chat_template, sampling })
}

/// Returns the maximum text length that the tokenizer's files allow, in tokens.
pub fn max_length(folder: &mut Folder, sentence: &SentenceEmbedding) -> Result<Option<usize>> {
    let stated = tokenizer_config(folder)?.model_max_length;
    // Files without a limit state 1e30.
    let stated = stated.filter(|&length| (1.0..1e15).contains(&length)).map(|length| length as usize);
    match sentence.max_length.or(stated) {
        Some(0) => {
            Err(malformed(&folder.file("sentence_bert_config.json"), "a max_seq_length above zero", 0))
        }
        length => Ok(length),
    }
}

/// Returns the bytes of `tokenizer.json`, or of one built from `tokenizer.model`.
fn tokenizer_bytes(
    folder: &mut Folder,
    stated: &TokenizerConfig,
    map: &BTreeMap<String, Value>,
    family: Option<Family>,
) -> Result<Vec<u8>> {
    if let Some(bytes) = folder.bytes(TOKENIZER)? {
        return Ok(bytes);
    }
    let special: Vec<&str> = stated.rest.values().chain(map.values()).flat_map(token_texts).collect();
    if let Some(json) = sentencepiece::tokenizer_json(folder, &stated.rest, &special, family)? {
        return Ok(json);
    }
    let found = ["vocab.txt", "vocab.json"].into_iter().find(|name| folder.has(name));
    let expected =
        "tokenizer.json; load the tokenizer with transformers' AutoTokenizer and call save_pretrained";
    Err(unsupported("tokenizer", expected, found.unwrap_or("none")).in_file(folder.path()))
}

fn tokenizer_config(folder: &mut Folder) -> Result<TokenizerConfig> {
    Ok(folder.json(TOKENIZER_CONFIG, "a tokenizer's configuration")?.unwrap_or_default())
}

/// Returns the texts of the special tokens by role.
fn texts(stated: &TokenizerConfig, map: &BTreeMap<String, Value>) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    for role in ROLES {
        let mut values = stated.rest.get(role).into_iter().chain(map.get(role));
        if let Some(text) = values.find_map(token_text) {
            texts.insert(role.to_owned(), text.to_owned());
        }
    }
    texts
}

/// Returns the text of a token, which is stored as a string or as an object with the key `content`.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// Returns the texts of one token or of several.
fn token_texts(value: &Value) -> Vec<&str> {
    let several = value.as_array().into_iter().flatten().filter_map(token_text);
    several.chain(token_text(value)).collect()
}

/// File with the chat template of a model that reads media, as older versions of `transformers` write it.
#[derive(Deserialize)]
struct TemplateFile {
    chat_template: String,
}

/// Returns the chat template. A template file has precedence over the tokenizer's configuration; of several templates, the
/// one called `default` is used, else the first.
fn chat_template(folder: &mut Folder, stated: TokenizerConfig) -> Result<Option<String>> {
    if let Some(text) = folder.text("chat_template.jinja")? {
        return Ok(Some(text));
    }
    if let Some(file) = folder.json::<TemplateFile>("chat_template.json", "a chat template")? {
        return Ok(Some(file.chat_template));
    }
    Ok(match stated.chat_template {
        None => None,
        Some(ChatTemplate::One(text)) => Some(text),
        Some(ChatTemplate::Named(mut named)) => {
            let at = named.iter().position(|entry| entry.name == "default").unwrap_or(0);
            (at < named.len()).then(|| named.swap_remove(at).template)
        }
    })
}

/// All settings that determine the special tokens.
struct Rules {
    json: TokenizerJson,
    stated: TokenizerConfig,
    texts: BTreeMap<String, String>,
    generation: TokenIds,
    fallback: TokenIds,
}

impl Rules {
    /// Returns the id of the token with this text.
    fn id(&self, text: &str) -> Option<u32> {
        self.json.added_tokens.iter().find(|token| token.content == text).map(|token| token.id)
    }

    /// Returns the id of the token in this role.
    fn role(&self, role: &str) -> Option<u32> {
        self.texts.get(role).and_then(|text| self.id(text))
    }

    fn pad(&self, vocab: usize) -> Option<u32> {
        let stated = self.generation.pad_token_id.as_ref().or(self.fallback.pad_token_id.as_ref());
        let id = self.role("pad_token").or_else(|| stated?.ids().next());
        id.filter(|&id| (id as usize) < vocab)
    }

    fn encoder(&self, vocab: usize) -> SpecialTokens {
        SpecialTokens { bos: None, stop: Vec::new(), pad: self.pad(vocab), texts: self.texts.clone() }
    }

    fn decoder(&self, vocab: usize, family: Option<Family>) -> SpecialTokens {
        let stated = self.generation.bos_token_id.as_ref().or(self.fallback.bos_token_id.as_ref());
        let bos = self.role("bos_token").or_else(|| stated?.ids().next());
        // As in `generate`, the stop set of `generation_config.json` replaces that of `config.json`.
        let eos = self.generation.eos_token_id.as_ref().or(self.fallback.eos_token_id.as_ref());
        let stop = eos.iter().flat_map(|eos| eos.ids()).collect::<Vec<_>>();
        let named = ends_of(family).filter_map(|text| self.id(text));
        let stop = stop.into_iter().chain(self.role("eos_token")).chain(named);
        // Tokens without a row in the embedding can neither be an input nor an output.
        let known = |id: &u32| (*id as usize) < vocab;
        SpecialTokens {
            bos: bos.filter(known).filter(|_| self.adds_bos()),
            stop: sorted(stop.filter(known)),
            pad: self.pad(vocab),
            texts: self.texts.clone(),
        }
    }

    /// Returns whether a sequence begins with BOS: the value of `add_bos_token`, else the tokenizer's post-processing
    /// template, else the convention of its class.
    fn adds_bos(&self) -> bool {
        if let Some(adds) = self.stated.add_bos_token {
            return adds;
        }
        let bos = self.texts.get("bos_token").map(String::as_str);
        let inserted = self.json.post_processor.as_ref().and_then(|step| step.first_special.as_deref());
        if inserted.is_some() && inserted == bos {
            return true;
        }
        matches!(self.stated.tokenizer_class.as_deref(), Some("LlamaTokenizer" | "LlamaTokenizerFast"))
    }
}

#[cfg(test)]
mod tests {
    use narthex_testkit::checkpoint::{tiny_bert_safetensors, tiny_llama_safetensors};
    use serde_json::json;

    use super::*;
    use crate::checkpoint::Checkpoint;

    /// A change to a JSON file: its name, and keys to set in it.
    type Change<'a> = (&'a str, Value);

    fn changed(
        write: fn(&std::path::Path, u64) -> std::io::Result<()>,
        changes: &[Change<'_>],
    ) -> Result<Checkpoint> {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 1).unwrap();
        for (name, keys) in changes {
            let path = folder.path().join(name);
            let mut value: Value =
                std::fs::read(&path).map_or(json!({}), |bytes| serde_json::from_slice(&bytes).unwrap());
            for (key, new) in keys.as_object().unwrap() {
                value[key] = new.clone();
            }
            std::fs::write(path, value.to_string()).unwrap();
        }
        crate::open(folder.path())
    }

    fn llama(changes: &[Change<'_>]) -> Checkpoint {
        changed(tiny_llama_safetensors, changes).unwrap_or_else(|error| panic!("{error}"))
    }

    const CONFIG: &str = "tokenizer_config.json";

    #[test]
    fn a_decoder_s_special_tokens_are_read() {
        let special = llama(&[]).special;
        assert_eq!((special.bos, special.pad), (None, Some(0)));
        assert_eq!(special.stop, [0, 2]);
        assert_eq!(special.texts.get("eos_token").map(String::as_str), Some("<|im_end|>"));
    }

    #[test]
    fn bos_is_added_as_stated_or_as_the_tokenizer_does() {
        let check = |changes: &[Change<'_>], expect| assert_eq!(llama(changes).special.bos, expect);
        let template = |first: Value| {
            let text = json!({"Sequence": {"id": "A", "type_id": 0}});
            let step = json!({"type": "TemplateProcessing", "single": [first, text]});
            let steps = json!({"type": "Sequence", "processors": [{"type": "ByteLevel"}, step]});
            (TOKENIZER, json!({"post_processor": steps}))
        };
        let begins = template(json!({"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}));
        let plain = template(json!({"Sequence": {"id": "A", "type_id": 0}}));
        let unstated = (CONFIG, json!({"add_bos_token": null}));
        check(&[(CONFIG, json!({"add_bos_token": true}))], Some(0));
        check(std::slice::from_ref(&unstated), None);
        check(&[unstated.clone(), begins.clone()], Some(0));
        check(&[unstated.clone(), plain], None);
        check(&[begins], None);
        check(&[unstated, (CONFIG, json!({"tokenizer_class": "LlamaTokenizer"}))], Some(0));
    }

    #[test]
    fn only_the_token_of_a_post_processor_is_kept() {
        let first = |step: &str| serde_json::from_str::<PostProcessor>(step).unwrap().first_special;
        let step = |single: &str| format!(r#"{{"type": "TemplateProcessing", "single": [{single}]}}"#);
        let special = r#"{"SpecialToken": {"id": "<s>", "type_id": 0}}"#;
        let text = r#"{"Sequence": {"id": "A", "type_id": 0}}"#;
        let many = "0, [1], {}, ".repeat(1000);
        assert_eq!(first(&step(&format!("{special}, {many}{text}"))).as_deref(), Some("<s>"));
        assert_eq!(first(&step(&format!("{text}, {special}"))), None);
        assert_eq!(first(&step("")), None);
        assert_eq!(
            first(r#"{"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]}"#),
            None
        );
        let steps =
            format!(r#"{{"type": "Sequence", "processors": [{}, {}, {many}0]}}"#, step(""), step(special));
        assert_eq!(first(&steps).as_deref(), Some("<s>"));
    }

    #[test]
    fn stop_tokens_come_from_every_file() {
        let check = |changes: &[Change<'_>], expect: &[u32]| assert_eq!(llama(changes).special.stop, expect);
        let generation = "generation_config.json";
        check(&[(generation, json!({"eos_token_id": [7, 9, 300]}))], &[0, 2, 7, 9]);
        check(
            &[(generation, json!({"eos_token_id": null})), ("config.json", json!({"eos_token_id": 8}))],
            &[0, 2, 8],
        );
        check(&[(generation, json!({"eos_token_id": 11}))], &[0, 2, 11]);
        let by_object = json!({"eos_token": {"content": "<|im_start|>", "special": true}});
        check(&[(CONFIG, by_object)], &[0, 1, 2]);
        let by_map = ("special_tokens_map.json", json!({"eos_token": "<|im_start|>"}));
        check(&[(CONFIG, json!({"eos_token": null})), by_map], &[0, 1, 2]);
    }

    #[test]
    fn chat_templates_come_as_text_list_or_file() {
        let check = |template: Value, expect: Option<&str>| {
            assert_eq!(
                llama(&[(CONFIG, json!({"chat_template": template}))]).chat_template.as_deref(),
                expect
            );
        };
        check(json!("one"), Some("one"));
        check(json!(null), None);
        check(json!([]), None);
        let named = |name: &str| json!({"name": name, "template": format!("the {name}")});
        check(json!([named("tool_use"), named("default")]), Some("the default"));
        check(json!([named("tool_use"), named("rag")]), Some("the tool_use"));
        let folder = tempfile::tempdir().unwrap();
        tiny_llama_safetensors(folder.path(), 1).unwrap();
        for (file, text, expect) in [
            ("chat_template.json", r#"{"chat_template": "of the processor"}"#, "of the processor"),
            ("chat_template.jinja", "from the file", "from the file"),
        ] {
            std::fs::write(folder.path().join(file), text).unwrap();
            let found = crate::open(folder.path()).map(|checkpoint| checkpoint.chat_template).unwrap();
            assert_eq!(found.as_deref(), Some(expect));
        }
    }

    #[test]
    fn an_encoder_s_tokens_and_length_are_read() {
        let check = |changes: &[Change<'_>], expect| {
            let found = changed(tiny_bert_safetensors, changes).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(found.max_length, expect);
            assert_eq!((found.special.bos, found.special.stop, found.special.pad), (None, vec![], Some(0)));
            assert_eq!(found.special.texts.get("cls_token").map(String::as_str), Some("[CLS]"));
        };
        let unlimited = ("sentence_bert_config.json", json!({"max_seq_length": null}));
        check(&[], 64);
        check(&[("sentence_bert_config.json", json!({"max_seq_length": 999}))], 128);
        check(&[unlimited.clone(), (CONFIG, json!({"model_max_length": 100}))], 100);
        check(&[unlimited, (CONFIG, json!({"model_max_length": 1e30}))], 128);
        let error =
            changed(tiny_bert_safetensors, &[("sentence_bert_config.json", json!({"max_seq_length": 0}))]);
        assert!(error.err().is_some_and(|error| error.to_string().contains("max_seq_length above zero")));
    }

    #[test]
    fn a_folder_without_tokenizer_json_gets_the_next_step() {
        for (name, expect) in [(None, "found none"), (Some("vocab.txt"), "found vocab.txt")] {
            let folder = tempfile::tempdir().unwrap();
            tiny_llama_safetensors(folder.path(), 1).unwrap();
            std::fs::remove_file(folder.path().join(TOKENIZER)).unwrap();
            if let Some(name) = name {
                std::fs::write(folder.path().join(name), "").unwrap();
            }
            let error = crate::open(folder.path()).err().unwrap().to_string();
            assert!(error.contains(expect) && error.contains("save_pretrained"), "{error}");
        }
    }

    #[test]
    fn broken_tokenizer_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        tiny_llama_safetensors(folder.path(), 1).unwrap();
        for name in [TOKENIZER, CONFIG, "generation_config.json", "special_tokens_map.json", "config.json"] {
            let path = folder.path().join(name);
            let whole = std::fs::read(&path).ok();
            std::fs::write(&path, "{\"added_tokens\": 5,").unwrap();
            let error = crate::open(folder.path()).err().unwrap().to_string();
            assert!(error.contains(name) && error.contains("malformed"), "{error}");
            match whole {
                Some(bytes) => std::fs::write(&path, bytes).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
        }
    }
}
