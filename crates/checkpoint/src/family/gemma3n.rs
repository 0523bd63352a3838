//! Gemma 3n: Gemma 3's layers around several residual streams (AltUp) with a learned residual (LAuReL), per-layer
//! embeddings, sparse activations, last layers that share keys and values, and towers that read pictures and sounds.

use narthex_spec::arch::{
    Activation, AltUp, DecoderArch, Family, KvSource, PerLayer, QkNorm, Rope, RopeScaling, VisionArch,
};
use serde::Deserialize;
use serde_json::json;

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader, gemma};
use crate::{
    error::Result,
    gguf::decoder::{GgufKeys, rows},
    hf::{config::Config, conformer, decoder::Defaults, mobilenet},
    limits::malformed,
    names::NameTable,
    tensors::Tensors,
};

/// `Gemma3nForCausalLM` (`Gemma3nTextConfig` of `transformers`), and `Gemma3nForConditionalGeneration` with its
/// towers.
pub(super) const HF: HfFamily = HfFamily {
    classes: &["Gemma3nForConditionalGeneration", "Gemma3nForCausalLM"],
    model_type: "gemma3n_text",
    names: &NameTable {
        base: Some(&HF_TOWER),
        prefixes: &[
            "model.",
            "language_model.model.",
            "model.language_model.",
            "",
            "model.vision_tower.timm_model.",
            "vision_tower.timm_model.",
        ],
        outer: &[
            ("altup.proj.#", "altup_projections.#"),
            ("altup.unembed.#", "altup_unembed_projections.#"),
            ("per_layer.embed", "embed_tokens_per_layer"),
            ("per_layer.proj", "per_layer_model_projection"),
            ("per_layer.norm", "per_layer_projection_norm"),
        ],
        inner: &[
            ("altup.router", "altup.modality_router"),
            ("altup.router_norm", "altup.router_norm"),
            ("altup.predict", "altup.prediction_coefs"),
            ("altup.correct", "altup.correction_coefs"),
            ("altup.scale", "altup.correct_output_scale"),
            ("laurel.left", "laurel.linear_left"),
            ("laurel.right", "laurel.linear_right"),
            ("laurel.norm", "laurel.post_laurel_norm"),
            ("per_layer.gate", "per_layer_input_gate"),
            ("per_layer.proj", "per_layer_projection"),
            ("per_layer.norm", "post_per_layer_input_norm"),
        ],
        without_suffix: &["altup.correct_output_scale", "layer_scale.gamma", "attn.per_dim_scale"],
        ..gemma::HF_NAMES
    },
    read: HfReader::Decoder(hf),
};

/// Names of the towers' weights, those of the vision tower as timm writes them, and of the embedders.
const HF_TOWER: NameTable = NameTable {
    base: Some(&gemma::HF_NAMES),
    outer: &[
        ("vision.stem", "conv_stem.conv"),
        ("vision.stem_norm", "conv_stem.bn"),
        ("vision.blocks.#.#.convolution", "blocks.#.#.conv_exp"),
        ("vision.blocks.#.#.convolution_norm", "blocks.#.#.bn1"),
        ("vision.blocks.#.#.linear", "blocks.#.#.conv_pwl"),
        ("vision.blocks.#.#.linear_norm", "blocks.#.#.bn2"),
        ("vision.blocks.#.#.start", "blocks.#.#.dw_start.conv"),
        ("vision.blocks.#.#.start_norm", "blocks.#.#.dw_start.bn"),
        ("vision.blocks.#.#.expand", "blocks.#.#.pw_exp.conv"),
        ("vision.blocks.#.#.expand_norm", "blocks.#.#.pw_exp.bn"),
        ("vision.blocks.#.#.middle", "blocks.#.#.dw_mid.conv"),
        ("vision.blocks.#.#.middle_norm", "blocks.#.#.dw_mid.bn"),
        ("vision.blocks.#.#.project", "blocks.#.#.pw_proj.conv"),
        ("vision.blocks.#.#.project_norm", "blocks.#.#.pw_proj.bn"),
        ("vision.blocks.#.#.attn_norm", "blocks.#.#.norm"),
        ("vision.blocks.#.#.attn.q_proj", "blocks.#.#.attn.query.proj"),
        ("vision.blocks.#.#.attn.k_reduce", "blocks.#.#.attn.key.down_conv"),
        ("vision.blocks.#.#.attn.k_norm", "blocks.#.#.attn.key.norm"),
        ("vision.blocks.#.#.attn.k_proj", "blocks.#.#.attn.key.proj"),
        ("vision.blocks.#.#.attn.v_reduce", "blocks.#.#.attn.value.down_conv"),
        ("vision.blocks.#.#.attn.v_norm", "blocks.#.#.attn.value.norm"),
        ("vision.blocks.#.#.attn.v_proj", "blocks.#.#.attn.value.proj"),
        ("vision.blocks.#.#.attn.o_proj", "blocks.#.#.attn.output.proj"),
        ("vision.blocks.#.#.scale", "blocks.#.#.layer_scale.gamma"),
        ("vision.fusion.expand", "msfa.ffn.pw_exp.conv"),
        ("vision.fusion.expand_norm", "msfa.ffn.pw_exp.bn"),
        ("vision.fusion.project", "msfa.ffn.pw_proj.conv"),
        ("vision.fusion.project_norm", "msfa.ffn.pw_proj.bn"),
        ("vision.norm", "msfa.norm"),
        ("connector.norm", "embed_vision.soft_embedding_norm"),
        ("connector.linear", "embed_vision.embedding_projection"),
        ("connector.embed", "embed_vision.embedding"),
        ("connector.embed_norm", "embed_vision.hard_embedding_norm"),
        ("audio.subsample.#.conv", "audio_tower.subsample_conv_projection.conv_#.conv"),
        ("audio.subsample.#.norm", "audio_tower.subsample_conv_projection.conv_#.norm"),
        ("audio.input", "audio_tower.subsample_conv_projection.input_proj_linear"),
        ("audio.layers.#.before.norm", "audio_tower.conformer.#.ffw_layer_start.pre_layer_norm"),
        ("audio.layers.#.before.up_proj", "audio_tower.conformer.#.ffw_layer_start.ffw_layer_1"),
        ("audio.layers.#.before.down_proj", "audio_tower.conformer.#.ffw_layer_start.ffw_layer_2"),
        ("audio.layers.#.before.out_norm", "audio_tower.conformer.#.ffw_layer_start.post_layer_norm"),
        ("audio.layers.#.attn_norm", "audio_tower.conformer.#.attention.pre_attn_norm"),
        ("audio.layers.#.attn.q_proj", "audio_tower.conformer.#.attention.attn.q_proj"),
        ("audio.layers.#.attn.k_proj", "audio_tower.conformer.#.attention.attn.k_proj"),
        ("audio.layers.#.attn.v_proj", "audio_tower.conformer.#.attention.attn.v_proj"),
        ("audio.layers.#.attn.scale", "audio_tower.conformer.#.attention.attn.per_dim_scale"),
        (
            "audio.layers.#.attn.positions",
            "audio_tower.conformer.#.attention.attn.relative_position_embedding.pos_proj",
        ),
        ("audio.layers.#.attn.o_proj", "audio_tower.conformer.#.attention.post"),
        ("audio.layers.#.attn_out_norm", "audio_tower.conformer.#.attention.post_norm"),
        ("audio.layers.#.conv.norm", "audio_tower.conformer.#.lconv1d.pre_layer_norm"),
        ("audio.layers.#.conv.expand", "audio_tower.conformer.#.lconv1d.linear_start"),
        ("audio.layers.#.conv.depthwise", "audio_tower.conformer.#.lconv1d.depthwise_conv1d"),
        ("audio.layers.#.conv.inner_norm", "audio_tower.conformer.#.lconv1d.conv_norm"),
        ("audio.layers.#.conv.project", "audio_tower.conformer.#.lconv1d.linear_end"),
        ("audio.layers.#.after.norm", "audio_tower.conformer.#.ffw_layer_end.pre_layer_norm"),
        ("audio.layers.#.after.up_proj", "audio_tower.conformer.#.ffw_layer_end.ffw_layer_1"),
        ("audio.layers.#.after.down_proj", "audio_tower.conformer.#.ffw_layer_end.ffw_layer_2"),
        ("audio.layers.#.after.out_norm", "audio_tower.conformer.#.ffw_layer_end.post_layer_norm"),
        ("audio.layers.#.norm", "audio_tower.conformer.#.norm"),
        ("audio_connector.norm", "embed_audio.soft_embedding_norm"),
        ("audio_connector.linear", "embed_audio.embedding_projection"),
        ("audio_connector.embed", "embed_audio.embedding"),
        ("audio_connector.embed_norm", "embed_audio.hard_embedding_norm"),
    ],
    ..NameTable::NONE
};

/// `gemma3n` (llama.cpp's `llama_model_gemma3n`).
pub(super) const GGUF: GgufFamily = GgufFamily {
    name: "gemma3n",
    names: &NameTable {
        base: Some(&gemma::GGUF_NAMES),
        outer: &[
            ("per_layer.embed", "per_layer_token_embd"),
            ("per_layer.proj", "per_layer_model_proj"),
            ("per_layer.norm", "per_layer_proj_norm"),
        ],
        stacks: &[("altup.proj", "altup_proj"), ("altup.unembed", "altup_unembd_proj")],
        inner: &[
            ("altup.router", "altup_router"),
            ("altup.router_norm", "altup_router_norm"),
            ("altup.predict", "altup_predict_coef"),
            ("altup.correct", "altup_correct_coef"),
            ("altup.scale", "altup_correct_scale"),
            ("laurel.left", "laurel_l"),
            ("laurel.right", "laurel_r"),
            ("laurel.norm", "laurel_post_norm"),
            ("per_layer.gate", "inp_gate"),
            ("per_layer.proj", "proj"),
            ("per_layer.norm", "post_norm"),
        ],
        ..gemma::GGUF_NAMES
    },
    read: GgufReader::Decoder(gguf),
};

/// Distance from one layer with full attention to the next.
const PATTERN: usize = 5;

/// Default soft cap of logits.
const LOGIT_CAP: f32 = 30.0;

/// Default fraction of activations that the first layers set to zero, and the number of these layers.
const SPARSE: (f64, usize) = (0.95, 10);

/// Keys that Gemma 3 does not have, with the defaults of the configuration class.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Gemma3nKeys {
    altup_active_idx: usize,
    altup_num_inputs: usize,
    altup_correct_scale: bool,
    laurel_rank: usize,
    num_kv_shared_layers: usize,
    vocab_size_per_layer_input: usize,
    hidden_size_per_layer_input: usize,
    activation_sparsity_pattern: Option<Vec<f64>>,
}

impl Default for Gemma3nKeys {
    fn default() -> Self {
        Self {
            altup_active_idx: 0,
            altup_num_inputs: 4,
            altup_correct_scale: true,
            laurel_rank: 64,
            num_kv_shared_layers: 15,
            vocab_size_per_layer_input: 262_144,
            hidden_size_per_layer_input: 256,
            activation_sparsity_pattern: None,
        }
    }
}

fn hf(config: &Config) -> Result<Decoder> {
    let published = json!({
        "vocab_size": 262_400, "hidden_size": 2048, "intermediate_size": 16_384, "num_hidden_layers": 35,
        "num_attention_heads": 8, "sliding_window": 512,
    });
    let vision = mobilenet::gemma3n(config)?;
    let audio = conformer::gemma3n(config)?;
    let config = &config.part("text_config", published)?;
    let keys: Gemma3nKeys = config.keys()?;
    let defaults = Defaults { context: 32_768, theta: 1e6, kv_heads: Some(2), ..gemma::GEMMA };
    let (mut own, mut arch) = gemma::shared(config, defaults, PATTERN)?;
    arch.local_rope = Some(gemma::local_rope(config, &mut own, &mut arch, defaults.theta)?);
    arch.logit_cap = own.final_logit_softcapping.unwrap_or(Some(LOGIT_CAP));
    arch.altup = Some(AltUp {
        streams: keys.altup_num_inputs,
        active: keys.altup_active_idx,
        scaled: keys.altup_correct_scale,
        rank: keys.laurel_rank,
    });

    arch.per_layer =
        Some(PerLayer { vocab: keys.vocab_size_per_layer_input, width: keys.hidden_size_per_layer_input });
    let count = arch.layers.len();
    let shares = keys.activation_sparsity_pattern.unwrap_or_else(|| {
        (0..count).map(|layer| if count > SPARSE.1 && layer < SPARSE.1 { SPARSE.0 } else { 0.0 }).collect()
    });
    if shares.len() != count || shares.iter().any(|share| !(0.0..1.0).contains(share)) {
        let expected = format!("activation_sparsity_pattern of {count} shares below 1");
        return Err(malformed(config.path(), expected, format!("{shares:?}")));
    }

    for (mlp, share) in arch.mlps_mut().zip(shares) {
        mlp.cutoff = (share > 0.0).then(|| quantile(share) as f32);
    }
    share(config.path(), &mut arch, keys.num_kv_shared_layers)?;
    arch.vision = vision.map(|tower| Box::new(VisionArch::MobileNet(tower)));
    arch.audio = audio.map(Box::new);
    Ok(with_normed_attention(arch, Family::Gemma3n).into())
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let mut arch = gemma::with_sandwich_norms(keys.decoder(tensors)?);
    let count = arch.layers.len();
    let types = gemma::gguf_layer_types(keys, count)?.unwrap_or_else(|| gemma::layer_types(PATTERN, count));

    // A layer that keeps all activations has the cutoff -inf.
    let cutoffs = keys.floats("activation_sparsity_scale")?.unwrap_or_default().iter();
    let cutoffs = cutoffs.map(|&cutoff| Some(cutoff).filter(|&cutoff| cutoff != f32::NEG_INFINITY));
    for (mlp, cutoff) in arch.mlps_mut().zip(cutoffs.chain(std::iter::repeat(None))) {
        mlp.activation = Activation::GeluTanh;
        mlp.cutoff = cutoff;
    }
    gemma::apply_layer_types(&mut arch, &types);
    let theta = keys.float_or("rope.freq_base_swa", gemma::LOCAL_THETA)?;
    let dims = arch.rope.as_ref().map_or(0, |rope| rope.dims);
    arch.local_rope = Some(Rope { theta, dims, scaling: RopeScaling::None });
    let cap = keys.float("final_logit_softcapping")?;
    arch.logit_cap = Some(cap.map_or(LOGIT_CAP, |cap| cap as f32));
    let rank = tensors.shape("layers.0.laurel.left.weight")?.first().copied().unwrap_or(0);
    arch.altup = Some(AltUp {
        streams: keys.need_count("altup.num_inputs")?,
        active: keys.need_count("altup.active_idx")?,
        scaled: true,
        rank,
    });

    let width = keys.need_count("embedding_length_per_layer_input")?;
    arch.per_layer = Some(PerLayer { vocab: rows(tensors, "per_layer.embed.weight")?, width });
    let shared = keys.count("attention.shared_kv_layers")?.unwrap_or(count.saturating_sub(20));
    share(keys.path(), &mut arch, shared)?;
    Ok(with_normed_attention(arch, Family::Gemma3n).into())
}

/// Gives all layers the attention of Gemma 3n and Gemma 4, with norms of queries, keys and values, in either format.
pub(super) fn with_normed_attention(mut arch: DecoderArch, family: Family) -> DecoderArch {
    arch.family = family;
    for attention in arch.attentions_mut() {
        attention.qk_norm = QkNorm::Rms;
        attention.value_norm = true;
        attention.scale = Some(1.0);
    }
    arch
}

/// Makes the last `count` layers share the keys and values of the last earlier layer of the same attention type.
pub(super) fn share(path: &std::path::Path, arch: &mut DecoderArch, count: usize) -> Result<()> {
    let all = arch.layers.len();
    let Some(first) = all.checked_sub(count).filter(|&first| first > 0) else {
        return Err(malformed(path, format!("fewer than {all} layers that share keys and values"), count));
    };
    let (own, sharing) = arch.layers.split_at_mut(first);
    for (index, layer) in sharing.iter_mut().enumerate() {
        let Some(attention) = layer.attention_mut() else { continue };
        let alike =
            own.iter().rposition(|own| own.attention().is_some_and(|own| own.rotation == attention.rotation));
        let Some(source) = alike else {
            let expected = format!("a layer like layer {} among the first {first}", first + index);
            return Err(malformed(path, expected, "none"));
        };
        attention.kv = KvSource::Layer(source);
    }
    Ok(())
}

/// Returns the quantile `share` of the standard normal distribution. It inverts the distribution function by Newton's
/// method on its power series.
fn quantile(share: f64) -> f64 {
    let mut x: f64 = 0.0;
    for _ in 0..50 {
        let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
        let mut term = x;
        let mut sum = x;
        for n in 1..200 {
            term *= x * x / f64::from(2 * n + 1);
            sum += term;
        }
        let below = 0.5 + density * sum;
        x = (x - (below - share) / density).clamp(-6.0, 6.0);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arch(keys: serde_json::Value) -> Result<DecoderArch> {
        Ok(hf(&Config::new("config.json".into(), keys)?)?.arch)
    }

    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        for (share, expect) in [
            (0.5, 0.0),
            (0.95, 1.644_853_626_951_472_7),
            (0.1, -1.281_551_565_544_600_4),
            (0.999, 3.090_232_306_167_813),
        ] {
            assert!((quantile(share) - expect).abs() < 1e-12, "{share}: {}", quantile(share));
        }
        assert!(quantile(1e-300).is_finite() && quantile(1.0 - 1e-16).is_finite());
    }

    #[test]
    fn what_files_leave_out_is_the_class_s() {
        let found = arch(json!({"model_type": "gemma3n", "text_config": {}})).unwrap();
        assert_eq!(
            (found.vocab, found.hidden, found.layers.len(), found.context),
            (262_400, 2048, 35, 32_768)
        );
        assert_eq!(found.altup, Some(AltUp { streams: 4, active: 0, scaled: true, rank: 64 }));
        assert_eq!(found.per_layer, Some(PerLayer { vocab: 262_144, width: 256 }));
        let sources: Vec<_> = found.attentions().skip(18).take(4).map(|attention| attention.kv).collect();
        assert_eq!(sources, [KvSource::Own, KvSource::Own, KvSource::Layer(18), KvSource::Layer(18)]);
        assert_eq!(found.layers[34].shared_entry(), Some(19));
        assert_eq!((found.kv_index(34), found.kv_index(33), found.kv_index(7)), (19, 18, 7));
        let (first, last) = (&found.layers[0], &found.layers[34]);
        let attentions = [first, last].map(|layer| layer.attention().unwrap());
        assert_eq!(attentions.map(|attention| attention.window), [Some(512), None]);
        let mlps = [first, last].map(|layer| layer.mlp().unwrap());
        assert_eq!(mlps.map(|mlp| mlp.cutoff), [Some(1.644_853_6), None]);
        assert_eq!((mlps[0].inner, attentions[0].scale, found.logit_cap), (16_384, Some(1.0), Some(30.0)));
    }

    #[test]
    fn widths_may_differ_from_layer_to_layer() {
        let widths =
            json!({"num_hidden_layers": 3, "intermediate_size": [8, 16, 24], "num_kv_shared_layers": 1});
        let found = arch(widths).unwrap();
        assert_eq!(
            found.layers.iter().map(|layer| layer.mlp().unwrap().inner).collect::<Vec<_>>(),
            [8, 16, 24]
        );
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let check = |keys: serde_json::Value, expect: &str| {
            let error = arch(keys).unwrap_err().to_string();
            assert!(error.contains(expect), "{error} lacks {expect}");
        };
        check(json!({"intermediate_size": [8, 16]}), "intermediate_size for 35 layers, found 2");
        check(json!({"activation_sparsity_pattern": [0.5]}), "activation_sparsity_pattern of 35 shares");
        check(json!({"num_kv_shared_layers": 35}), "fewer than 35 layers that share");
        check(json!({"num_kv_shared_layers": 31}), "a layer like layer 4 among the first 4");
    }
}
