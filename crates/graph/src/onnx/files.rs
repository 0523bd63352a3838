//! ONNX models on disk: maps graph files and measures the lengths of their data files.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Component, Path, PathBuf},
};

use narthex_files::{FileWatch, MappedFile, environment, map};

use super::DecodeError;
use crate::{Bytes, Graph, Initializer, InitializerData};

/// Maximum number of graphs of one model.
const MAX_FILES: usize = 128;

/// Maximum size of an ONNX file, which is Protobuf's limit on a message.
pub const MAX_FILE_BYTES: u64 = 2 << 30;

/// An ONNX file of a model.
#[derive(Debug, Clone)]
pub struct OnnxFile {
    /// Name of the file, relative to the model's folder.
    pub name: String,
    /// Folder that its external data is relative to.
    pub folder: PathBuf,
    /// Graph in the file.
    pub graph: Graph,
    /// Length in bytes of each data file that the graph references; `None` if the file does not exist.
    pub data_files: BTreeMap<String, Option<u64>>,
    /// Watch on the file, whose bytes the graph borrows.
    pub watch: FileWatch,
}

impl OnnxFile {
    /// Checks that the file has not changed since it was opened. Call this after the last use of the graph's weights.
    ///
    /// # Errors
    /// [`OnnxFileError::Read`].
    pub fn check_unchanged(&self) -> Result<(), OnnxFileError> {
        self.watch
            .check()
            .map_err(|source| OnnxFileError::Read { path: self.folder.join(&self.name), source })
    }
}

/// Reason why an ONNX model could not be read.
#[derive(Debug, thiserror::Error)]
pub enum OnnxFileError {
    /// A file or folder could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is not an ONNX model.
    #[error("{path}: {source}")]
    Decode {
        /// The file.
        path: PathBuf,
        /// Reason.
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
    #[error("{path} contains no .onnx file; expected one in it or in its folder onnx")]
    NoModel {
        /// The folder.
        path: PathBuf,
    },
    /// A folder has too many models.
    #[error("{path} contains {found} .onnx files, and one model has at most {MAX_FILES}; name one file")]
    TooMany {
        /// The folder.
        path: PathBuf,
        /// Number of files found.
        found: usize,
    },
    /// A graph's weights are not available.
    #[error("{reason}")]
    Data {
        /// Description: the file, the expectation and the finding.
        reason: String,
    },
}

impl OnnxFileError {
    /// Returns the next step, if one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Decode { path, .. } if path.extension().is_some_and(|ending| ending == "onnx") => {
                Some("compare the file with the published one; it may be incomplete or damaged".to_owned())
            }
            Self::Decode { .. } => {
                Some("name an ONNX file; for a checkpoint, name its folder or its .gguf file".to_owned())
            }
            Self::Data { .. } => Some("fetch the model again; it may be cut off or damaged".to_owned()),
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("check the path; the data files of a graph must be in its folder".to_owned())
            }
            Self::Read { source, .. } => environment::hint(source).map(str::to_owned),
            Self::NoModel { .. } => {
                Some("name an .onnx file or a folder with some; `narthex compile` reads the folders of checkpoints".to_owned())
            }
            _ => None,
        }
    }
}

/// Reads the graphs of a model: one file, or every `.onnx` file of a folder.
///
/// # Errors
/// See [`OnnxFileError`]. A missing data file is not an error here; [`OnnxFile::data_files`] records it.
pub fn open(path: &Path) -> Result<Vec<OnnxFile>, OnnxFileError> {
    let files = graph_files(path)?;
    if files.is_empty() {
        return Err(OnnxFileError::NoModel { path: path.to_owned() });
    }
    open_files(&files)
}

/// Returns the files of a model's graphs: the file itself, or every `.onnx` file of a folder, by name. The result is
/// empty if a folder has none.
///
/// # Errors
/// [`OnnxFileError::Read`] and [`OnnxFileError::TooMany`].
pub fn graph_files(path: &Path) -> Result<Vec<PathBuf>, OnnxFileError> {
    if !fs::metadata(path).map_err(|source| OnnxFileError::Read { path: path.to_owned(), source })?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = onnx_files(path)?;
    if files.is_empty() {
        // Hubs keep exports in this folder, next to the original weights.
        files = onnx_files(&path.join("onnx")).unwrap_or_default();
    }
    match files.len() {
        found if found > MAX_FILES => Err(OnnxFileError::TooMany { path: path.to_owned(), found }),
        _ => Ok(files),
    }
}

/// Reads these files as the graphs of one model.
///
/// # Errors
/// See [`OnnxFileError`].
pub fn open_files(files: &[PathBuf]) -> Result<Vec<OnnxFile>, OnnxFileError> {
    files.iter().map(|file| open_file(file)).collect()
}

fn onnx_files(folder: &Path) -> Result<Vec<PathBuf>, OnnxFileError> {
    let failed = |source| OnnxFileError::Read { path: folder.to_owned(), source };
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

fn open_file(path: &Path) -> Result<OnnxFile, OnnxFileError> {
    let failed = |source| OnnxFileError::Read { path: path.to_owned(), source };
    let bytes = fs::metadata(path).map_err(failed)?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(OnnxFileError::TooLarge { path: path.to_owned(), bytes });
    }
    let mapped = map(path).map_err(failed)?;
    let watch = mapped.watch();
    let graph = Graph::decode_shared(Bytes::from_owner(mapped))
        .map_err(|source| OnnxFileError::Decode { path: path.to_owned(), source })?;
    watch.check().map_err(failed)?;
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    let data_files = data_file_sizes(&graph, &folder);
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(OnnxFile { name, folder, graph, data_files, watch })
}

/// Returns the length in bytes of each data file that a graph references. Files outside the model's folder are not
/// opened.
pub fn data_file_sizes(graph: &Graph, folder: &Path) -> BTreeMap<String, Option<u64>> {
    let mut files = BTreeMap::new();
    for constant in &graph.initializers {
        if let InitializerData::External { file, .. } = &constant.data
            && !files.contains_key(file)
        {
            let length = stays_inside(file).then(|| fs::metadata(folder.join(file)).ok()).flatten();
            files.insert(file.clone(), length.filter(fs::Metadata::is_file).map(|found| found.len()));
        }
    }
    files
}

/// Returns whether a data file's location stays inside the model's folder.
pub fn stays_inside(file: &str) -> bool {
    let path = Path::new(file);
    !file.contains('\\')
        && path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// Mapped data files, by path.
#[derive(Default)]
pub struct DataFiles(BTreeMap<PathBuf, MappedFile>);

impl DataFiles {
    /// Checks that no file has changed since it was opened. Call this after the last use of its bytes.
    ///
    /// # Errors
    /// [`OnnxFileError::Read`].
    pub fn check_unchanged(&self) -> Result<(), OnnxFileError> {
        let changed = self.0.iter().find_map(|(path, file)| Some((path, file.watch().check().err()?)));
        changed.map_or(Ok(()), |(path, source)| Err(OnnxFileError::Read { path: path.clone(), source }))
    }

    /// Returns the bytes of an initializer of a graph in `folder`, inline or in a data file.
    ///
    /// # Errors
    /// [`OnnxFileError::Data`] for a data file outside the folder and one that is too short; [`OnnxFileError::Read`].
    pub fn bytes<'a>(
        &'a mut self,
        folder: &Path,
        initializer: &'a Initializer,
    ) -> Result<&'a [u8], OnnxFileError> {
        let (file, offset, length) = match &initializer.data {
            InitializerData::Inline(bytes) => return Ok(bytes),
            InitializerData::External { file, offset, length } => (file, *offset, *length),
        };
        let name = &initializer.name;
        let folder_name = folder.display();
        if !stays_inside(file) {
            let reason =
                format!("the weight {name:?} is in the data file {file:?}, which is outside {folder_name}");
            return Err(OnnxFileError::Data { reason });
        }

        let path = folder.join(file);
        if !self.0.contains_key(&path) {
            self.0.insert(
                path.clone(),
                map(&path).map_err(|source| OnnxFileError::Read { path: path.clone(), source })?,
            );
        }

        let end = offset.saturating_add(length);
        let range = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
        let bytes = self.0.get(&path).zip(range).and_then(|(source, (start, end))| source.get(start..end));

        bytes.ok_or_else(|| OnnxFileError::Data {
            reason: format!(
                "{} ends before the weight {name:?}, which reaches to byte {end}",
                path.display()
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_stay_beside_the_model() {
        for (file, expect) in [
            ("a.data", true),
            ("./b", true),
            ("sub/a", true),
            ("../a", false),
            ("/etc/passwd", false),
            ("..\\a", false),
        ] {
            assert_eq!(stays_inside(file), expect, "{file}");
        }
    }
}
