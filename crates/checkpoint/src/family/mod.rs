//! Model families, one file each: a family's settings in either format, and the names of its weights.
//!
//! A family's file has only its differences; the settings that most families share are in the format's own reader
//! (`hf::decoder`, `gguf::decoder`). The graph builder reads the architecture and never checks the family.
//!
//! To add a family, add a file here and list it in [`HF`] and [`GGUF`].

mod bert;
mod chatglm;
mod distilbert;
mod ernie;
mod exaone4;
mod gemma;
mod gemma3n;
mod gemma4;
mod gpt2;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod idefics3;
mod lfm2;
mod lfm2_moe;
mod llama;
mod mistral;
mod mobilebert;
mod modernbert;
mod nomic;
mod olmo2;
mod openelm;
mod phi3;
mod qwen;
mod qwen3_5;
mod qwen3_moe;
mod roberta;
mod smollm3;
mod stablelm;
mod whisper;

use narthex_spec::arch::{ClassifierLayers, DecoderArch, EncoderArch, SpeechArch};

pub(super) use bert::pooling as gguf_pooling;
pub(super) use whisper::{HF_NAMES as WHISPER_NAMES, NORM_EPSILON as WHISPER_NORM_EPSILON};

use super::{
    CheckpointError, Result,
    gguf::{decoder::GgufKeys, meta::Metadata},
    hf::{config::Config, pooling::SentenceEmbedding},
    layout::Layout,
    limits::malformed,
    names::NameTable,
    stored_heads::RopePairs,
    tensors::Tensors,
};

/// Families that are read from folders of the `transformers` library.
pub(super) const HF: &[&HfFamily] = &[
    &llama::HF,
    &mistral::HF,
    &qwen::HF2,
    &qwen::HF3,
    &qwen3_moe::HF,
    &qwen3_5::HF,
    &smollm3::HF,
    &olmo2::HF,
    &exaone4::HF,
    &phi3::HF,
    &granite::HF,
    &granite_hybrid::HF,
    &stablelm::HF,
    &gemma::HF2,
    &gemma::HF3,
    &gemma3n::HF,
    &gemma4::HF,
    &idefics3::HF,
    &lfm2::HF,
    &lfm2_moe::HF,
    &gpt2::HF,
    &gpt_oss::HF,
    &openelm::HF,
    &chatglm::HF,
    &ernie::HF,
    &bert::HF,
    &roberta::HF,
    &roberta::HF_XLM,
    &distilbert::HF,
    &mobilebert::HF,
    &modernbert::HF,
    &nomic::HF,
    &whisper::HF,
];

/// Families that are read from GGUF.
pub(super) const GGUF: &[&GgufFamily] = &[
    &llama::GGUF,
    &qwen::GGUF2,
    &qwen::GGUF3,
    &qwen3_moe::GGUF,
    &smollm3::GGUF,
    &olmo2::GGUF,
    &exaone4::GGUF,
    &phi3::GGUF,
    &granite::GGUF,
    &granite_hybrid::GGUF,
    &stablelm::GGUF,
    &gemma::GGUF2,
    &gemma::GGUF3,
    &gemma3n::GGUF,
    &gemma4::GGUF,
    &lfm2::GGUF,
    &lfm2_moe::GGUF,
    &qwen3_5::GGUF,
    &gpt2::GGUF,
    &gpt_oss::GGUF,
    &openelm::GGUF,
    &chatglm::GGUF,
    &ernie::GGUF,
    &bert::GGUF,
    &nomic::GGUF,
];

/// A family as stored in folders of the `transformers` library.
#[derive(Debug)]
pub(super) struct HfFamily {
    /// Model classes, as listed in `architectures`.
    pub(super) classes: &'static [&'static str],
    /// Model type, for files that state no class.
    pub(super) model_type: &'static str,
    /// Names of its weights.
    pub(super) names: &'static NameTable,
    /// Reader of its settings.
    pub(super) read: HfReader,
}

/// Reader of a folder's settings.
#[derive(Debug, Clone, Copy)]
pub(super) enum HfReader {
    /// For a causal language model.
    Decoder(fn(&Config) -> Result<Decoder>),
    /// For an encoder.
    Encoder(fn(&Config, &SentenceEmbedding) -> Result<EncoderArch>),
    /// For a model with the layers of a decoder, in which every token attends to all others.
    Embedder {
        /// Reader of the layers.
        decoder: fn(&Config) -> Result<Decoder>,
        /// Reader of the layers of a classifier's head.
        classifier: fn(&Config) -> Result<ClassifierLayers>,
    },
    /// For a model that transcribes speech.
    Speech(fn(&Config) -> Result<SpeechArch>),
}

/// A family as stored in GGUF files.
#[derive(Debug)]
pub(super) struct GgufFamily {
    /// Value of `general.architecture`, the prefix of its metadata keys.
    pub(super) name: &'static str,
    /// Names of its weights.
    pub(super) names: &'static NameTable,
    /// Reader of its metadata. Shapes that the metadata does not state come from the tensors.
    pub(super) read: GgufReader,
}

/// Reader of a GGUF file's metadata.
#[derive(Debug, Clone, Copy)]
pub(super) enum GgufReader {
    /// For a causal language model.
    Decoder(fn(&GgufKeys<'_>, &Tensors) -> Result<Decoder>),
    /// For an encoder.
    Encoder(fn(&GgufKeys<'_>, &Tensors) -> Result<EncoderArch>),
}

/// A decoder and the layout of its weights.
#[derive(Debug)]
pub(super) struct Decoder {
    /// Architecture. Its numbers are within bounds but not yet checked for consistency.
    pub(super) arch: DecoderArch,
    /// Layout of its weights.
    pub(super) layout: Layout,
}

impl From<DecoderArch> for Decoder {
    /// Returns `arch` with weights in the canonical layout.
    fn from(arch: DecoderArch) -> Self {
        Self { layout: Layout::of(&arch), arch }
    }
}

impl Decoder {
    /// Sets the layout of q and k to interleaved RoPE pairs.
    fn with_interleaved_rope(mut self) -> Self {
        self.layout.pairs = RopePairs::Interleaved;
        self
    }
}

/// Returns the family that reads the model's class.
pub(super) fn hf_family(config: &Config) -> Result<&'static HfFamily> {
    config.packed_format()?;
    let stated = config.class();
    let kind = config.model_type();
    HF.iter()
        .find(|family| match stated {
            Some(stated) => family.classes.contains(&stated),
            None => Some(family.model_type) == kind,
        })
        .copied()
        .ok_or_else(|| no_family(config))
}

/// Returns the error for a model that no family reads. It lists the other classes of the same model type if that type is
/// supported, otherwise all classes, or all model types if the settings name no class.
fn no_family(config: &Config) -> CheckpointError {
    let kind = config.model_type();
    let Some(name) = config.class().or(kind) else {
        return malformed(config.path(), "the key architectures or model_type", "neither");
    };

    let expected = if config.class().is_none() {
        HF.iter().map(|family| family.model_type).collect()
    } else {
        let related = HF.iter().filter(|family| Some(family.model_type) == kind);
        let classes: Vec<&str> = related.flat_map(|family| family.classes).copied().collect();
        match classes.is_empty() {
            true => HF.iter().flat_map(|family| family.classes).copied().collect(),
            false => classes,
        }
    };
    CheckpointError::Architecture { expected, found: name.to_owned() }.in_file(config.path())
}

/// Returns the family that reads the file's architecture.
pub(super) fn gguf_family(metadata: &Metadata) -> Result<&'static GgufFamily> {
    let Some(name) = metadata.text("general.architecture")? else {
        return Err(malformed(metadata.path(), "the key general.architecture", "none"));
    };
    GGUF.iter().find(|family| family.name == name).copied().ok_or_else(|| {
        let known = GGUF.iter().map(|family| family.name).collect();
        CheckpointError::Architecture { expected: known, found: name.to_owned() }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn class(changes: Value) -> Result<&'static str> {
        let config = Config::new("config.json".into(), changes)?;
        Ok(hf_family(&config)?.model_type)
    }

    #[test]
    fn classes_that_are_not_known_are_refused_by_name() {
        let refused = |keys: Value, expect: &str| {
            let error = class(keys).unwrap_err().to_string();
            assert!(error.contains(expect), "{error} lacks {expect}");
        };
        refused(
            json!({"architectures": ["MambaForCausalLM"]}),
            "config.json: unsupported architecture: found MambaForCausalLM, expected one of LlamaForCausalLM, ",
        );
        // For an unsupported class of a supported family, the error lists only the family's classes.
        let choice = json!({"architectures": ["BertForMultipleChoice"], "model_type": "bert"});
        refused(choice, "found BertForMultipleChoice, expected one of Bert");
        refused(json!({"architectures": []}), "expected the key architectures or model_type, found neither");
        refused(
            json!({"architectures": null, "model_type": "mamba"}),
            "config.json: unsupported architecture: found mamba, expected one of llama, ",
        );
        refused(json!({"architectures": "LlamaForCausalLM"}), "config.json is malformed");
        let quantized = json!({"architectures": ["LlamaForCausalLM"], "quantization_config": {"bits": 4}});
        refused(quantized, "take the checkpoint in f32, f16 or bf16");
    }

    #[test]
    fn a_model_type_stands_in_for_the_class() {
        for kind in ["llama", "mistral", "bert"] {
            assert_eq!(class(json!({"architectures": null, "model_type": kind})).unwrap(), kind);
        }
    }
}
