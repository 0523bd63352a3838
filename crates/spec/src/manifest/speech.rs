//! Control tokens of a model that transcribes speech.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Contradiction, ManifestTooLong};
use crate::TokenId;

/// Maximum number of languages of a model. Whisper has a hundred.
const MAX_LANGUAGES: usize = 1024;

/// Control tokens of a model that transcribes speech, and tokens that it must not generate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpeechEntry {
    /// Start of a transcript.
    pub start: TokenId,
    /// End of a transcript.
    pub end: TokenId,
    /// Start of the text before the window.
    pub previous: TokenId,
    /// A window without speech.
    pub no_speech: TokenId,
    /// A transcript without timestamps.
    pub no_timestamps: TokenId,
    /// The timestamp 0.00. Each following token is 20 ms later.
    pub first_timestamp: TokenId,
    /// Languages by their code, such as `en`; empty for a model of one language, whose transcripts have neither a
    /// language nor a task.
    #[serde(default, deserialize_with = "languages", skip_serializing_if = "BTreeMap::is_empty")]
    pub languages: BTreeMap<String, TokenId>,
    /// The task of transcription, for a model of several languages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcribe: Option<TokenId>,
    /// The task of translation to English, for a model that can translate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translate: Option<TokenId>,
    /// Tokens that are never generated: control tokens, and signs that are not spoken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suppress: Vec<TokenId>,
    /// Tokens that do not start a transcript.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suppress_first: Vec<TokenId>,
}

impl SpeechEntry {
    /// Returns whether a token is a timestamp.
    pub fn is_timestamp(&self, token: TokenId) -> bool {
        token >= self.first_timestamp
    }

    /// Returns the tokens of text, which have lower ids than every control token and timestamp.
    pub fn texts(&self, tokens: impl IntoIterator<Item = TokenId>) -> Vec<TokenId> {
        tokens.into_iter().filter(|&token| token < self.end).collect()
    }

    /// Fails if a control token is not in a vocabulary of `vocab` tokens, or if timestamps precede control tokens.
    pub(super) fn check(&self, vocab: usize) -> Result<(), Contradiction> {
        let named = [self.start, self.end, self.previous, self.no_speech, self.no_timestamps];
        let tasks = self.transcribe.into_iter().chain(self.translate);
        let all = named.into_iter().chain(tasks).chain(self.languages.values().copied());
        let last = all.max().unwrap_or(0);
        if last >= self.first_timestamp || self.first_timestamp as usize >= vocab {
            let expected = format!("control tokens before timestamps in a vocabulary of {vocab}");
            let found = format!("control token {last} and timestamp {}", self.first_timestamp);
            return Err(Contradiction::new(expected, found));
        }
        Ok(())
    }
}

fn languages<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<String, TokenId>, D::Error> {
    let languages = BTreeMap::deserialize(from)?;
    ManifestTooLong::check("languages", languages.len(), MAX_LANGUAGES as u64)
        .map_err(serde::de::Error::custom)?;
    Ok(languages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_tokens_precede_timestamps_inside_the_vocabulary() {
        let entry = SpeechEntry { start: 3, first_timestamp: 5, ..SpeechEntry::default() };
        assert_eq!(entry.check(6), Ok(()));
        for (entry, vocab) in [(entry.clone(), 5), (SpeechEntry { translate: Some(5), ..entry }, 9)] {
            assert!(entry.check(vocab).unwrap_err().to_string().contains("control tokens before timestamps"));
        }
    }

    #[test]
    fn languages_are_counted() {
        let languages: BTreeMap<String, u32> =
            (0..=MAX_LANGUAGES as u32).map(|id| (id.to_string(), id)).collect();
        let text = serde_json::to_string(&SpeechEntry { languages, ..SpeechEntry::default() }).unwrap();
        let error = serde_json::from_str::<SpeechEntry>(&text).unwrap_err().to_string();
        assert!(error.contains("expected at most 1024 languages, found 1025"), "{error}");
    }
}
