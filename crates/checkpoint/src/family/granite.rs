//! Granite 3: Llama's structure with multipliers of embeddings, residuals, attention
//! scores and logits (maximal update parametrization, Yang et al. 2022, arXiv:2203.03466).
//!
//! Multipliers of residuals and logits are folded into the weights before them as factors.

use narthex_spec::arch::{Attention, DecoderArch, Family};
use serde::Deserialize;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result, gguf::decoder::GgufKeys, hf::config::Config, layout::WeightScale, limits::unsupported,
    tensors::Tensors,
};

/// `GraniteForCausalLM` (`GraniteConfig` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["GraniteForCausalLM"],
    model_type: "granite",
    names: &llama::HF_NAMES,
    read: HfReader::Decoder(hf),
};

/// `granite` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF: GgufFamily =
    GgufFamily { name: "granite", names: &llama::GGUF_NAMES, read: GgufReader::Decoder(gguf) };

/// Keys of the multipliers in `config.json`.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Multipliers {
    #[serde(default = "default_multiplier", rename = "embedding_multiplier")]
    embedding: f64,
    #[serde(default = "default_multiplier", rename = "residual_multiplier")]
    residual: f64,
    #[serde(default = "default_multiplier", rename = "attention_multiplier")]
    attention: f64,
    /// Divisor of the logits.
    #[serde(default = "default_multiplier", rename = "logits_scaling")]
    logits: f64,
}

fn default_multiplier() -> f64 {
    1.0
}

impl Multipliers {
    /// Reads the multipliers of a GGUF file.
    pub(super) fn of_gguf(keys: &GgufKeys<'_>, arch: &DecoderArch) -> Result<Self> {
        let scale = arch.attentions().next().map_or(1.0, Attention::scale);
        Ok(Self {
            embedding: keys.float_or("embedding_scale", 1.0)?,
            residual: keys.float_or("residual_scale", 1.0)?,
            attention: keys.float_or("attention.scale", scale)?,
            logits: keys.float_or("logit_scale", 1.0)?,
        })
    }

    /// Applies the multipliers to `decoder`. Fails for factors that are not finite numbers above zero.
    pub(super) fn apply(self, mut decoder: Decoder) -> Result<Decoder> {
        let all = [self.embedding, self.residual, self.attention, self.logits];
        if let Some(found) = all.into_iter().find(|factor| !(factor.is_finite() && *factor > 0.0)) {
            return Err(unsupported("multiplier", "a finite number above zero", found));
        }
        let residual = self.residual as f32;
        decoder.arch.family = Family::Granite;
        decoder.arch.embed_scale = Some(self.embedding as f32);
        decoder.arch.attentions_mut().for_each(|attention| attention.scale = Some(self.attention as f32));
        decoder.layout.scales = vec![
            WeightScale { module: "attn.o_proj", factor: residual },
            WeightScale { module: "mamba.out_proj", factor: residual },
            WeightScale { module: "mlp.down_proj", factor: residual },
            WeightScale { module: "mlp.shared.down_proj", factor: residual },
            WeightScale { module: "mlp.experts.#.down_proj", factor: residual },
            WeightScale { module: "norm", factor: (1.0 / self.logits) as f32 },
        ];
        Ok(decoder)
    }
}

fn hf(config: &Config) -> Result<Decoder> {
    config.keys::<Multipliers>()?.apply(llama::hf(config)?)
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let decoder = Decoder::from(keys.decoder(tensors)?).with_interleaved_rope();
    Multipliers::of_gguf(keys, &decoder.arch)?.apply(decoder)
}
