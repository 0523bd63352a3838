//! The formats `json` and `verbose_json` of the OpenAI API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    language,
    transcript::{Granularities, Segment, Task, TokenLogprob, Transcript, Word},
};

/// The format `json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlainTranscript {
    /// The whole text.
    pub text: String,
    /// The tokens of the text with their probabilities, if they were requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<TokenLogprob>,
    /// Duration of the audio.
    pub usage: Usage,
}

/// The format `verbose_json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerboseTranscript {
    /// The task.
    pub task: Task,
    /// English name of the language of the speech.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Duration of the audio in seconds.
    pub duration: f64,
    /// The whole text.
    pub text: String,
    /// The segments, unless the request asks only for words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<Vec<Segment>>,
    /// The words, if the request asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words: Option<Vec<Word>>,
    /// Duration of the audio.
    pub usage: Usage,
}

/// Amount of audio of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Usage {
    /// Duration of the audio.
    Duration {
        /// Seconds, rounded up.
        seconds: u64,
    },
}

impl Transcript {
    /// Returns the amount of audio of the request.
    pub fn usage(&self) -> Usage {
        Usage::Duration { seconds: self.duration.ceil() as u64 }
    }

    /// Returns the content of the format `json`.
    pub fn plain(&self) -> PlainTranscript {
        let logprobs = self.segments.iter().flat_map(|segment| segment.logprobs.clone()).collect();
        PlainTranscript { text: self.text.trim().to_owned(), logprobs, usage: self.usage() }
    }

    /// Returns the content of the format `verbose_json`.
    pub fn verbose(&self, parts: Granularities) -> VerboseTranscript {
        let words = self.words.iter().map(|word| Word { word: word.word.trim().to_owned(), ..word.clone() });
        VerboseTranscript {
            task: self.task,
            language: self.language.as_ref().map(|code| language::name(code).unwrap_or(code).to_owned()),
            duration: self.duration,
            text: self.text.trim().to_owned(),
            segments: parts.segments.then(|| self.segments.clone()),
            words: parts.words.then(|| words.collect()),
            usage: self.usage(),
        }
    }
}

/// Returns a value as JSON. Values that JSON does not have, such as infinite numbers, become `null`.
pub(super) fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
