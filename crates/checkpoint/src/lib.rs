//! Checkpoint files on disk: readers for GGUF and safetensors behind one interface.
//!
//! Weights have the canonical names of `narthex_spec::arch`, whatever the file calls them. This crate does not depend
//! on graphs. All bytes are untrusted: malformed files cause a [`CheckpointError`], never a panic.
//!
//! Start at [`open()`]. The two formats are in `gguf` and `hf`; their common parts are in `tensors`, `names`, `layout`
//! and `required_tensors`; the differences of model families are in `family`.

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
pub mod pooling;
mod prune;
pub mod quark;
mod required_tensors;
mod slice;
mod special;
mod stored_tensor;
mod tensors;
mod weight;
mod yarn;

pub use open::{architecture, architecture_from_config, architecture_from_headers, header_length, open};
pub use required_tensors::parameters;
pub use slice::SliceError;
pub use yarn::{YarnError, extend};

use pooling::PoolingSource;

use std::{borrow::Cow, path::PathBuf};

use narthex_files::FileWatch;
use narthex_spec::{TokenId, arch::Architecture, manifest::Prompts};
use narthex_text::tokenizer::{GgufVocab, Tokenizer, TokenizerError, gguf_json, package_json};

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
    /// 4-bit blocks of 32 with scale. This and the following are GGUF block formats as ggml defines them.
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
    /// 4-bit blocks of 32 with a scale in single precision and a zero point. Groups of AMD Quark are converted to it.
    Uint4,
}

/// A weight in its encoded form, usually borrowed from a memory map.
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
    /// Factor by which every decoded element is multiplied.
    pub scale: f32,
}

/// Selected columns of a stored weight, in whole blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// Number of elements in a stored row.
    stored: usize,
    /// Ranges to read, in this order.
    ranges: Vec<std::ops::Range<usize>>,
}

/// A checkpoint's weights by canonical name.
pub trait WeightSource: Send + Sync {
    /// Returns the weight called `name` with the shape as stored.
    fn weight(&self, name: &str) -> Result<Weight<'_>>;

    /// Returns whether the weight called `name` exists.
    fn has(&self, name: &str) -> bool;

    /// Returns the file that has the weight called `name`, for messages.
    fn file(&self, _name: &str) -> Option<&std::path::Path> {
        None
    }

    /// Returns the weight's name, with the file's own name for it if that differs, for messages.
    fn called(&self, name: &str) -> String {
        name.to_owned()
    }

    /// Checks the values of the weight called `name`. Fails with [`CheckpointError::NotFinite`] if one of them is not
    /// finite.
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
    /// GGUF metadata in the form that `narthex-text` reads.
    Gguf(Box<GgufVocab>),
    /// The bytes of a `tokenizer.json`.
    Json(Vec<u8>),
}

impl TokenizerSource {
    /// Reads the tokenizer.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_gguf`] and [`Tokenizer::from_json`].
    pub fn tokenizer(&self) -> Result<Tokenizer, TokenizerError> {
        match self {
            Self::Gguf(vocab) => Tokenizer::from_gguf(vocab),
            Self::Json(bytes) => Tokenizer::from_json(bytes),
        }
    }

    /// Returns the `tokenizer.json` of a package.
    ///
    /// # Errors
    /// The errors of [`gguf_json`] and [`package_json`].
    pub fn package_json(&self) -> Result<Vec<u8>, TokenizerError> {
        match self {
            Self::Gguf(vocab) => package_json(&gguf_json(vocab)?),
            Self::Json(bytes) => package_json(bytes),
        }
    }
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
    /// Source of the pooling, for embedding models.
    pub pooling: PoolingSource,
    /// Maximum sequence length that its publisher serves, in tokens.
    pub max_length: usize,
    /// Files that it was read from.
    pub files: Vec<PathBuf>,
    /// Licence that it states.
    pub license: Option<String>,
    /// Watches on the files with its weights.
    pub watches: FileWatches,
}

/// Watches on mapped files, by path.
#[derive(Debug, Clone, Default)]
pub struct FileWatches(Vec<(PathBuf, FileWatch)>);

impl FileWatches {
    /// Checks that no file has changed since it was opened. Call this after the last read of a weight.
    ///
    /// # Errors
    /// [`CheckpointError::Read`] with the file.
    pub fn check(&self) -> Result<(), CheckpointError> {
        let changed = self.0.iter().find_map(|(path, watch)| Some((path, watch.check().err()?)));
        changed.map_or(Ok(()), |(path, source)| Err(CheckpointError::Read { path: path.clone(), source }))
    }
}

impl Checkpoint {
    /// Returns this model with a head for only the tokens `kept`, in ascending order. An encoder is returned unchanged.
    pub fn pruned(mut self, kept: &[TokenId]) -> Self {
        if let Architecture::Decoder(arch) = &mut self.architecture {
            self.weights = Box::new(prune::PrunedWeights::new(self.weights, arch, kept));
        }
        self
    }
}

/// Special tokens as the checkpoint states them.
#[derive(Debug, Clone, Default)]
pub struct SpecialTokens {
    /// Token at the beginning of every sequence, if the model requires one (not merely defines one).
    pub bos: Option<u32>,
    /// All tokens that end an answer.
    pub stop: Vec<u32>,
    /// Padding token of a batch.
    pub pad: Option<u32>,
    /// Texts by the names that templates use: `bos_token`, `eos_token`, `unk_token`, `pad_token`, ….
    pub texts: std::collections::BTreeMap<String, String>,
}

/// Reason why a checkpoint was refused.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file does not conform to its format.
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
        /// The canonical name, with the file's own name for it if that differs.
        name: String,
    },
    /// A weight's shape differs from the configuration.
    #[error("tensor {name} has the wrong shape: expected {expected:?}, found {found:?}")]
    WrongShape {
        /// The canonical name, with the file's own name for it if that differs.
        name: String,
        /// Shape according to the configuration; of the file's whole tensor if the weight is a part of it.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A weight has fewer or more bytes than its shape and encoding require.
    #[error(
        "tensor {name} has the wrong size: expected {expected} bytes, found {found}; fetch the file again"
    )]
    WrongSize {
        /// The canonical name, with the file's own name for it if that differs.
        name: String,
        /// Number of bytes for the shape and the encoding.
        expected: usize,
        /// Number of bytes in the file.
        found: usize,
    },
    /// A weight has an infinite or NaN value.
    #[error("tensor {name} contains {found}: expected finite numbers; download the checkpoint again")]
    NotFinite {
        /// The canonical name, with the file's own name for it if that differs.
        name: String,
        /// The first such value.
        found: f32,
    },
    /// An error about a weight or a setting, with its file.
    #[error("{path}: {what}")]
    InFile {
        /// The file.
        path: PathBuf,
        /// The error.
        what: Box<CheckpointError>,
    },
    /// The files do not state the pooling of an embedding model.
    #[error(
        "{path} has no 1_Pooling/config.json or key for the pooling: expected how an embedding model makes one vector of \
         the rows of a text"
    )]
    NoPooling {
        /// A file of the model.
        path: PathBuf,
    },
    /// The model's class or family is not supported.
    #[error("unsupported architecture: found {found}, expected one of {}", expected.join(", "))]
    Architecture {
        /// Supported classes or families.
        expected: Vec<&'static str>,
        /// Class or family that the checkpoint states.
        found: String,
    },
    /// Well-formed content that Narthex does not support.
    #[error("unsupported {what}: found {found}, expected {expected}")]
    Unsupported {
        /// Name of the setting.
        what: String,
        /// Supported values.
        expected: String,
        /// Value of the checkpoint.
        found: String,
    },
}

impl CheckpointError {
    /// Returns the error with the file that it is about, unless it already names one.
    fn in_file(self, path: &std::path::Path) -> Self {
        match self {
            Self::Read { .. }
            | Self::Malformed { .. }
            | Self::MissingTensor { .. }
            | Self::NoPooling { .. }
            | Self::InFile { .. } => self,
            Self::WrongShape { .. }
            | Self::WrongSize { .. }
            | Self::NotFinite { .. }
            | Self::Architecture { .. }
            | Self::Unsupported { .. } => Self::InFile { path: path.to_owned(), what: Box::new(self) },
        }
    }

    /// Returns the error with `called` as the name of the wrong tensor.
    fn of_tensor(mut self, called: String) -> Self {
        if let Self::WrongShape { name, .. } | Self::WrongSize { name, .. } | Self::NotFinite { name, .. } =
            &mut self
        {
            *name = called;
        }
        self
    }

    /// Returns the error without the surrounding file.
    pub fn what(&self) -> &Self {
        match self {
            Self::InFile { what, .. } => what.what(),
            other => other,
        }
    }

    /// Returns the error with another name of its file, for files that were fetched in part and stored under another
    /// name.
    pub fn renamed(mut self, name: impl Fn(&std::path::Path) -> PathBuf) -> Self {
        match &mut self {
            Self::Read { path, .. }
            | Self::Malformed { path, .. }
            | Self::MissingTensor { path, .. }
            | Self::NoPooling { path }
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
