//! Model families, one file each: the settings of a family in either format, and the names of its weights.
//!
//! A family holds only its differences; what most families share is in the format's own reader
//! (`hf::decoder`, `gguf::decoder`). The graph builder never asks for the family: it reads the architecture.
//!
//! To add a family, add a file here and its rows in [`HF`] and [`GGUF`].

mod bert;
mod chatglm;
mod distilbert;
mod gemma;
mod gemma3n;
mod gpt2;
mod granite;
mod llama;
mod mistral;
mod mobilebert;
mod openelm;
mod phi3;
mod qwen;
mod roberta;
mod smollm3;
mod stablelm;

use narthex_spec::arch::{DecoderArch, EncoderArch};

use serde_json::Value;

use super::{
    CheckpointError, Result,
    gguf::{decoder::GgufKeys, meta::Metadata},
    hf::{config::Config, pooling::SentenceEmbedding},
    layout::{Layout, RopePairs},
    limits::{malformed, unsupported},
    names::NameTable,
    quark,
    tensors::Tensors,
};

/// The families that are read from folders of the `transformers` library.
pub(super) const HF: &[&HfFamily] = &[
    &llama::HF,
    &mistral::HF,
    &qwen::HF2,
    &qwen::HF3,
    &smollm3::HF,
    &phi3::HF,
    &granite::HF,
    &granite::HF4,
    &stablelm::HF,
    &gemma::HF2,
    &gemma::HF3,
    &gemma3n::HF,
    &gpt2::HF,
    &openelm::HF,
    &chatglm::HF,
    &bert::HF,
    &roberta::HF,
    &roberta::HF_XLM,
    &distilbert::HF,
    &mobilebert::HF,
];

/// The families that are read from GGUF.
pub(super) const GGUF: &[&GgufFamily] = &[
    &llama::GGUF,
    &qwen::GGUF2,
    &qwen::GGUF3,
    &smollm3::GGUF,
    &phi3::GGUF,
    &granite::GGUF,
    &stablelm::GGUF,
    &gemma::GGUF2,
    &gemma::GGUF3,
    &gemma3n::GGUF,
    &gpt2::GGUF,
    &openelm::GGUF,
    &chatglm::GGUF,
    &bert::GGUF,
];

/// A family's folders.
#[derive(Debug)]
pub(super) struct HfFamily {
    /// The model classes, as `architectures` names them.
    pub(super) classes: &'static [&'static str],
    /// The model type, for files that name no class.
    pub(super) model_type: &'static str,
    /// Names of its weights.
    pub(super) names: &'static NameTable,
    /// Reads its settings.
    pub(super) read: HfReader,
}

/// Reads a folder's settings.
#[derive(Debug, Clone, Copy)]
pub(super) enum HfReader {
    /// Of a causal language model.
    Decoder(fn(&Config) -> Result<Decoder>),
    /// Of an encoder.
    Encoder(fn(&Config, &SentenceEmbedding) -> Result<EncoderArch>),
}

/// A family's GGUF files.
#[derive(Debug)]
pub(super) struct GgufFamily {
    /// `general.architecture`, with which its keys begin.
    pub(super) name: &'static str,
    /// Names of its weights.
    pub(super) names: &'static NameTable,
    /// Reads its metadata. Shapes that it does not state come from the tensors.
    pub(super) read: GgufReader,
}

/// Reads a GGUF file's metadata.
#[derive(Debug, Clone, Copy)]
pub(super) enum GgufReader {
    /// Of a causal language model.
    Decoder(fn(&GgufKeys<'_>, &Tensors) -> Result<Decoder>),
    /// Of an encoder.
    Encoder(fn(&GgufKeys<'_>, &Tensors) -> Result<EncoderArch>),
}

/// A decoder, and the layout of its weights.
#[derive(Debug)]
pub(super) struct Decoder {
    /// Architecture; its numbers are bounded but not yet checked against each other.
    pub(super) arch: DecoderArch,
    /// Layout of its weights.
    pub(super) layout: Layout,
}

impl From<DecoderArch> for Decoder {
    /// Returns a decoder with weights in the canonical layout.
    fn from(arch: DecoderArch) -> Self {
        Self { layout: Layout::of(&arch), arch }
    }
}

impl Decoder {
    /// Marks q and k as rotated in interleaved pairs.
    fn with_interleaved_rope(mut self) -> Self {
        self.layout.pairs = RopePairs::Interleaved;
        self
    }
}

/// The family that reads the model's class.
pub(super) fn hf_family(config: &Config) -> Result<&'static HfFamily> {
    if let Some(other) = config.quantization().filter(|config| !quark::is_read(config)) {
        return Err(unsupported(
            "quantization_config",
            "none, or AMD Quark's with uint4 weights in groups; take the checkpoint in f32, f16 or bf16, or a GGUF file of it",
            other.get("quant_method").and_then(Value::as_str).unwrap_or("some"),
        )
        .in_file(config.path()));
    }
    let stated = config.class();
    let kind = config.model_type();
    let known = |family: &&&HfFamily| match stated {
        Some(stated) => family.classes.contains(&stated),
        None => Some(family.model_type) == kind,
    };
    HF.iter().find(known).copied().ok_or_else(|| {
        // Of a family that is compiled, its other classes; else everything.
        let of_kind = || HF.iter().filter(|family| Some(family.model_type) == kind);
        let expected: Vec<&str> = match stated {
            Some(_) if of_kind().next().is_some() => {
                of_kind().flat_map(|family| family.classes).copied().collect()
            }
            Some(_) => HF.iter().flat_map(|family| family.classes).copied().collect(),
            None => HF.iter().map(|family| family.model_type).collect(),
        };
        let found = stated.or(kind).unwrap_or("none stated").to_owned();
        CheckpointError::Architecture { expected, found }.in_file(config.path())
    })
}

/// The family that reads the file's architecture.
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
    use serde_json::json;

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
            "config.json: architecture \"MambaForCausalLM\" is not supported: expected one of LlamaForCausalLM, ",
        );
        // For an unsupported class of a supported family, the error lists only the family's classes.
        let tokens = json!({"architectures": ["BertForTokenClassification"], "model_type": "bert"});
        refused(tokens, "\"BertForTokenClassification\" is not supported: expected one of Bert");
        refused(json!({"architectures": []}), "\"none stated\"");
        refused(
            json!({"architectures": null, "model_type": "mamba"}),
            "config.json: architecture \"mamba\" is not supported: expected one of llama, ",
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
