//! Export of a decoder: its settings as keys of `config.json`, and the names of its weights in the `transformers`
//! format.
//!
//! The result is read back with the family's own reader. Settings that this round trip would change are refused, so a
//! folder always matches the checkpoint that it was made from.

use narthex_spec::arch::{
    Activation, DecoderArch, Family, Projection, Rope, RopeScaling, WeightRole, WeightSpec,
};
use serde_json::{Map, Value, json};

use crate::{
    error::{CheckpointError, Result},
    family::{HfReader, hf_family},
    hf::{CONFIG, config::Config},
    layout::{Layout, NormGains},
    limits::unsupported,
    names::NameTable,
};

/// A decoder in the form of a `transformers` folder, with an untied head.
pub struct HfExport {
    /// The keys of `config.json`, except token ids and the data type.
    pub keys: Map<String, Value>,
    arch: DecoderArch,
    names: &'static NameTable,
    layout: Layout,
    tied_head: bool,
}

/// A tensor of the folder: its name, and the canonical weights that are concatenated along its rows.
pub struct FileTensor {
    /// Its name in the file.
    pub name: String,
    /// True for the weight of a linear layer.
    pub is_linear: bool,
    /// Canonical names and shapes.
    pub parts: Vec<(String, Vec<usize>)>,
}

impl HfExport {
    /// Creates the export of `arch`.
    ///
    /// Fails with [`CheckpointError::Unsupported`] for families that cannot be written, and for settings that the
    /// family's `config.json` has no keys for.
    pub fn new(arch: &DecoderArch) -> Result<Self> {
        let keys = keys(arch)?;
        let config = Config::new(CONFIG.into(), Value::Object(keys.clone()))?;
        let family = hf_family(&config)?;
        let HfReader::Decoder(read) = family.read else { return Err(other_family(arch.family)) };
        let found = read(&config)?;
        // Towers are not exported.
        let wanted = DecoderArch { tied_head: false, vision: None, audio: None, ..arch.clone() };
        if comparable(&found.arch) != comparable(&wanted) {
            return Err(unsupported(
                format!("{:?} decoder for {}", arch.family, CONFIG),
                "settings that its keys can express; use the safetensors checkpoint instead of GGUF",
                different(&found.arch, &wanted),
            ));
        }
        Ok(Self { keys, arch: wanted, names: family.names, layout: found.layout, tied_head: arch.tied_head })
    }

    /// Returns every tensor of the folder, in layer order. If the model has no head weight of its own, the head is a
    /// second copy of the embedding weight.
    pub fn tensors(&self) -> Vec<FileTensor> {
        let mut tensors: Vec<FileTensor> = Vec::new();
        for WeightSpec { name, shape, role } in self.arch.weights() {
            let canonical = name.to_string();
            let Some(place) = self.names.file_names(&canonical).into_iter().next() else { continue };
            let is_shared = self.tied_head && role == WeightRole::Linear(Projection::Logits);
            let source = if is_shared { "embed.weight".to_owned() } else { canonical };
            match tensors.iter_mut().find(|tensor| tensor.name == place.name) {
                Some(tensor) => tensor.parts.push((source, shape)),
                None => tensors.push(FileTensor {
                    name: place.name,
                    is_linear: matches!(role, WeightRole::Linear(_)),
                    parts: vec![(source, shape)],
                }),
            }
        }
        tensors.iter_mut().for_each(|tensor| tensor.parts.sort_by_key(|(name, _)| self.names.part(name)));
        tensors
    }

    /// Returns, for each stored row of a canonical matrix, its row in the canonical order; `None` if both orders are
    /// the same.
    pub fn rows(&self, canonical: &str, rows: usize) -> Option<Vec<u32>> {
        self.layout.stored_rows(canonical, rows)
    }

    /// Returns the offset subtracted from the elements of a weight before they are stored: 1 for gains that the file
    /// stores minus one.
    pub fn offset(&self, canonical: &str) -> f32 {
        let less = self.layout.gains == NormGains::MinusOne && canonical.ends_with("norm.weight");
        if less { 1.0 } else { 0.0 }
    }
}

fn other_family(family: Family) -> CheckpointError {
    let expected = "Llama, Mistral, Qwen2, Qwen3, Phi3, Gemma2 or Gemma3, which AMD's tools read";
    unsupported("family", expected, format!("{family:?}"))
}

/// Returns a copy of `arch` in which numbers that one of the formats keeps in single precision are rounded to it.
fn comparable(arch: &DecoderArch) -> DecoderArch {
    let mut arch = arch.clone();
    if let Some(
        Rope { scaling: RopeScaling::LongRope { attention_factor, .. }, .. }
        | Rope { scaling: RopeScaling::Yarn { attention_factor, .. }, .. },
    ) = &mut arch.rope
    {
        *attention_factor = f64::from(*attention_factor as f32);
    }
    arch
}

/// Describes the first setting that differs, for a message.
fn different(found: &DecoderArch, wanted: &DecoderArch) -> String {
    let layers = found.layers.iter().zip(&wanted.layers).position(|(found, wanted)| found != wanted);
    match layers {
        Some(layer) => format!("layer {layer}, which differs from a {:?} model's", wanted.family),
        None => match wanted.rope.as_ref().map(|rope| &rope.scaling) {
            Some(RopeScaling::Factors { .. }) => {
                "rotary divisors without the rule that they come from".to_owned()
            }
            _ => "rotary positions or caps for which it has no keys".to_owned(),
        },
    }
}

/// Returns the class of the `transformers` library for a family, and its model type.
fn class(family: Family) -> Option<(&'static str, &'static str)> {
    Some(match family {
        Family::Llama => ("LlamaForCausalLM", "llama"),
        Family::Mistral => ("MistralForCausalLM", "mistral"),
        Family::Qwen2 => ("Qwen2ForCausalLM", "qwen2"),
        Family::Qwen3 => ("Qwen3ForCausalLM", "qwen3"),
        Family::Phi3 => ("Phi3ForCausalLM", "phi3"),
        Family::Gemma2 => ("Gemma2ForCausalLM", "gemma2"),
        Family::Gemma3 => ("Gemma3ForCausalLM", "gemma3_text"),
        _ => return None,
    })
}

fn keys(arch: &DecoderArch) -> Result<Map<String, Value>> {
    let other = || other_family(arch.family);
    let (class, model_type) = class(arch.family).ok_or_else(other)?;
    let (layer, rope) = arch.layers.first().zip(arch.rope.as_ref()).ok_or_else(other)?;
    let attention = layer.attention().ok_or_else(other)?;
    let mlp = layer.mlp().ok_or_else(other)?;
    let mut keys = json!({
        "architectures": [class],
        "model_type": model_type,
        "vocab_size": arch.vocab,
        "hidden_size": arch.hidden,
        "intermediate_size": mlp.inner,
        "num_hidden_layers": arch.layers.len(),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_size,
        "max_position_embeddings": arch.context,
        "hidden_act": activation(mlp.activation),
        "rms_norm_eps": short(arch.norm_epsilon),
        "attention_bias": attention.output_bias,
        "tie_word_embeddings": false,
        "rope_theta": rope.theta,
        "rope_scaling": scaling(&rope.scaling),
    });

    if let (Value::Object(keys), Value::Object(own)) = (&mut keys, own_keys(arch, rope)) {
        keys.extend(own);
    }

    match keys {
        Value::Object(keys) => Ok(keys),
        _ => Err(other()),
    }
}

/// Returns the keys of a family that are not among the keys of all families.
fn own_keys(arch: &DecoderArch, rope: &Rope) -> Value {
    let Some((layer, attention)) = arch.layers.first().zip(arch.attentions().next()) else {
        return Value::Null;
    };
    match arch.family {
        Family::Llama => json!({"mlp_bias": layer.mlp().is_some_and(|mlp| mlp.bias)}),
        Family::Mistral => json!({"sliding_window": attention.window}),
        Family::Qwen2 | Family::Qwen3 => json!({"use_sliding_window": false}),
        Family::Phi3 => json!({
            "sliding_window": attention.window,
            "original_max_position_embeddings": original_context(arch, rope),
            "partial_rotary_factor": rope.dims as f64 / attention.head_size as f64,
        }),
        _ => gemma(arch),
    }
}

/// Returns the keys of Gemma 2 and 3 that are not among the shared ones.
fn gemma(arch: &DecoderArch) -> Value {
    let attention = arch.attentions().next();
    let window = arch.attentions().find_map(|attention| attention.window).unwrap_or(arch.context);
    let scalar = attention.map(|attention| attention.scale().powi(-2).round());
    let activation = arch.layers.first().map(|layer| activation(layer.feed_forward.activation()));
    json!({
        "hidden_activation": activation,
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": attention.and_then(|attention| attention.score_cap),
        "final_logit_softcapping": arch.logit_cap,
        "sliding_window": window,
        "rope_local_base_freq": arch.local_rope.as_ref().map(|rope| rope.theta),
    })
}

/// Returns the context length that a model was first trained on, in tokens.
fn original_context(arch: &DecoderArch, rope: &Rope) -> usize {
    match rope.scaling {
        RopeScaling::LongRope { original_context, .. } => original_context,
        _ => arch.context,
    }
}

/// Returns `rope_scaling` in the spelling that every version of the library reads.
fn scaling(scaling: &RopeScaling) -> Value {
    match scaling {
        RopeScaling::None | RopeScaling::Factors { .. } => Value::Null,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "type": "linear", "factor": factor}),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_context,
        }),
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, truncate } => {
            json!({
                "rope_type": "yarn",
                "type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original_context,
                "beta_fast": beta_fast,
                "beta_slow": beta_slow,
                "attention_factor": attention_factor,
                "truncate": truncate,
            })
        }
        RopeScaling::LongRope { short, long, .. } => {
            json!({"type": "longrope", "short_factor": shorts(short), "long_factor": shorts(long)})
        }
    }
}

/// Returns numbers with as few digits as represent them.
fn shorts(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|&number| short(number)).collect()
}

fn activation(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
        Activation::Relu => "relu",
        Activation::Tanh => "tanh",
    }
}

/// Returns the shortest decimal number that parses to `value`.
fn short(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use narthex_spec::arch::Architecture;

    use super::*;

    fn golden(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/families").join(name)
    }

    fn decoder(path: &Path) -> DecoderArch {
        match crate::architecture(path).map_err(|error| error.to_string()) {
            Ok(Architecture::Decoder(arch)) => arch,
            other => panic!("{}: {other:?}", path.display()),
        }
    }

    #[test]
    fn settings_come_back_from_either_format() {
        for family in ["gemma2", "gemma3", "llama", "mistral", "phi3", "phi3.5", "qwen2.5", "qwen3"] {
            let arch = decoder(&golden(family));
            let written = HfExport::new(&arch).unwrap_or_else(|error| panic!("{family}: {error}"));
            assert_eq!(written.arch, DecoderArch { tied_head: false, ..arch }, "{family}");
        }
        for family in ["gemma2", "gemma3", "phi3", "phi3.5", "qwen2.5", "qwen3"] {
            let path = golden(family).join("model.gguf");
            if path.is_file() {
                HfExport::new(&decoder(&path)).map_err(|error| panic!("{family}: {error}")).ok();
            }
        }
    }

    #[test]
    fn properties_without_a_key_are_refused_by_name() {
        let check = |arch: &DecoderArch, expect: &str| {
            let error = HfExport::new(arch).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expect), "{error} lacks {expect}");
        };
        check(&decoder(&golden("gpt2")), "unsupported family: found Gpt2, expected Llama");
        check(&decoder(&golden("gemma3n")), "family: found Gemma3n");
        // Only the upper layers have a window.
        check(&decoder(&golden("qwen2")), "layer 1, which differs from a Qwen2 model's");
        let mut divided = decoder(&golden("llama"));
        divided.rope.as_mut().unwrap().scaling = RopeScaling::Factors { factors: vec![1.0; 8] };
        check(&divided, "use the safetensors checkpoint instead of GGUF");
    }

    #[test]
    fn every_tensor_of_a_file_is_named_once() {
        for family in ["gemma2", "gemma3", "llama", "phi3", "qwen2.5", "qwen3"] {
            let path = golden(family);
            let bytes = std::fs::read(path.join("model.safetensors")).unwrap();
            let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
            let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
            let mut stored: Vec<&str> =
                header.keys().map(String::as_str).filter(|name| *name != "__metadata__").collect();
            let arch = decoder(&path);
            let written = HfExport::new(&arch).unwrap();
            let tensors = written.tensors();
            let mut named: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            if arch.tied_head {
                assert!(!stored.contains(&"lm_head.weight"));
                stored.push("lm_head.weight");
            }
            stored.sort_unstable();
            named.sort_unstable();
            assert_eq!(named, stored, "{family}");
        }
        let arch = decoder(&golden("phi3"));
        let tensors = HfExport::new(&arch).unwrap().tensors();
        let fused = tensors.iter().find(|tensor| tensor.name.ends_with("qkv_proj.weight")).unwrap();
        let parts: Vec<&str> = fused.parts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(parts, ["q", "k", "v"].map(|part| format!("layers.0.attn.{part}_proj.weight")));
    }
}
