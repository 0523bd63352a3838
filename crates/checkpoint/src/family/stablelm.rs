//! StableLM 3B and StableLM 2: layer norms, partial rotation of each head, and in some sizes a parallel residual or
//! norms of queries and keys.

use narthex_spec::arch::{DecoderArch, Family, NormKind, QkNorm, Residual};
use serde::Deserialize;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults},
    },
    names::{NameTable, TensorPart},
    tensors::Tensors,
    weight::WeightSource,
};

/// `StableLmForCausalLM` (`StableLmConfig` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["StableLmForCausalLM"],
    model_type: "stablelm",
    names: &NameTable {
        parts: &[
            ("attn.q_norm", "self_attn.q_layernorm.norms.*", TensorPart::PerHead),
            ("attn.k_norm", "self_attn.k_layernorm.norms.*", TensorPart::PerHead),
        ],
        ..llama::HF_NAMES
    },
    read: HfReader::Decoder(hf),
};

/// `stablelm` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF: GgufFamily =
    GgufFamily { name: "stablelm", names: &llama::GGUF_NAMES, read: GgufReader::Decoder(gguf) };

/// Keys that most decoders do not share.
#[derive(Debug, Deserialize)]
struct StableLmKeys {
    #[serde(default)]
    use_qkv_bias: bool,
    #[serde(default)]
    qk_layernorm: bool,
    #[serde(default)]
    use_parallel_residual: bool,
}

fn hf(config: &Config) -> Result<Decoder> {
    let keys: DecoderKeys = config.keys()?;
    let stablelm: StableLmKeys = config.keys()?;
    let defaults =
        Defaults { context: 4096, kv_heads: Some(32), rotated: Some(0.25), epsilon: 1e-5, ..Defaults::LLAMA };
    let mut arch = keys.decoder(config, defaults)?;
    let residual = if stablelm.use_parallel_residual { Residual::Parallel } else { Residual::Sequential };
    let qk_norm = if stablelm.qk_layernorm { QkNorm::LayerPerHead } else { QkNorm::None };
    arch.attentions_mut().for_each(|attention| attention.qkv_bias = stablelm.use_qkv_bias);
    Ok(with_layer_norms(arch, residual, qk_norm).into())
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let arch = keys.decoder(tensors)?;
    // As in llama.cpp, the weights decide, and `use_parallel_residual` is ignored.
    let sequential = tensors.has("layers.0.mlp_norm.weight");
    let residual = if sequential { Residual::Sequential } else { Residual::Parallel };
    let normed = tensors.has("layers.0.attn.q_norm.weight");
    let qk_norm = if normed { QkNorm::LayerPerHead } else { QkNorm::None };
    Ok(with_layer_norms(arch, residual, qk_norm).into())
}

fn with_layer_norms(mut arch: DecoderArch, residual: Residual, qk_norm: QkNorm) -> DecoderArch {
    arch.family = Family::StableLm;
    arch.norm = NormKind::Layer;
    arch.layers.iter_mut().for_each(|layer| layer.residual = residual);
    arch.attentions_mut().for_each(|attention| attention.qk_norm = qk_norm);
    arch
}
