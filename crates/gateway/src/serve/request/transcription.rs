//! Requests to models that transcribe speech.

pub use narthex_audio::{
    activity::ActivitySettings,
    transcript::{Segment, Task, TokenLogprob, Transcript, Word},
};

use crate::error::Error;

/// Request for the transcript of speech.
///
/// ```
/// use narthex_gateway::request::{Task, TranscriptionRequest};
///
/// let request = TranscriptionRequest {
///     language: Some("de".to_owned()),
///     task: Task::Translate,
///     ..TranscriptionRequest::new("whisper:base")
/// };
/// assert_eq!(request.model, "whisper:base");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct TranscriptionRequest {
    /// Name of the model.
    pub model: String,
    /// Transcription or translation to English.
    pub task: Task,
    /// Language of the speech, as a code or an English name; detected from the first window without one.
    pub language: Option<String>,
    /// Text before the speech, whose spelling and style the transcript continues.
    pub prompt: Option<String>,
    /// Text of earlier parts of the same speech, which follows the prompt. Models that read no text before the speech leave it
    /// out.
    pub context: Option<String>,
    /// Temperature of the sampling. 0 and `None` take the likeliest tokens; if the result is poor, higher temperatures are
    /// tried in each case.
    pub temperature: Option<f32>,
    /// Beam search at temperature 0, instead of the likeliest token at each place.
    pub beams: Option<BeamSearch>,
    /// Requests the times of words.
    pub words: bool,
    /// Requests the probabilities of the tokens.
    pub logprobs: bool,
    /// Finds speech first, and transcribes only that; times remain those of the audio.
    /// [`Gateway::fetch_speech_detector`](crate::Gateway::fetch_speech_detector) downloads what this needs.
    pub vad: Option<ActivitySettings>,
    /// Requests a preliminary text soon, for speech that goes on after the audio. Whisper reads the audio and a second of
    /// silence instead of 30 seconds if it is on the CPU, a result that is poor at the first attempt has no text, and the
    /// text of rare words may be another one.
    pub preliminary: bool,
}

impl TranscriptionRequest {
    /// Model that transcribes if none is chosen.
    pub const DEFAULT_MODEL: &str = "whisper:base";

    /// Creates a request for a transcript in the language of the speech, which is detected.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            task: Task::Transcribe,
            language: None,
            prompt: None,
            context: None,
            temperature: None,
            beams: None,
            words: false,
            logprobs: false,
            vad: None,
            preliminary: false,
        }
    }
}

/// Settings of beam search, as openai-whisper has them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamSearch {
    /// Number of beams, 1 to [`Self::MAX_SIZE`].
    pub size: usize,
    /// Number of complete results after which the search ends, divided by the number of beams.
    pub patience: f32,
    /// Exponent of the length in the score of a result, 0 to 1. Without it, the score is the mean over the tokens.
    pub length_penalty: Option<f32>,
}

impl BeamSearch {
    /// Maximum number of beams. Each beam takes the time of a transcript without a search.
    pub const MAX_SIZE: usize = 16;

    /// Maximum patience.
    pub const MAX_PATIENCE: f32 = 8.0;

    /// Creates a search with a number of beams that ends after as many results.
    pub fn new(size: usize) -> Self {
        Self { size, patience: 1.0, length_penalty: None }
    }

    /// Returns the number of complete results after which the search ends.
    pub(crate) fn max_finished(&self) -> usize {
        ((self.size as f32 * self.patience).round_ties_even() as usize).max(1)
    }

    /// Refuses settings outside of their ranges.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { size, patience, length_penalty } = *self;
        if !(1..=Self::MAX_SIZE).contains(&size) {
            let message = format!("expected 1 to {} beams, found {size}", Self::MAX_SIZE);
            return Err(Error::invalid("beam_size", message));
        }
        if !(patience > 0.0 && patience <= Self::MAX_PATIENCE) {
            let message =
                format!("expected a number above 0 and at most {}, found {patience}", Self::MAX_PATIENCE);
            return Err(Error::invalid("patience", message));
        }
        match length_penalty.filter(|penalty| !(0.0..=1.0).contains(penalty)) {
            Some(penalty) => Err(Error::invalid(
                "length_penalty",
                format!("expected a number from 0 to 1, found {penalty}"),
            )),
            None => Ok(()),
        }
    }
}

/// An event of a transcription.
#[derive(Debug, Clone, PartialEq)]
pub enum TranscriptionEvent {
    /// A part of the transcript, which does not change any more.
    Segment(Segment),
    /// The audio up to this time is transcribed. Several events may have the same time: at least one comes with every
    /// token, so that a transcription can be ended soon.
    Progress {
        /// Seconds from the start of the audio.
        seconds: f64,
    },
}
