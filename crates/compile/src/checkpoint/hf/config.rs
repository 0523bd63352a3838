//! `config.json` as an architecture.
//!
//! Follows `LlamaConfig`, `MistralConfig` and `BertConfig` of the `transformers` library, their defaults included,
//! and `modeling_rope_utils` for rotary scaling. What is set but not compiled is refused, never passed over.

use std::path::Path;

use narthex_spec::arch::{
    Activation, Attention, DecoderArch, DecoderLayer, EncoderArch, Family, Mlp, Rope, RopeScaling,
};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{CONFIG, folder::Folder, pooling::Sentence};
use crate::checkpoint::{
    CheckpointError,
    limit::{HEADS, LAYERS, bounded, malformed, unsupported},
    names::Dialect,
};

/// The model classes that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `LlamaForCausalLM`.
    Llama,
    /// `MistralForCausalLM`: Llama with a sliding window.
    Mistral,
    /// `BertModel` and heads on top of it, which are not read.
    Bert,
}

/// The classes by name; the expectation of the error about another one.
const CLASSES: [(&str, Form); 5] = [
    ("LlamaForCausalLM", Form::Llama),
    ("MistralForCausalLM", Form::Mistral),
    ("BertModel", Form::Bert),
    ("BertForMaskedLM", Form::Bert),
    ("BertForPreTraining", Form::Bert),
];

impl Form {
    /// How the form names its tensors.
    pub(super) fn dialect(self) -> Dialect {
        match self {
            Self::Llama | Self::Mistral => Dialect::HfLlama,
            Self::Bert => Dialect::HfBert,
        }
    }
}

/// The keys of `config.json` that decide what is computed.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    #[serde(default)]
    architectures: Option<Vec<String>>,
    #[serde(default)]
    model_type: Option<String>,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    #[serde(flatten)]
    decoder: DecoderKeys,
    #[serde(flatten)]
    encoder: EncoderKeys,
    #[serde(default)]
    max_position_embeddings: Option<usize>,
    #[serde(default)]
    hidden_act: Option<String>,
    #[serde(default)]
    quantization_config: Option<Value>,
    /// Ids of special tokens, for tokenizers that do not name them.
    #[serde(flatten)]
    pub(super) ids: TokenIds,
}

/// Keys of causal language models.
#[derive(Debug, Deserialize)]
struct DecoderKeys {
    #[serde(default)]
    num_key_value_heads: Option<usize>,
    #[serde(default)]
    head_dim: Option<usize>,
    #[serde(default)]
    rms_norm_eps: Option<f64>,
    #[serde(default)]
    rope_theta: Option<f64>,
    #[serde(default)]
    rope_scaling: Option<RopeKeys>,
    #[serde(default)]
    rope_parameters: Option<RopeKeys>,
    #[serde(default)]
    partial_rotary_factor: Option<f64>,
    #[serde(default)]
    attention_bias: Option<bool>,
    #[serde(default)]
    mlp_bias: Option<bool>,
    #[serde(default)]
    tie_word_embeddings: Option<bool>,
    #[serde(default, deserialize_with = "present")]
    sliding_window: Option<Option<usize>>,
}

/// Keys of encoders.
#[derive(Debug, Deserialize)]
struct EncoderKeys {
    #[serde(default)]
    layer_norm_eps: Option<f64>,
    #[serde(default)]
    position_embedding_type: Option<String>,
    #[serde(default)]
    is_decoder: Option<bool>,
}

/// `rope_scaling`, or `rope_parameters` as newer versions write it.
#[derive(Debug, Deserialize)]
struct RopeKeys {
    #[serde(default)]
    rope_type: Option<String>,
    /// What `rope_type` was called before; many files carry both.
    #[serde(default, rename = "type")]
    old_rope_type: Option<String>,
    #[serde(default)]
    rope_theta: Option<f64>,
    #[serde(default)]
    factor: Option<f64>,
    #[serde(default)]
    low_freq_factor: Option<f64>,
    #[serde(default)]
    high_freq_factor: Option<f64>,
    #[serde(default)]
    original_max_position_embeddings: Option<usize>,
    #[serde(default)]
    partial_rotary_factor: Option<f64>,
}

/// Ids of special tokens, in `config.json` and `generation_config.json`.
#[derive(Debug, Default, Clone, Deserialize)]
pub(super) struct TokenIds {
    #[serde(default)]
    pub(super) bos_token_id: Option<OneOrMore>,
    #[serde(default)]
    pub(super) eos_token_id: Option<OneOrMore>,
    #[serde(default)]
    pub(super) pad_token_id: Option<OneOrMore>,
}

/// An id or several. Signed, as -1 stands for "none" in some files.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMore {
    /// An id.
    One(i64),
    /// Several.
    More(Vec<i64>),
}

impl OneOrMore {
    /// The ids that are token ids at all.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        let ids = match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::More(ids) => ids,
        };
        ids.iter().filter_map(|&id| u32::try_from(id).ok())
    }
}

/// Tells `null` (`Some(None)`) from an absent key (`None`).
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl Config {
    /// Reads `config.json`.
    pub(super) fn read(folder: &mut Folder) -> Result<Self, CheckpointError> {
        let config: Option<Self> = folder.json(CONFIG, "the configuration of a language model or encoder")?;
        config.ok_or_else(|| CheckpointError::Read {
            path: folder.file(CONFIG),
            source: std::io::ErrorKind::NotFound.into(),
        })
    }

    /// The model class.
    pub(super) fn form(&self, folder: &Path) -> Result<Form, CheckpointError> {
        if self.quantization_config.is_some() {
            return Err(unsupported(
                format!("quantization_config of {}", folder.display()),
                "none; take the checkpoint in f32, f16 or bf16, or a GGUF file of it",
                "some",
            ));
        }
        let stated = self.architectures.as_ref().and_then(|classes| classes.first()).map(String::as_str);
        let class = stated.or(match self.model_type.as_deref() {
            Some("llama") => Some("LlamaForCausalLM"),
            Some("mistral") => Some("MistralForCausalLM"),
            Some("bert") => Some("BertModel"),
            other => other,
        });
        let form = CLASSES.iter().find(|(name, _)| Some(*name) == class).map(|(_, form)| *form);
        form.ok_or_else(|| {
            let known = CLASSES.map(|(name, _)| name).join(", ");
            unsupported("architecture", format!("one of {known}"), class.unwrap_or("none stated"))
        })
    }

    /// The decoder that the file describes; `path` is for messages.
    pub(super) fn decoder(&self, form: Form, path: &Path) -> Result<DecoderArch, CheckpointError> {
        let keys = &self.decoder;
        let layers = bounded(path, "num_hidden_layers", self.num_hidden_layers, &LAYERS)?;
        let heads = bounded(path, "num_attention_heads", self.num_attention_heads, &HEADS)?;
        let (mistral, default_context) = match form {
            Form::Mistral => (true, 4096 * 32),
            _ => (false, 2048),
        };
        let context = self.max_position_embeddings.unwrap_or(default_context);
        let head_size = match keys.head_dim {
            Some(size) => size,
            None if self.hidden_size.is_multiple_of(heads) => self.hidden_size / heads,
            None => {
                let expected =
                    format!("num_attention_heads that divide the hidden_size {}", self.hidden_size);
                return Err(malformed(path, expected, heads));
            }
        };
        let window = if mistral { keys.sliding_window.unwrap_or(Some(4096)) } else { None };
        let attention_bias = !mistral && keys.attention_bias.unwrap_or(false);
        let attention = Attention {
            heads,
            kv_heads: keys.num_key_value_heads.unwrap_or(if mistral { 8 } else { heads }),
            head_size,
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            // A window as long as the context hides nothing.
            window: window.filter(|&window| window > 0 && window < context),
        };
        let mlp = Mlp {
            inner: self.intermediate_size,
            activation: activation(self.hidden_act.as_deref().unwrap_or("silu"))?,
            gated: true,
            bias: !mistral && keys.mlp_bias.unwrap_or(false),
        };
        Ok(DecoderArch {
            family: Family::Llama,
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            context,
            layers: vec![DecoderLayer { attention, mlp }; layers],
            norm_epsilon: keys.rms_norm_eps.unwrap_or(1e-6) as f32,
            rope: keys.rope(head_size, path)?,
            tied_head: keys.tie_word_embeddings.unwrap_or(false),
        })
    }

    /// The encoder that the file and `sentence` describe; `path` is for messages.
    pub(super) fn encoder(&self, sentence: &Sentence, path: &Path) -> Result<EncoderArch, CheckpointError> {
        let keys = &self.encoder;
        if let Some(other) = keys.position_embedding_type.as_deref().filter(|&kind| kind != "absolute") {
            return Err(unsupported("position_embedding_type", "absolute", other));
        }
        if keys.is_decoder == Some(true) {
            return Err(unsupported("is_decoder", "false: an encoder", true));
        }
        Ok(EncoderArch {
            family: Family::Bert,
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            positions: self.max_position_embeddings.unwrap_or(512),
            layers: bounded(path, "num_hidden_layers", self.num_hidden_layers, &LAYERS)?,
            heads: self.num_attention_heads,
            inner: self.intermediate_size,
            activation: activation(self.hidden_act.as_deref().unwrap_or("gelu"))?,
            norm_epsilon: keys.layer_norm_eps.unwrap_or(1e-12) as f32,
            pooling: sentence.pooling,
            normalize: sentence.normalize,
        })
    }
}

impl DecoderKeys {
    fn rope(&self, head_size: usize, path: &Path) -> Result<Rope, CheckpointError> {
        let keys = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let partial = keys.and_then(|keys| keys.partial_rotary_factor).or(self.partial_rotary_factor);
        if let Some(partial) = partial.filter(|&partial| partial != 1.0) {
            return Err(unsupported("partial_rotary_factor", "1", partial));
        }
        let theta = keys.and_then(|keys| keys.rope_theta).or(self.rope_theta).unwrap_or(10_000.0);
        let scaling = keys.map_or(Ok(RopeScaling::None), |keys| keys.scaling(path))?;
        Ok(Rope { theta, dims: head_size, scaling })
    }
}

impl RopeKeys {
    fn scaling(&self, path: &Path) -> Result<RopeScaling, CheckpointError> {
        let need = |key: &str, value: Option<f64>| {
            value.ok_or_else(|| malformed(path, format!("a rope scaling with {key}"), "none"))
        };
        match self.rope_type.as_deref().or(self.old_rope_type.as_deref()) {
            None | Some("default") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: need("factor", self.factor)? }),
            Some("llama3") => Ok(RopeScaling::Llama3 {
                factor: need("factor", self.factor)?,
                low_freq_factor: need("low_freq_factor", self.low_freq_factor)?,
                high_freq_factor: need("high_freq_factor", self.high_freq_factor)?,
                original_context: self.original_max_position_embeddings.ok_or_else(|| {
                    malformed(path, "a rope scaling with original_max_position_embeddings", "none")
                })?,
            }),
            Some(other) => Err(unsupported("rope scaling", "default, linear or llama3", other)),
        }
    }
}

/// The activations of `transformers` by name.
fn activation(name: &str) -> Result<Activation, CheckpointError> {
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
    use narthex_spec::arch::Pooling;
    use serde_json::json;

    use super::*;

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

    fn decoder(changes: Value) -> Result<DecoderArch, CheckpointError> {
        let path = Path::new("config.json");
        let config: Config = match serde_json::from_value(with(llama(), changes)) {
            Ok(config) => config,
            Err(error) => return Err(malformed(path, "a configuration", error)),
        };
        let form = config.form(path)?;
        config.decoder(form, path)
    }

    fn encoder(changes: Value) -> Result<EncoderArch, CheckpointError> {
        let config: Config =
            serde_json::from_value(with(with(llama(), json!({"architectures": ["BertModel"]})), changes))
                .unwrap();
        assert_eq!(config.form(Path::new("f"))?, Form::Bert);
        let sentence = Sentence { pooling: Pooling::Cls, normalize: false, max_length: None };
        config.encoder(&sentence, Path::new("config.json"))
    }

    fn refused<T: std::fmt::Debug>(result: Result<T, CheckpointError>, expect: &str) {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expect), "{error} lacks {expect}");
    }

    #[test]
    fn absent_keys_have_the_class_s_defaults() {
        let found = decoder(json!({})).unwrap();
        let attention = Attention {
            heads: 4,
            kv_heads: 4,
            head_size: 16,
            qkv_bias: false,
            output_bias: false,
            window: None,
        };
        let mlp = Mlp { inner: 96, activation: Activation::Silu, gated: true, bias: false };
        assert_eq!(found.layers, vec![DecoderLayer { attention, mlp }; 2]);
        assert_eq!((found.context, found.norm_epsilon, found.tied_head), (2048, 1e-6, false));
        assert_eq!(found.rope, Rope { theta: 1e4, dims: 16, scaling: RopeScaling::None });
        let found =
            decoder(json!({"architectures": ["MistralForCausalLM"], "num_attention_heads": 8})).unwrap();
        assert_eq!((found.context, found.layers[0].attention.kv_heads), (131_072, 8));
        assert_eq!(found.layers[0].attention.window, Some(4096));
    }

    #[test]
    fn stated_keys_are_read() {
        let found = decoder(json!({
            "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "attention_bias": true,
            "mlp_bias": true, "tie_word_embeddings": true, "max_position_embeddings": 4096, "hidden_act": "gelu",
        }))
        .unwrap();
        let layer = &found.layers[0];
        assert_eq!((layer.attention.kv_heads, layer.attention.head_size, found.rope.dims), (2, 32, 32));
        assert!(layer.attention.qkv_bias && layer.attention.output_bias && layer.mlp.bias && found.tied_head);
        assert_eq!((found.context, found.norm_epsilon, found.rope.theta), (4096, 1e-5, 5e5));
        assert_eq!(layer.mlp.activation, Activation::Gelu);
    }

    #[test]
    fn windows_are_told_from_none() {
        let check = |class: &str, window: Value, expect| {
            let found = decoder(json!({"architectures": [class], "sliding_window": window})).unwrap();
            assert_eq!(found.layers[1].attention.window, expect);
        };
        check("MistralForCausalLM", json!(512), Some(512));
        check("MistralForCausalLM", json!(null), None);
        check("MistralForCausalLM", json!(1 << 20), None);
        check("LlamaForCausalLM", json!(512), None);
    }

    #[test]
    fn rope_is_read_in_the_old_spelling_and_the_new() {
        let check = |changes: Value, theta, scaling| {
            assert_eq!(decoder(changes).unwrap().rope, Rope { theta, dims: 16, scaling });
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
            decoder(json!({"rope_scaling": {"type": "yarn", "factor": 2.0}})),
            "rope scaling \"yarn\" is not supported",
        );
        refused(decoder(json!({"partial_rotary_factor": 0.5})), "partial_rotary_factor \"0.5\"");
    }

    #[test]
    fn what_is_not_compiled_is_refused_by_name() {
        refused(decoder(json!({"architectures": ["MambaForCausalLM"]})), "architecture \"MambaForCausalLM\"");
        refused(decoder(json!({"architectures": []})), "\"none stated\"");
        refused(decoder(json!({"architectures": null, "model_type": "qwen2"})), "architecture \"qwen2\"");
        refused(decoder(json!({"hidden_act": "xielu"})), "hidden_act \"xielu\" is not supported");
        refused(
            decoder(json!({"quantization_config": {"bits": 4}})),
            "take the checkpoint in f32, f16 or bf16",
        );
        refused(
            encoder(json!({"position_embedding_type": "relative_key"})),
            "position_embedding_type \"relative_key\"",
        );
        refused(encoder(json!({"is_decoder": true})), "is_decoder");
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
    fn a_model_type_stands_in_for_the_class() {
        for (kind, form) in [("llama", Form::Llama), ("mistral", Form::Mistral), ("bert", Form::Bert)] {
            let config: Config =
                serde_json::from_value(with(llama(), json!({"architectures": null, "model_type": kind})))
                    .unwrap();
            assert_eq!(config.form(Path::new("f")).unwrap(), form);
        }
    }

    #[test]
    fn an_encoder_is_read() {
        let found = encoder(json!({"max_position_embeddings": 128})).unwrap();
        assert_eq!(
            (found.hidden, found.positions, found.layers, found.heads, found.inner),
            (64, 128, 2, 4, 96)
        );
        assert_eq!((found.activation, found.norm_epsilon), (Activation::Gelu, 1e-12));
        assert_eq!((found.pooling, found.normalize), (Pooling::Cls, false));
        assert_eq!(encoder(json!({"hidden_act": "gelu_new"})).unwrap().activation, Activation::GeluTanh);
    }

    #[test]
    fn ids_come_alone_or_in_lists() {
        let check = |value: Value, expect: &[u32]| {
            let found: OneOrMore = serde_json::from_value(value).unwrap();
            assert_eq!(found.ids().collect::<Vec<_>>(), expect);
        };
        check(json!(2), &[2]);
        check(json!([2, 3]), &[2, 3]);
        check(json!(-1), &[]);
    }
}
