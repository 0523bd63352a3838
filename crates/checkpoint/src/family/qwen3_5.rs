//! Qwen3.5, the dense models: gated delta rules in most layers, gated attention in the others. Only the text part is read: the
//! vision tower and the layers that predict several tokens are left out.

use narthex_spec::arch::{DecoderArch, Family, GatedDeltaRule, KeyHeadOrder, Mixer, QkNorm};
use serde::Deserialize;
use serde_json::json;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults},
    },
    layout::{Decays, NormGains},
    limits::{malformed, unsupported},
    names::{NameTable, TensorPart},
    tensors::Tensors,
    weight::WeightSource,
};

/// `Qwen3_5ForCausalLM` (`Qwen3_5TextConfig` of `transformers`), and `Qwen3_5ForConditionalGeneration` with its vision tower.
pub(super) const HF: HfFamily = HfFamily {
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    model_type: "qwen3_5",
    names: &HF_NAMES,
    read: HfReader::Decoder(hf),
};

const HF_NAMES: NameTable = NameTable {
    base: Some(&llama::HF_NAMES),
    prefixes: &["model.language_model.", "model.", ""],
    inner: &[
        ("delta.qkv_proj", "linear_attn.in_proj_qkv"),
        ("delta.conv", "linear_attn.conv1d"),
        ("delta.decay_proj", "linear_attn.in_proj_a"),
        ("delta.rate_proj", "linear_attn.in_proj_b"),
        ("delta.decay_log", "linear_attn.A_log"),
        ("delta.decay_shift", "linear_attn.dt_bias"),
        ("delta.gate_proj", "linear_attn.in_proj_z"),
        ("delta.norm", "linear_attn.norm"),
        ("delta.out_proj", "linear_attn.out_proj"),
    ],
    // The rows of each head are those of its queries, and then those of its gate.
    parts: &[
        ("attn.q_proj", "self_attn.q_proj", TensorPart::HeadHalf(0)),
        ("attn.gate_proj", "self_attn.q_proj", TensorPart::HeadHalf(1)),
    ],
    without_suffix: &["linear_attn.A_log", "linear_attn.dt_bias"],
    ..llama::HF_NAMES
};

/// `qwen35` (llama.cpp's `llama_model_qwen35`). Layers that predict several tokens, which newer files have, are left out.
pub(super) const GGUF: GgufFamily =
    GgufFamily { name: "qwen35", names: &GGUF_NAMES, read: GgufReader::Decoder(gguf) };

const GGUF_NAMES: NameTable = NameTable {
    base: Some(&llama::GGUF_NAMES),
    inner: &[
        ("mlp_norm", "post_attention_norm"),
        ("delta.qkv_proj", "attn_qkv"),
        ("delta.conv", "ssm_conv1d"),
        ("delta.decay_proj", "ssm_alpha"),
        ("delta.rate_proj", "ssm_beta"),
        ("delta.decay_log", "ssm_a"),
        ("delta.decay_shift", "ssm_dt.bias"),
        ("delta.gate_proj", "attn_gate"),
        ("delta.norm", "ssm_norm"),
        ("delta.out_proj", "ssm_out"),
    ],
    parts: &[
        ("attn.q_proj", "attn_q", TensorPart::HeadHalf(0)),
        ("attn.gate_proj", "attn_q", TensorPart::HeadHalf(1)),
    ],
    without_suffix: &["ssm_a", "ssm_dt.bias"],
    ..llama::GGUF_NAMES
};

/// Keys that most decoders do not share.
#[derive(Debug, Deserialize)]
struct Qwen35Keys {
    num_hidden_layers: usize,
    hidden_act: Option<String>,
    attention_bias: Option<bool>,
    attn_output_gate: Option<bool>,
    linear_conv_kernel_dim: Option<usize>,
    linear_key_head_dim: Option<usize>,
    linear_value_head_dim: Option<usize>,
    linear_num_key_heads: Option<usize>,
    linear_num_value_heads: Option<usize>,
    layer_types: Option<Vec<Qwen35Layer>>,
    full_attention_interval: Option<usize>,
    tie_word_embeddings: Option<bool>,
}

/// Kind of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Qwen35Layer {
    #[serde(rename = "linear_attention")]
    DeltaRule,
    #[serde(rename = "full_attention")]
    Attention,
}

impl Qwen35Keys {
    /// Fails for settings of other computations.
    fn check(&self) -> Result<()> {
        if let Some(other) = self.hidden_act.as_deref().filter(|name| *name != "silu") {
            return Err(unsupported("hidden_act of Qwen3.5", "silu", other));
        }
        if self.attention_bias == Some(true) {
            return Err(unsupported("attention_bias of Qwen3.5", "false", true));
        }
        match self.attn_output_gate {
            Some(false) => Err(unsupported("attn_output_gate of Qwen3.5", "true", false)),
            _ => Ok(()),
        }
    }

    fn rule(&self) -> GatedDeltaRule {
        GatedDeltaRule {
            key_heads: self.linear_num_key_heads.unwrap_or(16),
            value_heads: self.linear_num_value_heads.unwrap_or(32),
            key_order: KeyHeadOrder::Grouped,
            key_size: self.linear_key_head_dim.unwrap_or(128),
            value_size: self.linear_value_head_dim.unwrap_or(128),
            kernel: self.linear_conv_kernel_dim.unwrap_or(4),
        }
    }

    /// Returns the kind of each layer.
    fn layer_types(&self, config: &Config) -> Result<Vec<Qwen35Layer>> {
        let layers = self.num_hidden_layers;
        let interval = self.full_attention_interval.unwrap_or(4);
        match &self.layer_types {
            Some(types) if types.len() == layers => Ok(types.clone()),
            Some(types) => {
                Err(malformed(config.path(), format!("layer_types of {layers} layers"), types.len()))
            }
            None => Ok((1..=layers)
                .map(|layer| match layer.is_multiple_of(interval) {
                    true => Qwen35Layer::Attention,
                    false => Qwen35Layer::DeltaRule,
                })
                .collect()),
        }
    }
}

/// Keys of the whole model.
#[derive(Debug, Deserialize)]
struct WholeKeys {
    tie_word_embeddings: Option<bool>,
}

fn hf(whole: &Config) -> Result<Decoder> {
    let WholeKeys { tie_word_embeddings } = whole.keys()?;
    let config = whole.part("text_config", json!({}))?;
    let own: Qwen35Keys = config.keys()?;
    own.check()?;
    let config = config.with(json!({
        "layer_types": null,
        "tie_word_embeddings": tie_word_embeddings.or(own.tie_word_embeddings),
    }))?;
    let keys: DecoderKeys = config.keys()?;
    let defaults = Defaults {
        context: 32_768,
        kv_heads: Some(4),
        head_size: Some(256),
        rotated: Some(0.25),
        ..Defaults::LLAMA
    };

    let arch = keys.decoder(&config, defaults)?;
    let mut decoder = Decoder::from(as_qwen35(arch, &own.layer_types(&config)?, &own.rule()));
    decoder.layout.gains = NormGains::MinusOne;
    Ok(decoder)
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let value_heads = keys.need_count("ssm.time_step_rank")?;
    let rule = GatedDeltaRule {
        key_heads: keys.need_count("ssm.group_count")?,
        value_heads,
        key_order: KeyHeadOrder::Tiled,
        key_size: keys.need_count("ssm.state_size")?,
        value_size: keys.need_count("ssm.inner_size")? / value_heads.max(1),
        kernel: keys.need_count("ssm.conv_kernel")?,
    };
    let arch = keys.decoder(tensors)?;
    let types: Vec<Qwen35Layer> = (0..arch.layers.len())
        .map(|layer| match tensors.has(&format!("layers.{layer}.delta.qkv_proj.weight")) {
            true => Qwen35Layer::DeltaRule,
            false => Qwen35Layer::Attention,
        })
        .collect();

    let mut decoder = Decoder::from(as_qwen35(arch, &types, &rule));
    decoder.layout.decays = Decays::Negative;
    Ok(decoder)
}

/// Applies the differences of Qwen3.5 from Llama.
fn as_qwen35(mut arch: DecoderArch, types: &[Qwen35Layer], rule: &GatedDeltaRule) -> DecoderArch {
    arch.family = Family::Qwen35;
    for attention in arch.attentions_mut() {
        attention.qk_norm = QkNorm::Rms;
        attention.gated = true;
    }
    for (layer, kind) in arch.layers.iter_mut().zip(types) {
        if *kind == Qwen35Layer::DeltaRule {
            layer.mixer = Mixer::DeltaRule(rule.clone());
        }
    }
    arch
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::Recurrence;

    use super::*;

    fn read(changes: serde_json::Value) -> Result<DecoderArch> {
        let text = json!({
            "vocab_size": 248_320, "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 8,
            "num_attention_heads": 8, "num_key_value_heads": 2, "linear_num_value_heads": 16,
            "rope_parameters": {"rope_theta": 1e7, "mrope_section": [11, 11, 10], "mrope_interleaved": true},
        });
        let text: serde_json::Value = Config::changed(text, &changes)?.keys()?;
        let whole = json!({
            "architectures": ["Qwen3_5ForConditionalGeneration"], "tie_word_embeddings": true, "text_config": text,
        });
        Ok(hf(&Config::new("config.json".into(), whole)?)?.arch)
    }

    #[test]
    fn settings_of_the_published_models_are_read() {
        let arch = read(json!({})).unwrap();
        let rule = GatedDeltaRule {
            key_heads: 16,
            value_heads: 16,
            key_order: KeyHeadOrder::Grouped,
            key_size: 128,
            value_size: 128,
            kernel: 4,
        };
        let kinds: Vec<bool> = arch.layers.iter().map(|layer| layer.attention().is_some()).collect();
        assert_eq!(kinds, [false, false, false, true, false, false, false, true]);
        assert_eq!((arch.layers[0].recurrence(), arch.tied_head), (Some(Recurrence::DeltaRule(&rule)), true));
        let attention = arch.layers[3].attention().unwrap();
        assert_eq!((attention.gated, attention.head_size, attention.qk_norm), (true, 256, QkNorm::Rms));
        let rope = arch.rope.unwrap();
        assert_eq!((rope.theta, rope.dims), (1e7, 64));

        let types = json!({"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]});
        let arch = read(types).unwrap();
        assert!(arch.layers[0].attention().is_some() && arch.layers[1].recurrence().is_some());
    }

    #[test]
    fn other_computations_are_refused() {
        for (changes, expected) in [
            (json!({"layer_types": ["full_attention"]}), "layer_types of 8 layers"),
            (json!({"layer_types": ["mamba"]}), "mamba"),
            (json!({"hidden_act": "gelu"}), "hidden_act of Qwen3.5"),
            (json!({"attention_bias": true}), "attention_bias of Qwen3.5"),
            (json!({"attn_output_gate": false}), "attn_output_gate of Qwen3.5"),
        ] {
            let error = read(changes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} lacks {expected}");
        }
    }
}
