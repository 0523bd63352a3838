//! Packed weights of a graph as a file, from which a later load takes them instead of packing them again.
//!
//! ```text
//! header     text that names the constants and shapes of the layers; then zeros up to a multiple of 64 bytes
//! matrices   packed matrices of the layers, in order, each a multiple of 64 bytes
//! ```
//!
//! The header shows that a file belongs to a graph, and not that its bytes are undamaged: the caller must store files
//! with the package that they were made from, and must not pass files that were changed.

use std::{fs, io, path::Path, sync::Arc};

use memmap2::MmapMut;
use narthex_files::{map, open_regular};
use narthex_kernels::SharedBytes;

/// Packed weights of a graph.
#[derive(Clone)]
pub struct PackedWeights {
    file: String,
    bytes: SharedBytes,
    is_stored: bool,
}

impl PackedWeights {
    /// Creates the weights of the graph in the file `graph`, which have just been packed.
    pub(crate) fn new(graph: &Path, bytes: SharedBytes) -> Self {
        Self { file: file_name(graph), bytes, is_stored: false }
    }

    /// Opens the weights of the graph in the file `graph` that `folder` has. Returns `None` if there are none, or if
    /// they do not have this header and length; they are then packed again.
    pub(crate) fn open(folder: &Path, graph: &Path, header: &[u8], length: usize) -> Option<Self> {
        let file = file_name(graph);
        let path = folder.join(&file);
        match load(&path, header, length) {
            Ok(bytes) => Some(Self { file, bytes, is_stored: true }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                let path = path.display();
                tracing::warn!(
                    "the packed weights in {path} cannot be used; the weights are packed again: {error}"
                );
                None
            }
        }
    }

    /// Returns the bytes, header included.
    pub(crate) fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// Returns whether they come from a file, and need not be stored.
    pub fn is_stored(&self) -> bool {
        self.is_stored
    }

    /// Returns whether a folder has a file with the same bytes.
    pub fn are_in(&self, folder: &Path) -> bool {
        map(&folder.join(&self.file)).is_ok_and(|stored| *stored == *(*self.bytes).as_ref())
    }

    /// Writes them to a file in a folder.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        // One call for all bytes, so that the file system can use large pages.
        fs::write(folder.join(&self.file), (*self.bytes).as_ref())
    }
}

/// Returns the name of the file with the weights of a graph.
fn file_name(graph: &Path) -> String {
    format!("{}.packed", graph.file_name().unwrap_or_default().to_string_lossy())
}

/// Loads a file with this header and length.
fn load(path: &Path, header: &[u8], length: usize) -> io::Result<SharedBytes> {
    // The length is checked before the bytes are read, so that another file costs neither time nor memory.
    let stored = open_regular(path)?.metadata()?.len();
    if stored == length as u64 {
        let bytes = read_or_map(path, length)?;
        let content = (*bytes).as_ref();
        if content.len() == length && content.starts_with(header) {
            return Ok(bytes);
        }
    }

    let message = format!("expected {length} bytes for this graph, found {stored} other bytes");
    Err(io::Error::new(io::ErrorKind::InvalidData, message))
}

/// Maps a file in large pages, or reads it into memory with large pages if its map can only have small ones: a product
/// of one row reads all weights once, and small pages halve its speed.
#[cfg(target_os = "linux")]
fn read_or_map(path: &Path, length: usize) -> io::Result<SharedBytes> {
    use std::io::Read;

    if let Some(mapped) = narthex_files::map_in_large_pages(path)? {
        return Ok(Arc::new(mapped));
    }
    let mut memory = zeroed(length)?;
    open_regular(path)?.read_exact(&mut memory)?;
    Ok(Arc::new(memory))
}

/// Maps a file. This system has no large pages for files.
#[cfg(not(target_os = "linux"))]
fn read_or_map(path: &Path, _length: usize) -> io::Result<SharedBytes> {
    Ok(Arc::new(map(path)?))
}

/// Returns zeros in memory for which large pages were requested.
pub(crate) fn zeroed(length: usize) -> io::Result<MmapMut> {
    let memory = MmapMut::map_anon(length)?;
    // A system that refuses uses small pages.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_file_of_the_same_graph_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let graph = Path::new("graphs/model.onnx");
        let header = [7; 64];
        let bytes: Vec<u8> = header.into_iter().chain((0..3 << 20).map(|at| at as u8)).collect();
        let open =
            |graph: &Path, header: &[u8]| PackedWeights::open(folder.path(), graph, header, bytes.len());
        assert!(open(graph, &header).is_none());
        let packed = PackedWeights::new(graph, Arc::new(bytes.clone()));
        assert!(!packed.are_in(folder.path()));
        packed.write(folder.path()).unwrap();
        assert!(packed.are_in(folder.path()));
        let stored = open(graph, &header).unwrap();
        assert!(stored.is_stored() && !packed.is_stored());
        assert!((**stored.bytes()).as_ref() == bytes);
        assert!(open(Path::new("other.onnx"), &header).is_none());
        assert!(open(graph, &[8; 64]).is_none(), "the file of another graph");
        let path = folder.path().join("model.onnx.packed");
        let longer = [&bytes[..], &[0]].concat();
        for damaged in [&bytes[..bytes.len() - 1], &longer[..], &[]] {
            fs::write(&path, damaged).unwrap();
            assert!(!packed.are_in(folder.path()), "{} bytes", damaged.len());
            assert!(open(graph, &header).is_none(), "{} bytes", damaged.len());
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(open(graph, &header).is_none(), "a folder");
    }
}
