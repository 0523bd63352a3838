//! LoRA adapters (Hu et al. 2021, arXiv:2106.09685) as they lie on disk: folders of PEFT and GGUF files of llama.cpp.
//!
//! An adapter states a low-rank update for each of some linear layers. `peft` and `gguf` read the formats, `merge` adds
//! the updates to the weights of a checkpoint when they are read.

mod gguf;
mod merge;
mod peft;

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use narthex_files::{FileWatch, MappedFile};
use narthex_spec::{
    Sha256,
    adapter::{AdapterScale, MergedAdapter},
};

pub(super) use self::{merge::adapted, peft::CONFIG as ADAPTER_CONFIG};
use crate::{
    encoding::Encoding,
    error::{CheckpointError, Result},
    limits::{malformed, unreadable, unsupported},
    stored_tensor::{StoredTensor, TensorEncoding},
    tensors::file_name,
    weight::Weight,
};

/// Maximum rank of an update.
const MAX_RANK: usize = 4096;

/// An open adapter. Clones share its files.
#[derive(Clone)]
pub struct Adapter {
    entry: MergedAdapter,
    files: Arc<AdapterFiles>,
}

/// Format of an adapter. It has the names of tensors, and the order of their rows, of checkpoints in one format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdapterFormat {
    /// PEFT, for folders of the `transformers` library.
    Peft,
    /// GGUF, for GGUF files.
    Gguf,
}

/// The files of an adapter.
struct AdapterFiles {
    format: AdapterFormat,
    /// File with the weights.
    path: PathBuf,
    map: MappedFile,
    /// Updates by the weight's name in a checkpoint of the same format.
    updates: BTreeMap<String, LowRankUpdate>,
}

/// Update of a linear weight: `factor · up · down`.
struct LowRankUpdate {
    /// `[rank, in]`.
    down: StoredTensor,
    /// `[out, rank]`.
    up: StoredTensor,
    factor: f32,
}

impl Adapter {
    /// Names of the files of an adapter of PEFT.
    pub const FILES: [&str; 2] = [peft::CONFIG, peft::WEIGHTS];

    /// Opens an adapter: a folder of PEFT with `adapter_config.json` and `adapter_model.safetensors`, that weights file, or a
    /// GGUF file of llama.cpp or a folder with one. Its update is multiplied by `scale`.
    ///
    /// # Errors
    /// [`CheckpointError::Read`] for files that cannot be read; [`CheckpointError::Unsupported`], with the next step, for
    /// adapters that are more than low-rank updates of linear layers; the other variants for malformed files.
    pub fn open(path: &Path, scale: AdapterScale) -> Result<Self> {
        // The name of `.` is that of the folder.
        let path = narthex_files::own_path(path).map_err(unreadable(path))?;
        let (files, named) = match gguf_file(&path)? {
            Some(file) => (gguf::open(&file)?, file.with_extension("")),
            None => {
                let folder = if path.is_dir() { path.as_path() } else { path.parent().unwrap_or(&path) };
                (peft::open(folder)?, folder.to_owned())
            }
        };
        files.check()?;
        let entry = MergedAdapter { name: file_name(&named), sha256: Sha256::of(&files.map), scale };
        Ok(Self { entry, files: Arc::new(files) })
    }

    /// Returns the adapter under another name.
    pub fn named(self, name: String) -> Self {
        Self { entry: MergedAdapter { name, ..self.entry }, ..self }
    }

    /// Returns the watch on the file with its weights.
    pub(super) fn watch(&self) -> (PathBuf, FileWatch) {
        (self.files.path.clone(), self.files.map.watch())
    }

    /// Returns what a package states about the adapter.
    pub fn entry(&self) -> &MergedAdapter {
        &self.entry
    }
}

/// Returns the GGUF file that a path is, or that is the only one in a folder without settings of PEFT.
fn gguf_file(path: &Path) -> Result<Option<PathBuf>> {
    let is_gguf = |path: &Path| file_name(path).to_ascii_lowercase().ends_with(".gguf");
    if !path.is_dir() {
        return Ok(is_gguf(path).then(|| path.to_owned()));
    }
    if path.join(peft::CONFIG).is_file() {
        return Ok(None);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable(path))? {
        files.push(entry.map_err(unreadable(path))?.path());
    }
    files.retain(|file| is_gguf(file));
    Ok(files.pop().filter(|_| files.is_empty()))
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").field("entry", &self.entry).finish_non_exhaustive()
    }
}

impl AdapterFormat {
    /// Returns the name under which an adapter has the update of the tensor that a checkpoint calls `file_name`.
    fn key(self, file_name: &str) -> Option<&str> {
        match self {
            Self::Peft => file_name.strip_suffix(".weight"),
            Self::Gguf => Some(file_name),
        }
    }
}

impl AdapterFiles {
    /// Pairs the matrices of each update. `factor` returns the factor of an update of some rank.
    fn new(
        format: AdapterFormat,
        path: PathBuf,
        map: MappedFile,
        matrices: impl IntoIterator<Item = (String, Matrix, StoredTensor)>,
        factor: impl Fn(&str, usize) -> Result<f32>,
    ) -> Result<Self> {
        let mut pairs: BTreeMap<String, [Option<StoredTensor>; 2]> = BTreeMap::new();
        for (name, matrix, tensor) in matrices {
            let pair = pairs.entry(name).or_default();
            if pair[matrix as usize].replace(tensor).is_some() {
                return Err(malformed(&path, "each matrix of an update once", "one twice"));
            }
        }

        let mut updates = BTreeMap::new();
        for (name, pair) in pairs {
            let [Some(down), Some(up)] = pair else {
                return Err(malformed(&path, format!("two matrices for {name}"), "one"));
            };
            let (&[rank, _], &[_, found]) = (&*down.shape, &*up.shape) else {
                let found = format!("{:?} and {:?}", down.shape, up.shape);
                return Err(malformed(&path, format!("matrices for {name}"), found));
            };
            if rank != found || !(1..=MAX_RANK).contains(&rank) {
                let expected = format!("matrices of one rank from 1 to {MAX_RANK} for {name}");
                return Err(malformed(&path, expected, format!("{:?} and {:?}", down.shape, up.shape)));
            }
            let factor = factor(&name, rank)?;
            updates.insert(name, LowRankUpdate { down, up, factor });
        }
        if updates.is_empty() {
            return Err(malformed(&path, "updates of linear layers", "none"));
        }
        Ok(Self { format, path, map, updates })
    }

    /// Checks that all updates can be decoded, and that their numbers are finite.
    fn check(&self) -> Result<()> {
        for (name, LowRankUpdate { down, up, factor }) in &self.updates {
            if !factor.is_finite() {
                return Err(malformed(&self.path, format!("a finite factor for {name}"), factor));
            }
            for tensor in [down, up] {
                let weight = self.weight(name, tensor)?;
                let mut row = vec![0.0; weight.cols()];
                for index in 0..weight.rows_len() {
                    weight.read_row(index, &mut row);
                    if let Some(&found) = row.iter().find(|value| !value.is_finite()) {
                        let error = CheckpointError::NotFinite { name: name.clone(), found };
                        return Err(error.in_file(&self.path));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns a matrix of an update under the name of the updated weight.
    fn weight(&self, name: &str, tensor: &StoredTensor) -> Result<Weight<'_>> {
        let encoding = match &tensor.kind {
            TensorEncoding::Known(encoding @ (Encoding::F32 | Encoding::F16 | Encoding::Bf16)) => *encoding,
            TensorEncoding::Known(encoding) => return Err(self.other_type(name, encoding.name())),
            TensorEncoding::Other(found) => return Err(self.other_type(name, found)),
            TensorEncoding::PackedTensor(_) => return Err(self.other_type(name, "packed integers")),
        };
        let bytes = self.map.get(tensor.bytes.clone()).unwrap_or(&[]);
        Weight::new(name, tensor.shape.clone(), encoding, bytes).map_err(|error| error.in_file(&self.path))
    }

    fn other_type(&self, name: &str, found: &str) -> CheckpointError {
        let expected = "F32, F16 or BF16; save the adapter again in one of them";
        unsupported(format!("type of the update of {name}"), expected, found).in_file(&self.path)
    }
}

/// Matrix of an update, in the order in which an input passes them.
#[derive(Debug, Clone, Copy)]
enum Matrix {
    /// `[rank, in]`, called A.
    Down,
    /// `[out, rank]`, called B.
    Up,
}
