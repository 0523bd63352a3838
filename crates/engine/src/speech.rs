//! The port for models that transcribe speech: an encoder for a window of audio, and a decoder of its transcript.

use narthex_spec::TokenId;

use crate::executor::StepError;

/// Bounds of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpeechLimits {
    /// Number of mel bands of a frame.
    pub bins: usize,
    /// Number of frames of a window.
    pub frames: usize,
    /// Number of rows of the encoder for a window.
    pub positions: usize,
    /// True if a window may have fewer frames, of which the encoder makes fewer rows in proportion.
    pub takes_short_windows: bool,
    /// Maximum length of the decoder's sequence, in tokens.
    pub context: usize,
    /// Number of vocabulary entries.
    pub vocab: usize,
    /// Number of heads whose attention follows the speech.
    pub alignment_heads: usize,
}

/// A model with the state of one window.
pub trait SpeechModel: Send {
    /// Returns the bounds of the model.
    fn limits(&self) -> &SpeechLimits;

    /// Encodes the log-mel spectrogram `[bins, frames]` of a window, and empties the decoder's cache. If the model takes
    /// short windows, there may be fewer frames: a multiple of those of a row.
    fn encode(&mut self, features: &[f32]) -> Result<(), StepError>;

    /// Reads `tokens` after the first `at` tokens of the cache; later ones are forgotten. Returns the logits after the
    /// tokens whose indices are in `rows`, `[rows, vocab]`.
    fn decode(&mut self, at: usize, tokens: &[TokenId], rows: &[usize]) -> Result<&[f32], StepError>;

    /// Returns the attention of the alignment heads from each token of the last [`Self::decode`] to the rows of the
    /// encoder for the window, `[heads, tokens, rows]`.
    fn alignment(&mut self) -> Result<Vec<f32>, StepError>;
}

/// Returns the number of rows of the encoder for a window with this number of features.
///
/// # Errors
/// [`StepError::BadPlan`] for a number that no window of the model has.
pub fn encoder_rows(limits: &SpeechLimits, features: usize) -> Result<usize, StepError> {
    let SpeechLimits { bins, frames, positions, takes_short_windows, .. } = *limits;
    let of_row = (frames / positions.max(1) * bins).max(1);
    let rows = features / of_row;
    let is_whole = rows == positions;
    if features == rows * of_row && (is_whole || takes_short_windows && (1..positions).contains(&rows)) {
        return Ok(rows);
    }
    Err(StepError::bad_plan(format!("expected {} features, found {features}", bins * frames)))
}

/// Fails unless a call of [`SpeechModel::decode`] is within the limits of the model, whose cache has `length` tokens.
///
/// # Errors
/// [`StepError::BadPlan`].
pub fn check_decode(
    limits: &SpeechLimits,
    length: usize,
    at: usize,
    tokens: &[TokenId],
    rows: &[usize],
) -> Result<(), StepError> {
    let end = at.saturating_add(tokens.len());
    if tokens.is_empty() || at > length || end > limits.context {
        let found = format!("{} tokens at {at} after {length}", tokens.len());
        return Err(StepError::bad_plan(format!("expected tokens within {}, found {found}", limits.context)));
    }
    if let Some(token) = tokens.iter().find(|&&token| token as usize >= limits.vocab) {
        return Err(StepError::bad_plan(format!("token {token} is not below {}", limits.vocab)));
    }
    match rows.iter().find(|&&row| row >= tokens.len()) {
        Some(row) => Err(StepError::bad_plan(format!("logits of token {row} of {}", tokens.len()))),
        None => Ok(()),
    }
}
