//! Qwen3 with experts: Qwen3's attention, with experts instead of a dense feed-forward part in all or some layers.

use std::collections::HashSet;

use narthex_spec::arch::{Activation, DecoderArch, Experts, Family, FeedForward, QkNorm};
use serde::Deserialize;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults, LayerType},
    },
    names::NameTable,
    tensors::Tensors,
};

/// `Qwen3MoeForCausalLM` (`Qwen3MoeConfig` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["Qwen3MoeForCausalLM"],
    model_type: "qwen3_moe",
    names: &NameTable {
        base: Some(&llama::HF_NAMES),
        inner: &[
            ("mlp.router", "mlp.gate"),
            ("mlp.experts.#.gate_proj", "mlp.experts.#.gate_proj"),
            ("mlp.experts.#.up_proj", "mlp.experts.#.up_proj"),
            ("mlp.experts.#.down_proj", "mlp.experts.#.down_proj"),
        ],
        ..llama::HF_NAMES
    },
    read: HfReader::Decoder(hf),
};

/// `qwen3moe` (llama.cpp's `llama_model::load_hparams`), in which all layers have experts.
pub(super) const GGUF: GgufFamily = GgufFamily {
    name: "qwen3moe",
    names: &NameTable {
        base: Some(&llama::GGUF_NAMES),
        inner: &[("mlp.router", "ffn_gate_inp")],
        parts: llama::GGUF_EXPERTS,
        ..llama::GGUF_NAMES
    },
    read: GgufReader::Decoder(gguf),
};

/// Keys of experts.
#[derive(Debug, Deserialize)]
struct ExpertKeys {
    num_experts: Option<usize>,
    /// Another name of the key in newer versions of the library.
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    /// Distance between layers with experts.
    decoder_sparse_step: Option<usize>,
    /// Layers without experts.
    mlp_only_layers: Option<HashSet<usize>>,
}

fn hf(config: &Config) -> Result<Decoder> {
    let keys: DecoderKeys = config.keys()?;
    let stated: ExpertKeys = config.keys()?;
    let defaults = Defaults { context: 32_768, kv_heads: Some(4), ..Defaults::LLAMA };
    let mut arch = keys.decoder(config, defaults)?;
    keys.apply_attention_bias(&mut arch);
    let window = keys.sliding_window.unwrap_or(Some(4096));
    let window = window.filter(|_| keys.use_sliding_window.unwrap_or(false));
    let types = vec![LayerType::Sliding; arch.layers.len()];
    keys.windows(&mut arch, &types, window);

    let activation = arch.layers.first().map_or(Activation::Silu, |layer| layer.feed_forward.activation());
    let experts = Experts {
        activation,
        normalized: stated.norm_topk_prob.unwrap_or(false),
        ..Experts::plain(
            stated.num_experts.or(stated.num_local_experts).unwrap_or(128),
            stated.num_experts_per_tok.unwrap_or(8),
            stated.moe_intermediate_size.unwrap_or(768),
        )
    };
    let step = stated.decoder_sparse_step.unwrap_or(1);
    let dense = stated.mlp_only_layers.unwrap_or_default();
    Ok(with_experts(arch, &experts, |layer| {
        experts.count > 0 && !dense.contains(&layer) && (layer + 1).is_multiple_of(step)
    }))
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    Ok(with_experts(keys.decoder(tensors)?, &keys.experts()?, |_| true))
}

/// Gives experts to the layers that `has_experts` selects by their number.
fn with_experts(mut arch: DecoderArch, experts: &Experts, has_experts: impl Fn(usize) -> bool) -> Decoder {
    arch.family = Family::Qwen3Moe;
    arch.attentions_mut().for_each(|attention| attention.qk_norm = QkNorm::Rms);
    for (index, layer) in arch.layers.iter_mut().enumerate() {
        if has_experts(index) {
            layer.feed_forward = FeedForward::Experts(experts.clone());
        }
    }
    arch.into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns the numbers of experts and of those for each token, by layer.
    fn layers(changes: &Value) -> Vec<Option<(usize, usize)>> {
        let mut keys = json!({
            "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 4, "num_attention_heads": 4,
        });
        for (key, value) in changes.as_object().unwrap() {
            keys[key] = value.clone();
        }
        let config = Config::new("config.json".into(), keys).unwrap();
        let of = |part: &FeedForward| match part {
            FeedForward::Experts(experts) => Some((experts.count, experts.per_token)),
            FeedForward::Dense(_) => None,
        };
        hf(&config).unwrap().arch.layers.iter().map(|layer| of(&layer.feed_forward)).collect()
    }

    #[test]
    fn some_layers_may_be_dense() {
        let experts = Some((128, 8));
        assert_eq!(layers(&json!({})), [experts; 4]);
        assert_eq!(layers(&json!({"decoder_sparse_step": 2})), [None, experts, None, experts]);
        let only = json!({"mlp_only_layers": [1, 2], "num_experts": 4, "num_experts_per_tok": 2});
        assert_eq!(layers(&only), [Some((4, 2)), None, None, Some((4, 2))]);
        assert_eq!(layers(&json!({"num_local_experts": 16, "decoder_sparse_step": 4}))[3], Some((16, 8)));
        assert_eq!(layers(&json!({"num_experts": 0})), [None; 4]);
    }
}
