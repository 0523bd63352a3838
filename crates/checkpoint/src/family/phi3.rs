//! Phi-3, Phi-3.5 and Phi-4 mini: Llama's structure with fused projections; LongRoPE in the sizes with a long context.

use narthex_spec::arch::{Family, RopeScaling};

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults, LayerType},
    },
    names::{NameTable, TensorPart},
    tensors::Tensors,
};

/// `Phi3ForCausalLM` (`Phi3Config` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["Phi3ForCausalLM"],
    model_type: "phi3",
    names: &NameTable {
        parts: &[
            ("attn.q_proj", "self_attn.qkv_proj", TensorPart::Query),
            ("attn.k_proj", "self_attn.qkv_proj", TensorPart::Key),
            ("attn.v_proj", "self_attn.qkv_proj", TensorPart::Value),
            ("mlp.gate_proj", "mlp.gate_up_proj", TensorPart::Gate),
            ("mlp.up_proj", "mlp.gate_up_proj", TensorPart::Up),
        ],
        ..llama::HF_NAMES
    },
    read: HfReader::Decoder(hf),
};

/// `phi3` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF: GgufFamily = GgufFamily {
    name: "phi3",
    names: &NameTable { parts: llama::GGUF_FUSED, ..llama::GGUF_NAMES },
    read: GgufReader::Decoder(gguf),
};

fn hf(config: &Config) -> Result<Decoder> {
    let keys: DecoderKeys = config.keys()?;
    let defaults = Defaults { context: 4096, rotated: Some(1.0), epsilon: 1e-5, ..Defaults::LLAMA };
    let mut arch = keys.decoder(config, defaults)?;
    arch.family = Family::Phi3;
    let types = vec![LayerType::Sliding; arch.layers.len()];
    keys.windows(&mut arch, &types, keys.sliding_window.flatten());
    Ok(arch.into())
}

/// Tensors with the LongRoPE divisors in GGUF: short and long.
const FACTORS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let mut arch = keys.decoder(tensors)?;
    if let (Some(rope), true) = (&mut arch.rope, tensors.by_name.contains_key(FACTORS[0])) {
        rope.scaling = RopeScaling::LongRope {
            short: tensors.stored(FACTORS[0], FACTORS[0])?.to_f32(),
            long: tensors.stored(FACTORS[1], FACTORS[1])?.to_f32(),
            original_context: keys.need_count("rope.scaling.original_context_length")?,
            attention_factor: keys.float_or("rope.scaling.attn_factor", 1.0)?,
        };
    }
    arch.family = Family::Phi3;
    Ok(arch.into())
}
