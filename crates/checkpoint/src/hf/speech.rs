//! Control tokens of a model that transcribes speech, and its alignment heads.
//!
//! The tokens are those with these texts in `tokenizer.json`, as in OpenAI's `tokenizer.py`. The lists of tokens that are
//! not generated and the alignment heads come from `generation_config.json`, or from `config.json` in the folders of
//! CTranslate2 and of old conversions.

use narthex_spec::{TokenId, arch::SpeechArch, manifest::SpeechEntry};
use serde::Deserialize;

use super::{CONFIG, folder::Folder};
use crate::{
    error::Result,
    limits::{malformed, unsupported},
    special::sorted,
};

/// Vocabulary of the smallest model of several languages, if the files do not state whether a model is one.
const MULTILINGUAL_VOCAB: usize = 51_865;

/// The keys of either file.
#[derive(Debug, Default, Deserialize)]
struct SpeechKeys {
    #[serde(alias = "suppress_ids")]
    suppress_tokens: Option<Vec<i64>>,
    #[serde(alias = "suppress_ids_begin")]
    begin_suppress_tokens: Option<Vec<i64>>,
    alignment_heads: Option<Vec<[usize; 2]>>,
    is_multilingual: Option<bool>,
}

/// The part of `tokenizer.json` that has control tokens.
#[derive(Debug, Deserialize)]
struct ControlTokenFile {
    #[serde(default)]
    added_tokens: Vec<ControlToken>,
}

#[derive(Debug, Deserialize)]
struct ControlToken {
    id: TokenId,
    content: String,
}

/// Reads the control tokens of a folder whose `tokenizer.json` has these bytes, and adds the alignment heads to its
/// architecture.
pub(crate) fn read(folder: &mut Folder, tokenizer: &[u8], arch: &mut SpeechArch) -> Result<SpeechEntry> {
    let generation: SpeechKeys =
        folder.json("generation_config.json", "a generation configuration")?.unwrap_or_default();
    let config: SpeechKeys = folder.json(CONFIG, "a configuration")?.unwrap_or_default();
    let heads = generation.alignment_heads.or(config.alignment_heads).unwrap_or_default();
    let layers = arch.decoder.layers;
    if let Some(other) = heads.iter().find(|[layer, head]| *layer >= layers || *head >= arch.decoder.heads) {
        let expected = "alignment_heads that the decoder has";
        return Err(malformed(folder.path(), expected, format!("{other:?}")));
    }
    arch.alignment_heads = heads;

    let json: ControlTokenFile = match serde_json::from_slice(tokenizer) {
        Ok(json) => json,
        Err(error) => return Err(malformed(&folder.file("tokenizer.json"), "a tokenizer", error)),
    };
    let is_multilingual = generation.is_multilingual.unwrap_or(arch.vocab >= MULTILINGUAL_VOCAB);
    let mut entry = json.entry(is_multilingual)?;

    let listed = |tokens: Option<Vec<i64>>| -> Vec<TokenId> {
        let ids = tokens.into_iter().flatten().filter_map(|id| TokenId::try_from(id).ok());
        sorted(ids.filter(|&id| (id as usize) < arch.vocab))
    };
    let suppressed = listed(generation.suppress_tokens.or(config.suppress_tokens));
    // The control tokens before the timestamps, except the one that ends a transcript.
    let control = json.added_tokens.iter().map(|token| token.id);
    let control = control.filter(|&id| id != entry.end && id < entry.first_timestamp);
    entry.suppress = sorted(suppressed.into_iter().filter(|&id| id != entry.end).chain(control));
    entry.suppress_first = listed(generation.begin_suppress_tokens.or(config.begin_suppress_tokens));
    Ok(entry)
}

impl ControlTokenFile {
    /// Returns the token with one of these texts.
    fn token(&self, texts: &[&str]) -> Result<TokenId> {
        for text in texts {
            if let Some(token) = self.added_tokens.iter().find(|token| token.content == *text) {
                return Ok(token.id);
            }
        }
        Err(unsupported("tokenizer.json", format!("the added token {}", texts.join(" or ")), "none"))
    }

    /// Returns the control tokens, without the lists of tokens that are not generated.
    fn entry(&self, is_multilingual: bool) -> Result<SpeechEntry> {
        let start = self.token(&["<|startoftranscript|>"])?;
        let no_timestamps = self.token(&["<|notimestamps|>"])?;
        let [transcribe, translate] = [self.token(&["<|transcribe|>"])?, self.token(&["<|translate|>"])?];
        // Languages are between the start and the tasks.
        let tasks = transcribe.min(translate);
        let languages = self.added_tokens.iter().filter(|token| (start + 1..tasks).contains(&token.id));
        let languages = languages.filter_map(|token| {
            let code = token.content.strip_prefix("<|")?.strip_suffix("|>")?;
            Some((code.to_owned(), token.id))
        });
        Ok(SpeechEntry {
            start,
            end: self.token(&["<|endoftext|>"])?,
            previous: self.token(&["<|startofprev|>"])?,
            no_speech: self.token(&["<|nospeech|>", "<|nocaptions|>"])?,
            no_timestamps,
            first_timestamp: no_timestamps + 1,
            languages: if is_multilingual { languages.collect() } else { [].into() },
            transcribe: is_multilingual.then_some(transcribe),
            translate: is_multilingual.then_some(translate),
            suppress: Vec::new(),
            suppress_first: Vec::new(),
        })
    }
}
