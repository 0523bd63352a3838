//! Requests to models that transcribe speech.

pub use narthex_audio::{
    activity::ActivitySettings,
    transcript::{Segment, Task, Transcript, Word},
};

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
    /// Requests the times of words.
    pub words: bool,
    /// Finds speech first, and transcribes only that; times remain those of the audio.
    /// [`Gateway::fetch_speech_detector`](crate::Gateway::fetch_speech_detector) downloads what this needs.
    pub vad: Option<ActivitySettings>,
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
            words: false,
            vad: None,
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
