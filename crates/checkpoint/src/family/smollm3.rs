//! SmolLM3: Llama's structure and names; some layers have no positional encoding (NoPE, Kazemnejad et al. 2023,
//! arXiv:2305.19466).

use narthex_spec::arch::{DecoderArch, Family, Rotation};
use serde::Deserialize;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults, LayerType, WeightTying},
    },
    limits::malformed,
    tensors::Tensors,
};

/// `SmolLM3ForCausalLM` (`SmolLM3Config` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["SmolLM3ForCausalLM"],
    model_type: "smollm3",
    names: &llama::HF_NAMES,
    read: HfReader::Decoder(hf),
};

/// `smollm3` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF: GgufFamily =
    GgufFamily { name: "smollm3", names: &llama::GGUF_NAMES, read: GgufReader::Decoder(gguf) };

/// Default distance between layers without positions.
const INTERVAL: usize = 4;

/// Keys that most decoders do not share.
#[derive(Debug, Deserialize)]
struct SmolLm3Keys {
    /// 0 for each layer without positions.
    no_rope_layers: Option<Vec<u8>>,
    no_rope_layer_interval: Option<usize>,
}

fn hf(config: &Config) -> Result<Decoder> {
    let keys: DecoderKeys = config.keys()?;
    let smollm3: SmolLm3Keys = config.keys()?;
    let defaults = Defaults {
        context: 32_768,
        kv_heads: Some(4),
        theta: 2e6,
        tied: WeightTying::Yes,
        ..Defaults::LLAMA
    };

    let mut arch = keys.decoder(config, defaults)?;
    let interval = smollm3.no_rope_layer_interval.unwrap_or(INTERVAL);
    let rotated = match smollm3.no_rope_layers {
        Some(rotated) => rotated.iter().map(|&rotated| rotated != 0).collect(),
        None => rotated_layers(interval, arch.layers.len()),
    };

    if rotated.len() < arch.layers.len() {
        let expected = format!("no_rope_layers for {} layers", arch.layers.len());
        return Err(malformed(config.path(), expected, rotated.len()));
    }

    keys.apply_attention_bias(&mut arch);
    keys.apply_mlp_bias(&mut arch);
    let window = keys.sliding_window.flatten().filter(|_| keys.use_sliding_window == Some(true));
    let types = keys.layer_types.clone().unwrap_or_else(|| {
        rotated.iter().map(|&rotated| if rotated { LayerType::Full } else { LayerType::Sliding }).collect()
    });
    keys.windows(&mut arch, &types, window);
    Ok(without_positions(arch, &rotated).into())
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let arch = keys.decoder(tensors)?;
    // The format has no key for the interval; llama.cpp assumes every fourth layer.
    let rotated = rotated_layers(INTERVAL, arch.layers.len());
    Ok(Decoder::from(without_positions(arch, &rotated)).with_interleaved_rope())
}

/// Returns for each layer whether RoPE rotates it; every `interval`-th layer is not rotated.
fn rotated_layers(interval: usize, layers: usize) -> Vec<bool> {
    (1..=layers).map(|layer| interval == 0 || !layer.is_multiple_of(interval)).collect()
}

fn without_positions(mut arch: DecoderArch, rotated: &[bool]) -> DecoderArch {
    arch.family = Family::SmolLm3;
    for (attention, &rotated) in arch.attentions_mut().zip(rotated) {
        attention.rotation = if rotated { Rotation::Global } else { Rotation::None };
    }
    arch
}
