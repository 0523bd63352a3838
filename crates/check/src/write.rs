//! Writer of a fixed model: its graphs, and one data file with the weights of all graphs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use narthex_files::environment;
use narthex_graph::{
    Graph, Initializer, InitializerData,
    onnx::{
        external::{ByteRange, ExternalWriter},
        files::{DataFiles, OnnxFile},
    },
};

use crate::error::CheckError;

/// Writes graphs and their weights into a folder, and returns the paths of the written files.
///
/// A weight that several graphs share is written once. Existing files are not replaced.
///
/// # Errors
/// [`CheckError::CannotFix`] if a graph has parts that Narthex does not preserve, [`CheckError::Open`] if a weight is
/// missing, and [`CheckError::Write`].
pub fn write(parts: &[OnnxFile], folder: &Path) -> Result<Vec<PathBuf>, CheckError> {
    if let Some((part, what)) = parts.iter().find_map(|part| Some((part, part.graph.unread.first()?))) {
        let reason = format!("{} contains {what}, which would be lost", part.name);
        return Err(CheckError::CannotFix { reason });
    }
    environment::check_space(folder, weight_bytes(parts))
        .and_then(|()| fs::create_dir_all(folder))
        .map_err(|source| CheckError::Write { path: folder.to_owned(), source })?;
    let mut written = Vec::new();
    match write_all(parts, folder, &mut written) {
        Ok(()) => Ok(written),
        Err(error) => {
            // A partial model is worse than none. A file that cannot be removed is not reported.
            written.iter().for_each(|path| drop(fs::remove_file(path)));
            Err(error)
        }
    }
}

/// Returns the bytes of the weights that are copied.
fn weight_bytes(parts: &[OnnxFile]) -> u64 {
    let sources: BTreeSet<WeightSource> = parts
        .iter()
        .flat_map(|part| part.graph.initializers.iter().map(move |constant| (part, constant)))
        .filter_map(|(part, constant)| WeightSource::of(part, constant))
        .collect();
    sources.iter().map(|source| source.length).fold(0, u64::saturating_add)
}

/// Writes into an existing folder, and lists each file as soon as it is created.
fn write_all(parts: &[OnnxFile], folder: &Path, written: &mut Vec<PathBuf>) -> Result<(), CheckError> {
    let mut weights = DataFileWriter {
        path: folder.join(DATA_FILE),
        file: None,
        places: BTreeMap::new(),
        sources: DataFiles::default(),
    };
    for part in parts {
        let mut graph = part.graph.clone();
        weights.gather(part, &mut graph, written)?;
        let path = folder.join(&part.name);
        let mut file = create(&path, written)?;
        file.write_all(&graph.encode()).map_err(|source| CheckError::Write { path, source })?;
    }
    weights.sources.check_unchanged()?;
    parts.iter().try_for_each(OnnxFile::check_unchanged)?;
    match weights.file {
        Some(file) => {
            let path = weights.path;
            file.finish().map(drop).map_err(|source| CheckError::Write { path, source })
        }
        None => Ok(()),
    }
}

/// File with the weights of all graphs.
const DATA_FILE: &str = "model.onnx.data";

fn create(path: &Path, written: &mut Vec<PathBuf>) -> Result<File, CheckError> {
    let file = File::options()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|source| CheckError::Write { path: path.to_owned(), source })?;
    written.push(path.to_owned());
    Ok(file)
}

/// Bytes of a weight in a file of the original model.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct WeightSource {
    file: PathBuf,
    offset: u64,
    length: u64,
}

impl WeightSource {
    /// Returns the source of a weight that is in another file than its graph.
    fn of(part: &OnnxFile, constant: &Initializer) -> Option<Self> {
        match &constant.data {
            InitializerData::External { file, offset, length } => {
                Some(Self { file: part.folder.join(file), offset: *offset, length: *length })
            }
            InitializerData::Inline(_) => None,
        }
    }
}

struct DataFileWriter {
    path: PathBuf,
    file: Option<ExternalWriter<BufWriter<File>>>,
    /// Locations of the weights written so far, by their source.
    places: BTreeMap<WeightSource, ByteRange>,
    sources: DataFiles,
}

impl DataFileWriter {
    /// Copies a graph's external weights and points the graph at the copies.
    fn gather(
        &mut self,
        part: &OnnxFile,
        graph: &mut Graph,
        written: &mut Vec<PathBuf>,
    ) -> Result<(), CheckError> {
        for constant in &mut graph.initializers {
            let Some(from) = WeightSource::of(part, constant) else { continue };
            let place = self.copy(from, &part.folder, constant, written)?;
            constant.data = InitializerData::External {
                file: DATA_FILE.to_owned(),
                offset: place.offset,
                length: place.length,
            };
        }
        Ok(())
    }

    /// Returns the location of a weight in the data file. Copies the weight there if it is new.
    fn copy(
        &mut self,
        from: WeightSource,
        folder: &Path,
        constant: &Initializer,
        written: &mut Vec<PathBuf>,
    ) -> Result<ByteRange, CheckError> {
        if let Some(place) = self.places.get(&from) {
            return Ok(*place);
        }
        let bytes = self.sources.bytes(folder, constant)?;
        let file = match &mut self.file {
            Some(file) => file,
            None => self
                .file
                .insert(ExternalWriter::new(BufWriter::with_capacity(1 << 20, create(&self.path, written)?))),
        };
        let place =
            file.write(bytes).map_err(|source| CheckError::Write { path: self.path.clone(), source })?;
        self.places.insert(from, place);
        Ok(place)
    }
}
