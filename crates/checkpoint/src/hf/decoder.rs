//! The keys of `config.json` that most causal language models share.
//!
//! Follows `LlamaConfig` of the `transformers` library, and `modeling_rope_utils` for rotary scaling. A setting that is
//! present but not supported is refused, never ignored. A family's own keys are in its own file.

use std::path::Path;

use narthex_spec::arch::{Activation, Attention, DecoderArch, DecoderLayer, Family, Mlp, Rope, RopeScaling};
use serde::{Deserialize, Deserializer};

use super::config::Config;
use crate::{
    error::Result,
    limits::{HEADS, LAYERS, bounded, malformed, unsupported},
};

/// Keys of causal language models.
#[derive(Debug, Deserialize)]
pub(crate) struct DecoderKeys {
    vocab_size: usize,
    pub(crate) hidden_size: usize,
    intermediate_size: InnerWidths,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: Option<usize>,
    pub(crate) hidden_act: Option<String>,
    rms_norm_eps: Option<f64>,
    layer_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<RopeKeys>,
    rope_parameters: Option<RopeKeys>,
    original_max_position_embeddings: Option<usize>,
    partial_rotary_factor: Option<f64>,
    pub(crate) attention_bias: Option<bool>,
    pub(crate) mlp_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    #[serde(default, deserialize_with = "present")]
    pub(crate) sliding_window: Option<Option<usize>>,
    pub(crate) use_sliding_window: Option<bool>,
    pub(crate) layer_types: Option<Vec<LayerType>>,
}

/// Inner widths of the feed-forward parts: one for all layers, or one for each.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum InnerWidths {
    All(usize),
    Each(Vec<usize>),
}

impl InnerWidths {
    /// Returns the inner width of each of `layers` layers.
    fn of(&self, path: &Path, layers: usize) -> Result<Vec<usize>> {
        match self {
            Self::All(width) => Ok(vec![*width; layers]),
            Self::Each(widths) if widths.len() == layers => Ok(widths.clone()),
            Self::Each(widths) => {
                Err(malformed(path, format!("intermediate_size for {layers} layers"), widths.len()))
            }
        }
    }
}

/// Attention type of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum LayerType {
    /// All earlier tokens.
    #[serde(rename = "full_attention")]
    Full,
    /// Only the earlier tokens within a window.
    #[serde(rename = "sliding_attention")]
    Sliding,
}

/// Default settings of a configuration class.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Defaults {
    /// Maximum sequence length, in tokens.
    pub(crate) context: usize,
    /// Number of key/value heads; `None` if it equals the number of query heads.
    pub(crate) kv_heads: Option<usize>,
    /// Elements per head; `None` if it is the hidden width divided by the number of heads.
    pub(crate) head_size: Option<usize>,
    /// Base of the rotary frequencies.
    pub(crate) theta: f64,
    /// Fraction of each head that is rotated; `None` if the class always rotates all of it and ignores the key.
    pub(crate) rotated: Option<f64>,
    /// Epsilon of norms.
    pub(crate) epsilon: f64,
    /// Tying of the head's weight to the embedding.
    pub(crate) tied: WeightTying,
}

/// Tying of the head's weight to the embedding's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightTying {
    Yes,
    No,
}

impl Defaults {
    /// Defaults of `LlamaConfig`.
    pub(crate) const LLAMA: Self = Self {
        context: 2048,
        kv_heads: None,
        head_size: None,
        theta: 10_000.0,
        rotated: None,
        epsilon: 1e-6,
        tied: WeightTying::No,
    };
}

/// `rope_scaling`, or `rope_parameters` in newer versions of the library.
#[derive(Debug, Default, PartialEq, Deserialize)]
pub(crate) struct RopeKeys {
    rope_type: Option<String>,
    /// Older name of `rope_type`; many files have both.
    #[serde(default, rename = "type")]
    old_rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    partial_rotary_factor: Option<f64>,
    short_factor: Option<Vec<f32>>,
    long_factor: Option<Vec<f32>>,
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
}

impl RopeKeys {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Expected content of a file that has both keys, for errors.
pub(crate) const ROPE_TWICE: &str = "equal rope_scaling and rope_parameters, or only one of them";

/// Distinguishes `null` (`Some(None)`) from an absent key (`None`).
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl DecoderKeys {
    /// Sets the biases of attention in every layer.
    pub(crate) fn apply_attention_bias(&self, arch: &mut DecoderArch) {
        let bias = self.attention_bias.unwrap_or(false);
        for attention in arch.attentions_mut() {
            attention.qkv_bias = bias;
            attention.output_bias = bias;
        }
    }

    /// Sets the biases of the feed-forward network in every layer.
    pub(crate) fn apply_mlp_bias(&self, arch: &mut DecoderArch) {
        arch.mlps_mut().for_each(|mlp| mlp.bias = self.mlp_bias.unwrap_or(false));
    }

    /// Reads a decoder of Llama's structure without biases and windows; families change the settings in which they
    /// differ.
    pub(crate) fn decoder(&self, config: &Config, defaults: Defaults) -> Result<DecoderArch> {
        let path = config.path();
        let layers = bounded(path, "num_hidden_layers", self.num_hidden_layers, &LAYERS)?;
        let heads = bounded(path, "num_attention_heads", self.num_attention_heads, &HEADS)?;
        let head_size = self.head_size(config, heads, defaults)?;
        let kv_heads = self.num_key_value_heads.or(defaults.kv_heads).unwrap_or(heads);
        let activation = activation(self.hidden_act.as_deref().unwrap_or("silu"))?;
        let attention = Attention::plain(heads, kv_heads, head_size);
        let widths = self.intermediate_size.of(path, layers)?;
        let rope = self.rope(config, head_size, defaults)?;
        let context = extended(self.max_position_embeddings.unwrap_or(defaults.context), &rope);

        Ok(DecoderArch {
            family: Family::Llama,
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            context,
            layers: widths
                .into_iter()
                .map(|inner| {
                    let mlp = Mlp { inner, activation, gated: true, bias: false, cutoff: None };
                    DecoderLayer::dense(attention.clone(), mlp)
                })
                .collect(),
            norm_epsilon: self.rms_norm_eps.or(self.layer_norm_eps).unwrap_or(defaults.epsilon) as f32,
            rope: Some(rope),
            tied_head: self.tie_word_embeddings.unwrap_or(defaults.tied == WeightTying::Yes),
            ..DecoderArch::default()
        })
    }

    /// Sets the window of each layer of the sliding type.
    pub(crate) fn windows(&self, arch: &mut DecoderArch, types: &[LayerType], window: Option<usize>) {
        let context = arch.context;
        for (layer, kind) in arch.layers.iter_mut().zip(types) {
            let Some(attention) = layer.attention_mut() else { continue };
            // A window as long as the context masks nothing.
            attention.window =
                window.filter(|window| *kind == LayerType::Sliding && (1..context).contains(window));
        }
    }

    fn head_size(&self, config: &Config, heads: usize, defaults: Defaults) -> Result<usize> {
        match self.head_dim.or(defaults.head_size) {
            Some(size) => Ok(size),
            None if self.hidden_size.is_multiple_of(heads) => Ok(self.hidden_size / heads),
            None => {
                let expected =
                    format!("num_attention_heads that divide the hidden_size {}", self.hidden_size);
                Err(malformed(config.path(), expected, heads))
            }
        }
    }

    fn rope(&self, config: &Config, head_size: usize, defaults: Defaults) -> Result<Rope> {
        let new = self.rope_parameters.as_ref().filter(|keys| !keys.is_empty());
        let old = self.rope_scaling.as_ref().filter(|keys| !keys.is_empty());
        let rope = self.rope_of(config, new.or(old), head_size, defaults)?;
        match (new, old) {
            // In this case `transformers` reads the older key, which the author of the newer one did not intend.
            (Some(new), Some(old)) if self.rope_of(config, Some(old), head_size, defaults)? != rope => {
                let found = format!("{:?} and {:?} that differ", old.kind(), new.kind());
                Err(malformed(config.path(), ROPE_TWICE, found))
            }
            _ => Ok(rope),
        }
    }

    fn rope_of(
        &self,
        config: &Config,
        keys: Option<&RopeKeys>,
        head_size: usize,
        defaults: Defaults,
    ) -> Result<Rope> {
        let partial = keys.and_then(|keys| keys.partial_rotary_factor).or(self.partial_rotary_factor);
        let share = match (defaults.rotated, partial) {
            (Some(usual), stated) => stated.unwrap_or(usual),
            (None, Some(partial)) if partial != 1.0 => {
                return Err(unsupported("partial_rotary_factor", "1", partial));
            }
            (None, _) => 1.0,
        };

        let dims = (head_size as f64 * share) as usize;
        let theta = self.rope_theta.unwrap_or(defaults.theta);
        let Some(keys) = keys else { return Ok(Rope { theta, dims, scaling: RopeScaling::None }) };

        let context = self.max_position_embeddings.unwrap_or(defaults.context);
        let scaling = match keys.kind() {
            // Files that are older than the publication of LongRoPE call it `su`.
            "longrope" | "su" => keys.long(config, context, self.original_max_position_embeddings)?,
            "yarn" => keys.yarn(config.path(), context)?,
            _ => keys.scaling(config.path())?,
        };
        Ok(Rope { theta: keys.rope_theta.unwrap_or(theta), dims, scaling })
    }
}

impl RopeKeys {
    /// Returns RoPE with `dims` rotated elements per head; `theta` is the base if the keys have none.
    pub(crate) fn rope(&self, config: &Config, dims: usize, theta: f64) -> Result<Rope> {
        let scaling = match self.kind() {
            "proportional" => self.proportional(dims),
            _ => self.scaling(config.path())?,
        };
        Ok(Rope { theta: self.rope_theta.unwrap_or(theta), dims, scaling })
    }

    /// Returns the scaling of the type `proportional`: the first pairs of a head rotate with the frequencies of the whole head,
    /// and the others do not.
    fn proportional(&self, dims: usize) -> RopeScaling {
        let rotated = (self.partial_rotary_factor.unwrap_or(1.0) * dims as f64 / 2.0) as usize;
        let factor = self.factor.unwrap_or(1.0) as f32;
        let factors = (0..dims / 2).map(|pair| if pair < rotated { factor } else { RopeScaling::STILL });
        RopeScaling::Factors { factors: factors.collect() }
    }

    /// Returns the file's name of the scaling type.
    fn kind(&self) -> &str {
        self.rope_type.as_deref().or(self.old_rope_type.as_deref()).unwrap_or("default")
    }

    /// Returns YaRN scaling. `context` is the context length that the file states outside the scaling keys.
    fn yarn(&self, path: &Path, context: usize) -> Result<RopeScaling> {
        // DeepSeek's factors give other frequencies.
        for (key, present) in
            [("mscale", self.mscale.is_some()), ("mscale_all_dim", self.mscale_all_dim.is_some())]
        {
            if present {
                return Err(unsupported("rope scaling yarn", "no mscale and mscale_all_dim", key));
            }
        }
        let factor = need(path, "factor", self.factor)?;
        let original_context = self.original_max_position_embeddings.unwrap_or(context);
        let mut scaling = RopeScaling::yarn(factor, original_context);
        if let RopeScaling::Yarn { beta_fast, beta_slow, attention_factor, truncate, .. } = &mut scaling {
            *truncate = self.truncate.unwrap_or(*truncate);
            *beta_fast = self.beta_fast.unwrap_or(*beta_fast);
            *beta_slow = self.beta_slow.unwrap_or(*beta_slow);
            *attention_factor = self.attention_factor.unwrap_or(*attention_factor);
        }
        Ok(scaling)
    }

    /// Returns LongRoPE scaling for a context of `context` tokens. `original` is the original context length that the
    /// file states outside the scaling keys.
    fn long(&self, config: &Config, context: usize, original: Option<usize>) -> Result<RopeScaling> {
        let path = config.path();
        let original = original.or(self.original_max_position_embeddings);
        let original_context = need(path, "original_max_position_embeddings", original)?;
        let stretch = self.factor.unwrap_or(context as f64 / original_context as f64);
        let usual =
            if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / (original_context as f64).ln()).sqrt() };
        Ok(RopeScaling::LongRope {
            short: need(path, "short_factor", self.short_factor.clone())?,
            long: need(path, "long_factor", self.long_factor.clone())?,
            original_context,
            attention_factor: self.attention_factor.unwrap_or(usual),
        })
    }

    fn scaling(&self, path: &Path) -> Result<RopeScaling> {
        let original = self.original_max_position_embeddings;
        match self.kind() {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: need(path, "factor", self.factor)? }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: need(path, "factor", self.factor)?,
                low_freq_factor: need(path, "low_freq_factor", self.low_freq_factor)?,
                high_freq_factor: need(path, "high_freq_factor", self.high_freq_factor)?,
                original_context: need(path, "original_max_position_embeddings", original)?,
            }),
            other => Err(unsupported("rope scaling", "default, linear, llama3, yarn or longrope", other)),
        }
    }
}

/// Returns the value of a key that its scaling type needs.
fn need<T>(path: &Path, key: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| malformed(path, format!("a rope scaling with {key}"), "none"))
}

/// Returns the context length with YaRN. Model cards add YaRN to a file that states the original context.
pub(crate) fn extended(context: usize, rope: &Rope) -> usize {
    match rope.scaling {
        RopeScaling::Yarn { factor, original_context, .. } => {
            context.max((original_context as f64 * factor) as usize)
        }
        _ => context,
    }
}

/// Returns the activation with this name in `transformers`.
pub(crate) fn activation(name: &str) -> Result<Activation> {
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" | "gelu_python" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        other => Err(unsupported("hidden_act", "silu, gelu, gelu_new, gelu_pytorch_tanh or relu", other)),
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::Architecture;
    use serde_json::{Value, json};

    use super::*;
    use crate::{family::HfReader, limits::check_architecture};

    fn llama() -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4,
        })
    }

    fn with(mut config: Value, changes: Value) -> Value {
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }

    fn decoder(changes: Value) -> Result<DecoderArch> {
        let config = Config::new("config.json".into(), with(llama(), changes))?;
        match crate::family::hf_family(&config)?.read {
            HfReader::Decoder(read) => Ok(read(&config)?.arch),
            HfReader::Encoder(_) | HfReader::Embedder { .. } | HfReader::Speech(_) => panic!("another model"),
        }
    }

    fn refused<T: std::fmt::Debug>(result: Result<T>, expect: &str) {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expect), "{error} lacks {expect}");
    }

    #[test]
    fn absent_keys_have_the_class_s_defaults() {
        let found = decoder(json!({})).unwrap();
        let attention = Attention::plain(4, 4, 16);
        let mlp = Mlp { inner: 96, activation: Activation::Silu, gated: true, bias: false, cutoff: None };
        assert_eq!(found.layers, vec![DecoderLayer::dense(attention, mlp); 2]);
        assert_eq!((found.context, found.norm_epsilon, found.tied_head), (2048, 1e-6, false));
        assert_eq!(found.rope, Some(Rope { theta: 1e4, dims: 16, scaling: RopeScaling::None }));
        let found =
            decoder(json!({"architectures": ["MistralForCausalLM"], "num_attention_heads": 8})).unwrap();
        assert_eq!((found.context, found.layers[0].attention().unwrap().kv_heads), (131_072, 8));
        assert_eq!(found.layers[0].attention().unwrap().window, Some(4096));
    }

    #[test]
    fn stated_keys_are_read() {
        let found = decoder(json!({
            "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "attention_bias": true,
            "mlp_bias": true, "tie_word_embeddings": true, "max_position_embeddings": 4096, "hidden_act": "gelu",
        }))
        .unwrap();
        let layer = &found.layers[0];
        let rope = found.rope.unwrap();
        assert_eq!(
            (layer.attention().unwrap().kv_heads, layer.attention().unwrap().head_size, rope.dims),
            (2, 32, 32)
        );
        assert!(
            layer.attention().unwrap().qkv_bias
                && layer.attention().unwrap().output_bias
                && layer.mlp().unwrap().bias
                && found.tied_head
        );
        assert_eq!((found.context, found.norm_epsilon, rope.theta), (4096, 1e-5, 5e5));
        assert_eq!(layer.mlp().unwrap().activation, Activation::Gelu);
    }

    #[test]
    fn absent_windows_and_null_windows_differ() {
        let check = |class: &str, window: Value, expect| {
            let found = decoder(json!({"architectures": [class], "sliding_window": window})).unwrap();
            assert_eq!(found.layers[1].attention().unwrap().window, expect);
        };
        check("MistralForCausalLM", json!(512), Some(512));
        check("MistralForCausalLM", json!(null), None);
        check("MistralForCausalLM", json!(1 << 20), None);
        check("LlamaForCausalLM", json!(512), None);
    }

    #[test]
    fn rope_is_read_in_the_old_spelling_and_the_new() {
        let check = |changes: Value, theta, scaling| {
            assert_eq!(decoder(changes).unwrap().rope, Some(Rope { theta, dims: 16, scaling }));
        };
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        };
        let numbers = json!({
            "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        });
        let old = with(numbers.clone(), json!({"rope_type": "llama3"}));
        check(json!({"rope_theta": 500_000, "rope_scaling": old}), 5e5, llama3.clone());
        let both = with(old, json!({"type": "llama3"}));
        check(json!({"rope_scaling": both}), 1e4, llama3.clone());
        let new = with(numbers, json!({"rope_type": "llama3", "rope_theta": 1e6}));
        check(json!({"rope_parameters": new}), 1e6, llama3);
        let linear = RopeScaling::Linear { factor: 2.0 };
        check(json!({"rope_scaling": {"type": "linear", "factor": 2.0}}), 1e4, linear);
        check(json!({"rope_scaling": null}), 1e4, RopeScaling::None);
        check(
            json!({"rope_parameters": {"rope_type": "default", "rope_theta": 7e4}}),
            7e4,
            RopeScaling::None,
        );
        refused(
            decoder(json!({"rope_scaling": {"type": "linear"}})),
            "a rope scaling with factor, found none",
        );
        let llama3 = json!({"rope_type": "llama3", "factor": 8.0});
        refused(decoder(json!({"rope_scaling": llama3})), "a rope scaling with low_freq_factor, found none");
        refused(
            decoder(json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}})),
            "unsupported rope scaling: found dynamic",
        );
        // As the card of Qwen2.5 states it.
        let card = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
        let found = decoder(json!({"max_position_embeddings": 32768, "rope_scaling": card})).unwrap();
        assert_eq!(found.rope.unwrap().scaling, RopeScaling::yarn(4.0, 32768));
        assert_eq!(found.context, 131_072);
        let own = json!({"rope_type": "yarn", "factor": 2.0, "beta_fast": 16.0, "attention_factor": 1.5,
            "truncate": false});
        let found = decoder(json!({"max_position_embeddings": 64, "rope_scaling": own})).unwrap();
        assert_eq!(
            found.rope.unwrap().scaling,
            RopeScaling::Yarn {
                factor: 2.0,
                original_context: 64,
                beta_fast: 16.0,
                beta_slow: 1.0,
                attention_factor: 1.5,
                truncate: false,
            }
        );
        let yarn = |more: Value| {
            let arch = decoder(json!({"rope_scaling": with(json!({"type": "yarn"}), more)}))?;
            check_architecture(Path::new("config.json"), &Architecture::Decoder(arch))
        };
        refused(yarn(json!({})), "a rope scaling with factor, found none");
        refused(yarn(json!({"factor": -1.0})), "a rope scaling factor above zero");
        refused(yarn(json!({"factor": 1e300})), "a context length");
        refused(yarn(json!({"factor": 2.0, "beta_fast": 0.5})), "a rope beta_fast of at least");
        refused(yarn(json!({"factor": 2.0, "mscale": 1.0})), "found mscale");
        let both = |old: Value, new: Value| {
            decoder(json!({"rope_theta": 7e4, "rope_scaling": old, "rope_parameters": new}))
        };
        let twice = json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 7e4});
        let found = both(json!({"type": "linear", "factor": 2.0}), twice.clone()).unwrap().rope;
        assert_eq!(found, Some(Rope { theta: 7e4, dims: 16, scaling: RopeScaling::Linear { factor: 2.0 } }));
        assert_eq!(both(json!({}), twice.clone()).unwrap().rope, found);
        let linear = json!({"type": "linear", "factor": 4.0});
        refused(both(linear.clone(), twice.clone()), "equal rope_scaling and rope_parameters");
        let default = json!({"rope_type": "default", "rope_theta": 7e4});
        refused(both(linear, default.clone()), "found \"linear\" and \"default\" that differ");
        refused(both(json!({"type": "dynamic", "factor": 2.0}), default), "rope scaling: found dynamic");
        refused(decoder(json!({"partial_rotary_factor": 0.5})), "partial_rotary_factor: found 0.5");
    }

    #[test]
    fn broken_numbers_are_refused() {
        refused(decoder(json!({"num_hidden_layers": 0})), "num_hidden_layers from 1");
        refused(decoder(json!({"num_hidden_layers": u64::MAX})), "num_hidden_layers from 1");
        refused(decoder(json!({"num_attention_heads": 0})), "num_attention_heads from 1");
        refused(decoder(json!({"num_attention_heads": 5})), "divide the hidden_size 64, found 5");
        refused(decoder(json!({"hidden_size": -64})), "malformed");
        refused(decoder(json!({"hidden_size": "64"})), "malformed");
    }

    #[test]
    fn an_activation_that_is_not_compiled_is_refused() {
        refused(decoder(json!({"hidden_act": "xielu"})), "unsupported hidden_act: found xielu");
    }
}
