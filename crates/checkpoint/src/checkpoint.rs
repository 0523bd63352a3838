//! An opened [`Checkpoint`]: architecture, weights, tokenizer and the files that it was read from.

use std::path::PathBuf;

use narthex_spec::{
    TokenId,
    arch::Architecture,
    manifest::{Prompts, PublishedSampling},
};
use narthex_text::tokenizer::{GgufVocab, Tokenizer, TokenizerError, gguf_json, package_json};

use crate::{
    file_watches::FileWatches, pooling::PoolingSource, prune::PrunedWeights, special::SpecialTokens,
    weight::WeightSource,
};

/// An opened checkpoint.
pub struct Checkpoint {
    /// Architecture.
    pub architecture: Architecture,
    /// Its weights.
    pub weights: Box<dyn WeightSource>,
    /// Its tokenizer.
    pub tokenizer: TokenizerSource,
    /// Special token rules.
    pub special: SpecialTokens,
    /// Text of the chat template, if there is one.
    pub chat_template: Option<String>,
    /// Prefixes of inputs, for embedding models.
    pub prompts: Prompts,
    /// Sampling that the publisher recommends, for decoders.
    pub sampling: PublishedSampling,
    /// Source of the pooling, for embedding models.
    pub pooling: PoolingSource,
    /// Maximum sequence length that its publisher serves, in tokens.
    pub max_length: usize,
    /// Files that it was read from.
    pub files: Vec<PathBuf>,
    /// Licence that it states.
    pub license: Option<String>,
    /// Watches on the files with its weights.
    pub watches: FileWatches,
}

impl Checkpoint {
    /// Returns this model with a head for only the tokens `kept`, in ascending order. An encoder is returned unchanged.
    pub fn pruned(mut self, kept: &[TokenId]) -> Self {
        if let Architecture::Decoder(arch) = &mut self.architecture {
            self.weights = Box::new(PrunedWeights::new(self.weights, arch, kept));
        }
        self
    }
}

/// Tokenizer of a checkpoint.
#[derive(Debug, Clone)]
pub enum TokenizerSource {
    /// GGUF metadata in the form that `narthex-text` reads.
    Gguf(Box<GgufVocab>),
    /// The bytes of a `tokenizer.json`.
    Json(Vec<u8>),
}

impl TokenizerSource {
    /// Reads the tokenizer.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_gguf`] and [`Tokenizer::from_json`].
    pub fn tokenizer(&self) -> Result<Tokenizer, TokenizerError> {
        match self {
            Self::Gguf(vocab) => Tokenizer::from_gguf(vocab),
            Self::Json(bytes) => Tokenizer::from_json(bytes),
        }
    }

    /// Returns the `tokenizer.json` of a package.
    ///
    /// # Errors
    /// The errors of [`gguf_json`] and [`package_json`].
    pub fn package_json(&self) -> Result<Vec<u8>, TokenizerError> {
        match self {
            Self::Gguf(vocab) => package_json(&gguf_json(vocab)?),
            Self::Json(bytes) => package_json(bytes),
        }
    }
}
