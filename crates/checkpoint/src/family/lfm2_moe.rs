//! LFM2 with experts: the layers of LFM2, with experts in place of a dense feed-forward part in all but the first ones.

use narthex_spec::arch::{Experts, FeedForward, Routing};
use serde::Deserialize;
use serde_json::json;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, lfm2, llama};
use crate::{
    error::Result, gguf::decoder::GgufKeys, hf::config::Config, layout::WeightScale, limits::unsupported,
    names::NameTable, tensors::Tensors, weight::WeightSource,
};

/// `Lfm2MoeForCausalLM` (`Lfm2MoeConfig` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["Lfm2MoeForCausalLM"],
    model_type: "lfm2_moe",
    names: &NameTable {
        base: Some(&lfm2::HF_NAMES),
        inner: &[
            ("mlp.router", "feed_forward.gate"),
            ("mlp.selection", "feed_forward.expert_bias"),
            ("mlp.experts.#.gate_proj", "feed_forward.experts.#.w1"),
            ("mlp.experts.#.up_proj", "feed_forward.experts.#.w3"),
            ("mlp.experts.#.down_proj", "feed_forward.experts.#.w2"),
        ],
        without_suffix: &["feed_forward.expert_bias"],
        ..lfm2::HF_NAMES
    },
    read: HfReader::Decoder(hf),
};

/// `lfm2moe` (llama.cpp's `llm_build_lfm2`).
pub(super) const GGUF: GgufFamily = GgufFamily {
    name: "lfm2moe",
    names: &NameTable {
        base: Some(&lfm2::GGUF_NAMES),
        inner: &[("mlp.router", "ffn_gate_inp"), ("mlp.selection", "exp_probs_b.bias")],
        parts: llama::GGUF_EXPERTS,
        without_suffix: &["exp_probs_b.bias"],
        ..lfm2::GGUF_NAMES
    },
    read: GgufReader::Decoder(gguf),
};

/// Keys of experts.
#[derive(Debug, Deserialize)]
struct Lfm2MoeKeys {
    intermediate_size: Option<usize>,
    moe_intermediate_size: Option<usize>,
    num_dense_layers: Option<usize>,
    num_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    use_expert_bias: Option<bool>,
    norm_topk_prob: Option<bool>,
    routed_scaling_factor: Option<f64>,
}

fn hf(config: &Config) -> Result<Decoder> {
    let keys: Lfm2MoeKeys = config.keys()?;
    let factor = keys.routed_scaling_factor.unwrap_or(1.0);
    if !(factor.is_finite() && factor > 0.0) {
        return Err(unsupported("routed_scaling_factor", "a finite number above zero", factor));
    }
    // The dense layers have the stated width.
    let config = config.with(json!({
        "intermediate_size": keys.intermediate_size.unwrap_or(7168), "block_auto_adjust_ff_dim": false,
    }))?;
    let experts = Experts {
        routing: match keys.use_expert_bias {
            Some(false) => Routing::Sigmoid,
            _ => Routing::BiasedSigmoid,
        },
        // The library adds 1e-6 to the sum. It is left out: it changes a weight less than half precision does.
        normalized: keys.norm_topk_prob.unwrap_or(true),
        ..Experts::plain(
            keys.num_experts.unwrap_or(32),
            keys.num_experts_per_tok.unwrap_or(4),
            keys.moe_intermediate_size.unwrap_or(1792),
        )
    };

    let mut decoder = with_experts(lfm2::hf(&config)?, &experts, keys.num_dense_layers.unwrap_or(2));
    decoder.layout.scales = vec![WeightScale { module: "mlp.experts.#.down_proj", factor: factor as f32 }];
    Ok(decoder)
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let gating = "expert_gating_func";
    if let Some(other) = keys.count(gating)?.filter(|&gating| gating != SIGMOID) {
        return Err(unsupported(keys.name(gating), format!("{SIGMOID}: sigmoids"), other));
    }
    let dense = keys.need_count("leading_dense_block_count")?;
    let has_bias = tensors.has(&format!("layers.{dense}.mlp.selection.weight"));
    let routing = if has_bias { Routing::BiasedSigmoid } else { Routing::Sigmoid };
    let experts = Experts { routing, ..keys.experts()? };
    Ok(with_experts(lfm2::gguf(keys, tensors)?, &experts, dense))
}

/// Value of `expert_gating_func` for sigmoids.
const SIGMOID: usize = 2;

/// Gives experts to all layers after the first `dense` ones.
fn with_experts(decoder: Decoder, experts: &Experts, dense: usize) -> Decoder {
    let mut arch = decoder.arch;
    for layer in arch.layers.iter_mut().skip(dense) {
        layer.feed_forward = FeedForward::Experts(experts.clone());
    }
    arch.into()
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::DecoderArch;

    use super::*;

    /// Reads the settings of LFM2 8B A1B with four layers.
    fn read(changes: serde_json::Value) -> Result<DecoderArch> {
        let config = Config::new(
            "config.json".into(),
            json!({
                "architectures": ["Lfm2MoeForCausalLM"], "vocab_size": 65_536, "hidden_size": 2048,
                "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_hidden_layers": 4,
                "num_attention_heads": 32, "num_key_value_heads": 8, "norm_eps": 1e-5, "conv_L_cache": 3,
                "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": true,
                "use_expert_bias": true, "routed_scaling_factor": 1.0,
                "layer_types": ["conv", "conv", "full_attention", "conv"],
            }),
        )?;
        Ok(hf(&config.with(changes)?)?.arch)
    }

    #[test]
    fn settings_of_the_published_model_are_read() {
        let arch = read(json!({})).unwrap();
        let inner = |layer: usize| arch.layers[layer].mlp().map(|mlp| mlp.inner);
        assert_eq!((inner(0), inner(1), inner(2), arch.tied_head), (Some(7168), Some(7168), None, true));
        let experts = arch.layers[3].feed_forward.experts().unwrap();
        assert_eq!((experts.count, experts.per_token, experts.inner), (32, 4, 1792));
        assert_eq!((experts.routing, experts.normalized), (Routing::BiasedSigmoid, true));

        let other = json!({"use_expert_bias": false, "norm_topk_prob": false, "num_dense_layers": 0});
        let arch = read(other).unwrap();
        let experts = arch.layers[0].feed_forward.experts().unwrap();
        assert_eq!((experts.routing, experts.normalized), (Routing::Sigmoid, false));
        let error = read(json!({"routed_scaling_factor": 0.0})).unwrap_err().to_string();
        assert!(error.contains("routed_scaling_factor"), "{error}");
    }
}
