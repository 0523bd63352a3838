//! Model families, one file each: how a family's settings are read in either format, and how its weights are called.
//!
//! A family holds only what it has otherwise than others; what most share stands with the format's own reader
//! (`hf::decoder`, `gguf::decoder`). The graph builder never asks for the family: it reads the architecture.
//!
//! To add one: a file here, and its rooms in [`HF`] and [`GGUF`].

mod bert;
mod chatglm;
mod distilbert;
mod gemma;
mod gemma3n;
mod gpt2;
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

use super::{
    CheckpointError,
    gguf::decoder::Keys,
    hf::{config::Config, pooling::Sentence},
    layout::{Layout, Pairs},
    names::Words,
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
    /// What its weights are called.
    pub(super) words: &'static Words,
    /// Reads its settings.
    pub(super) read: HfReader,
}

/// Reads a folder's settings.
#[derive(Debug, Clone, Copy)]
pub(super) enum HfReader {
    /// Of a causal language model.
    Decoder(fn(&Config) -> Result<Decoder, CheckpointError>),
    /// Of an encoder.
    Encoder(fn(&Config, &Sentence) -> Result<EncoderArch, CheckpointError>),
}

/// A family's GGUF files.
#[derive(Debug)]
pub(super) struct GgufFamily {
    /// `general.architecture`, with which its keys begin.
    pub(super) name: &'static str,
    /// What its weights are called.
    pub(super) words: &'static Words,
    /// Reads its metadata; shapes that it leaves open are taken from the tensors.
    pub(super) read: GgufReader,
}

/// Reads a GGUF file's metadata.
#[derive(Debug, Clone, Copy)]
pub(super) enum GgufReader {
    /// Of a causal language model.
    Decoder(fn(&Keys<'_>, &Tensors) -> Result<Decoder, CheckpointError>),
    /// Of an encoder.
    Encoder(fn(&Keys<'_>, &Tensors) -> Result<EncoderArch, CheckpointError>),
}

/// A decoder, and how its file's weights lie.
#[derive(Debug)]
pub(super) struct Decoder {
    /// What it computes; its numbers are bounded but not yet checked against each other.
    pub(super) arch: DecoderArch,
    /// How its weights lie.
    pub(super) layout: Layout,
}

impl From<DecoderArch> for Decoder {
    /// A decoder whose weights lie as the canonical ones do.
    fn from(arch: DecoderArch) -> Self {
        Self { layout: Layout::of(&arch), arch }
    }
}

impl Decoder {
    /// With weights of q and k that rotate neighbours against each other.
    fn of_neighbours(mut self) -> Self {
        self.layout.pairs = Pairs::Neighbours;
        self
    }
}
