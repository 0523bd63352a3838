//! Writer of a package's files, which are hashed while they are written.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use narthex_files::environment;
use narthex_graph::onnx::files::OnnxFileError;
use narthex_spec::{
    Sha256,
    manifest::{ChatEntry, FileEntry, MANIFEST_FILE, Manifest, check_text, to_json},
};
use narthex_text::tools;
use parking_lot::Mutex;
use sha2::Digest;

use crate::error::{CompileError, Result, unwritable};

/// File of the main graph, relative to the package.
pub(crate) const GRAPH_FILE: &str = "model.onnx";
/// File of the weights of all graphs of a package.
pub const DATA_FILE: &str = "model.onnx.data";
pub(crate) const TOKENIZER_FILE: &str = "tokenizer.json";
pub(crate) const TEMPLATE_FILE: &str = "chat_template.jinja";

/// Files written so far, by name.
type Files = Arc<Mutex<BTreeMap<String, FileEntry>>>;

/// A package under construction in an empty folder.
pub(crate) struct PackageWriter {
    folder: PathBuf,
    files: Files,
}

/// A file of the package, hashed while it is written. [`HashedFile::sync`] adds it to the list of files.
pub(crate) struct HashedFile {
    name: String,
    path: PathBuf,
    file: BufWriter<File>,
    hash: sha2::Sha256,
    bytes: u64,
    files: Files,
}

impl PackageWriter {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), files: Files::default() }
    }

    /// Checks that the file system has room for files of this size together, before they are written.
    ///
    /// # Errors
    /// [`CompileError::Write`] with both numbers.
    pub(crate) fn check_space(&self, bytes: u64) -> Result<()> {
        environment::check_space(&self.folder, bytes).map_err(unwritable(&self.folder))
    }

    /// Starts a file.
    pub(crate) fn create(&self, name: &str) -> Result<HashedFile> {
        let path = self.folder.join(name);
        let file = File::create(&path).map_err(unwritable(&path))?;
        Ok(HashedFile {
            name: name.to_owned(),
            path,
            file: BufWriter::with_capacity(1 << 20, file),
            hash: sha2::Sha256::new(),
            bytes: 0,
            files: self.files.clone(),
        })
    }

    /// Writes a whole file.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.create(name)?;
        let path = file.path.clone();
        file.write_all(bytes).map_err(unwritable(path))?;
        file.sync()
    }

    /// Copies the file at `from` in pieces.
    ///
    /// # Errors
    /// [`CompileError::Open`] if the file cannot be read, [`CompileError::Write`] if the copy cannot be written, and
    /// [`CompileError::Cancelled`].
    pub(crate) fn copy(&self, name: &str, from: &Path, cancel: &AtomicBool) -> Result<()> {
        let source = narthex_files::open_regular(from).map_err(|source| read_error(from, source))?;
        let mut file = self.create(name)?;
        let path = file.path.clone();
        copy_stream(Stream { data: source, path: from }, Stream { data: &mut file, path: &path }, cancel)?;
        file.sync()
    }

    /// Lists the files in the manifest, and writes the manifest as the last file of the package.
    pub(crate) fn finish(self, manifest: &mut Manifest) -> Result<()> {
        manifest.files = self.files.lock().clone();
        write_manifest(&self.folder, manifest)
    }
}

/// Adds files to the manifest of a package and rewrites the manifest.
///
/// `names` are relative to the folder, with `/` between their components.
pub fn add_files(folder: &Path, manifest: &mut Manifest, names: &[String]) -> Result<()> {
    for name in names {
        let path = folder.join(name);
        let mut file = narthex_files::open_regular(&path).map_err(unwritable(&path))?;
        let mut hash = sha2::Sha256::new();
        let mut bytes = 0;
        let mut part = vec![0; 1 << 20];
        loop {
            let read = file.read(&mut part).map_err(unwritable(&path))?;
            if read == 0 {
                break;
            }
            hash.update(&part[..read]);
            bytes += read as u64;
        }
        file.sync_all().map_err(unwritable(&path))?;
        manifest.files.insert(name.clone(), FileEntry { bytes, sha256: Sha256(hash.finalize().into()) });
    }
    write_manifest(folder, manifest)
}

fn write_manifest(folder: &Path, manifest: &Manifest) -> Result<()> {
    let path = folder.join(MANIFEST_FILE);
    let text = to_json(manifest).map_err(|error| unwritable(&path)(error.into()))?;
    // No version could read a longer one.
    check_text(&text).map_err(|error| unwritable(&path)(error.into()))?;
    let mut file = File::create(&path).map_err(unwritable(&path))?;
    file.write_all(&text).and_then(|()| file.sync_all()).map_err(unwritable(&path))
}

/// Number of bytes that are copied between two checks for cancellation.
const PIECE: u64 = 1 << 20;

/// One end of a copy, with its path for error messages.
struct Stream<'a, T> {
    data: T,
    path: &'a Path,
}

/// Copies the rest of one stream to another. Stops if `cancel` is set.
fn copy_stream(
    mut from: Stream<'_, impl Read>,
    mut to: Stream<'_, impl Write>,
    cancel: &AtomicBool,
) -> Result<()> {
    let mut piece = Vec::new();
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(CompileError::Cancelled);
        }
        piece.clear();
        let read = from.data.by_ref().take(PIECE).read_to_end(&mut piece);
        if read.map_err(|error| read_error(from.path, error))? == 0 {
            return Ok(());
        }
        to.data.write_all(&piece).map_err(unwritable(to.path))?;
    }
}

fn read_error(path: &Path, source: io::Error) -> CompileError {
    OnnxFileError::Read { path: path.to_owned(), source }.into()
}

impl HashedFile {
    /// Syncs the file to disk and adds it to the package.
    pub(crate) fn sync(mut self) -> Result<()> {
        let path = self.path;
        self.file.flush().and_then(|()| self.file.get_ref().sync_all()).map_err(unwritable(path))?;
        let entry = FileEntry { bytes: self.bytes, sha256: Sha256(self.hash.finalize().into()) };
        self.files.lock().insert(self.name, entry);
        Ok(())
    }
}

impl Write for HashedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Returns the entry of a package's chat template.
pub(crate) fn chat_entry(template: &str, special_tokens: BTreeMap<String, String>) -> ChatEntry {
    ChatEntry {
        template: TEMPLATE_FILE.to_owned(),
        special_tokens,
        tools: tools::tool_format(template),
        reasoning: tools::reasoning_format(template),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that fails with a full disk, or cancels, at its second piece.
    struct FailingStream<'a> {
        pieces: usize,
        cancel: Option<&'a AtomicBool>,
    }

    impl FailingStream<'_> {
        fn next(&mut self) -> io::Result<()> {
            self.pieces += 1;
            match self.cancel {
                _ if self.pieces == 1 => Ok(()),
                Some(cancel) => {
                    cancel.store(true, Ordering::Relaxed);
                    Ok(())
                }
                None => Err(io::ErrorKind::StorageFull.into()),
            }
        }
    }

    impl Read for FailingStream<'_> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            bytes.fill(1);
            self.next().map(|()| bytes.len())
        }
    }

    impl Write for FailingStream<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.next().map(|()| bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_package_that_does_not_fit_is_refused_before_its_first_file() {
        let folder = tempfile::tempdir().unwrap();
        let package = PackageWriter::new(folder.path());
        package.check_space(1).unwrap();
        match package.check_space(u64::MAX).unwrap_err() {
            CompileError::Write { path, source } => {
                assert_eq!((path.as_path(), source.kind()), (folder.path(), io::ErrorKind::StorageFull));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn copy_errors_name_the_failed_side_and_copies_can_be_cancelled() {
        let go = AtomicBool::new(false);
        let second = || FailingStream { pieces: 0, cancel: None };
        fn stream<T>(data: T, name: &str) -> Stream<'_, T> {
            Stream { data, path: Path::new(name) }
        }
        let (source, target) = ("source.bin", "target.bin");
        let (from, to) = (stream(second(), source), stream(Vec::new(), target));
        let read = copy_stream(from, to, &go).unwrap_err().to_string();
        assert!(read.contains("cannot read source.bin"), "{read}");
        let (from, to) = (stream(io::repeat(1), source), stream(second(), target));
        let written = copy_stream(from, to, &go).unwrap_err();
        assert!(
            matches!(&written, CompileError::Write { path, .. } if path == Path::new(target)),
            "{written}"
        );
        let cancel = FailingStream { pieces: 0, cancel: Some(&go) };
        let cancelled = copy_stream(stream(io::repeat(1), source), stream(cancel, target), &go);
        assert!(matches!(cancelled, Err(CompileError::Cancelled)));
    }
}
