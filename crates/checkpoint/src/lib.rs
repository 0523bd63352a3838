//! Checkpoints as files on disk: GGUF and safetensors readers behind one interface.
//!
//! Weights are asked for by the canonical names of `narthex_spec::arch`, whatever the file calls them. Nothing here
//! knows of graphs. Every byte comes from outside: malformed files give a [`CheckpointError`], never a panic.
//!
//! Start at [`open`]; the two formats are in `gguf` and `hf`, what they share in `tensors`, `names`, `layout` and
//! `required_tensors`, and what model families have each otherwise in `family`.

mod open;

mod family;
mod gguf;
pub mod hf;
mod safetensors;

mod decode;
pub mod export;
mod layout;
pub mod limits;
mod names;
mod prune;
pub mod quark;
mod required_tensors;
mod slice;
mod special;
mod stored;
mod tensors;
mod weight;

pub use open::{architecture, architecture_from_config, architecture_from_headers, header_length, open};
pub use required_tensors::parameters;
pub use slice::SliceError;

use std::{borrow::Cow, path::PathBuf};

use narthex_mmap::FileWatch;
use narthex_spec::{TokenId, arch::Architecture, manifest::Prompts};

/// Result of reading or writing a checkpoint.
pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// Encoding of a weight's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// Brain float.
    Bf16,
    /// GGUF block formats, as ggml defines them.
    Q4_0,
    /// 4-bit blocks of 32 with scale and minimum.
    Q4_1,
    /// 5-bit blocks of 32 with scale.
    Q5_0,
    /// 5-bit blocks of 32 with scale and minimum.
    Q5_1,
    /// 8-bit blocks of 32 with scale.
    Q8_0,
    /// 4-bit super-blocks of 256.
    Q4K,
    /// 5-bit super-blocks of 256.
    Q5K,
    /// 6-bit super-blocks of 256.
    Q6K,
    /// 4-bit blocks of 32 with a scale in single precision and a zero point; how AMD Quark's groups are read.
    Uint4,
}

/// One weight, still encoded, usually borrowed from a memory map.
#[derive(Debug, Clone)]
pub struct Weight<'a> {
    /// Canonical name.
    pub name: String,
    /// Row-major shape; linear weights are `[out, in]`, vectors `[n]`.
    pub shape: Vec<usize>,
    /// Encoding of elements; blocks run along the last dimension.
    pub encoding: Encoding,
    /// The encoded rows, in file order.
    pub bytes: Cow<'a, [u8]>,
    /// Row `r` of the weight is row `rows[r]` of `bytes`; `None` is the identity. (GGUF stores the q and k rows of
    /// Llama interleaved.)
    pub rows: Option<Vec<u32>>,
    /// Elements of a stored row that belong to the weight; `None` for all of them.
    pub columns: Option<Columns>,
    /// Factor that every decoded element is multiplied with.
    pub scale: f32,
}

/// Some columns of a stored weight, whole blocks of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// Elements of a stored row.
    stored: usize,
    /// Ranges that are read, in this order.
    ranges: Vec<std::ops::Range<usize>>,
}

/// A checkpoint's weights by canonical name.
pub trait WeightSource: Send + Sync {
    /// The weight called `name`, its shape as stored.
    fn weight(&self, name: &str) -> Result<Weight<'_>>;

    /// Returns whether the weight called `name` exists.
    fn has(&self, name: &str) -> bool;

    /// The file that has the weight called `name`, for messages.
    fn file(&self, _name: &str) -> Option<&std::path::Path> {
        None
    }

    /// The weight's name, with the file's own name for it where that differs, for messages.
    fn called(&self, name: &str) -> String {
        name.to_owned()
    }

    /// Fails with [`CheckpointError::NotFinite`] where one of these values of the weight called `name` is not.
    fn check_finite(&self, name: &str, values: &[f32]) -> Result<()> {
        let Some(&found) = values.iter().find(|value| !value.is_finite()) else { return Ok(()) };
        let error = CheckpointError::NotFinite { name: self.called(name), found };
        Err(match self.file(name) {
            Some(file) => error.in_file(file),
            None => error,
        })
    }
}

/// Tokenizer of a checkpoint.
#[derive(Debug, Clone)]
pub enum TokenizerSource {
    /// GGUF metadata, as `narthex-text` takes it.
    Gguf(Box<narthex_text::tokenizer::GgufVocab>),
    /// The bytes of a `tokenizer.json`.
    Json(Vec<u8>),
}

/// An opened checkpoint.
pub struct Checkpoint {
    /// Architecture.
    pub architecture: Architecture,
    /// Its weights.
    pub weights: Box<dyn WeightSource>,
    /// Its tokenizer.
    pub tokenizer: TokenizerSource,
    /// Special token rules.
    pub special: SpecialTokens,
    /// Text of the chat template, if there is one.
    pub chat_template: Option<String>,
    /// Prefixes of inputs, for embedding models.
    pub prompts: Prompts,
    /// The longest sequence its publisher serves, in tokens.
    pub max_length: usize,
    /// The files it was read from.
    pub files: Vec<PathBuf>,
    /// The licence it states.
    pub license: Option<String>,
    /// Watches on the files with its weights.
    pub watches: FileWatches,
}

/// Watches on mapped files, by path.
#[derive(Debug, Clone, Default)]
pub struct FileWatches(Vec<(PathBuf, FileWatch)>);

impl FileWatches {
    /// Fails if a file has changed since it was opened. To be called after the last read of a weight.
    ///
    /// # Errors
    /// [`CheckpointError::Read`] with the file.
    pub fn check(&self) -> Result<(), CheckpointError> {
        let changed = self.0.iter().find_map(|(path, watch)| Some((path, watch.check().err()?)));
        changed.map_or(Ok(()), |(path, source)| Err(CheckpointError::Read { path: path.clone(), source }))
    }
}

impl Checkpoint {
    /// This model with a head for these tokens, rising, alone; an encoder stays as it is.
    pub fn pruned(mut self, kept: &[TokenId]) -> Self {
        if let Architecture::Decoder(arch) = &mut self.architecture {
            self.weights = Box::new(prune::Pruned::new(self.weights, arch, kept));
        }
        self
    }
}

/// Special tokens as the checkpoint states them.
#[derive(Debug, Clone, Default)]
pub struct SpecialTokens {
    /// Begins every sequence, where the model wants one (not merely defines one).
    pub bos: Option<u32>,
    /// Every token that ends an answer.
    pub stop: Vec<u32>,
    /// Fills a batch.
    pub pad: Option<u32>,
    /// Texts by the names that templates use: `bos_token`, `eos_token`, `unk_token`, `pad_token`, ….
    pub texts: std::collections::BTreeMap<String, String>,
}

/// The reason why a checkpoint was refused.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file is not what its format says.
    #[error("{path} is malformed: expected {expected}, found {found}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Content that the format requires.
        expected: String,
        /// Content of the file.
        found: String,
    },
    /// A weight is missing.
    #[error("{path} has no tensor for {name}")]
    MissingTensor {
        /// The file or folder.
        path: PathBuf,
        /// The canonical name, with the file's own name for it where that differs.
        name: String,
    },
    /// A weight's shape is not what the configuration says.
    #[error("tensor {name} has the wrong shape: expected {expected:?}, found {found:?}")]
    WrongShape {
        /// The canonical name, with the file's own name for it where that differs.
        name: String,
        /// From the configuration; of the file's whole tensor where the weight is a part of it.
        expected: Vec<usize>,
        /// From the file.
        found: Vec<usize>,
    },
    /// A weight's bytes are fewer or more than its shape and encoding take.
    #[error(
        "tensor {name} has the wrong size: expected {expected} bytes, found {found}; fetch the file again"
    )]
    WrongSize {
        /// The canonical name, with the file's own name for it where that differs.
        name: String,
        /// From the shape and the encoding.
        expected: usize,
        /// Bytes in the file.
        found: usize,
    },
    /// A weight has a value that no model computes with.
    #[error("tensor {name} holds {found}: expected finite numbers; take another copy of the checkpoint")]
    NotFinite {
        /// The canonical name, with the file's own name for it where that differs.
        name: String,
        /// The first such value.
        found: f32,
    },
    /// A weight or a setting is wrong or not supported, and this is its file.
    #[error("{path}: {what}")]
    InFile {
        /// The file.
        path: PathBuf,
        /// The error.
        what: Box<CheckpointError>,
    },
    /// The model's class or family is not one that is compiled.
    #[error("architecture {found:?} is not supported: expected one of {}", expected.join(", "))]
    Architecture {
        /// The classes or families that are.
        expected: Vec<&'static str>,
        /// Class or family that the checkpoint states.
        found: String,
    },
    /// Something well-formed that Narthex does not compile.
    #[error("{what} {found:?} is not supported: expected {expected}")]
    Unsupported {
        /// Which setting.
        what: String,
        /// Supported values.
        expected: String,
        /// Value of the checkpoint.
        found: String,
    },
}

impl CheckpointError {
    /// The same error with the file of what it is about, unless it names one already.
    fn in_file(self, path: &std::path::Path) -> Self {
        match self {
            Self::Read { .. } | Self::Malformed { .. } | Self::MissingTensor { .. } | Self::InFile { .. } => {
                self
            }
            Self::WrongShape { .. }
            | Self::WrongSize { .. }
            | Self::NotFinite { .. }
            | Self::Architecture { .. }
            | Self::Unsupported { .. } => Self::InFile { path: path.to_owned(), what: Box::new(self) },
        }
    }

    /// The same error with `called` as the name of the tensor that is wrong.
    fn of_tensor(mut self, called: String) -> Self {
        if let Self::WrongShape { name, .. } | Self::WrongSize { name, .. } | Self::NotFinite { name, .. } =
            &mut self
        {
            *name = called;
        }
        self
    }

    /// Returns the error without the file around it.
    pub fn what(&self) -> &Self {
        match self {
            Self::InFile { what, .. } => what.what(),
            other => other,
        }
    }

    /// The same error about a file that was read under another name, as those are that were fetched in part.
    pub fn renamed(mut self, name: impl Fn(&std::path::Path) -> PathBuf) -> Self {
        match &mut self {
            Self::Read { path, .. }
            | Self::Malformed { path, .. }
            | Self::MissingTensor { path, .. }
            | Self::InFile { path, .. } => *path = name(path),
            Self::WrongShape { .. }
            | Self::WrongSize { .. }
            | Self::NotFinite { .. }
            | Self::Architecture { .. }
            | Self::Unsupported { .. } => {}
        }
        self
    }
}
