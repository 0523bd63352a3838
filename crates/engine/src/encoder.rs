//! The port for models without a loop: one forward pass over a batch of texts.

use narthex_spec::TokenId;

use crate::executor::StepError;

/// Bounds of an encoder and shape of its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncoderLimits {
    /// Maximum length of a text, in tokens.
    pub max_length: usize,
    /// Maximum number of tokens in one batch, as [`Self::batching`] counts them.
    pub max_batch_tokens: usize,
    /// Form in which the texts of a batch are computed.
    pub batching: Batching,
    /// Kind of rows that a text's output has.
    pub rows: Rows,
    /// Number of elements in a row.
    pub width: usize,
}

/// Form in which the texts of a batch are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Batching {
    /// Every text takes as much as the longest.
    Padded,
    /// Every text takes as much as it has tokens.
    Packed,
}

impl EncoderLimits {
    /// Returns the number of tokens of a batch that [`Self::max_batch_tokens`] limits.
    pub fn tokens_of(&self, texts: &[Text<'_>]) -> usize {
        let lengths = texts.iter().map(|text| text.tokens.len());
        match self.batching {
            Batching::Padded => lengths.max().unwrap_or(0) * texts.len(),
            Batching::Packed => lengths.sum(),
        }
    }
}

/// Rows of an encoder's output for a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One row: a vector, or the scores of a classifier.
    Text,
    /// One row for each token: scores of an answer that starts and ends at that token, or of labels.
    Tokens,
    /// One row for each requested token ([`Text::requested`]): logits over the vocabulary.
    Requested,
}

impl Rows {
    /// Returns the number of rows for `text`.
    pub fn of(self, text: &Text<'_>) -> usize {
        match self {
            Self::Text => 1,
            Self::Tokens => text.tokens.len(),
            Self::Requested => text.requested.len(),
        }
    }
}

/// One text of a batch, or a pair of texts in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text<'a> {
    /// Tokens of the text, including special ones.
    pub tokens: &'a [TokenId],
    /// Index of the second segment's first token; the number of tokens if there is one segment.
    pub second: usize,
    /// Indices of the tokens whose rows are requested; used only by models with [`Rows::Requested`].
    pub requested: &'a [usize],
}

impl<'a> Text<'a> {
    /// Returns a text of one segment without requested tokens.
    pub fn of(tokens: &'a [TokenId]) -> Self {
        Self { tokens, second: tokens.len(), requested: &[] }
    }
}

/// Rows of one batch, in the order of its texts.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderOutput {
    /// `rows × width` values.
    pub data: Vec<f32>,
    /// Number of elements in a row.
    pub width: usize,
}

/// One forward pass without a loop: embeddings, rerankers, question answering, masked tokens.
pub trait Encoder: Send {
    /// Returns the limits of a batch.
    fn limits(&self) -> &EncoderLimits;

    /// Runs texts of one or more tokens each, within the limits.
    fn run(&mut self, texts: &[Text<'_>]) -> Result<EncoderOutput, StepError>;

    /// Runs texts of one segment.
    fn run_tokens(&mut self, texts: &[&[TokenId]]) -> Result<EncoderOutput, StepError> {
        let texts: Vec<Text<'_>> = texts.iter().map(|tokens| Text::of(tokens)).collect();
        self.run(&texts)
    }
}
