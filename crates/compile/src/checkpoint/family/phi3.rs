//! Phi-3, Phi-3.5 and Phi-4 mini: Llama's structure with fused projections.

use narthex_spec::arch::Family;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::checkpoint::{
    CheckpointError,
    gguf::decoder::Keys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults, LayerType},
    },
    names::{Part, Words},
    tensors::Tensors,
};

/// `Phi3ForCausalLM` (`Phi3Config` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["Phi3ForCausalLM"],
    model_type: "phi3",
    words: &Words {
        parts: &[
            ("attn.q_proj", "self_attn.qkv_proj", Part::Query),
            ("attn.k_proj", "self_attn.qkv_proj", Part::Key),
            ("attn.v_proj", "self_attn.qkv_proj", Part::Value),
            ("mlp.gate_proj", "mlp.gate_up_proj", Part::Gate),
            ("mlp.up_proj", "mlp.gate_up_proj", Part::Up),
        ],
        ..llama::HF_WORDS
    },
    read: HfReader::Decoder(hf),
};

/// `phi3` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF: GgufFamily = GgufFamily {
    name: "phi3",
    words: &Words {
        parts: &[
            ("attn.q_proj", "attn_qkv", Part::Query),
            ("attn.k_proj", "attn_qkv", Part::Key),
            ("attn.v_proj", "attn_qkv", Part::Value),
            ("mlp.gate_proj", "ffn_up", Part::Gate),
            ("mlp.up_proj", "ffn_up", Part::Up),
        ],
        ..llama::GGUF_WORDS
    },
    read: GgufReader::Decoder(gguf),
};

fn hf(config: &Config) -> Result<Decoder, CheckpointError> {
    let keys: DecoderKeys = config.keys()?;
    let defaults = Defaults { context: 4096, rotated: Some(1.0), epsilon: 1e-5, ..Defaults::LLAMA };
    let mut arch = keys.decoder(config, defaults)?;
    arch.family = Family::Phi3;
    let types = vec![LayerType::Sliding; arch.layers.len()];
    keys.windows(&mut arch, &types, keys.sliding_window.flatten());
    Ok(arch.into())
}

fn gguf(keys: &Keys<'_>, tensors: &Tensors) -> Result<Decoder, CheckpointError> {
    let mut arch = keys.decoder(tensors)?;
    arch.family = Family::Phi3;
    Ok(arch.into())
}
