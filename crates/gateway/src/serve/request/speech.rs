//! Requests for speech, and what a voice says.

use crate::report::placement::AnsweringDevice;

/// Maximum length in bytes of a text that is spoken.
pub const MAX_SPOKEN_TEXT: usize = 1 << 17;

/// Request to speak a text.
///
/// ```
/// use narthex_gateway::request::SpeechRequest;
///
/// let request = SpeechRequest { speed: 1.2, ..SpeechRequest::new("hibari", "It is 7:30, and 5 °C outside.") };
/// assert_eq!(request.voice, None);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechRequest {
    /// Name of the model.
    pub model: String,
    /// Name of a speaker of the model; by default its first one.
    pub voice: Option<String>,
    /// Factor of the speed, from 0.25 to 4.
    pub speed: f32,
    /// Seed of the noise. The same seed, text and settings give the same samples on the same machine.
    pub seed: Option<u64>,
    /// Text, with or without Markdown.
    pub text: String,
}

impl SpeechRequest {
    /// Model that speaks if none is chosen.
    pub const DEFAULT_MODEL: &str = "hibari";

    /// Creates a request with the default voice and speed.
    pub fn new(model: impl Into<String>, text: impl Into<String>) -> Self {
        Self { model: model.into(), voice: None, speed: 1.0, seed: None, text: text.into() }
    }
}

/// One spoken sentence.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechEvent {
    /// Samples per second.
    pub sample_rate: u32,
    /// Samples of one channel in -1 to 1.
    pub samples: Vec<f32>,
}

/// Facts about a text that was spoken.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechSummary {
    /// Name of the speaker.
    pub voice: String,
    /// Samples per second.
    pub sample_rate: u32,
    /// Number of sentences.
    pub sentences: usize,
    /// Number of samples.
    pub samples: usize,
    /// Device of the voice.
    pub ran_on: AnsweringDevice,
}
