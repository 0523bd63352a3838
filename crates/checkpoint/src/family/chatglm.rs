//! ChatGLM3: Llama's structure with fused projections, biases on q, k and v, and rotation of adjacent element pairs in
//! one half of each head.

use narthex_spec::arch::{Activation, Attention, DecoderArch, DecoderLayer, Family, Mlp, Rope, RopeScaling};
use serde::Deserialize;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::config::Config,
    limits::{HEADS, LAYERS, bounded, unsupported},
    names::{NameTable, TensorPart},
    tensors::Tensors,
};

/// `ChatGLMModel` (`ChatGLMConfig`, published with the models).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["ChatGLMModel", "ChatGLMForConditionalGeneration"],
    model_type: "chatglm",
    names: &NameTable {
        prefixes: &["transformer."],
        layer: "encoder.layers.",
        outer: &[
            ("embed", "embedding.word_embeddings"),
            ("norm", "encoder.final_layernorm"),
            ("head", "output_layer"),
        ],
        inner: &[
            ("attn_norm", "input_layernorm"),
            ("attn.o_proj", "self_attention.dense"),
            ("mlp_norm", "post_attention_layernorm"),
            ("mlp.down_proj", "mlp.dense_4h_to_h"),
        ],
        parts: &[
            ("attn.q_proj", "self_attention.query_key_value", TensorPart::Query),
            ("attn.k_proj", "self_attention.query_key_value", TensorPart::Key),
            ("attn.v_proj", "self_attention.query_key_value", TensorPart::Value),
            ("mlp.gate_proj", "mlp.dense_h_to_4h", TensorPart::Gate),
            ("mlp.up_proj", "mlp.dense_h_to_4h", TensorPart::Up),
        ],
        ..NameTable::NONE
    },
    read: HfReader::Decoder(hf),
};

/// `chatglm` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF: GgufFamily = GgufFamily {
    name: "chatglm",
    names: &NameTable { parts: llama::GGUF_FUSED, ..llama::GGUF_NAMES },
    read: GgufReader::Decoder(gguf),
};

/// The keys of `config.json`.
#[derive(Debug, Deserialize)]
struct ChatGlmKeys {
    padded_vocab_size: usize,
    hidden_size: usize,
    ffn_hidden_size: usize,
    num_layers: usize,
    num_attention_heads: usize,
    kv_channels: usize,
    seq_length: usize,
    #[serde(default)]
    multi_query_attention: bool,
    #[serde(default)]
    multi_query_group_num: usize,
    #[serde(default)]
    add_qkv_bias: bool,
    #[serde(default)]
    add_bias_linear: bool,
    layernorm_epsilon: Option<f64>,
    rope_ratio: Option<f64>,
    rmsnorm: Option<bool>,
    post_layer_norm: Option<bool>,
    apply_residual_connection_post_layernorm: Option<bool>,
    tie_word_embeddings: Option<bool>,
}

fn hf(config: &Config) -> Result<Decoder> {
    let keys: ChatGlmKeys = config.keys()?;
    let flags = [
        ("rmsnorm", keys.rmsnorm, true),
        ("post_layer_norm", keys.post_layer_norm, true),
        ("apply_residual_connection_post_layernorm", keys.apply_residual_connection_post_layernorm, false),
    ];

    for (key, stated, expected) in flags {
        if let Some(other) = stated.filter(|&stated| stated != expected) {
            return Err(unsupported(key, expected.to_string(), other));
        }
    }

    let path = config.path();
    let heads = bounded(path, "num_attention_heads", keys.num_attention_heads, &HEADS)?;
    let kv_heads = if keys.multi_query_attention { keys.multi_query_group_num } else { heads };
    let attention = Attention {
        qkv_bias: keys.add_bias_linear || keys.add_qkv_bias,
        output_bias: keys.add_bias_linear,
        ..Attention::plain(heads, kv_heads, keys.kv_channels)
    };
    let mlp = Mlp {
        inner: keys.ffn_hidden_size,
        activation: Activation::Silu,
        gated: true,
        bias: keys.add_bias_linear,
        cutoff: None,
    };
    let layer = DecoderLayer::dense(attention, mlp);

    let theta = 10_000.0 * keys.rope_ratio.unwrap_or(1.0);
    let arch = DecoderArch {
        family: Family::ChatGlm,
        vocab: keys.padded_vocab_size,
        hidden: keys.hidden_size,
        context: keys.seq_length,
        layers: vec![layer; bounded(path, "num_layers", keys.num_layers, &LAYERS)?],
        norm_epsilon: keys.layernorm_epsilon.unwrap_or(1e-5) as f32,
        rope: Some(Rope { theta, dims: keys.kv_channels / 2, scaling: RopeScaling::None }),
        tied_head: keys.tie_word_embeddings.unwrap_or(false),
        ..DecoderArch::default()
    };
    Ok(Decoder::from(arch).with_interleaved_rope())
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let mut arch = keys.decoder(tensors)?;
    arch.family = Family::ChatGlm;
    Ok(Decoder::from(arch).with_interleaved_rope())
}
