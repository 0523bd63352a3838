//! What a caller asks of a compile.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use narthex_compile::CompileError;
pub use narthex_compile::vocabulary::Vocabulary;
use narthex_spec::{Calibration, LayerList, MatFormer, Pass, Scheme, Target};

use crate::error::Error;

/// What is compiled, and how.
#[derive(Debug, Clone)]
pub struct CompileRequest {
    /// The weight scheme.
    pub scheme: Scheme,
    /// Whether channels are scaled by what the model's layers see in a text.
    pub calibration: Calibration,
    /// Which smaller model is made of one that holds several; its package has a name of its own.
    pub matformer: Option<MatFormer>,
    /// The layers that are left out, as the checkpoint numbers them; the package has a name of its own, and says how far
    /// its answers are from the whole model's.
    pub drop_layers: Option<LayerList>,
    /// What the head of a chat model is pruned to; as above of its name and of what is said.
    pub vocabulary: Option<Vocabulary>,
    /// A folder for the intermediate stages, to be read by people.
    pub keep_stages: Option<PathBuf>,
    /// Whether a package that exists is made again.
    pub rebuild: Rebuild,
    /// The NPU that it is compiled for ahead of time, besides the graph that every device runs.
    pub target: Option<Target>,
    /// The contexts of the NPU's graphs, in tokens: the longest sequence, and shorter ones with graphs of their own. Without
    /// any it is 2048 or the model's, whichever is less.
    pub contexts: Vec<usize>,
    /// New tokens of the NPU's prefill graphs; without any, as suits the model's size. Encoders have none.
    pub prefill: Vec<usize>,
    /// The changes of its graphs; `None` takes those of the package that is installed, if there is one. Any makes
    /// graphs of fixed shape too.
    pub passes: Option<BTreeSet<Pass>>,
    /// The most bytes of weights in one of the NPU's graphs, beyond which the layers are divided; `None` takes what the
    /// NPU holds.
    pub part_bytes: Option<u64>,
}

impl CompileRequest {
    /// A scheme, and everything else as usual: calibrated, no stages, no NPU, and nothing that exists is made again.
    pub fn new(scheme: Scheme) -> Self {
        Self {
            scheme,
            calibration: Calibration::Standard,
            matformer: None,
            drop_layers: None,
            vocabulary: None,
            keep_stages: None,
            rebuild: Rebuild::IfMissing,
            target: None,
            contexts: Vec::new(),
            prefill: Vec::new(),
            passes: None,
            part_bytes: None,
        }
    }
}

/// What a head is pruned to, out of a file: a list of token ids in JSON (`.json`), or any text, of whose tokens at most
/// `most` are kept.
///
/// # Errors
/// [`Error::Compile`] for a file that cannot be read, or is no list.
pub fn vocabulary(file: &Path, most: Option<usize>) -> Result<Vocabulary, Error> {
    Ok(Vocabulary::read(file, most).map_err(CompileError::from)?)
}

/// Whether a package that exists is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebuild {
    /// Only when there is none.
    IfMissing,
    /// Always.
    Always,
}
