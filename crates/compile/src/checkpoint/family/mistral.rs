//! Mistral: Llama's structure and names with a sliding window. Its GGUF files call themselves `llama`.

use narthex_spec::arch::DecoderArch;

use super::{HfFamily, HfReader, llama};
use crate::checkpoint::{
    CheckpointError,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults},
    },
};

/// `MistralForCausalLM` (`MistralConfig` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["MistralForCausalLM"],
    model_type: "mistral",
    words: &llama::HF_WORDS,
    read: HfReader::Decoder(hf),
};

fn hf(config: &Config) -> Result<DecoderArch, CheckpointError> {
    let keys: DecoderKeys = config.keys()?;
    let mut arch = keys.decoder(config, Defaults { context: 4096 * 32, kv_heads: Some(8) })?;
    let window = keys.sliding_window.unwrap_or(Some(4096));
    for layer in &mut arch.layers {
        // A window as long as the context hides nothing.
        layer.attention.window = window.filter(|&window| window > 0 && window < arch.context);
    }
    Ok(arch)
}
