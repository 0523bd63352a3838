//! Checkpoint files on disk: readers for GGUF, safetensors and CTranslate2 behind one interface.
//!
//! Weights have the canonical names of `narthex_spec::arch`, whatever the file calls them. This crate does not depend
//! on graphs. All bytes are untrusted: malformed files cause a [`CheckpointError`], never a panic.
//!
//! Start at [`open()`]. The formats are in `gguf`, `hf` and `ct2`; their common parts are in `tensors`, `names`, `layout`
//! and `required_tensors`; the differences of model families are in `family`.

mod adapter;
mod checkpoint;
mod error;
mod file_watches;
mod open;

mod ct2;
mod family;
mod gguf;
pub mod hf;
mod safetensors;

mod encoding;
pub mod export;
mod layout;
pub mod limits;
mod names;
pub mod packed;
pub mod pooling;
mod prune;
mod required_tensors;
mod reranker;
mod slice;
mod special;
mod stored_heads;
mod stored_tensor;
mod tensors;
mod tied;
mod weight;
mod yarn;

pub use adapter::Adapter;
pub use checkpoint::{Checkpoint, TokenizerSource};
pub use encoding::{Encoding, IntegerBlocks};
pub use error::{CheckpointError, Result};
pub use file_watches::FileWatches;
pub use open::{
    PublishedEmbedding, architecture, architecture_from_config, architecture_from_headers, header_length,
    open, open_with,
};
pub use required_tensors::parameters;
pub use reranker::AnswerReranker;
pub use slice::SliceError;
pub use special::SpecialTokens;
pub use weight::{Columns, Weight, WeightSource};
pub use yarn::{YarnError, extend};
