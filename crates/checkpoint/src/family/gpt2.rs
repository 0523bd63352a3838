//! GPT-2 and DistilGPT2: learned positions, layer norms, and fused projections that `transformers` stores transposed.

use narthex_spec::arch::{Activation, Attention, DecoderArch, DecoderLayer, Family, Mlp, NormKind, Rotation};
use serde::Deserialize;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{config::Config, decoder::activation},
    layout::Orientation,
    limits::{HEADS, LAYERS, bounded, malformed, unsupported},
    names::{NameTable, TensorPart},
    tensors::Tensors,
};

/// `GPT2LMHeadModel` (`GPT2Config` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["GPT2LMHeadModel"],
    model_type: "gpt2",
    names: &NameTable {
        prefixes: &["transformer.", ""],
        layer: "h.",
        outer: &[("embed", "wte"), ("position", "wpe"), ("norm", "ln_f"), ("head", "lm_head")],
        inner: &[
            ("attn_norm", "ln_1"),
            ("attn.o_proj", "attn.c_proj"),
            ("mlp_norm", "ln_2"),
            ("mlp.up_proj", "mlp.c_fc"),
            ("mlp.down_proj", "mlp.c_proj"),
        ],
        parts: &[
            ("attn.q_proj", "attn.c_attn", TensorPart::Query),
            ("attn.k_proj", "attn.c_attn", TensorPart::Key),
            ("attn.v_proj", "attn.c_attn", TensorPart::Value),
        ],
        ..NameTable::NONE
    },
    read: HfReader::Decoder(hf),
};

/// `gpt2` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF: GgufFamily = GgufFamily {
    name: "gpt2",
    names: &NameTable {
        base: Some(&llama::GGUF_NAMES),
        outer: &[("position", "position_embd")],
        parts: llama::GGUF_FUSED_QKV,
        ..llama::GGUF_NAMES
    },
    read: GgufReader::Decoder(gguf),
};

/// The keys of `config.json`.
#[derive(Debug, Deserialize)]
struct Gpt2Keys {
    vocab_size: usize,
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    n_positions: usize,
    n_inner: Option<usize>,
    activation_function: Option<String>,
    layer_norm_epsilon: Option<f64>,
    scale_attn_weights: Option<bool>,
    scale_attn_by_inverse_layer_idx: Option<bool>,
    tie_word_embeddings: Option<bool>,
}

fn hf(config: &Config) -> Result<Decoder> {
    let keys: Gpt2Keys = config.keys()?;
    if keys.scale_attn_by_inverse_layer_idx == Some(true) {
        return Err(unsupported("scale_attn_by_inverse_layer_idx", "false", true));
    }

    let path = config.path();
    let layers = bounded(path, "n_layer", keys.n_layer, &LAYERS)?;
    let heads = bounded(path, "n_head", keys.n_head, &HEADS)?;
    if !keys.n_embd.is_multiple_of(heads) {
        return Err(malformed(path, format!("n_head that divides the n_embd {}", keys.n_embd), heads));
    }

    let mut attention = Attention::plain(heads, heads, keys.n_embd / heads);
    attention.scale = (keys.scale_attn_weights == Some(false)).then_some(1.0);
    let mlp = Mlp {
        inner: keys.n_inner.unwrap_or(keys.n_embd.saturating_mul(4)),
        activation: activation(keys.activation_function.as_deref().unwrap_or("gelu_new"))?,
        gated: false,
        bias: true,
        cutoff: None,
    };

    let layer = DecoderLayer::dense(attention, mlp);
    let arch = with_learned_positions(DecoderArch {
        vocab: keys.vocab_size,
        hidden: keys.n_embd,
        context: keys.n_positions,
        layers: vec![layer; layers],
        norm_epsilon: keys.layer_norm_epsilon.unwrap_or(1e-5) as f32,
        tied_head: keys.tie_word_embeddings.unwrap_or(true),
        ..DecoderArch::default()
    });

    let mut decoder = Decoder::from(arch);
    decoder.layout.orientation = Orientation::Columns;
    Ok(decoder)
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let mut arch = keys.decoder(tensors)?;
    arch.mlps_mut().for_each(|mlp| mlp.activation = Activation::GeluTanh);
    Ok(with_learned_positions(arch).into())
}

/// Applies the settings that neither format states.
fn with_learned_positions(mut arch: DecoderArch) -> DecoderArch {
    arch.family = Family::Gpt2;
    arch.norm = NormKind::Layer;
    arch.rope = None;
    for attention in arch.attentions_mut() {
        attention.rotation = Rotation::None;
        attention.qkv_bias = true;
        attention.output_bias = true;
    }
    for mlp in arch.mlps_mut() {
        mlp.gated = false;
        mlp.bias = true;
    }
    arch
}
