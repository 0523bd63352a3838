//! Gemma 4, the dense models: Gemma 3's layers with larger heads in layers with full attention, per-layer embeddings, last
//! layers that share keys and values, norms of values and a learned number after each layer. Only the text part is read:
//! the towers are left out.

use std::collections::BTreeMap;

use narthex_spec::arch::{
    Activation, DecoderArch, DecoderLayer, Family, PerLayer, Rope, RopeScaling, Rotation,
};
use serde::Deserialize;
use serde_json::json;

use super::{
    Decoder, GgufFamily, GgufReader, HfFamily, HfReader,
    gemma::{self, RopeByType},
    gemma3n,
};
use crate::{
    error::Result,
    gguf::decoder::{GgufKeys, rows},
    hf::{
        config::Config,
        decoder::{Defaults, RopeKeys},
    },
    limits::{malformed, unsupported},
    names::NameTable,
    tensors::Tensors,
    weight::WeightSource,
};

/// `Gemma4ForCausalLM` (`Gemma4TextConfig` of `transformers`), and `Gemma4ForConditionalGeneration` with its towers.
pub(super) const HF: HfFamily = HfFamily {
    classes: &["Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"],
    model_type: "gemma4_text",
    names: &NameTable {
        base: Some(&gemma::HF_NAMES),
        outer: &[
            ("per_layer.embed", "embed_tokens_per_layer"),
            ("per_layer.proj", "per_layer_model_projection"),
            ("per_layer.norm", "per_layer_projection_norm"),
        ],
        inner: &[
            ("per_layer.gate", "per_layer_input_gate"),
            ("per_layer.proj", "per_layer_projection"),
            ("per_layer.norm", "post_per_layer_input_norm"),
            ("scalar", "layer_scalar"),
        ],
        without_suffix: &["layer_scalar"],
        ..gemma::HF_NAMES
    },
    read: HfReader::Decoder(hf),
};

/// `gemma4` (llama.cpp's `llama_model_gemma4`).
pub(super) const GGUF: GgufFamily = GgufFamily {
    name: "gemma4",
    names: &NameTable {
        base: Some(&gemma::GGUF_NAMES),
        outer: &[
            ("per_layer.embed", "per_layer_token_embd"),
            ("per_layer.proj", "per_layer_model_proj"),
            ("per_layer.norm", "per_layer_proj_norm"),
        ],
        inner: &[
            ("per_layer.gate", "inp_gate"),
            ("per_layer.proj", "proj"),
            ("per_layer.norm", "post_norm"),
            ("scalar", "layer_output_scale"),
        ],
        ..gemma::GGUF_NAMES
    },
    read: GgufReader::Decoder(gguf),
};

/// Distance from one layer with full attention to the next.
const PATTERN: usize = 6;

/// Keys that Gemma 3 does not have, with the defaults of the configuration class.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Gemma4Keys {
    global_head_dim: usize,
    num_global_key_value_heads: Option<usize>,
    /// Settings of single layers, in place of the two keys above, as newer versions of `transformers` write them.
    per_layer_config: Option<BTreeMap<usize, LayerKeys>>,
    attention_k_eq_v: bool,
    num_kv_shared_layers: usize,
    vocab_size_per_layer_input: usize,
    hidden_size_per_layer_input: Option<usize>,
    use_double_wide_mlp: bool,
    enable_moe_block: bool,
    use_bidirectional_attention: Option<String>,
}

/// Settings of a layer that differ from those of the model.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerKeys {
    head_dim: Option<usize>,
    num_key_value_heads: Option<usize>,
}

impl Default for Gemma4Keys {
    fn default() -> Self {
        Self {
            global_head_dim: 512,
            num_global_key_value_heads: None,
            per_layer_config: None,
            attention_k_eq_v: false,
            num_kv_shared_layers: 0,
            vocab_size_per_layer_input: 262_144,
            hidden_size_per_layer_input: Some(256),
            use_double_wide_mlp: false,
            enable_moe_block: false,
            use_bidirectional_attention: None,
        }
    }
}

impl Gemma4Keys {
    /// Fails for settings of other computations.
    fn check(&self) -> Result<()> {
        if self.enable_moe_block {
            return Err(unsupported("enable_moe_block of Gemma 4", "false, a model without experts", true));
        }
        if self.attention_k_eq_v {
            return Err(unsupported("attention_k_eq_v of Gemma 4", "false, values of their own", true));
        }
        // Rows of pictures alone attend in both directions with `vision`.
        match self.use_bidirectional_attention.as_deref() {
            None | Some("vision") => Ok(()),
            Some(other) => {
                Err(unsupported("use_bidirectional_attention of Gemma 4", "null or vision", other))
            }
        }
    }

    /// Sets the sizes of the heads of each layer.
    fn apply_heads(&self, config: &Config, arch: &mut DecoderArch) -> Result<()> {
        let Some(layers) = &self.per_layer_config else {
            let globals = arch.attentions_mut().filter(|attention| attention.rotation == Rotation::Global);
            globals.for_each(|attention| attention.head_size = self.global_head_dim);
            return Ok(());
        };
        for (&index, keys) in layers {
            let count = arch.layers.len();
            let Some(attention) = arch.attentions_mut().nth(index) else {
                let expected = format!("per_layer_config for {count} layers");
                return Err(malformed(config.path(), expected, format!("layer {index}")));
            };
            attention.head_size = keys.head_dim.unwrap_or(attention.head_size);
            attention.kv_heads = keys.num_key_value_heads.unwrap_or(attention.kv_heads);
        }
        Ok(())
    }
}

fn hf(config: &Config) -> Result<Decoder> {
    let ropes = json!({
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": gemma::LOCAL_THETA},
    });
    let config = config.part("text_config", json!({"rope_parameters": ropes}))?;
    let keys: Gemma4Keys = config.keys()?;
    keys.check()?;
    let config = config.with(json!({"use_bidirectional_attention": null}))?;
    let defaults = Defaults { context: 131_072, ..gemma::GEMMA };
    let (own, mut arch) = gemma::shared(&config, defaults, PATTERN)?;
    // The class gives the last layer full attention.
    if let Some(last) = arch.attentions_mut().last() {
        last.rotation = Rotation::Global;
        last.window = None;
    }
    keys.apply_heads(&config, &mut arch)?;

    let RopeByType { full_attention, sliding_attention } = own.rope_parameters.unwrap_or_default();
    arch.rope = rope(&config, &arch, Rotation::Global, full_attention)?;
    arch.local_rope = rope(&config, &arch, Rotation::Local, sliding_attention)?;
    arch.logit_cap = own.final_logit_softcapping.flatten();
    arch.per_layer = keys
        .hidden_size_per_layer_input
        .filter(|&width| width > 0)
        .map(|width| PerLayer { vocab: keys.vocab_size_per_layer_input, width });
    let shared = keys.num_kv_shared_layers;
    gemma3n::share(config.path(), &mut arch, shared)?;
    if keys.use_double_wide_mlp {
        let widened = arch.layers.iter_mut().rev().take(shared).filter_map(DecoderLayer::mlp_mut);
        widened.for_each(|mlp| mlp.inner = mlp.inner.saturating_mul(2));
    }
    arch.layer_scalars = true;
    Ok(gemma3n::with_normed_attention(arch, Family::Gemma4).into())
}

/// Returns RoPE of the layers with a rotation; `None` if no layer has it.
fn rope(
    config: &Config,
    arch: &DecoderArch,
    rotation: Rotation,
    keys: Option<RopeKeys>,
) -> Result<Option<Rope>> {
    let Some(attention) = arch.attentions().find(|attention| attention.rotation == rotation) else {
        return Ok(None);
    };
    let Some(keys) = keys else {
        return Err(malformed(config.path(), "rope_parameters of every layer type", "none of one"));
    };
    keys.rope(config, attention.head_size, gemma::LOCAL_THETA).map(Some)
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let experts = "expert_count";
    if let Some(count) = keys.count(experts)?.filter(|&count| count > 0) {
        return Err(unsupported(keys.name(experts), "0, a model without experts", count));
    }
    let mut arch = gemma::with_sandwich_norms(keys.decoder(tensors)?);
    let count = arch.layers.len();
    let types = gemma::gguf_layer_types(keys, count)?.unwrap_or_else(|| gemma::layer_types(PATTERN, count));
    gemma::apply_layer_types(&mut arch, &types);
    arch.mlps_mut().for_each(|mlp| mlp.activation = Activation::GeluTanh);

    let size = keys.need_count("attention.key_length_swa")?;
    let local = arch.attentions_mut().filter(|attention| attention.rotation == Rotation::Local);
    local.for_each(|attention| attention.head_size = size);
    let theta = keys.float_or("rope.freq_base_swa", gemma::LOCAL_THETA)?;
    let dims = keys.count("rope.dimension_count_swa")?.unwrap_or(size);
    arch.local_rope = Some(Rope { theta, dims, scaling: RopeScaling::None });
    arch.logit_cap = keys.float("final_logit_softcapping")?.map(|cap| cap as f32);
    if let Some(width) = keys.count("embedding_length_per_layer_input")?.filter(|&width| width > 0) {
        arch.per_layer = Some(PerLayer { vocab: rows(tensors, "per_layer.embed.weight")?, width });
    }
    gemma3n::share(keys.path(), &mut arch, keys.count("attention.shared_kv_layers")?.unwrap_or(0))?;
    arch.layer_scalars = tensors.has("layers.0.scalar.weight");
    Ok(gemma3n::with_normed_attention(arch, Family::Gemma4).into())
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::KvSource;

    use super::*;

    fn read(changes: &serde_json::Value) -> Result<DecoderArch> {
        let mut kinds = vec!["sliding_attention"; 4];
        kinds.push("full_attention");
        let text = json!({
            "vocab_size": 262_144, "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35,
            "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512,
            "sliding_window": 512, "num_kv_shared_layers": 20, "use_double_wide_mlp": true,
            "final_logit_softcapping": 30.0, "layer_types": kinds.repeat(7),
        });
        let text: serde_json::Value = Config::changed(text, changes)?.keys()?;
        let whole = json!({"architectures": ["Gemma4ForConditionalGeneration"], "text_config": text});
        Ok(hf(&Config::new("config.json".into(), whole)?)?.arch)
    }

    #[test]
    fn settings_of_the_published_models_are_read() {
        let arch = read(&json!({})).unwrap();
        let attentions: Vec<_> = arch.attentions().collect();
        assert_eq!((attentions[3].head_size, attentions[3].window), (256, Some(512)));
        assert_eq!((attentions[4].head_size, attentions[4].window), (512, None));
        assert_eq!((attentions[15].kv, attentions[34].kv), (KvSource::Layer(13), KvSource::Layer(14)));
        let inner = |layer: usize| arch.layers[layer].mlp().unwrap().inner;
        assert_eq!((inner(14), inner(15)), (6144, 12_288));
        assert_eq!(arch.per_layer, Some(PerLayer { vocab: 262_144, width: 256 }));
        assert_eq!((arch.logit_cap, arch.tied_head, arch.layer_scalars), (Some(30.0), true, true));

        let Some(Rope { theta, dims, scaling: RopeScaling::Factors { factors } }) = arch.rope else {
            panic!("{:?}", arch.rope)
        };
        assert_eq!((theta, dims, factors.len()), (1e6, 512, 256));
        assert!(
            factors[..64].iter().all(|&factor| factor == 1.0) && factors[64..].iter().all(|&f| f == 1e30)
        );
        assert_eq!(arch.local_rope, Some(Rope { theta: 1e4, dims: 256, scaling: RopeScaling::None }));
    }

    #[test]
    fn newer_keys_give_the_same_architecture() {
        let layers: serde_json::Map<_, _> =
            (0..7).map(|i| ((5 * i + 4).to_string(), json!({"head_dim": 512}))).collect();
        let newer = json!({"global_head_dim": 7, "per_layer_config": layers});
        assert_eq!(read(&newer).unwrap(), read(&json!({})).unwrap());
        let last = json!({"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"], "num_kv_shared_layers": 1});
        assert_eq!(read(&last).unwrap().layers[1].shared_entry(), Some(0));
        let pictures = json!({"use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 0});
        assert_eq!(read(&pictures).unwrap().per_layer, None);
    }

    #[test]
    fn other_computations_are_refused() {
        for (changes, expected) in [
            (json!({"enable_moe_block": true}), "enable_moe_block of Gemma 4"),
            (json!({"attention_k_eq_v": true}), "attention_k_eq_v of Gemma 4"),
            (json!({"use_bidirectional_attention": "all"}), "null or vision"),
            (json!({"num_kv_shared_layers": 35}), "fewer than 35 layers that share"),
            (json!({"per_layer_config": {"35": {"head_dim": 8}}}), "per_layer_config for 35 layers"),
            (json!({"per_layer_config": {"4": {"sliding_window": 8}}}), "sliding_window"),
            (json!({"rope_parameters": {"full_attention": {}}}), "rope_parameters of every layer type"),
        ] {
            let error = read(&changes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} lacks {expected}");
        }
    }
}
