//! Mistral: Llama's structure and names with a sliding window. Its GGUF files state the architecture `llama`.

use narthex_spec::arch::Family;

use super::{Decoder, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults, LayerType},
    },
};

/// `MistralForCausalLM` (`MistralConfig` of `transformers`), and the classifiers.
pub(super) const HF: HfFamily = HfFamily {
    classes: &["MistralForCausalLM", "MistralForSequenceClassification", "MistralForTokenClassification"],
    model_type: "mistral",
    names: &llama::HF_NAMES,
    read: HfReader::Decoder(hf),
};

fn hf(config: &Config) -> Result<Decoder> {
    let keys: DecoderKeys = config.keys()?;
    let mut arch =
        keys.decoder(config, Defaults { context: 4096 * 32, kv_heads: Some(8), ..Defaults::LLAMA })?;
    arch.family = Family::Mistral;
    let types = vec![LayerType::Sliding; arch.layers.len()];
    keys.windows(&mut arch, &types, keys.sliding_window.unwrap_or(Some(4096)));
    Ok(arch.into())
}
