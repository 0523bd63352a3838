//! gpt-oss: attention with sinks and biases, in windows in every second layer, and experts with biases and clamped gates.

use narthex_spec::arch::{Activation, Experts, Family, FeedForward, GateClamp, RopeScaling};
use serde::Deserialize;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults, LayerType},
    },
    layout::{Layout, Orientation},
    names::{NameTable, TensorPart},
    packed::PackedFormat,
    tensors::Tensors,
};

/// `GptOssForCausalLM` (`GptOssConfig` of `transformers`). The rows of gate and up projection alternate.
pub(super) const HF: HfFamily = HfFamily {
    classes: &["GptOssForCausalLM"],
    model_type: "gpt_oss",
    names: &NameTable {
        base: Some(&llama::HF_NAMES),
        inner: &[
            ("attn.sinks", "self_attn.sinks"),
            ("mlp.router", "mlp.router"),
            ("mlp.experts.#.down_proj", "mlp.experts.#.down_proj"),
        ],
        parts: &[
            ("mlp.experts.#.gate_proj", "mlp.experts.#.gate_up_proj", TensorPart::Alternate(0)),
            ("mlp.experts.#.up_proj", "mlp.experts.#.gate_up_proj", TensorPart::Alternate(1)),
        ],
        members: &[
            ("mlp.experts.gate_up_proj", "mlp.experts.#.gate_up_proj.weight"),
            ("mlp.experts.gate_up_proj_bias", "mlp.experts.#.gate_up_proj.bias"),
            ("mlp.experts.down_proj", "mlp.experts.#.down_proj.weight"),
            ("mlp.experts.down_proj_bias", "mlp.experts.#.down_proj.bias"),
        ],
        without_suffix: &["self_attn.sinks"],
        ..llama::HF_NAMES
    },
    read: HfReader::Decoder(hf),
};

/// `gpt-oss` (llama.cpp's `LLM_ARCH_OPENAI_MOE`).
pub(super) const GGUF: GgufFamily = GgufFamily {
    name: "gpt-oss",
    names: &NameTable {
        base: Some(&llama::GGUF_NAMES),
        inner: &[
            ("attn.sinks", "attn_sinks"),
            ("mlp_norm", "post_attention_norm"),
            ("mlp.router", "ffn_gate_inp"),
        ],
        parts: llama::GGUF_EXPERTS,
        ..llama::GGUF_NAMES
    },
    read: GgufReader::Decoder(gguf),
};

/// Bounds of the published models' gates.
const CLAMP: GateClamp = GateClamp { limit: 7.0, slope: 1.702 };

/// Keys of experts.
#[derive(Debug, Deserialize)]
struct GptOssKeys {
    intermediate_size: usize,
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    swiglu_limit: Option<f32>,
    swiglu_alpha: Option<f32>,
}

fn hf(config: &Config) -> Result<Decoder> {
    let mut keys: DecoderKeys = config.keys()?;
    keys.attention_bias.get_or_insert(true);
    let stated: GptOssKeys = config.keys()?;
    let defaults = Defaults {
        context: 131_072,
        kv_heads: Some(8),
        head_size: Some(64),
        theta: 150_000.0,
        epsilon: 1e-5,
        ..Defaults::LLAMA
    };
    let mut arch = keys.decoder(config, defaults)?;
    keys.apply_attention_bias(&mut arch);
    let types = keys.layer_types.take().unwrap_or_else(|| alternating(arch.layers.len()));
    keys.windows(&mut arch, &types, keys.sliding_window.unwrap_or(Some(128)));

    let experts = Experts {
        activation: arch.layers.first().map_or(Activation::Silu, |layer| layer.feed_forward.activation()),
        bias: true,
        clamp: Some(GateClamp {
            limit: stated.swiglu_limit.unwrap_or(CLAMP.limit),
            slope: stated.swiglu_alpha.unwrap_or(CLAMP.slope),
        }),
        ..Experts::plain(
            stated.num_local_experts.unwrap_or(128),
            stated.num_experts_per_tok.unwrap_or(4),
            stated.intermediate_size,
        )
    };
    let mut decoder = with_experts(arch.into(), &experts);
    // Floats are stored as the reference multiplies with them, `[experts, in, out]`.
    if config.packed_format()? != Some(PackedFormat::Mxfp4) {
        decoder.layout.experts = Orientation::Columns;
    }
    Ok(decoder)
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let mut decoder = Decoder::from(keys.decoder(tensors)?);
    // Every second layer has the window that the file states for all.
    let others = decoder.arch.attentions_mut().skip(1).step_by(2);
    others.for_each(|attention| attention.window = None);
    if let Some(RopeScaling::Yarn { truncate, .. }) = decoder.arch.rope.as_mut().map(|rope| &mut rope.scaling)
    {
        *truncate = false;
    }
    let experts = Experts { bias: true, clamp: Some(CLAMP), ..keys.experts()? };
    Ok(with_experts(decoder, &experts))
}

/// Returns the types of layers that the class has if the file states none.
fn alternating(layers: usize) -> Vec<LayerType> {
    [LayerType::Sliding, LayerType::Full].into_iter().cycle().take(layers).collect()
}

/// Gives all layers sinks and experts.
fn with_experts(mut decoder: Decoder, experts: &Experts) -> Decoder {
    decoder.arch.family = Family::GptOss;
    for layer in &mut decoder.arch.layers {
        layer.feed_forward = FeedForward::Experts(experts.clone());
    }
    decoder.arch.attentions_mut().for_each(|attention| attention.sinks = true);
    Decoder { layout: Layout::of(&decoder.arch), ..decoder }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn published_settings_are_read() {
        // Those of gpt-oss 20B that determine the computation.
        let config = json!({
            "architectures": ["GptOssForCausalLM"], "attention_bias": true, "experts_per_token": 4, "head_dim": 64,
            "hidden_act": "silu", "hidden_size": 2880, "intermediate_size": 2880, "max_position_embeddings": 131_072,
            "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
            "num_local_experts": 32, "quantization_config": {"quant_method": "mxfp4"}, "rms_norm_eps": 1e-5,
            "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
                "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
            "rope_theta": 150_000, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false,
            "vocab_size": 201_088,
        });
        let Decoder { arch, layout } = hf(&Config::new("config.json".into(), config).unwrap()).unwrap();
        let windows: Vec<_> = arch.attentions().map(|attention| attention.window).take(3).collect();
        assert_eq!(windows, [Some(128), None, Some(128)]);
        let attention = arch.attentions().next().unwrap();
        assert!(attention.sinks && attention.qkv_bias && attention.output_bias);
        let experts = arch.layers[23].feed_forward.experts().unwrap();
        assert_eq!((experts.count, experts.per_token, experts.inner), (32, 4, 2880));
        assert_eq!((experts.clamp, experts.bias, layout.experts), (Some(CLAMP), true, Orientation::Rows));
        assert_eq!(arch.context, 131_072);
        let scaling = &arch.rope.unwrap().scaling;
        assert!(matches!(scaling, RopeScaling::Yarn { truncate: false, original_context: 4096, .. }));
    }
}
