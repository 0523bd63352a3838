//! OpenELM: Llama's structure with norms of queries and keys, fused projections, and numbers of heads and inner widths
//! that grow from layer to layer (Mehta et al. 2024, arXiv:2404.14619).

use narthex_spec::arch::{Attention, DecoderArch, DecoderLayer, Family, Mlp, QkNorm, Rope, RopeScaling};
use serde::Deserialize;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{config::Config, decoder::activation},
    limits::{LAYERS, bounded, malformed, unsupported},
    names::{NameTable, TensorPart},
    tensors::Tensors,
};

/// `OpenELMForCausalLM` (`OpenELMConfig`, published with the models).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["OpenELMForCausalLM"],
    model_type: "openelm",
    names: &NameTable {
        prefixes: &["transformer.", ""],
        layer: "layers.",
        outer: &[("embed", "token_embeddings"), ("norm", "norm"), ("head", "lm_head")],
        inner: &[
            ("attn_norm", "attn_norm"),
            ("attn.o_proj", "attn.out_proj"),
            ("attn.q_norm", "attn.q_norm"),
            ("attn.k_norm", "attn.k_norm"),
            ("mlp_norm", "ffn_norm"),
            ("mlp.down_proj", "ffn.proj_2"),
        ],
        parts: &[
            ("attn.q_proj", "attn.qkv_proj", TensorPart::Query),
            ("attn.k_proj", "attn.qkv_proj", TensorPart::Key),
            ("attn.v_proj", "attn.qkv_proj", TensorPart::Value),
            ("mlp.gate_proj", "ffn.proj_1", TensorPart::Gate),
            ("mlp.up_proj", "ffn.proj_1", TensorPart::Up),
        ],
        ..NameTable::NONE
    },
    read: HfReader::Decoder(hf),
};

/// `openelm` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF: GgufFamily = GgufFamily {
    name: "openelm",
    names: &NameTable { parts: llama::GGUF_FUSED_QKV, ..llama::GGUF_NAMES },
    read: GgufReader::Decoder(gguf),
};

/// The keys of `config.json`.
#[derive(Debug, Deserialize)]
struct OpenElmKeys {
    vocab_size: usize,
    model_dim: usize,
    head_dim: usize,
    num_transformer_layers: usize,
    max_context_length: usize,
    num_query_heads: Vec<usize>,
    num_kv_heads: Vec<usize>,
    ffn_multipliers: Vec<f64>,
    ffn_dim_divisor: usize,
    ffn_with_glu: Option<bool>,
    activation_fn_name: Option<String>,
    normalization_layer_name: Option<String>,
    #[serde(default)]
    normalize_qk_projections: bool,
    #[serde(default)]
    share_input_output_layers: bool,
    rope_freq_constant: Option<f64>,
}

fn hf(config: &Config) -> Result<Decoder> {
    let keys: OpenElmKeys = config.keys()?;
    let path = config.path();
    let count = bounded(path, "num_transformer_layers", keys.num_transformer_layers, &LAYERS)?;
    let lengths = [keys.num_query_heads.len(), keys.num_kv_heads.len(), keys.ffn_multipliers.len()];
    if lengths != [count; 3] {
        let expected = format!("{count} num_query_heads, num_kv_heads and ffn_multipliers");
        return Err(malformed(path, expected, format!("{lengths:?}")));
    }
    if let Some(other) = keys.normalization_layer_name.as_deref().filter(|&name| name != "rms_norm") {
        return Err(unsupported("normalization_layer_name", "rms_norm", other));
    }

    let activation = activation(keys.activation_fn_name.as_deref().unwrap_or("swish"))?;
    let qk_norm = if keys.normalize_qk_projections { QkNorm::Rms } else { QkNorm::None };
    let heads = keys.num_query_heads.iter().zip(&keys.num_kv_heads);
    let theta = keys.rope_freq_constant.unwrap_or(10_000.0);
    let arch = DecoderArch {
        family: Family::OpenElm,
        vocab: keys.vocab_size,
        hidden: keys.model_dim,
        context: keys.max_context_length,
        layers: heads
            .zip(&keys.ffn_multipliers)
            .map(|((&heads, &kv_heads), &multiplier)| {
                let attention = Attention { qk_norm, ..Attention::plain(heads, kv_heads, keys.head_dim) };
                let mlp = Mlp {
                    inner: divisible(multiplier * keys.model_dim as f64, keys.ffn_dim_divisor),
                    activation,
                    gated: keys.ffn_with_glu.unwrap_or(true),
                    bias: false,
                    cutoff: None,
                };
                DecoderLayer::dense(attention, mlp)
            })
            .collect(),
        norm_epsilon: 1e-6,
        rope: Some(Rope { theta, dims: keys.head_dim, scaling: RopeScaling::None }),
        tied_head: keys.share_input_output_layers,
        ..DecoderArch::default()
    };
    Ok(arch.into())
}

/// Returns the multiple of `divisor` nearest to `value`, or the next one if the nearest is less than 90 % of `value`
/// (`make_divisible` of the published code).
fn divisible(value: f64, divisor: usize) -> usize {
    let step = divisor.max(1);
    let nearest = ((value + divisor as f64 / 2.0) as usize / step).saturating_mul(step).max(step);
    if (nearest as f64) < 0.9 * value { nearest.saturating_add(step) } else { nearest }
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let mut arch = keys.decoder(tensors)?;
    arch.family = Family::OpenElm;
    arch.attentions_mut().for_each(|attention| attention.qk_norm = QkNorm::Rms);
    Ok(arch.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_those_of_the_published_models() {
        let check = |value, divisor, expect| assert_eq!(divisible(value, divisor), expect, "{value}");
        // The first and last layers of the 270M model.
        check(0.5 * 1280.0, 256, 768);
        check(4.0 * 1280.0, 256, 5120);
        check(1.0, 256, 256);
        check(383.0, 256, 256 + 256);
        check(100.0, 0, 100);
    }
}
