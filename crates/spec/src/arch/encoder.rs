//! BERT-like encoders and their heads.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{Activation, Family, Rope};

/// A BERT-like encoder with post-norm residual blocks (Devlin et al. 2018, arXiv:1810.04805), with a
/// head.
///
/// [`Architecture::weights`](super::Architecture::weights) states its weights. Models with rotary positions have no table of
/// positions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncoderArch {
    /// The family.
    pub family: Family,
    /// Number of vocabulary entries.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of positions, the maximum length of a text in tokens.
    pub positions: usize,
    /// Row of the position weight for the first token.
    #[serde(default)]
    pub first_position: usize,
    /// Number of segment types; 0 for families without segments.
    #[serde(default = "two_segments")]
    pub types: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of attention heads; divides the width inside a layer.
    pub heads: usize,
    /// Inner width of the feed-forward parts.
    pub inner: usize,
    /// Activation of the feed-forward parts, or of their gates.
    pub activation: Activation,
    /// True if the feed-forward parts are gated (Shazeer 2020, arXiv:2002.05202).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gated: bool,
    /// True if the linear layers of attention and of the feed-forward parts have biases.
    #[serde(default = "with_biases", skip_serializing_if = "is_true")]
    pub biases: bool,
    /// Rotary positions of queries and keys; `None` for learned positions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope: Option<Rope>,
    /// Norm after each residual addition.
    #[serde(default)]
    pub norm: EncoderNorm,
    /// Epsilon of every layer norm.
    pub norm_epsilon: f32,
    /// Factored embedding, for tokens of another width than the residual stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factored: Option<FactoredEmbedding>,
    /// Bottleneck of layers that are narrower than the residual stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bottleneck: Option<Bottleneck>,
    /// Head over the rows.
    #[serde(flatten)]
    pub head: EncoderHead,
}

/// Default for manifests without the field.
fn two_segments() -> usize {
    2
}

/// Default for manifests without the field.
fn with_biases() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the type that serde calls")]
fn is_true(value: &bool) -> bool {
    *value
}

impl EncoderArch {
    /// Returns the width of a token's row.
    pub fn token_width(&self) -> usize {
        self.factored.as_ref().map_or(self.hidden, |factored| factored.width)
    }

    /// Returns the width inside a layer.
    pub fn inside(&self) -> usize {
        self.bottleneck.as_ref().map_or(self.hidden, |bottleneck| bottleneck.width)
    }

    /// Returns the number of elements of a head.
    pub fn head_size(&self) -> usize {
        self.inside() / self.heads.max(1)
    }

    /// Describes the output for a text.
    pub fn gives(&self) -> String {
        self.head.gives(self.hidden)
    }

    /// Returns the input widths of queries and keys, and of values.
    pub fn attention_reads(&self) -> [usize; 2] {
        match self.bottleneck.as_ref().map(|bottleneck| bottleneck.attention) {
            None | Some(BottleneckAttention::Narrow) => [self.inside(); 2],
            Some(BottleneckAttention::Shared) => [self.inside(), self.hidden],
            Some(BottleneckAttention::Wide) => [self.hidden; 2],
        }
    }

    /// Returns the number of feed-forward parts before the last one of a layer.
    pub fn early_feed_forwards(&self) -> usize {
        self.bottleneck.as_ref().map_or(0, |bottleneck| bottleneck.feed_forwards.saturating_sub(1))
    }
}

/// Norm after an encoder's residual additions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EncoderNorm {
    /// A layer norm.
    #[default]
    Layer,
    /// `x · weight + bias` instead of a norm (Sun et al. 2020, arXiv:2004.02984).
    Affine,
}

/// Factored embedding: a linear layer projects token rows to the width of the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactoredEmbedding {
    /// Width of a token's row.
    pub width: usize,
    /// True if the input of a position is the concatenation of the rows of the next, the current and the previous
    /// token.
    pub trigram: bool,
}

impl FactoredEmbedding {
    /// Returns the number of inputs of the linear layer.
    pub fn input(&self) -> usize {
        self.width.saturating_mul(if self.trigram { 3 } else { 1 })
    }
}

/// Bottleneck of MobileBERT's layers (arXiv:2004.02984): a linear layer before a layer narrows the rows, and one after
/// it widens them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bottleneck {
    /// Width inside a layer.
    pub width: usize,
    /// Input of attention.
    pub attention: BottleneckAttention,
    /// Number of consecutive feed-forward parts; at least 1.
    pub feed_forwards: usize,
}

/// Input of attention between bottlenecks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BottleneckAttention {
    /// Queries and keys read a separate bottleneck, values the residual stream.
    Shared,
    /// All of them read the layer's narrow input.
    Narrow,
    /// All of them read the residual stream.
    Wide,
}

/// Head of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EncoderHead {
    /// Scores for a text or a pair of texts, from the first row.
    Score {
        /// Number of labels.
        labels: usize,
        /// Activation of the dense layer before the scores.
        dense: Option<Activation>,
    },
    /// Start and end scores of an answer at each token.
    Spans {},
    /// Scores of each token for each label.
    Tokens {
        /// Number of labels.
        labels: usize,
    },
    /// Logits over the vocabulary for the requested tokens, with the weight of the token embedding. With factored
    /// embeddings, a further weight covers the remaining width.
    MaskedLm {
        /// Activation of the dense layer; `None` for imported graphs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        activation: Option<Activation>,
    },
    /// One vector for a text.
    #[serde(untagged)]
    Embedding {
        /// Pooling of rows.
        pooling: Pooling,
        /// True if the vector is scaled to unit length.
        normalize: bool,
    },
}

impl EncoderHead {
    /// Returns the number of labels of a classifier; rerankers have one.
    pub fn labels(&self) -> Option<usize> {
        match *self {
            Self::Score { labels, .. } | Self::Tokens { labels } => Some(labels),
            Self::Spans {} | Self::MaskedLm { .. } | Self::Embedding { .. } => None,
        }
    }

    /// Describes the output for a text, with vectors of `width` elements.
    pub fn gives(&self, width: usize) -> String {
        match self {
            Self::Embedding { .. } => format!("vectors of {width}"),
            Self::Score { labels: 1, .. } => "a score".to_owned(),
            Self::Score { labels, .. } => format!("{labels} labels"),
            Self::Spans {} => "answers in a text".to_owned(),
            Self::Tokens { labels } => format!("{labels} labels for each token"),
            Self::MaskedLm { .. } => "masked tokens".to_owned(),
        }
    }
}

/// Pooling of an encoder's rows to one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// Mean over the text's tokens.
    Mean,
    /// Row of the first token.
    Cls,
    /// Maximum of each element over the text's tokens.
    Max,
    /// Row of the last token.
    Last,
}

impl Pooling {
    /// All poolings.
    pub const ALL: [Self; 4] = [Self::Mean, Self::Cls, Self::Max, Self::Last];

    /// Returns the name that manifests and users write.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Max => "max",
            Self::Last => "last",
        }
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that names no pooling.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected mean, cls, max or last, found {0:?}")]
pub struct UnknownPooling(String);

impl FromStr for Pooling {
    type Err = UnknownPooling;

    fn from_str(text: &str) -> Result<Self, UnknownPooling> {
        let found = Self::ALL.into_iter().find(|pooling| pooling.as_str() == text);
        found.ok_or_else(|| UnknownPooling(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Architecture;

    #[test]
    fn poolings_are_written_as_they_are_read() {
        for pooling in Pooling::ALL {
            assert_eq!(pooling.to_string().parse(), Ok(pooling));
            assert_eq!(serde_json::to_value(pooling).unwrap(), pooling.as_str());
        }
        let error = "lasttoken".parse::<Pooling>().unwrap_err().to_string();
        assert_eq!(error, "expected mean, cls, max or last, found \"lasttoken\"");
    }

    #[test]
    fn heads_are_read_as_they_are_written() {
        let old = r#"{"kind":"encoder","family":"bert","vocab":9,"hidden":8,"positions":4,"layers":1,"heads":2,"inner":8,
            "activation":"gelu","norm_epsilon":1e-12,"pooling":"cls","normalize":true}"#;
        let found: Architecture = serde_json::from_str(old).unwrap();
        let Architecture::Encoder(bert) = &found else { panic!("{found:?}") };
        assert_eq!(bert.head, EncoderHead::Embedding { pooling: Pooling::Cls, normalize: true });
        assert_eq!((bert.types, bert.first_position, bert.token_width(), bert.inside()), (2, 0, 8, 8));
        let heads = [
            bert.head,
            EncoderHead::Score { labels: 1, dense: Some(Activation::Tanh) },
            EncoderHead::Spans {},
            EncoderHead::Tokens { labels: 9 },
            EncoderHead::MaskedLm { activation: Some(Activation::Gelu) },
            EncoderHead::MaskedLm { activation: None },
        ];
        for head in heads {
            let written = Architecture::Encoder(EncoderArch { head, ..bert.clone() });
            let text = serde_json::to_string(&written).unwrap();
            assert_eq!(serde_json::from_str::<Architecture>(&text).unwrap(), written, "{text}");
        }
        assert!(serde_json::from_str::<Architecture>(&old.replace("normalize", "n")).is_err());
    }
}
