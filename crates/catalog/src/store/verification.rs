//! Verification of stored files against the digests that were recorded when they were made.
//!
//! Reading a large model to verify it takes seconds, so [`Store::verify_changed`] skips files whose inode, size and
//! times are those of their last verification. The record of it is small, belongs to this machine, and is stored in
//! `machine/<sha256>/verified.json`. The [audit](super::audit) reads all files.

use std::{collections::BTreeMap, fs::Metadata, io, path::Path};

use narthex_mmap::open_inside;
use narthex_spec::{
    ProgressSink, Sha256,
    manifest::FileEntry,
    progress::{Stage, Unit},
};
use serde::{Deserialize, Serialize};

use super::{MachineFolder, Store};
use crate::{Cancel, error::Error, files};

/// Name of the record of a folder's last verification.
const RECORD: &str = "verified.json";

/// A folder of the store with the files that it must have.
#[derive(Debug, Clone, Copy)]
pub struct StoredFiles<'a> {
    /// The folder.
    pub folder: &'a Path,
    /// Identity of its contents: the digest of a manifest, or of the archive that it was unpacked from.
    pub identity: Sha256,
    /// Its files, by path relative to the folder.
    pub files: &'a BTreeMap<String, FileEntry>,
    /// Title for people: `smollm2:135m@w8`.
    pub title: &'a str,
    /// Commands that replace the folder, for errors.
    pub repair: &'a str,
}

/// Facts about a file that change when its bytes are written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileState {
    inode: u64,
    bytes: u64,
    modified: u128,
    /// Time of the last change of the file's bytes or attributes, which programs cannot set; 0 if the platform has
    /// none.
    changed: i128,
}

impl FileState {
    fn of(found: &Metadata) -> Self {
        let (inode, changed) = inode_and_change(found);
        let modified = found.modified().map_or(0, files::nanos);
        Self { inode, bytes: found.len(), modified, changed }
    }
}

#[cfg(unix)]
fn inode_and_change(found: &Metadata) -> (u64, i128) {
    use std::os::unix::fs::MetadataExt;
    (found.ino(), i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec()))
}

#[cfg(not(unix))]
fn inode_and_change(_: &Metadata) -> (u64, i128) {
    (0, 0)
}

impl Store {
    /// Verifies the files that changed since their last verification; all files the first time.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file with another digest, [`Error::Io`] for one that cannot be read,
    /// [`Error::Cancelled`].
    pub fn verify_changed(
        &self,
        stored: &StoredFiles<'_>,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let record = self.verification_record(stored.identity);
        let known = read_record(&record);
        let mut verified = BTreeMap::new();
        let mut changed = Vec::new();
        for (name, entry) in stored.files {
            let state =
                FileState::of(&open(stored.folder, name)?.metadata().map_err(read_error(stored, name))?);
            if known.get(name) != Some(&state) {
                changed.push((name, entry));
            }
            verified.insert(name.clone(), state);
        }
        if changed.is_empty() {
            return Ok(());
        }
        let total = changed.iter().map(|(_, entry)| entry.bytes).sum();
        let stage = Stage::start(progress, format!("Verifying {}", stored.title), Unit::Bytes, Some(total));
        let mut done = 0;
        for (name, entry) in changed {
            let found = digest(stored.folder, name, cancel, |bytes| stage.advance(done + bytes))?;
            if found != entry.sha256 {
                return Err(stored.damaged(name, entry.sha256, found));
            }
            done += entry.bytes;
        }
        write_record(&record, &verified);
        Ok(())
    }

    pub(super) fn verification_record(&self, identity: Sha256) -> MachineFolder {
        self.machine_of(identity)
    }
}

impl StoredFiles<'_> {
    fn damaged(&self, name: &str, expected: Sha256, found: Sha256) -> Error {
        Error::Damaged { path: self.folder.join(name), expected, found, repair: self.repair.to_owned() }
    }
}

/// Returns the digest of a file. Links that lead out of the folder are refused.
pub(super) fn digest(
    folder: &Path,
    name: &str,
    cancel: &Cancel,
    seen: impl FnMut(u64),
) -> Result<Sha256, Error> {
    files::digest_open(open(folder, name)?, &folder.join(name), cancel, seen)
}

fn open(folder: &Path, name: &str) -> Result<std::fs::File, Error> {
    open_inside(folder, name).map_err(Error::io("open", folder.join(name)))
}

fn read_error(stored: &StoredFiles<'_>, name: &str) -> impl FnOnce(io::Error) -> Error {
    Error::io("look at", stored.folder.join(name))
}

fn read_record(record: &MachineFolder) -> BTreeMap<String, FileState> {
    // Without a readable record, everything is verified.
    let bytes = record.read(RECORD).ok().flatten();
    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Writes the record. If the store cannot be written to, every load verifies all files.
fn write_record(record: &MachineFolder, verified: &BTreeMap<String, FileState>) {
    let written = serde_json::to_vec(verified).map(|bytes| record.write(RECORD, &bytes));
    if let Ok(Err(error)) = written {
        tracing::debug!(%error, "the record of a verification could not be written");
    }
}

/// Removes the record of a folder, so that the next load verifies it.
pub(super) fn forget(record: &MachineFolder) {
    if let Err(error) = record.remove(RECORD) {
        tracing::debug!(%error, "the record of a verification could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Mutex};

    use narthex_spec::progress::{Progress, Quiet};

    use super::*;

    struct Fixture {
        home: tempfile::TempDir,
        store: Store,
        files: BTreeMap<String, FileEntry>,
    }

    impl Fixture {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let store = Store::open(Some(home.path().join("home"))).unwrap();
            fs::create_dir_all(home.path().join("package/graphs")).unwrap();
            let mut files = BTreeMap::new();
            for (name, bytes) in [("weights.bin", vec![7; 3 << 20]), ("graphs/g.onnx", vec![1, 2])] {
                fs::write(home.path().join("package").join(name), &bytes).unwrap();
                let entry = FileEntry { bytes: bytes.len() as u64, sha256: files::digest(&bytes) };
                files.insert(name.to_owned(), entry);
            }
            Self { home, store, files }
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.home.path().join("package").join(name)
        }

        /// Verifies, and returns the number of bytes that had to be read.
        fn verify(&self) -> Result<u64, Error> {
            let folder = self.home.path().join("package");
            let stored = StoredFiles {
                folder: &folder,
                identity: files::digest(b"manifest"),
                files: &self.files,
                title: "m@w8",
                repair: "`narthex rm m@w8` and `narthex pull m@w8`",
            };
            let read = Mutex::new(0);
            let sink = |event: Progress| {
                if let Progress::Started { total: Some(total), .. } = event {
                    *read.lock().unwrap() += total;
                }
            };
            self.store.verify_changed(&stored, &sink, &Cancel::new(false))?;
            Ok(read.into_inner().unwrap())
        }
    }

    #[test]
    fn files_are_read_once_and_again_after_a_change() {
        let fixture = Fixture::new();
        assert_eq!(fixture.verify().unwrap(), (3 << 20) + 2);
        assert_eq!(fixture.verify().unwrap(), 0);
        let bytes = fs::read(fixture.path("graphs/g.onnx")).unwrap();
        fs::remove_file(fixture.path("graphs/g.onnx")).unwrap();
        fs::write(fixture.path("graphs/g.onnx"), bytes).unwrap();
        assert_eq!(fixture.verify().unwrap(), 2, "another inode or time");
    }

    #[test]
    fn a_flipped_byte_is_refused_with_both_digests_and_the_next_step() {
        let fixture = Fixture::new();
        fixture.verify().unwrap();
        let path = fixture.path("weights.bin");
        let mut bytes = fs::read(&path).unwrap();
        bytes[1 << 20] ^= 1;
        fs::write(&path, &bytes).unwrap();
        for _ in 0..2 {
            let error = fixture.verify().unwrap_err();
            let (expected, found) = (fixture.files["weights.bin"].sha256, files::digest(&bytes));
            let text = error.to_string();
            assert!(text.contains("weights.bin") && text.contains(&expected.to_string()), "{text}");
            assert!(text.contains(&found.to_string()), "{text}");
            assert!(error.hint().unwrap().contains("`narthex rm m@w8`"));
        }
    }

    #[test]
    fn a_missing_file_and_a_cancelled_verification_are_errors() {
        let fixture = Fixture::new();
        let folder = fixture.home.path().join("package");
        let identity = files::digest(b"other");
        let stored = StoredFiles { folder: &folder, identity, files: &fixture.files, title: "m", repair: "" };
        let cancelled = fixture.store.verify_changed(&stored, &Quiet, &Cancel::new(true));
        assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
        fs::remove_file(fixture.path("weights.bin")).unwrap();
        let missing = fixture.verify().unwrap_err().to_string();
        assert!(missing.contains("weights.bin"), "{missing}");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_out_of_the_folder_is_refused() {
        let fixture = Fixture::new();
        let outside = fixture.home.path().join("outside");
        fs::rename(fixture.path("weights.bin"), &outside).unwrap();
        std::os::unix::fs::symlink(&outside, fixture.path("weights.bin")).unwrap();
        let error = fixture.verify().unwrap_err().to_string();
        assert!(error.contains("leads out of the folder"), "{error}");
    }
}
