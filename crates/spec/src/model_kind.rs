//! Tasks of models.

use serde::{Deserialize, Serialize};
use strum::VariantArray;

use crate::{
    arch::{EncoderHead, Structure},
    manifest::Manifest,
};

/// Task of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr, VariantArray)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum ModelKind {
    /// Answers in a conversation.
    Chat,
    /// Completes a text, without a chat template.
    Text,
    /// Turns texts into vectors.
    Embedding,
    /// Scores how well a document answers a query.
    Rerank,
    /// Classifies texts, or scores them by a regression.
    Classification,
    /// Classifies the tokens of a text, such as those of names.
    TokenClassification,
    /// Extracts the answer to a question from a text.
    Answer,
    /// Fills masked tokens.
    Masked,
    /// Transcribes speech.
    Transcription,
    /// Speaks a text.
    Speech,
    /// A task that this version does not serve.
    Other,
}

impl ModelKind {
    /// Every kind.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the name on the command line and in JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the kind of a package's model.
    pub fn of(manifest: &Manifest) -> Self {
        if matches!(manifest.architecture, Structure::Speech(_) | Structure::ImportedTranscriber(_)) {
            return Self::Transcription;
        }
        if let Structure::ImportedVoice(_) = manifest.architecture {
            return Self::Speech;
        }
        match manifest.architecture.head() {
            None if manifest.chat.is_none() => Self::Text,
            None => Self::Chat,
            Some(EncoderHead::Embedding { .. }) => Self::Embedding,
            Some(EncoderHead::Score { labels: 1, .. }) => Self::Rerank,
            Some(EncoderHead::Score { .. }) => Self::Classification,
            Some(EncoderHead::Tokens { .. }) => Self::TokenClassification,
            Some(EncoderHead::Spans {}) => Self::Answer,
            Some(EncoderHead::MaskedLm { .. }) => Self::Masked,
        }
    }

    /// Returns a description for sentences, such as `a chat model`.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Chat => "a chat model",
            Self::Text => "a text completion model",
            Self::Embedding => "an embedding model",
            Self::Rerank => "a reranker",
            Self::Classification => "a text classifier",
            Self::TokenClassification => "a token classifier",
            Self::Answer => "a question-answering model",
            Self::Masked => "a masked language model",
            Self::Transcription => "a speech recognition model",
            Self::Speech => "a voice",
            Self::Other => "a model of a kind that this version does not serve",
        }
    }
}
