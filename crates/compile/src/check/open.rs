//! Reading models from disk: graphs are mapped, data files are only measured.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use narthex_graph::{Bytes, Graph, InitializerData, onnx::DecodeError};

use super::{storage::is_beside, view::Part};
use crate::checkpoint::map::map;

/// The most graphs of one model.
const MOST_PARTS: usize = 128;

/// Protobuf's own limit on a message.
const MOST_BYTES: u64 = 2 << 30;

/// Why a model could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A file or folder could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file is not an ONNX model.
    #[error("{path}: {source}")]
    Decode {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// A file is larger than an ONNX model can be.
    #[error(
        "{path} has {bytes} bytes, and an ONNX file has at most 2 GiB; larger models keep their weights in data files"
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// A folder has no model.
    #[error("{path} holds no .onnx file; expected one in it or in its folder onnx")]
    NoModel {
        /// The folder.
        path: PathBuf,
    },
    /// A folder has too many models.
    #[error("{path} holds {found} .onnx files, and one model has at most {MOST_PARTS}; name one file")]
    TooMany {
        /// The folder.
        path: PathBuf,
        /// How many.
        found: usize,
    },
    /// A graph's weights cannot be had.
    #[error("{reason}")]
    Data {
        /// Which file, what was expected of it and found.
        reason: String,
    },
    /// The fixes cannot be applied.
    #[error("cannot write a fixed model: {reason}")]
    CannotFix {
        /// Why.
        reason: String,
    },
}

impl CheckError {
    /// The next step, where one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Decode { .. } => {
                Some("name an ONNX file; checkpoints are checked by their folder or .gguf file".to_owned())
            }
            Self::Write { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                Some("name a folder that has no such file; --fix replaces nothing".to_owned())
            }
            Self::Data { .. } => Some("fetch the model again; it may be cut off or damaged".to_owned()),
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("check the path; the data files of a graph lie beside it".to_owned())
            }
            Self::NoModel { .. } => {
                Some("a model is an .onnx file, a folder with some, a checkpoint, or a name of `narthex list --available`".to_owned())
            }
            _ => None,
        }
    }
}

/// Reads the graphs of a model: one file, or every `.onnx` file of a folder.
///
/// # Errors
/// See [`CheckError`]; a data file that is missing is a finding, not an error.
pub fn open(path: &Path) -> Result<Vec<Part>, CheckError> {
    let files = graph_files(path)?;
    if files.is_empty() {
        return Err(CheckError::NoModel { path: path.to_owned() });
    }
    open_files(&files)
}

/// The files of a model's graphs: the file itself, or every `.onnx` file of a folder, by name.
///
/// # Errors
/// [`CheckError::Read`] and [`CheckError::TooMany`]; a folder without any gives none.
pub fn graph_files(path: &Path) -> Result<Vec<PathBuf>, CheckError> {
    let failed = |source| CheckError::Read { path: path.to_owned(), source };
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = onnx_files(path)?;
    if files.is_empty() {
        // Where hubs keep exports beside the original weights.
        files = onnx_files(&path.join("onnx")).unwrap_or_default();
    }
    match files.len() {
        found if found > MOST_PARTS => Err(CheckError::TooMany { path: path.to_owned(), found }),
        _ => Ok(files),
    }
}

/// Reads these files as the graphs of one model.
///
/// # Errors
/// See [`CheckError`].
pub fn open_files(files: &[PathBuf]) -> Result<Vec<Part>, CheckError> {
    files.iter().map(|file| part(file)).collect()
}

fn onnx_files(folder: &Path) -> Result<Vec<PathBuf>, CheckError> {
    let failed = |source| CheckError::Read { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("onnx")) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn part(path: &Path) -> Result<Part, CheckError> {
    let failed = |source| CheckError::Read { path: path.to_owned(), source };
    let bytes = fs::metadata(path).map_err(failed)?.len();
    if bytes > MOST_BYTES {
        return Err(CheckError::TooLarge { path: path.to_owned(), bytes });
    }
    let mapped = map(path).map_err(|error| failed(io::Error::other(error)))?;
    let graph = Graph::decode_shared(Bytes::from_owner(mapped))
        .map_err(|source| CheckError::Decode { path: path.to_owned(), source })?;
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    let files = measure(&graph, &folder);
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(Part { name, folder, graph, files })
}

/// Bytes of each data file that a graph names. Files outside the model's folder are not touched.
pub(super) fn measure(graph: &Graph, folder: &Path) -> BTreeMap<String, Option<u64>> {
    let mut files = BTreeMap::new();
    for constant in &graph.initializers {
        if let InitializerData::External { file, .. } = &constant.data
            && !files.contains_key(file)
        {
            let length = is_beside(file).then(|| fs::metadata(folder.join(file)).ok()).flatten();
            files.insert(file.clone(), length.filter(fs::Metadata::is_file).map(|found| found.len()));
        }
    }
    files
}
