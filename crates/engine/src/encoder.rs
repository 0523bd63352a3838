//! The port for models without a loop: one forward pass over a batch of texts.

use narthex_spec::TokenId;

use crate::executor::StepError;

/// What an encoder can take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncoderLimits {
    /// The longest text, in tokens.
    pub max_length: usize,
    /// The most padded tokens in one batch: `texts × longest`.
    pub max_batch_tokens: usize,
    /// Elements of one vector.
    pub width: usize,
}

/// Vectors of one batch, in the order of its texts.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderOutput {
    /// `texts × width` values.
    pub data: Vec<f32>,
    /// Elements of one vector.
    pub width: usize,
}

/// One forward pass without a loop: embeddings now; rerankers, question answering and towers later.
pub trait Encoder: Send {
    /// What it can take.
    fn limits(&self) -> &EncoderLimits;

    /// Runs texts of one or more tokens each, within the limits.
    fn run(&mut self, texts: &[&[TokenId]]) -> Result<EncoderOutput, StepError>;
}
