//! Writing a fixed model: its graphs, and one data file for the weights of all of them.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter},
    path::{Path, PathBuf},
};

use memmap2::Mmap;
use narthex_graph::{
    Graph, InitializerData,
    onnx::external::{ExternalWriter, Place},
};

use super::{open::CheckError, storage::is_beside, view::Part};
use crate::checkpoint::map::map;

/// Writes graphs and their weights into a folder, and gives the files that were written.
///
/// A weight that several graphs share is written once. Files that stand in the folder already are not replaced.
///
/// # Errors
/// [`CheckError::CannotFix`] where a graph holds what Narthex does not keep, or a weight is not there;
/// [`CheckError::Write`] and [`CheckError::Read`].
pub fn write(parts: &[Part], folder: &Path) -> Result<Vec<PathBuf>, CheckError> {
    if let Some((part, what)) = parts.iter().find_map(|part| Some((part, part.graph.unread.first()?))) {
        let reason = format!("{} holds {what}, which would be lost", part.name);
        return Err(CheckError::CannotFix { reason });
    }
    let failed = |source| CheckError::Write { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(failed)?;
    let mut weights = Weights { folder, file: None, places: BTreeMap::new(), sources: BTreeMap::new() };
    let mut written = Vec::new();
    for part in parts {
        let mut graph = part.graph.clone();
        weights.gather(part, &mut graph)?;
        let path = folder.join(&part.name);
        let file = create(&path)?;
        io::Write::write_all(&mut BufWriter::new(file), &graph.encode())
            .map_err(|source| CheckError::Write { path: path.clone(), source })?;
        written.push(path);
    }
    if let Some(file) = weights.file {
        let path = folder.join(DATA_FILE);
        file.finish().map_err(|source| CheckError::Write { path: path.clone(), source })?;
        written.push(path);
    }
    Ok(written)
}

/// The weights of every graph.
const DATA_FILE: &str = "model.onnx.data";

fn create(path: &Path) -> Result<File, CheckError> {
    let failed = |source| CheckError::Write { path: path.to_owned(), source };
    File::options().write(true).create_new(true).open(path).map_err(failed)
}

/// The data file under way.
struct Weights<'a> {
    folder: &'a Path,
    file: Option<ExternalWriter<BufWriter<File>>>,
    /// What was written already, by where it came from.
    places: BTreeMap<(PathBuf, u64, u64), Place>,
    /// The files that weights come from.
    sources: BTreeMap<PathBuf, Mmap>,
}

impl Weights<'_> {
    /// Copies a graph's external weights and points the graph at the copies.
    fn gather(&mut self, part: &Part, graph: &mut Graph) -> Result<(), CheckError> {
        for constant in &mut graph.initializers {
            let InitializerData::External { file, offset, length } = &constant.data else { continue };
            if !is_beside(file) {
                let reason =
                    format!("{} names the data file {file:?}, which lies outside its folder", part.name);
                return Err(CheckError::CannotFix { reason });
            }
            let place = self.copy((part.folder.join(file), *offset, *length), &constant.name)?;
            constant.data = InitializerData::External {
                file: DATA_FILE.to_owned(),
                offset: place.offset,
                length: place.length,
            };
        }
        Ok(())
    }

    fn copy(&mut self, from: (PathBuf, u64, u64), name: &str) -> Result<Place, CheckError> {
        if let Some(place) = self.places.get(&from) {
            return Ok(*place);
        }
        let (path, offset, length) = &from;
        if !self.sources.contains_key(path) {
            let read = |error| CheckError::Read { path: path.clone(), source: io::Error::other(error) };
            self.sources.insert(path.clone(), map(path).map_err(read)?);
        }
        let range = usize::try_from(*offset)
            .ok()
            .zip(offset.checked_add(*length).and_then(|end| usize::try_from(end).ok()));
        let bytes =
            self.sources.get(path).and_then(|source| range.and_then(|(start, end)| source.get(start..end)));
        let bytes = bytes.ok_or_else(|| CheckError::CannotFix {
            reason: format!(
                "{} ends before the weight {name:?}, which reaches to byte {}",
                path.display(),
                offset.saturating_add(*length)
            ),
        })?;
        let target = self.folder.join(DATA_FILE);
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                self.file.insert(ExternalWriter::new(BufWriter::with_capacity(1 << 20, create(&target)?)))
            }
        };
        let place = file.write(bytes).map_err(|source| CheckError::Write { path: target, source })?;
        self.places.insert(from, place);
        Ok(place)
    }
}
