//! Qwen2, Qwen2.5 and Qwen3: Llama's structure with biases on q, k and v (Qwen2), or with norms of queries and keys
//! (Qwen3).

use narthex_spec::arch::{DecoderArch, Family, QkNorm};
use serde::Deserialize;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults, LayerType},
    },
    tensors::Tensors,
};

/// `Qwen2ForCausalLM` (`Qwen2Config` of `transformers`), and the classifiers.
pub(super) const HF2: HfFamily = HfFamily {
    classes: &["Qwen2ForCausalLM", "Qwen2ForSequenceClassification", "Qwen2ForTokenClassification"],
    model_type: "qwen2",
    names: &llama::HF_NAMES,
    read: HfReader::Decoder(hf2),
};

/// `Qwen3ForCausalLM` (`Qwen3Config` of `transformers`), `Qwen3Model` for embedding models, and the classifiers.
pub(super) const HF3: HfFamily = HfFamily {
    classes: &[
        "Qwen3ForCausalLM",
        "Qwen3Model",
        "Qwen3ForSequenceClassification",
        "Qwen3ForTokenClassification",
    ],
    model_type: "qwen3",
    names: &llama::HF_NAMES,
    read: HfReader::Decoder(hf3),
};

/// `qwen2` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF2: GgufFamily =
    GgufFamily { name: "qwen2", names: &llama::GGUF_NAMES, read: GgufReader::Decoder(gguf2) };

/// `qwen3`.
pub(super) const GGUF3: GgufFamily =
    GgufFamily { name: "qwen3", names: &llama::GGUF_NAMES, read: GgufReader::Decoder(gguf3) };

/// Keys that most decoders do not share.
#[derive(Debug, Deserialize)]
struct QwenKeys {
    max_window_layers: Option<usize>,
}

/// Reads the settings that both generations share, with a sliding window in the upper layers if the settings enable it.
fn shared(config: &Config, defaults: Defaults) -> Result<(DecoderKeys, DecoderArch)> {
    let keys: DecoderKeys = config.keys()?;
    let qwen: QwenKeys = config.keys()?;
    let mut arch = keys.decoder(config, defaults)?;
    let is_windowed = keys.use_sliding_window.unwrap_or(false);
    let window = keys.sliding_window.unwrap_or(Some(4096)).filter(|_| is_windowed);
    let full = qwen.max_window_layers.unwrap_or(28);
    let types = keys.layer_types.clone().unwrap_or_else(|| {
        (0..arch.layers.len())
            .map(|layer| if layer < full { LayerType::Full } else { LayerType::Sliding })
            .collect()
    });
    keys.windows(&mut arch, &types, window);
    Ok((keys, arch))
}

fn hf2(config: &Config) -> Result<Decoder> {
    let defaults = Defaults { context: 32_768, kv_heads: Some(32), ..Defaults::LLAMA };
    let (_, mut arch) = shared(config, defaults)?;
    arch.family = Family::Qwen2;
    arch.attentions_mut().for_each(|attention| attention.qkv_bias = true);
    Ok(arch.into())
}

fn hf3(config: &Config) -> Result<Decoder> {
    let defaults = Defaults { context: 32_768, kv_heads: Some(32), head_size: Some(128), ..Defaults::LLAMA };
    let (keys, mut arch) = shared(config, defaults)?;
    keys.apply_attention_bias(&mut arch);
    Ok(as_qwen3(arch).into())
}

/// Applies the differences of Qwen3 from Qwen2.
fn as_qwen3(mut arch: DecoderArch) -> DecoderArch {
    arch.family = Family::Qwen3;
    arch.attentions_mut().for_each(|attention| attention.qk_norm = QkNorm::Rms);
    arch
}

fn gguf2(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let mut arch = keys.decoder(tensors)?;
    arch.family = Family::Qwen2;
    Ok(arch.into())
}

fn gguf3(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    Ok(as_qwen3(keys.decoder(tensors)?).into())
}
