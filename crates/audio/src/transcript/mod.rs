//! The result of speech recognition, and its formats.
//!
//! [`Transcript::write`] writes the formats of the OpenAI API. [`LiveText`] is the text of speech that has not ended.

mod json;
mod live;
mod subtitles;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use json::{PlainTranscript, Usage, VerboseTranscript};
pub use live::LiveText;

/// Task of speech recognition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// The text is in the language of the speech.
    Transcribe,
    /// The text is in English.
    Translate,
}

/// Recognised speech. Times are in seconds from the start of the audio.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// The task that gave the text.
    pub task: Task,
    /// Code of the language of the speech, if the model states it.
    pub language: Option<String>,
    /// Duration of the audio.
    pub duration: f64,
    /// The whole text.
    pub text: String,
    /// The text in parts of about a sentence each, in the order of time.
    pub segments: Vec<Segment>,
    /// The words, if they were requested.
    pub words: Vec<Word>,
}

/// A part of a transcript, as Whisper measures it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Segment {
    /// Number of the segment, from 0.
    pub id: u32,
    /// Start of the window of the segment, in frames of 10 ms.
    pub seek: u32,
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// The text, with the space before it.
    pub text: String,
    /// The tokens of the text, with those of the times.
    pub tokens: Vec<u32>,
    /// Temperature of the sampling.
    pub temperature: f32,
    /// Mean logarithm of the tokens' probabilities.
    pub avg_logprob: f32,
    /// Length of the text divided by its length after compression. High values suggest repetitions.
    pub compression_ratio: f32,
    /// Probability that the window has no speech.
    pub no_speech_prob: f32,
    /// Tokens of the text with their probabilities, if they were requested. Only the format `json` and events have them.
    #[serde(skip)]
    pub logprobs: Vec<TokenLogprob>,
}

/// A token of a transcript with its probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenLogprob {
    /// The text.
    pub token: String,
    /// Logarithm of the probability.
    pub logprob: f32,
    /// The text in UTF-8, of which a token may have a part of a character.
    pub bytes: Vec<u8>,
}

/// A word with its times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Word {
    /// The word.
    pub word: String,
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// Probability of its tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f32>,
}

/// Format of a transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TranscriptFormat {
    /// JSON with the text.
    #[default]
    Json,
    /// JSON with the text, its language and its segments.
    VerboseJson,
    /// The text.
    Text,
    /// SubRip subtitles.
    Srt,
    /// WebVTT subtitles.
    Vtt,
}

impl TranscriptFormat {
    /// Every format.
    pub const ALL: [Self; 5] = [Self::Json, Self::VerboseJson, Self::Text, Self::Srt, Self::Vtt];

    /// Name in the OpenAI API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::VerboseJson => "verbose_json",
            Self::Text => "text",
            Self::Srt => "srt",
            Self::Vtt => "vtt",
        }
    }

    /// Media type of a file of this format.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json | Self::VerboseJson => "application/json",
            Self::Text => "text/plain; charset=utf-8",
            Self::Srt => "application/x-subrip; charset=utf-8",
            Self::Vtt => "text/vtt; charset=utf-8",
        }
    }
}

/// Parts of a transcript with times, in the format `verbose_json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granularities {
    /// Lists the segments.
    pub segments: bool,
    /// Lists the words.
    pub words: bool,
}

impl Transcript {
    /// Returns the transcript in a format, as UTF-8. JSON has no newline at its end; the other formats end with one.
    ///
    /// Only the format `verbose_json` reads `parts`.
    pub fn write(&self, format: TranscriptFormat, parts: Granularities) -> String {
        match format {
            TranscriptFormat::Json => json::text(&self.plain()),
            TranscriptFormat::VerboseJson => json::text(&self.verbose(parts)),
            TranscriptFormat::Text => format!("{}\n", self.text.trim()),
            TranscriptFormat::Srt => subtitles::srt(&self.segments),
            TranscriptFormat::Vtt => subtitles::vtt(&self.segments),
        }
    }
}

#[cfg(test)]
mod tests;
