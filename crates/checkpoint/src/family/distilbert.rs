//! DistilBERT (Sanh et al. 2019, arXiv:1910.01108): BERT without segments and with different tensor names.

use narthex_spec::arch::{Activation, EncoderArch, EncoderNorm, Family};
use serde::Deserialize;

use super::{HfFamily, HfReader};
use crate::{
    error::Result,
    hf::{
        config::Config,
        decoder::activation,
        encoder::{Heads, head},
        pooling::SentenceEmbedding,
    },
    limits::{LAYERS, bounded},
    names::NameTable,
};

/// `DistilBertModel` (`DistilBertConfig` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &[
        "DistilBertModel",
        "DistilBertForMaskedLM",
        "DistilBertForSequenceClassification",
        "DistilBertForTokenClassification",
        "DistilBertForQuestionAnswering",
    ],
    model_type: "distilbert",
    names: &HF_NAMES,
    read: HfReader::Encoder(hf),
};

const HF_NAMES: NameTable = NameTable {
    prefixes: &["", "distilbert."],
    layer: "transformer.layer.",
    outer: &[
        ("embed.word", "embeddings.word_embeddings"),
        ("embed.position", "embeddings.position_embeddings"),
        ("embed.norm", "embeddings.LayerNorm"),
        ("score.dense", "pre_classifier"),
        ("score.out", "classifier"),
        ("tokens", "classifier"),
        ("spans", "qa_outputs"),
        ("mlm.dense", "vocab_transform"),
        ("mlm.norm", "vocab_layer_norm"),
        ("mlm", "vocab_projector"),
    ],
    inner: &[
        ("attn.q_proj", "attention.q_lin"),
        ("attn.k_proj", "attention.k_lin"),
        ("attn.v_proj", "attention.v_lin"),
        ("attn.o_proj", "attention.out_lin"),
        ("attn_norm", "sa_layer_norm"),
        ("mlp.up_proj", "ffn.lin1"),
        ("mlp.down_proj", "ffn.lin2"),
        ("mlp_norm", "output_layer_norm"),
    ],
    ..NameTable::NONE
};

/// The keys of `config.json`, with the class's defaults.
#[derive(Debug, Deserialize)]
struct DistilBertKeys {
    vocab_size: usize,
    dim: usize,
    hidden_dim: usize,
    n_layers: usize,
    n_heads: usize,
    max_position_embeddings: Option<usize>,
    #[serde(default, rename = "activation")]
    act: Option<String>,
}

fn hf(config: &Config, sentence: &SentenceEmbedding) -> Result<EncoderArch> {
    let keys: DistilBertKeys = config.keys()?;
    let activation = activation(keys.act.as_deref().unwrap_or("gelu"))?;
    let heads = Heads { score: Some(Activation::Relu), masked: activation };
    Ok(EncoderArch {
        family: Family::DistilBert,
        vocab: keys.vocab_size,
        hidden: keys.dim,
        positions: keys.max_position_embeddings.unwrap_or(512),
        first_position: 0,
        types: 0,
        layers: bounded(config.path(), "n_layers", keys.n_layers, &LAYERS)?,
        heads: keys.n_heads,
        inner: keys.hidden_dim,
        activation,
        gated: false,
        biases: true,
        rope: None,
        norm: EncoderNorm::Layer,
        // The configuration class has no key for the epsilon.
        norm_epsilon: 1e-12,
        factored: None,
        bottleneck: None,
        head: head(config, sentence, &heads)?,
    })
}
