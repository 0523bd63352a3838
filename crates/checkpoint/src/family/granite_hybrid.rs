//! Granite 4: Mamba-2 in most layers and attention in the others, or attention in all layers of the dense models, with the
//! multipliers of Granite 3. Some models have experts beside a dense network.

use narthex_spec::arch::{DecoderArch, Experts, FeedForward, Mamba2, Mixer, Rotation};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, granite::Multipliers, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults},
    },
    layout::Decays,
    limits::{malformed, unsupported},
    names::{NameTable, TensorPart},
    tensors::Tensors,
    weight::WeightSource,
};

/// `GraniteMoeHybridForCausalLM` (`GraniteMoeHybridConfig` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["GraniteMoeHybridForCausalLM"],
    model_type: "granitemoehybrid",
    names: &NameTable {
        base: Some(&llama::HF_NAMES),
        inner: &[
            ("mamba.conv", "mamba.conv1d"),
            ("mamba.time_shift", "mamba.dt_bias"),
            ("mamba.decay_log", "mamba.A_log"),
            ("mamba.skip", "mamba.D"),
            ("mamba.norm", "mamba.norm"),
            ("mamba.out_proj", "mamba.out_proj"),
            ("mlp.router", "block_sparse_moe.router.layer"),
            ("mlp.down_proj", "shared_mlp.output_linear"),
            ("mlp.shared.down_proj", "shared_mlp.output_linear"),
        ],
        parts: &[
            ("mamba.gate_proj", "mamba.in_proj", TensorPart::Mamba(0)),
            ("mamba.in_proj", "mamba.in_proj", TensorPart::Mamba(1)),
            ("mamba.time_proj", "mamba.in_proj", TensorPart::Mamba(2)),
            ("mlp.gate_proj", "shared_mlp.input_linear", TensorPart::Gate),
            ("mlp.up_proj", "shared_mlp.input_linear", TensorPart::Up),
            ("mlp.shared.gate_proj", "shared_mlp.input_linear", TensorPart::Gate),
            ("mlp.shared.up_proj", "shared_mlp.input_linear", TensorPart::Up),
            ("mlp.experts.#.gate_proj", "block_sparse_moe.input_linear", TensorPart::MatrixHalf(0, 0)),
            ("mlp.experts.#.up_proj", "block_sparse_moe.input_linear", TensorPart::MatrixHalf(0, 1)),
            ("mlp.experts.#.down_proj", "block_sparse_moe.output_linear", TensorPart::Matrix(0)),
        ],
        without_suffix: &["mamba.dt_bias", "mamba.A_log", "mamba.D"],
        ..llama::HF_NAMES
    },
    read: HfReader::Decoder(hf),
};

/// `granitehybrid` (llama.cpp's `llm_build_granite_hybrid`).
pub(super) const GGUF: GgufFamily = GgufFamily {
    name: "granitehybrid",
    names: &NameTable {
        base: Some(&llama::GGUF_NAMES),
        inner: &[
            ("mamba.conv", "ssm_conv1d"),
            ("mamba.time_shift", "ssm_dt.bias"),
            ("mamba.decay_log", "ssm_a"),
            ("mamba.skip", "ssm_d"),
            ("mamba.norm", "ssm_norm"),
            ("mamba.out_proj", "ssm_out"),
            ("mlp.router", "ffn_gate_inp"),
            ("mlp.shared.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared.up_proj", "ffn_up_shexp"),
            ("mlp.shared.down_proj", "ffn_down_shexp"),
        ],
        parts: &[
            ("mamba.gate_proj", "ssm_in", TensorPart::Mamba(0)),
            ("mamba.in_proj", "ssm_in", TensorPart::Mamba(1)),
            ("mamba.time_proj", "ssm_in", TensorPart::Mamba(2)),
            ("mlp.experts.#.gate_proj", "ffn_gate_exps", TensorPart::Matrix(0)),
            ("mlp.experts.#.up_proj", "ffn_up_exps", TensorPart::Matrix(0)),
            ("mlp.experts.#.down_proj", "ffn_down_exps", TensorPart::Matrix(0)),
        ],
        without_suffix: &["ssm_dt.bias", "ssm_a", "ssm_d"],
        ..llama::GGUF_NAMES
    },
    read: GgufReader::Decoder(gguf),
};

/// Keys that most decoders do not share.
#[derive(Debug, Deserialize)]
struct HybridKeys {
    hidden_size: usize,
    num_hidden_layers: usize,
    hidden_act: Option<String>,
    intermediate_size: Option<usize>,
    shared_intermediate_size: Option<usize>,
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    position_embedding_type: Option<String>,
    layer_types: Option<Vec<HybridLayer>>,
    mamba_n_heads: Option<usize>,
    mamba_n_groups: Option<usize>,
    mamba_d_state: Option<usize>,
    mamba_d_head: Option<Value>,
    mamba_d_conv: Option<usize>,
    mamba_expand: Option<usize>,
    mamba_conv_bias: Option<bool>,
    mamba_proj_bias: Option<bool>,
    time_step_limit: Option<Value>,
}

/// Kind of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum HybridLayer {
    #[serde(rename = "mamba", alias = "linear_attention")]
    Mamba,
    #[serde(rename = "attention", alias = "full_attention")]
    Attention,
}

impl HybridKeys {
    /// Fails for settings of other computations.
    fn check(&self) -> Result<()> {
        if let Some(other) = self.hidden_act.as_deref().filter(|name| *name != "silu") {
            return Err(unsupported("hidden_act of Granite 4", "silu", other));
        }
        if self.mamba_proj_bias == Some(true) {
            return Err(unsupported("mamba_proj_bias", "false", true));
        }
        // JSON has no infinity: files leave the limits out, or write the upper one in another form than a number.
        match self.time_step_limit.as_ref().and_then(Value::as_array).map(Vec::as_slice) {
            Some([least, most]) if least.as_f64() != Some(0.0) || most.is_number() => Err(unsupported(
                "time_step_limit",
                "from 0 without an upper limit",
                format!("{least} to {most}"),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the kind of each layer.
    fn layer_types(&self, config: &Config) -> Result<Vec<HybridLayer>> {
        let layers = self.num_hidden_layers;
        match &self.layer_types {
            Some(types) if types.len() == layers => Ok(types.clone()),
            Some(types) => {
                Err(malformed(config.path(), format!("layer_types of {layers} layers"), types.len()))
            }
            None => Ok(vec![HybridLayer::Mamba; layers]),
        }
    }

    fn rotation(&self) -> Result<Rotation> {
        match self.position_embedding_type.as_deref() {
            Some("rope") => Ok(Rotation::Global),
            Some("nope") | None => Ok(Rotation::None),
            Some(other) => Err(unsupported("position_embedding_type", "rope or nope", other)),
        }
    }

    fn mamba(&self, config: &Config) -> Result<Mamba2> {
        let heads = self.mamba_n_heads.unwrap_or(128);
        let inner = self.mamba_expand.unwrap_or(2).saturating_mul(self.hidden_size);
        let stated = self.mamba_d_head.as_ref().and_then(Value::as_u64).map(|size| size as usize);
        let head_size = stated.unwrap_or_else(|| inner.checked_div(heads).unwrap_or(0));
        if heads.checked_mul(head_size) != Some(inner) {
            let expected = format!("mamba_n_heads and mamba_d_head with the product {inner}");
            return Err(malformed(config.path(), expected, format!("{heads} heads of {head_size}")));
        }
        Ok(Mamba2 {
            heads,
            head_size,
            groups: self.mamba_n_groups.unwrap_or(1),
            state_size: self.mamba_d_state.unwrap_or(256),
            kernel: self.mamba_d_conv.unwrap_or(4),
            bias: self.mamba_conv_bias.unwrap_or(true),
        })
    }
}

fn hf(config: &Config) -> Result<Decoder> {
    let own: HybridKeys = config.keys()?;
    own.check()?;
    let types = own.layer_types(config)?;
    let config = config.with(json!({
        "intermediate_size": own.shared_intermediate_size.unwrap_or(1024), "layer_types": null,
    }))?;
    let keys: DecoderKeys = config.keys()?;
    let mut arch = keys.decoder(&config, Defaults::LLAMA)?;
    keys.apply_attention_bias(&mut arch);
    // A model of attention alone has other, unused numbers.
    let mamba = types.contains(&HybridLayer::Mamba).then(|| own.mamba(&config)).transpose()?;

    let has_mamba: Vec<bool> = types.iter().map(|kind| *kind == HybridLayer::Mamba).collect();
    let mut arch = with_mamba(arch, &has_mamba, mamba.as_ref(), own.rotation()?);
    let count = own.num_local_experts.unwrap_or(8);
    let per_token = own.num_experts_per_tok.unwrap_or(2);
    if count > 0 {
        give_experts(&mut arch, [count, per_token], own.intermediate_size.unwrap_or(11_008));
    }
    config.keys::<Multipliers>()?.apply(arch.into())
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let mut arch = keys.decoder(tensors)?;
    if let Some(count) = keys.count("expert_count")?.filter(|&count| count > 0) {
        // The key of dense networks has the width of experts.
        let inner = arch.mlps_mut().next().map_or(0, |mlp| mlp.inner);
        let shared = keys.need_count("expert_shared_feed_forward_length")?;
        arch.mlps_mut().for_each(|mlp| mlp.inner = shared);
        give_experts(&mut arch, [count, keys.need_count("expert_used_count")?], inner);
    }
    let layers = 0..arch.layers.len();
    let has_mamba: Vec<bool> =
        layers.map(|layer| tensors.has(&format!("layers.{layer}.mamba.conv.weight"))).collect();
    // llama.cpp counts the heads as the rank of time steps.
    let heads = keys.need_count("ssm.time_step_rank")?;
    let inner = keys.need_count("ssm.inner_size")?;
    let first = has_mamba.iter().position(|has_mamba| *has_mamba).unwrap_or(0);
    let mamba = Mamba2 {
        heads,
        head_size: inner.checked_div(heads).unwrap_or(0),
        groups: keys.need_count("ssm.group_count")?,
        state_size: keys.need_count("ssm.state_size")?,
        kernel: keys.need_count("ssm.conv_kernel")?,
        bias: tensors.has(&format!("layers.{first}.mamba.conv.bias")),
    };

    let rotation = match keys.flag("rope.scaling.finetuned")? {
        Some(true) => Rotation::Global,
        _ => Rotation::None,
    };
    let mut decoder =
        Decoder::from(with_mamba(arch, &has_mamba, Some(&mamba), rotation)).with_interleaved_rope();
    decoder.layout.decays = Decays::Negative;
    Multipliers::of_gguf(keys, &decoder.arch)?.apply(decoder)
}

/// Gives experts of this inner width to all layers, beside their dense networks.
fn give_experts(arch: &mut DecoderArch, [count, per_token]: [usize; 2], inner: usize) {
    for layer in &mut arch.layers {
        let Some(mlp) = layer.mlp() else { continue };
        // The library selects logits first, and takes the softmax of those.
        layer.feed_forward = FeedForward::Experts(Experts {
            activation: mlp.activation,
            shared: Some(mlp.inner),
            ..Experts::plain(count, per_token, inner)
        });
    }
}

/// Gives Mamba-2 to some layers, and a rotation to the attention of the others. Models without rotation state the rotary
/// positions that the dense ones use.
fn with_mamba(
    mut arch: DecoderArch,
    has_mamba: &[bool],
    mamba: Option<&Mamba2>,
    rotation: Rotation,
) -> DecoderArch {
    arch.attentions_mut().for_each(|attention| attention.rotation = rotation);
    for (layer, has_mamba) in arch.layers.iter_mut().zip(has_mamba) {
        if let Some(mamba) = mamba.filter(|_| *has_mamba) {
            layer.mixer = Mixer::Mamba2(mamba.clone());
        }
    }
    arch
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::{Recurrence, Routing};

    use super::*;

    /// Reads the settings of Granite 4.0 H 1B with four layers.
    fn read(changes: Value) -> Result<DecoderArch> {
        let config = Config::new(
            "config.json".into(),
            json!({
                "architectures": ["GraniteMoeHybridForCausalLM"], "vocab_size": 100_352, "hidden_size": 1536,
                "intermediate_size": 4096, "shared_intermediate_size": 4096, "num_hidden_layers": 4,
                "num_attention_heads": 12, "num_key_value_heads": 4, "num_local_experts": 0, "rms_norm_eps": 1e-5,
                "position_embedding_type": "nope", "layer_types": ["mamba", "attention", "mamba", "mamba"],
                "mamba_n_heads": 48, "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_head": 64, "mamba_d_conv": 4,
                "mamba_expand": 2, "mamba_conv_bias": true, "mamba_proj_bias": false, "attention_multiplier": 0.0078125,
                "embedding_multiplier": 12, "residual_multiplier": 0.22, "logits_scaling": 6,
                "tie_word_embeddings": true,
            }),
        )?;
        Ok(hf(&config.with(changes)?)?.arch)
    }

    #[test]
    fn settings_of_the_published_models_are_read() {
        let arch = read(json!({})).unwrap();
        let mamba = Mamba2 { heads: 48, head_size: 64, groups: 1, state_size: 128, kernel: 4, bias: true };
        assert_eq!(arch.layers[0].recurrence(), Some(Recurrence::Mamba2(&mamba)));
        let attention = arch.layers[1].attention().unwrap();
        assert_eq!((attention.rotation, attention.scale), (Rotation::None, Some(0.007_812_5)));
        assert_eq!((arch.layers[3].mlp().unwrap().inner, arch.embed_scale), (4096, Some(12.0)));

        // Newer files have other words, and the size of heads follows from their number.
        let newer = json!({
            "layer_types": ["full_attention", "linear_attention", "full_attention", "full_attention"],
            "position_embedding_type": null, "mamba_d_head": "auto", "time_step_limit": [0.0, {"__float__": "Infinity"}],
        });
        let arch = read(newer).unwrap();
        assert_eq!(arch.layers[1].recurrence(), Some(Recurrence::Mamba2(&mamba)));
        assert_eq!(arch.layers[0].attention().unwrap().rotation, Rotation::None);

        // The dense models state numbers of Mamba layers that they do not have.
        let dense = json!({"layer_types": vec!["attention"; 4], "position_embedding_type": "rope", "mamba_n_heads": 7});
        let arch = read(dense).unwrap();
        assert!(arch.attentions().all(|attention| attention.rotation == Rotation::Global));
        assert_eq!(arch.attentions().count(), 4);

        // Granite 4.0 H Tiny.
        let tiny = json!({
            "intermediate_size": 512, "shared_intermediate_size": 1024, "num_local_experts": 64, "num_experts_per_tok": 6,
        });
        let arch = read(tiny).unwrap();
        let experts = arch.layers[1].feed_forward.experts().unwrap();
        assert_eq!(
            (experts.count, experts.per_token, experts.inner, experts.shared),
            (64, 6, 512, Some(1024))
        );
        assert!(experts.normalized && experts.routing == Routing::Softmax);
    }

    #[test]
    fn other_computations_are_refused() {
        for (changes, expected) in [
            (json!({"layer_types": ["mamba"]}), "layer_types of 4 layers"),
            (json!({"layer_types": ["conv", "mamba", "mamba", "mamba"]}), "conv"),
            (json!({"hidden_act": "gelu"}), "hidden_act of Granite 4"),
            (json!({"mamba_proj_bias": true}), "mamba_proj_bias"),
            (json!({"mamba_n_heads": 47}), "mamba_n_heads and mamba_d_head with the product 3072"),
            (json!({"mamba_n_heads": 0, "mamba_d_head": "auto"}), "found 0 heads of 0"),
            (json!({"position_embedding_type": "alibi"}), "rope or nope"),
            (json!({"time_step_limit": [0.001, 0.1]}), "time_step_limit"),
        ] {
            let error = read(changes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} lacks {expected}");
        }
    }
}
