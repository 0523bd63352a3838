//! LFM2 and LFM2.5, the dense models: gated short convolutions in most layers, attention in the others.

use narthex_spec::arch::{DecoderArch, Family, Mixer, QkNorm, ShortConvolution};
use serde::Deserialize;
use serde_json::json;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults, WeightTying},
    },
    limits::malformed,
    names::NameTable,
    tensors::Tensors,
    weight::WeightSource,
};

/// `Lfm2ForCausalLM` (`Lfm2Config` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["Lfm2ForCausalLM"],
    model_type: "lfm2",
    names: &HF_NAMES,
    read: HfReader::Decoder(hf),
};

/// `lfm2` (llama.cpp's `llama_model_lfm2`).
pub(super) const GGUF: GgufFamily =
    GgufFamily { name: "lfm2", names: &GGUF_NAMES, read: GgufReader::Decoder(gguf) };

pub(super) const HF_NAMES: NameTable = NameTable {
    base: Some(&llama::HF_NAMES),
    prefixes: &["model.", ""],
    layer: "layers.",
    outer: &[("norm", "embedding_norm")],
    inner: &[
        ("attn_norm", "operator_norm"),
        ("attn.o_proj", "self_attn.out_proj"),
        ("attn.q_norm", "self_attn.q_layernorm"),
        ("attn.k_norm", "self_attn.k_layernorm"),
        ("conv", "conv.conv"),
        ("conv.in_proj", "conv.in_proj"),
        ("conv.out_proj", "conv.out_proj"),
        ("mlp_norm", "ffn_norm"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
    ],
    ..NameTable::NONE
};

pub(super) const GGUF_NAMES: NameTable = NameTable {
    base: Some(&llama::GGUF_NAMES),
    prefixes: &[""],
    layer: "blk.",
    // The last norm has the name that other models give to a norm of embedded tokens.
    outer: &[("norm", "token_embd_norm")],
    inner: &[
        ("conv", "shortconv.conv"),
        ("conv.in_proj", "shortconv.in_proj"),
        ("conv.out_proj", "shortconv.out_proj"),
    ],
    ..NameTable::NONE
};

/// Keys that most decoders do not share.
#[derive(Debug, Deserialize)]
struct Lfm2Keys {
    num_hidden_layers: usize,
    intermediate_size: Option<usize>,
    /// Older name of `intermediate_size`.
    block_ff_dim: Option<usize>,
    block_auto_adjust_ff_dim: Option<bool>,
    block_ffn_dim_multiplier: Option<f64>,
    block_multiple_of: Option<usize>,
    norm_eps: Option<f64>,
    conv_bias: Option<bool>,
    #[serde(rename = "conv_L_cache")]
    conv_length: Option<usize>,
    layer_types: Option<Vec<Lfm2Layer>>,
    /// Layers with attention, in files without `layer_types`.
    full_attn_idxs: Option<Vec<usize>>,
    tie_embedding: Option<bool>,
    tie_word_embeddings: Option<bool>,
}

/// Kind of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Lfm2Layer {
    #[serde(rename = "conv")]
    Convolution,
    #[serde(rename = "full_attention")]
    Attention,
}

impl Lfm2Keys {
    /// Returns the inner width of feed-forward parts, which the library computes from the stated one.
    fn inner(&self) -> usize {
        let stated = self.block_ff_dim.or(self.intermediate_size).unwrap_or(12_288);
        if self.block_auto_adjust_ff_dim == Some(false) {
            return stated;
        }
        let share = (2 * stated / 3) as f64 * self.block_ffn_dim_multiplier.unwrap_or(1.0);
        let step = self.block_multiple_of.unwrap_or(256).max(1);
        (share as usize).div_ceil(step).saturating_mul(step)
    }

    /// Returns the kind of each layer.
    fn layer_types(&self, config: &Config) -> Result<Vec<Lfm2Layer>> {
        let layers = self.num_hidden_layers;
        match (&self.layer_types, &self.full_attn_idxs) {
            (Some(types), _) if types.len() == layers => Ok(types.clone()),
            (Some(types), _) => {
                Err(malformed(config.path(), format!("layer_types of {layers} layers"), types.len()))
            }
            (None, Some(indices)) => Ok((0..layers)
                .map(|layer| match indices.contains(&layer) {
                    true => Lfm2Layer::Attention,
                    false => Lfm2Layer::Convolution,
                })
                .collect()),
            (None, None) => Ok(vec![Lfm2Layer::Attention; layers]),
        }
    }
}

pub(super) fn hf(config: &Config) -> Result<Decoder> {
    let lfm2: Lfm2Keys = config.keys()?;
    let config = config.with(json!({
        "intermediate_size": lfm2.inner(),
        "rms_norm_eps": lfm2.norm_eps,
        "layer_types": null,
        "tie_word_embeddings": lfm2.tie_embedding.or(lfm2.tie_word_embeddings),
    }))?;
    let keys: DecoderKeys = config.keys()?;
    let defaults = Defaults {
        context: 128_000,
        kv_heads: Some(8),
        theta: 1e6,
        epsilon: 1e-5,
        tied: WeightTying::Yes,
        ..Defaults::LLAMA
    };

    let arch = keys.decoder(&config, defaults)?;
    let types = lfm2.layer_types(&config)?;
    let convolution =
        ShortConvolution { kernel: lfm2.conv_length.unwrap_or(3), bias: lfm2.conv_bias.unwrap_or(false) };
    Ok(with_convolutions(arch, &types, &convolution).into())
}

pub(super) fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let arch = keys.decoder(tensors)?;
    let types: Vec<Lfm2Layer> = (0..arch.layers.len())
        .map(|layer| match tensors.has(&format!("layers.{layer}.conv.weight")) {
            true => Lfm2Layer::Convolution,
            false => Lfm2Layer::Attention,
        })
        .collect();
    let convolution = ShortConvolution { kernel: keys.need_count("shortconv.l_cache")?, bias: false };
    Ok(with_convolutions(arch, &types, &convolution).into())
}

fn with_convolutions(
    mut arch: DecoderArch,
    types: &[Lfm2Layer],
    convolution: &ShortConvolution,
) -> DecoderArch {
    arch.family = Family::Lfm2;
    arch.attentions_mut().for_each(|attention| attention.qk_norm = QkNorm::Rms);
    for (layer, kind) in arch.layers.iter_mut().zip(types) {
        if *kind == Lfm2Layer::Convolution {
            layer.mixer = Mixer::Convolution(convolution.clone());
        }
    }
    arch
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(changes: serde_json::Value) -> Result<DecoderArch> {
        let config = Config::new(
            "config.json".into(),
            json!({
                "architectures": ["Lfm2ForCausalLM"], "vocab_size": 65_536, "hidden_size": 1024,
                "intermediate_size": 6656, "num_hidden_layers": 4, "num_attention_heads": 16,
                "num_key_value_heads": 8, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0,
                "conv_L_cache": 3, "full_attn_idxs": [2],
            }),
        )?;
        Ok(hf(&config.with(changes)?)?.arch)
    }

    fn has_attention(arch: &DecoderArch) -> Vec<bool> {
        arch.layers.iter().map(|layer| layer.attention().is_some()).collect()
    }

    #[test]
    fn widths_and_kinds_of_layers_are_those_of_the_published_models() {
        // LFM2-350M: 4608 of 6656.
        let arch = read(json!({})).unwrap();
        assert_eq!((arch.layers[0].mlp().unwrap().inner, arch.tied_head), (4608, true));
        assert_eq!(has_attention(&arch), [false, false, true, false]);
        assert_eq!(arch.layers[0].convolution(), Some(&ShortConvolution { kernel: 3, bias: false }));

        // Older files have other names; newer ones list the kind of each layer.
        let older =
            json!({"intermediate_size": null, "block_ff_dim": 10_752, "block_ffn_dim_multiplier": 1.1});
        assert_eq!(read(older).unwrap().layers[0].mlp().unwrap().inner, 7936);
        let exact = json!({"block_auto_adjust_ff_dim": false, "conv_bias": true, "conv_L_cache": 4});
        let arch = read(exact).unwrap();
        assert_eq!(arch.layers[0].mlp().unwrap().inner, 6656);
        assert_eq!(arch.layers[0].convolution(), Some(&ShortConvolution { kernel: 4, bias: true }));
        let types = json!({"layer_types": ["full_attention", "conv", "conv", "full_attention"]});
        assert_eq!(has_attention(&read(types).unwrap()), [true, false, false, true]);
    }

    #[test]
    fn kinds_that_are_unknown_or_missing_are_refused() {
        let refused = |changes, expected: &str| {
            let error = read(changes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} lacks {expected}");
        };
        refused(json!({"layer_types": ["conv"]}), "layer_types of 4 layers");
        refused(json!({"layer_types": ["conv", "conv", "mamba", "conv"]}), "mamba");
    }
}
