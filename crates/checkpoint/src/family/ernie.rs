//! ERNIE 4.5, the dense models: Llama's structure and names, rotation of adjacent element pairs, and biases on all
//! projections or on none.

use narthex_spec::arch::Family;
use serde::Deserialize;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults, WeightTying},
    },
    limits::unsupported,
    tensors::Tensors,
};

/// `Ernie4_5ForCausalLM` (`Ernie4_5Config` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["Ernie4_5ForCausalLM"],
    model_type: "ernie4_5",
    names: &llama::HF_NAMES,
    read: HfReader::Decoder(hf),
};

/// `ernie4_5` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF: GgufFamily =
    GgufFamily { name: "ernie4_5", names: &llama::GGUF_NAMES, read: GgufReader::Decoder(gguf) };

/// Keys that most decoders do not share.
#[derive(Debug, Deserialize)]
struct ErnieKeys {
    use_bias: Option<bool>,
    /// Number of experts, a key of the other models of the generation.
    moe_num_experts: Option<usize>,
}

fn hf(config: &Config) -> Result<Decoder> {
    let keys: DecoderKeys = config.keys()?;
    let ernie: ErnieKeys = config.keys()?;
    refuse_experts("moe_num_experts", ernie.moe_num_experts)?;
    let defaults = Defaults {
        context: 131_072,
        kv_heads: Some(2),
        head_size: Some(128),
        theta: 500_000.0,
        epsilon: 1e-5,
        tied: WeightTying::Yes,
        ..Defaults::LLAMA
    };
    let mut arch = keys.decoder(config, defaults)?;
    let bias = ernie.use_bias.unwrap_or(false);
    for attention in arch.attentions_mut() {
        attention.qkv_bias = bias;
        attention.output_bias = bias;
    }
    arch.mlps_mut().for_each(|mlp| mlp.bias = bias);
    arch.family = Family::Ernie45;
    Ok(Decoder::from(arch).with_interleaved_rope())
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    refuse_experts(&keys.name("expert_count"), keys.count("expert_count")?)?;
    let mut arch = keys.decoder(tensors)?;
    arch.family = Family::Ernie45;
    // The converter leaves the rows of q and k as published.
    Ok(Decoder::from(arch).with_interleaved_rope())
}

/// Refuses a mixture of experts. `key` is the key that states the number of experts.
fn refuse_experts(key: &str, count: Option<usize>) -> Result<()> {
    match count.filter(|&count| count > 0) {
        Some(count) => Err(unsupported(key, "0: a dense model", count)),
        None => Ok(()),
    }
}
