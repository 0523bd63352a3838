//! Granite 3 and the dense models of Granite 4: Llama's structure with multipliers of embeddings, residuals, attention
//! scores and logits (maximal update parametrization, Yang et al. 2022, arXiv:2203.03466).
//!
//! Multipliers of residuals and logits are folded into the weights before them as factors.

use narthex_spec::arch::{Attention, Family};
use serde::Deserialize;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::config::Config,
    layout::WeightScale,
    limits::unsupported,
    names::{NameTable, TensorPart},
    tensors::Tensors,
};

/// `GraniteForCausalLM` (`GraniteConfig` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["GraniteForCausalLM"],
    model_type: "granite",
    names: &llama::HF_NAMES,
    read: HfReader::Decoder(hf),
};

/// `GraniteMoeHybridForCausalLM` (`GraniteMoeHybridConfig` of `transformers`) without Mamba layers and experts.
pub(super) const HF4: HfFamily = HfFamily {
    classes: &["GraniteMoeHybridForCausalLM"],
    model_type: "granitemoehybrid",
    names: &NameTable {
        base: Some(&llama::HF_NAMES),
        inner: &[("mlp.down_proj", "shared_mlp.output_linear")],
        parts: &[
            ("mlp.gate_proj", "shared_mlp.input_linear", TensorPart::Gate),
            ("mlp.up_proj", "shared_mlp.input_linear", TensorPart::Up),
        ],
        ..llama::HF_NAMES
    },
    read: HfReader::Decoder(hf4),
};

/// `granite` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF: GgufFamily =
    GgufFamily { name: "granite", names: &llama::GGUF_NAMES, read: GgufReader::Decoder(gguf) };

/// Keys of the multipliers in `config.json`.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Multipliers {
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
    /// Applies the multipliers to `decoder`. Fails for factors that are not finite numbers above zero.
    fn apply(self, mut decoder: Decoder) -> Result<Decoder> {
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
            WeightScale { module: "mlp.down_proj", factor: residual },
            WeightScale { module: "norm", factor: (1.0 / self.logits) as f32 },
        ];
        Ok(decoder)
    }
}

fn hf(config: &Config) -> Result<Decoder> {
    config.keys::<Multipliers>()?.apply(llama::hf(config)?)
}

/// Keys of the hybrid class.
#[derive(Debug, Deserialize)]
struct HybridKeys {
    shared_intermediate_size: usize,
    #[serde(default)]
    num_local_experts: usize,
    position_embedding_type: Option<String>,
    layer_types: Vec<String>,
}

fn hf4(config: &Config) -> Result<Decoder> {
    let own: HybridKeys = config.keys()?;
    if let Some(other) = own.layer_types.iter().find(|kind| !kind.ends_with("attention")) {
        return Err(unsupported("layer type", "attention in every layer, as in the dense models", other));
    }
    if own.num_local_experts > 0 {
        return Err(unsupported("num_local_experts", "0: a dense model", own.num_local_experts));
    }
    if own.position_embedding_type.as_deref() != Some("rope") {
        let found = own.position_embedding_type.as_deref().unwrap_or("none");
        return Err(unsupported("position_embedding_type", "rope", found));
    }
    let config = config.with(serde_json::json!({
        "intermediate_size": own.shared_intermediate_size, "layer_types": null,
    }))?;
    hf(&config)
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let decoder = Decoder::from(keys.decoder(tensors)?).with_interleaved_rope();
    let scale = decoder.arch.attentions().next().map_or(1.0, Attention::scale);
    let multipliers = Multipliers {
        embedding: keys.float_or("embedding_scale", 1.0)?,
        residual: keys.float_or("residual_scale", 1.0)?,
        attention: keys.float_or("attention.scale", scale)?,
        logits: keys.float_or("logit_scale", 1.0)?,
    };
    multipliers.apply(decoder)
}
