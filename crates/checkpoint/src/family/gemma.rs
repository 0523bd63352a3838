//! Gemma 2 and Gemma 3, with its vision tower: scaled embeddings, norm gains stored minus one, norms before and after each
//! part, sliding windows in most layers; soft caps on scores and logits (Gemma 2), norms of queries and keys and a
//! local RoPE base (Gemma 3).

use narthex_spec::arch::{Activation, DecoderArch, Family, QkNorm, Residual, Rope, RopeScaling, Rotation};
use serde::Deserialize;
use serde_json::json;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, llama};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults, LayerType, ROPE_TWICE, RopeKeys, WeightTying, activation, present},
        vision,
    },
    layout::NormGains,
    limits::{malformed, unsupported},
    names::NameTable,
    tensors::Tensors,
};

/// `Gemma2ForCausalLM` (`Gemma2Config` of `transformers`).
pub(super) const HF2: HfFamily = HfFamily {
    classes: &["Gemma2ForCausalLM"],
    model_type: "gemma2",
    names: &HF_NAMES,
    read: HfReader::Decoder(hf2),
};

/// `Gemma3ForCausalLM` (`Gemma3TextConfig`), `Gemma3ForConditionalGeneration` with its vision tower, and
/// `Gemma3TextModel` for embedding models.
pub(super) const HF3: HfFamily = HfFamily {
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Gemma3TextModel"],
    model_type: "gemma3_text",
    names: &HF3_NAMES,
    read: HfReader::Decoder(hf3),
};

/// `gemma2` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF2: GgufFamily =
    GgufFamily { name: "gemma2", names: &GGUF_NAMES, read: GgufReader::Decoder(gguf2) };

/// `gemma3`.
pub(super) const GGUF3: GgufFamily =
    GgufFamily { name: "gemma3", names: &GGUF_NAMES, read: GgufReader::Decoder(gguf3) };

pub(super) const HF_NAMES: NameTable = NameTable {
    base: Some(&llama::HF_NAMES),
    prefixes: &["model.", "language_model.model.", "model.language_model.", ""],
    inner: &[
        ("attn_post_norm", "post_attention_layernorm"),
        ("mlp_norm", "pre_feedforward_layernorm"),
        ("mlp_post_norm", "post_feedforward_layernorm"),
    ],
    ..llama::HF_NAMES
};

/// Names of SigLIP's weights, which several families have as their vision tower.
pub(super) const SIGLIP_NAMES: &[(&str, &str)] = &[
    ("vision.patch", "embeddings.patch_embedding"),
    ("vision.position", "embeddings.position_embedding"),
    ("vision.layers.#.attn_norm", "encoder.layers.#.layer_norm1"),
    ("vision.layers.#.attn.q_proj", "encoder.layers.#.self_attn.q_proj"),
    ("vision.layers.#.attn.k_proj", "encoder.layers.#.self_attn.k_proj"),
    ("vision.layers.#.attn.v_proj", "encoder.layers.#.self_attn.v_proj"),
    ("vision.layers.#.attn.o_proj", "encoder.layers.#.self_attn.out_proj"),
    ("vision.layers.#.mlp_norm", "encoder.layers.#.layer_norm2"),
    ("vision.layers.#.mlp.up_proj", "encoder.layers.#.mlp.fc1"),
    ("vision.layers.#.mlp.down_proj", "encoder.layers.#.mlp.fc2"),
    ("vision.norm", "post_layernorm"),
];

const HF3_SIGLIP: NameTable = NameTable { base: Some(&HF_NAMES), outer: SIGLIP_NAMES, ..NameTable::NONE };

/// Names of the decoder and of the vision tower, whose prefix depends on the version of `transformers`.
const HF3_NAMES: NameTable = NameTable {
    base: Some(&HF3_SIGLIP),
    prefixes: &[
        "model.",
        "language_model.model.",
        "model.language_model.",
        "",
        "vision_tower.vision_model.",
        "vision_tower.",
        "model.vision_tower.vision_model.",
        "model.vision_tower.",
    ],
    outer: &[
        ("connector.norm", "multi_modal_projector.mm_soft_emb_norm"),
        (CONNECTOR, "multi_modal_projector.mm_input_projection_weight"),
    ],
    without_suffix: &["mm_input_projection_weight"],
    ..HF_NAMES
};

/// The linear layer of the connector, which files store as `[in, out]`.
const CONNECTOR: &str = "connector.linear";

pub(super) const GGUF_NAMES: NameTable = NameTable {
    base: Some(&llama::GGUF_NAMES),
    inner: &[("attn_post_norm", "post_attention_norm"), ("mlp_post_norm", "post_ffw_norm")],
    ..llama::GGUF_NAMES
};

/// Distance from one layer with full attention to the next, for Gemma 2 and Gemma 3.
const PATTERN: [usize; 2] = [2, 6];

/// RoPE base of layers with a sliding window.
pub(super) const LOCAL_THETA: f64 = 10_000.0;

/// Keys that most decoders do not share.
#[derive(Debug, Deserialize)]
pub(super) struct GemmaKeys {
    hidden_activation: Option<String>,
    query_pre_attn_scalar: Option<f64>,
    #[serde(default, deserialize_with = "present")]
    attn_logit_softcapping: Option<Option<f32>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) final_logit_softcapping: Option<Option<f32>>,
    sliding_window_pattern: Option<usize>,
    rope_local_base_freq: Option<f64>,
    pub(super) rope_parameters: Option<RopeByType>,
    use_bidirectional_attention: Option<bool>,
}

/// `rope_parameters` by the type of the layers, as newer versions of `transformers` write it.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RopeByType {
    pub(super) full_attention: Option<RopeKeys>,
    pub(super) sliding_attention: Option<RopeKeys>,
}

/// Reads the settings that all generations share.
pub(super) fn shared(
    config: &Config,
    defaults: Defaults,
    pattern: usize,
) -> Result<(GemmaKeys, DecoderArch)> {
    let mut keys: DecoderKeys = config.keys()?;
    let gemma: GemmaKeys = config.keys()?;
    // In published files, the older key of the same setting names another function. The newer key states the function
    // that is computed.
    keys.hidden_act = None;

    let mut arch = keys.decoder(config, defaults)?;
    let activation = activation(gemma.hidden_activation.as_deref().unwrap_or("gelu_pytorch_tanh"))?;
    let scale = gemma.query_pre_attn_scalar.unwrap_or(256.0).powf(-0.5);
    arch.mlps_mut().for_each(|mlp| mlp.activation = activation);
    arch.attentions_mut().for_each(|attention| attention.scale = Some(scale as f32));

    keys.apply_attention_bias(&mut arch);
    let pattern = gemma.sliding_window_pattern.unwrap_or(pattern);
    let types = keys.layer_types.clone().unwrap_or_else(|| layer_types(pattern, arch.layers.len()));
    let window = keys.sliding_window.unwrap_or(Some(4096));
    let window = match gemma.use_bidirectional_attention {
        // Half of the window is on each side of the token itself.
        Some(true) => window.map(|window| window / 2 + 1),
        _ => window,
    };
    keys.windows(&mut arch, &types, window);

    for (attention, kind) in arch.attentions_mut().zip(&types) {
        attention.rotation = if *kind == LayerType::Sliding { Rotation::Local } else { Rotation::Global };
    }
    Ok((gemma, with_sandwich_norms(arch)))
}

/// Returns the layer types: every `pattern`-th layer has full attention, all others a sliding window. With a pattern of 0,
/// no layer has full attention.
pub(super) fn layer_types(pattern: usize, layers: usize) -> Vec<LayerType> {
    (1..=layers)
        .map(|layer| if layer.is_multiple_of(pattern) { LayerType::Full } else { LayerType::Sliding })
        .collect()
}

/// Returns the layer types that a GGUF file states; `None` if it states none.
pub(super) fn gguf_layer_types(keys: &GgufKeys<'_>, layers: usize) -> Result<Option<Vec<LayerType>>> {
    let key = "attention.sliding_window_pattern";
    match keys.ints(key)? {
        Some(stated) if stated.len() != layers => {
            Err(malformed(keys.path(), format!("{layers} values of {}", keys.name(key)), stated.len()))
        }
        stated => Ok(stated.map(|stated| {
            let kinds =
                stated.iter().map(|&local| if local != 0 { LayerType::Sliding } else { LayerType::Full });
            kinds.collect()
        })),
    }
}

/// Gives layers of the sliding type the local rotation, and removes the window of all others.
pub(super) fn apply_layer_types(arch: &mut DecoderArch, types: &[LayerType]) {
    for (attention, kind) in arch.attentions_mut().zip(types) {
        match kind {
            LayerType::Sliding => attention.rotation = Rotation::Local,
            LayerType::Full => attention.window = None,
        }
    }
}

pub(super) fn with_sandwich_norms(mut arch: DecoderArch) -> DecoderArch {
    arch.embed_scale = Some((arch.hidden as f32).sqrt());
    arch.layers.iter_mut().for_each(|layer| layer.residual = Residual::Sandwich);
    arch
}

/// Soft caps of attention scores and logits.
struct SoftCaps {
    scores: Option<f32>,
    logits: Option<f32>,
}

/// Applies the differences of Gemma 2 from Gemma 3.
fn as_gemma2(mut arch: DecoderArch, caps: SoftCaps) -> DecoderArch {
    let SoftCaps { scores, logits } = caps;
    arch.family = Family::Gemma2;
    arch.logit_cap = logits;
    for attention in arch.attentions_mut() {
        attention.score_cap = scores;
        attention.rotation = Rotation::Global;
    }
    arch
}

/// Applies the differences of Gemma 3 from Gemma 2.
fn as_gemma3(mut arch: DecoderArch, local: Rope) -> DecoderArch {
    arch.family = Family::Gemma3;
    arch.local_rope = Some(local);
    arch.attentions_mut().for_each(|attention| attention.qk_norm = QkNorm::Rms);
    arch
}

/// Wraps a decoder whose file stores the gains of norms minus one.
fn with_gains_minus_one(arch: DecoderArch) -> Decoder {
    let mut decoder = Decoder::from(arch);
    decoder.layout.gains = NormGains::MinusOne;
    decoder
}

fn hf2(config: &Config) -> Result<Decoder> {
    let defaults = Defaults { context: 8192, ..GEMMA };
    let (own, arch) = shared(config, defaults, PATTERN[0])?;
    let caps = SoftCaps {
        scores: own.attn_logit_softcapping.unwrap_or(Some(50.0)),
        logits: own.final_logit_softcapping.unwrap_or(Some(30.0)),
    };
    Ok(with_gains_minus_one(as_gemma2(arch, caps)))
}

fn hf3(config: &Config) -> Result<Decoder> {
    // The files of the multimodal sizes state only values that differ from these.
    let published = json!({
        "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8,
    });
    let vision = vision::gemma3(config)?;
    let config = &config.part("text_config", published)?;
    let defaults = Defaults { context: 131_072, theta: 1e6, ..GEMMA };
    let (mut own, mut arch) = shared(config, defaults, PATTERN[1])?;
    let local = local_rope(config, &mut own, &mut arch, defaults.theta)?;
    let caps = (own.attn_logit_softcapping.flatten(), own.final_logit_softcapping.flatten());
    if caps != (None, None) {
        return Err(unsupported("softcapping of Gemma 3", "null", format!("{caps:?}")));
    }
    arch.vision = vision.map(Box::new);
    let mut decoder = with_gains_minus_one(as_gemma3(arch, local));
    decoder.layout.transposed = &[CONNECTOR];
    Ok(decoder)
}

/// Returns RoPE for the layers with a sliding window and writes RoPE for the other layers into `arch`. `theta` is the
/// base of the latter if the file states none.
pub(super) fn local_rope(
    config: &Config,
    own: &mut GemmaKeys,
    arch: &mut DecoderArch,
    theta: f64,
) -> Result<Rope> {
    let dims = arch.rope.as_ref().map_or(0, |rope| rope.dims);
    let by_type = own.rope_parameters.take().unwrap_or_default();
    if let Some(keys) = by_type.full_attention {
        let rope = keys.rope(config, dims, theta)?;
        let old = arch.rope.replace(rope.clone());
        if old.is_some_and(|old| old.scaling != RopeScaling::None && old != rope) {
            return Err(malformed(config.path(), ROPE_TWICE, "full_attention that differs"));
        }
    }
    let theta = own.rope_local_base_freq.unwrap_or(LOCAL_THETA);
    match by_type.sliding_attention {
        Some(keys) => keys.rope(config, dims, theta),
        None => Ok(Rope { theta, dims, scaling: RopeScaling::None }),
    }
}

/// Defaults of both generations.
pub(super) const GEMMA: Defaults =
    Defaults { kv_heads: Some(4), head_size: Some(256), tied: WeightTying::Yes, ..Defaults::LLAMA };

/// Reads the settings that both generations share in GGUF. `largest` is the layer count of the largest size: it alone
/// scales attention scores by the hidden width divided by the number of heads, for which the format has no key.
fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors, pattern: usize, largest: usize) -> Result<DecoderArch> {
    let mut arch = keys.decoder(tensors)?;
    let hidden = arch.hidden;
    let layers = arch.layers.len();
    arch.mlps_mut().for_each(|mlp| mlp.activation = Activation::GeluTanh);
    for attention in arch.attentions_mut() {
        let width = if layers == largest { hidden / attention.heads.max(1) } else { attention.head_size };
        attention.scale = Some((width as f64).powf(-0.5) as f32);
    }
    apply_layer_types(&mut arch, &layer_types(pattern, layers));
    Ok(with_sandwich_norms(arch))
}

fn gguf2(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let arch = gguf(keys, tensors, PATTERN[0], 46)?;
    let caps = SoftCaps {
        scores: Some(keys.float_or("attn_logit_softcapping", 50.0)? as f32),
        logits: Some(keys.float_or("final_logit_softcapping", 30.0)? as f32),
    };
    Ok(as_gemma2(arch, caps).into())
}

fn gguf3(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let arch = gguf(keys, tensors, PATTERN[1], 62)?;
    let theta = keys.float_or("rope.freq_base_swa", LOCAL_THETA)?;
    let dims = arch.rope.as_ref().map_or(0, |rope| rope.dims);
    Ok(as_gemma3(arch, Rope { theta, dims, scaling: RopeScaling::None }).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arch(keys: serde_json::Value) -> DecoderArch {
        hf3(&Config::new("config.json".into(), keys).unwrap()).unwrap().arch
    }

    #[test]
    fn older_and_newer_keys_give_the_same_architecture() {
        let sizes =
            json!({"hidden_size": 64, "num_hidden_layers": 7, "intermediate_size": 96, "sliding_window": 12});
        let with = |more: serde_json::Value| {
            let mut keys = sizes.clone();
            let more = more.as_object().unwrap().clone();
            keys.as_object_mut().unwrap().extend(more);
            keys
        };
        let linear = json!({"rope_type": "linear", "factor": 8.0});
        let old = with(json!({"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": linear}));
        let new = with(json!({"rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        }}));
        let found = arch(old.clone());
        assert_eq!(found, arch(new.clone()));
        let both = |factor: f64| {
            let mut both = new.clone();
            both["rope_theta"] = json!(5e5);
            both["rope_scaling"] = json!({"rope_type": "linear", "factor": factor});
            hf3(&Config::new("config.json".into(), both).unwrap())
        };
        assert_eq!(both(8.0).unwrap().arch, found);
        let error = both(4.0).err().unwrap().to_string();
        assert!(error.contains("equal rope_scaling and rope_parameters"), "{error}");
        assert_eq!(found, arch(json!({"model_type": "gemma3", "text_config": new})));
        assert_eq!(
            (found.vocab, found.attentions().next().unwrap().heads, found.tied_head),
            (262_208, 8, true)
        );
        let linear = RopeScaling::Linear { factor: 8.0 };
        assert_eq!(found.rope, Some(Rope { theta: 5e5, dims: 256, scaling: linear }));
        assert_eq!(found.local_rope, Some(Rope { theta: 2e4, dims: 256, scaling: RopeScaling::None }));
        let windows: Vec<_> = found.attentions().map(|attention| attention.window).collect();
        assert_eq!(windows, [Some(12), Some(12), Some(12), Some(12), Some(12), None, Some(12)]);
    }
}
