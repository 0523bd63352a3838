//! Writing a fixed model: its graphs, and one data file for the weights of all of them.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use narthex_graph::{
    Graph, Initializer, InitializerData,
    onnx::{
        external::{ExternalWriter, Place},
        files::{DataFiles, OnnxFile},
    },
};

use crate::error::CheckError;

/// Writes graphs and their weights into a folder, and gives the files that were written.
///
/// A weight that several graphs share is written once. Files that stand in the folder already are not replaced.
///
/// # Errors
/// [`CheckError::CannotFix`] where a graph holds what Narthex does not keep, [`CheckError::Open`] where a weight is not there,
/// and [`CheckError::Write`].
pub fn write(parts: &[OnnxFile], folder: &Path) -> Result<Vec<PathBuf>, CheckError> {
    if let Some((part, what)) = parts.iter().find_map(|part| Some((part, part.graph.unread.first()?))) {
        let reason = format!("{} holds {what}, which would be lost", part.name);
        return Err(CheckError::CannotFix { reason });
    }
    let failed = |source| CheckError::Write { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(failed)?;
    let mut written = Vec::new();
    match write_all(parts, folder, &mut written) {
        Ok(()) => Ok(written),
        Err(error) => {
            // Half a model is worse than none; what cannot be removed is named by nobody.
            written.iter().for_each(|path| drop(fs::remove_file(path)));
            Err(error)
        }
    }
}

/// Writes into a folder that is there, and lists what it has begun.
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
    match weights.file {
        Some(file) => {
            let path = weights.path;
            file.finish().map(drop).map_err(|source| CheckError::Write { path, source })
        }
        None => Ok(()),
    }
}

/// The weights of every graph.
const DATA_FILE: &str = "model.onnx.data";

fn create(path: &Path, written: &mut Vec<PathBuf>) -> Result<File, CheckError> {
    let failed = |source| CheckError::Write { path: path.to_owned(), source };
    let file = File::options().write(true).create_new(true).open(path).map_err(failed)?;
    written.push(path.to_owned());
    Ok(file)
}

/// The data file under way.
struct DataFileWriter {
    path: PathBuf,
    file: Option<ExternalWriter<BufWriter<File>>>,
    /// Places of weights that were written, by their origin.
    places: BTreeMap<(PathBuf, u64, u64), Place>,
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
            let InitializerData::External { file, offset, length } = &constant.data else { continue };
            let from = (part.folder.join(file), *offset, *length);
            let place = self.copy(from, &part.folder, constant, written)?;
            constant.data = InitializerData::External {
                file: DATA_FILE.to_owned(),
                offset: place.offset,
                length: place.length,
            };
        }
        Ok(())
    }

    fn copy(
        &mut self,
        from: (PathBuf, u64, u64),
        folder: &Path,
        constant: &Initializer,
        written: &mut Vec<PathBuf>,
    ) -> Result<Place, CheckError> {
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
