//! Whisper (Radford et al. 2022, arXiv:2212.04356) and Distil-Whisper, which has fewer layers in the decoder.

use narthex_spec::arch::{Family, SpeechArch, SpeechLayers};
use serde::Deserialize;

use super::{HfFamily, HfReader};
use crate::{
    error::Result,
    hf::{config::Config, decoder::activation},
    limits::{LAYERS, bounded, unsupported},
    names::NameTable,
};

/// `WhisperForConditionalGeneration` (`WhisperConfig` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["WhisperForConditionalGeneration"],
    model_type: "whisper",
    names: &HF_NAMES,
    read: HfReader::Speech(hf),
};

/// Epsilon of every layer norm, which no configuration states.
pub(crate) const NORM_EPSILON: f32 = 1e-5;

/// Names of the weights. All of them are outside of `layers`, because there are layers on two sides.
pub(crate) const HF_NAMES: NameTable = NameTable {
    prefixes: &["model."],
    outer: &[
        ("encoder.conv1", "encoder.conv1"),
        ("encoder.conv2", "encoder.conv2"),
        ("encoder.position", "encoder.embed_positions"),
        ("encoder.norm", "encoder.layer_norm"),
        ("encoder.layers.#.attn_norm", "encoder.layers.#.self_attn_layer_norm"),
        ("encoder.layers.#.attn.q_proj", "encoder.layers.#.self_attn.q_proj"),
        ("encoder.layers.#.attn.k_proj", "encoder.layers.#.self_attn.k_proj"),
        ("encoder.layers.#.attn.v_proj", "encoder.layers.#.self_attn.v_proj"),
        ("encoder.layers.#.attn.o_proj", "encoder.layers.#.self_attn.out_proj"),
        ("encoder.layers.#.mlp_norm", "encoder.layers.#.final_layer_norm"),
        ("encoder.layers.#.mlp.up_proj", "encoder.layers.#.fc1"),
        ("encoder.layers.#.mlp.down_proj", "encoder.layers.#.fc2"),
        ("embed", "decoder.embed_tokens"),
        ("position", "decoder.embed_positions"),
        ("decoder.norm", "decoder.layer_norm"),
        ("decoder.layers.#.attn_norm", "decoder.layers.#.self_attn_layer_norm"),
        ("decoder.layers.#.attn.q_proj", "decoder.layers.#.self_attn.q_proj"),
        ("decoder.layers.#.attn.k_proj", "decoder.layers.#.self_attn.k_proj"),
        ("decoder.layers.#.attn.v_proj", "decoder.layers.#.self_attn.v_proj"),
        ("decoder.layers.#.attn.o_proj", "decoder.layers.#.self_attn.out_proj"),
        ("decoder.layers.#.cross_norm", "decoder.layers.#.encoder_attn_layer_norm"),
        ("decoder.layers.#.cross.q_proj", "decoder.layers.#.encoder_attn.q_proj"),
        ("decoder.layers.#.cross.k_proj", "decoder.layers.#.encoder_attn.k_proj"),
        ("decoder.layers.#.cross.v_proj", "decoder.layers.#.encoder_attn.v_proj"),
        ("decoder.layers.#.cross.o_proj", "decoder.layers.#.encoder_attn.out_proj"),
        ("decoder.layers.#.mlp_norm", "decoder.layers.#.final_layer_norm"),
        ("decoder.layers.#.mlp.up_proj", "decoder.layers.#.fc1"),
        ("decoder.layers.#.mlp.down_proj", "decoder.layers.#.fc2"),
    ],
    ..NameTable::NONE
};

/// The keys of `config.json`, with the class's defaults.
#[derive(Debug, Deserialize)]
struct Keys {
    vocab_size: usize,
    d_model: usize,
    num_mel_bins: Option<usize>,
    encoder_layers: usize,
    encoder_attention_heads: usize,
    encoder_ffn_dim: usize,
    decoder_layers: usize,
    decoder_attention_heads: usize,
    decoder_ffn_dim: usize,
    max_source_positions: Option<usize>,
    max_target_positions: Option<usize>,
    activation_function: Option<String>,
    scale_embedding: Option<bool>,
    tie_word_embeddings: Option<bool>,
}

fn hf(config: &Config) -> Result<SpeechArch> {
    let keys: Keys = config.keys()?;
    if keys.scale_embedding == Some(true) {
        return Err(unsupported("scale_embedding", "false", true));
    }
    if keys.tie_word_embeddings == Some(false) {
        return Err(unsupported("tie_word_embeddings", "true", false));
    }

    let layers = |key: &str, count| bounded(config.path(), key, count, &LAYERS);
    Ok(SpeechArch {
        family: Family::Whisper,
        vocab: keys.vocab_size,
        hidden: keys.d_model,
        bins: keys.num_mel_bins.unwrap_or(80),
        source_positions: keys.max_source_positions.unwrap_or(1500),
        target_positions: keys.max_target_positions.unwrap_or(448),
        encoder: SpeechLayers {
            layers: layers("encoder_layers", keys.encoder_layers)?,
            heads: keys.encoder_attention_heads,
            inner: keys.encoder_ffn_dim,
        },
        decoder: SpeechLayers {
            layers: layers("decoder_layers", keys.decoder_layers)?,
            heads: keys.decoder_attention_heads,
            inner: keys.decoder_ffn_dim,
        },
        activation: activation(keys.activation_function.as_deref().unwrap_or("gelu"))?,
        norm_epsilon: NORM_EPSILON,
        alignment_heads: Vec::new(),
    })
}
