//! The keys of `config.json` that encoders share: BERT's with their defaults, and the class, which determines the head.

use narthex_spec::arch::{Activation, EncoderArch, EncoderHead, EncoderNorm, Family};
use serde::Deserialize;

use super::{classifier, config::Config, decoder::activation, pooling::SentenceEmbedding};
use crate::{
    error::Result,
    limits::{LAYERS, bounded, unsupported},
};

/// The keys of BERT and of encoders that derive from it.
#[derive(Debug, Deserialize)]
pub(crate) struct EncoderKeys {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    max_position_embeddings: Option<usize>,
    type_vocab_size: Option<usize>,
    hidden_act: Option<String>,
    layer_norm_eps: Option<f64>,
    position_embedding_type: Option<String>,
    is_decoder: Option<bool>,
}

impl EncoderKeys {
    /// Returns the encoder that the keys describe, with BERT's structure.
    pub(crate) fn encoder(&self, config: &Config, head: EncoderHead) -> Result<EncoderArch> {
        if let Some(other) = self.position_embedding_type.as_deref().filter(|&kind| kind != "absolute") {
            return Err(unsupported("position_embedding_type", "absolute", other));
        }
        if self.is_decoder == Some(true) {
            let expected = "false: encoders and their masked heads are compiled, causal heads over BERT's layers are not";
            return Err(unsupported("is_decoder", expected, true));
        }
        Ok(EncoderArch {
            family: Family::Bert,
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            positions: self.max_position_embeddings.unwrap_or(512),
            first_position: 0,
            types: self.type_vocab_size.unwrap_or(2),
            layers: bounded(config.path(), "num_hidden_layers", self.num_hidden_layers, &LAYERS)?,
            heads: self.num_attention_heads,
            inner: self.intermediate_size,
            activation: self.activation("gelu")?,
            gated: false,
            biases: true,
            rope: None,
            norm: EncoderNorm::Layer,
            norm_epsilon: self.layer_norm_eps.unwrap_or(1e-12) as f32,
            factored: None,
            bottleneck: None,
            head,
        })
    }

    /// Returns the stated activation, or the class's default.
    pub(crate) fn activation(&self, default: &str) -> Result<Activation> {
        activation(self.hidden_act.as_deref().unwrap_or(default))
    }
}

/// The keys that determine the head.
#[derive(Debug, Deserialize)]
struct HeadKeys {
    tie_word_embeddings: Option<bool>,
}

/// Activations of a family's heads before their last layer.
pub(crate) struct Heads {
    /// Activation of the dense layer before a classifier.
    pub(crate) score: Option<Activation>,
    /// Activation of the dense layer before the vocabulary.
    pub(crate) masked: Activation,
}

/// Returns the head of a classifier of texts or of tokens, or `None` for other classes. `dense` is the activation of the
/// dense layer before the scores of a text.
pub(crate) fn classifier(config: &Config, dense: Option<Activation>) -> Result<Option<EncoderHead>> {
    let class = config.class().unwrap_or_default();
    let labels = classifier::count(config)?.unwrap_or(2);
    Ok(if class.ends_with("ForSequenceClassification") {
        Some(EncoderHead::Score { labels, dense })
    } else if class.ends_with("ForTokenClassification") {
        Some(EncoderHead::Tokens { labels })
    } else {
        None
    })
}

/// Returns the head of the model's class. If the folder has files of sentence-transformers, the model is an embedding
/// model whatever its class: most were trained from a masked language model and still have its class name.
pub(crate) fn head(config: &Config, sentence: &SentenceEmbedding, heads: &Heads) -> Result<EncoderHead> {
    let class = config.class().unwrap_or_default();
    let keys: HeadKeys = config.keys()?;
    if sentence.listed {
        return Ok(sentence.embedding());
    }
    if let Some(head) = classifier(config, heads.score)? {
        return Ok(head);
    }

    let labels = classifier::count(config)?.unwrap_or(2);
    if class.ends_with("ForQuestionAnswering") {
        if labels != 2 {
            return Err(unsupported(
                "num_labels of a question-answering model",
                "2: beginning and end",
                labels,
            ));
        }
        return Ok(EncoderHead::Spans {});
    }
    if class.ends_with("ForMaskedLM") || class.ends_with("ForPreTraining") {
        if keys.tie_word_embeddings == Some(false) {
            return Err(unsupported("tie_word_embeddings of a masked language model", "true", false));
        }
        return Ok(EncoderHead::MaskedLm { activation: Some(heads.masked) });
    }
    Ok(sentence.embedding())
}
