//! Model families, one file each: how a family's settings are read in either format, and how its weights are called.
//!
//! A family holds only what it has otherwise than others; what most share stands with the format's own reader
//! (`hf::decoder`, `gguf::decoder`). The graph builder never asks for the family: it reads the architecture.
//!
//! To add one: a file here, and its rooms in [`HF`] and [`GGUF`].

mod bert;
mod llama;
mod mistral;

use narthex_spec::arch::{DecoderArch, EncoderArch};

use super::{
    CheckpointError,
    gguf::decoder::Keys,
    hf::{config::Config, pooling::Sentence},
    names::Words,
    tensors::{RowOrder, Tensors},
};

/// The families that are read from folders of the `transformers` library.
pub(super) const HF: &[&HfFamily] = &[&llama::HF, &mistral::HF, &bert::HF];

/// The families that are read from GGUF.
pub(super) const GGUF: &[&GgufFamily] = &[&llama::GGUF, &bert::GGUF];

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
    Decoder(fn(&Config) -> Result<DecoderArch, CheckpointError>),
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
    Decoder(fn(&Keys<'_>, &Tensors) -> Result<GgufDecoder, CheckpointError>),
    /// Of an encoder.
    Encoder(fn(&Keys<'_>, &Tensors) -> Result<EncoderArch, CheckpointError>),
}

/// A decoder, and how its file's weights lie.
#[derive(Debug)]
pub(super) struct GgufDecoder {
    /// What it computes; its numbers are bounded but not yet checked against each other.
    pub(super) arch: DecoderArch,
    /// The order of q and k rows.
    pub(super) order: RowOrder,
}
