//! Verification of stored files against the digests that were recorded when they were made.
//!
//! Reading a large model to verify it takes seconds, so [`Store::verify_changed`] skips files whose inode, size and
//! times are those of their last verification. The record of it is small, belongs to this machine, and is stored in
//! `machine/<sha256>/verified.json`. The [audit](super::audit) reads all files.
//!
//! A load does not verify the digests of large files that this machine made for itself.
//! [`Staging::commit_with_state`] records their inodes, sizes and times, and they are not used if these have changed. It
//! also records their digests, for the audit.

use std::{
    collections::BTreeMap,
    fs::{self, Metadata},
    io,
    path::{Path, PathBuf},
};

use narthex_files::open_inside;
use narthex_spec::{
    ProgressSink, Sha256,
    manifest::FileEntry,
    progress::{Stage, Unit},
};
use serde::{Deserialize, Serialize};

use super::{MachineFolder, Staging, Store, privacy, staging::swap_lock};
use crate::{CancelFlag, error::Error, files};

/// Name of the record of a folder's last verification.
const RECORD: &str = "verified.json";

/// Name of the record of a folder's state, which is in that folder.
const STATE_RECORD: &str = "state.json";

/// Name of the record of the digests of a folder's files, which is in that folder.
const DIGESTS_RECORD: &str = "digests.json";

/// Maximum bytes of such a record, which has a line for each file.
const MAX_DIGESTS: u64 = 1 << 20;

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
pub(crate) struct FileState {
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
        cancel: &CancelFlag,
    ) -> Result<(), Error> {
        let record = self.machine_of(stored.identity);
        let known = read_record(&record, RECORD);
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

        if let Err(error) = write_record(&record, RECORD, &verified) {
            // Every load then verifies all files.
            tracing::debug!(%error, "the record of a verification could not be written");
        }
        Ok(())
    }
}

impl Staging {
    /// Records the digests and the state of the staged files in the folder, and commits it as [`Staging::commit`]. Other
    /// processes never see the files without their records.
    ///
    /// # Errors
    /// Those of [`Staging::commit`].
    pub fn commit_with_state(self) -> Result<PathBuf, Error> {
        let digests = self.path().join(DIGESTS_RECORD);
        files::write_privately(&digests, &encode(&MachineFolder::digests(self.path())?, &digests)?)?;
        // Both may change the times of files, and must not do so after the record.
        privacy::make_private(self.path())?;
        files::sync_tree(self.path())?;
        let record = self.path().join(STATE_RECORD);
        files::write_privately(&record, &encode(&states(self.path())?, &record)?)?;
        self.commit()
    }
}

impl MachineFolder {
    /// Returns the folder `name`, if it exists and its files have the state that [`Staging::commit_with_state`] recorded.
    ///
    /// # Errors
    /// [`Error::Io`] for a folder with any other state, and for one that cannot be read.
    pub fn unchanged_folder(&self, name: &str) -> Result<Option<PathBuf>, Error> {
        self.unchanged_folder_by(name, &states)
    }

    fn unchanged_folder_by(&self, name: &str, states: ReadStates<'_>) -> Result<Option<PathBuf>, Error> {
        let recorded = || read_record(self, &format!("{name}/{STATE_RECORD}"));
        let Some(folder) = self.folder(name) else { return Ok(None) };
        if states(&folder).is_ok_and(|found| found == recorded()) {
            return Ok(Some(folder));
        }
        // Another process may have replaced the folder between the two reads. The second attempt excludes this, unless
        // the store is read-only and the lock cannot be taken.
        let _swap = swap_lock(&self.store).ok();
        let Some(folder) = self.folder(name) else { return Ok(None) };
        if states(&folder)? == recorded() {
            return Ok(Some(folder));
        }
        let reason = "its files changed after they were stored";
        Err(Error::io("use", folder)(io::Error::new(io::ErrorKind::InvalidData, reason)))
    }
}

/// Function that reads the states of a folder's files.
type ReadStates<'a> = &'a dyn Fn(&Path) -> Result<BTreeMap<String, FileState>, Error>;

/// Returns the state of every file in a folder except the record of them, by name.
fn states(folder: &Path) -> Result<BTreeMap<String, FileState>, Error> {
    list_states(folder).map_err(Error::io("list", folder))
}

fn list_states(folder: &Path) -> io::Result<BTreeMap<String, FileState>> {
    let mut states = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != STATE_RECORD {
            states.insert(name, FileState::of(&entry.metadata()?));
        }
    }
    Ok(states)
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
    cancel: &CancelFlag,
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

fn read_record(record: &MachineFolder, name: &str) -> BTreeMap<String, FileState> {
    // Without a readable record, no state is known.
    let bytes = record.read(name).ok().flatten();
    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

fn write_record(
    record: &MachineFolder,
    name: &str,
    states: &BTreeMap<String, FileState>,
) -> Result<(), Error> {
    record.write(name, &encode(states, Path::new(name))?)
}

/// Encodes a record; `path` is for errors.
fn encode(record: &impl Serialize, path: &Path) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(record).map_err(|error| Error::io("write", path)(error.into()))
}

/// Removes the record of a folder, so that the next load verifies it.
pub(super) fn forget(record: &MachineFolder) {
    if let Err(error) = record.remove(RECORD) {
        tracing::debug!(%error, "the record of a verification could not be removed");
    }
}

/// Returns the files of a folder that this machine made, by name, if their digests are recorded.
pub(super) fn made_files(folder: &Path) -> Option<BTreeMap<String, FileEntry>> {
    let bytes = narthex_files::read(&folder.join(DIGESTS_RECORD), MAX_DIGESTS).ok()?;
    let digests: BTreeMap<String, Sha256> = serde_json::from_slice(&bytes).ok()?;
    Some(
        digests
            .into_iter()
            .map(|(name, sha256)| {
                // A missing file is found when it is read.
                let bytes = fs::metadata(folder.join(&name)).map_or(0, |found| found.len());
                (name, FileEntry { bytes, sha256 })
            })
            .collect(),
    )
}

/// Removes the record of a folder that this machine made, so that its files are not used and are made again.
pub(super) fn forget_state(folder: &Path) {
    if let Err(error) = fs::remove_file(folder.join(STATE_RECORD)) {
        tracing::debug!(%error, "the record of a folder's state could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Mutex,
        time::{Duration, SystemTime},
    };

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
                let entry = FileEntry { bytes: bytes.len() as u64, sha256: Sha256::of(&bytes) };
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
                identity: Sha256::of(b"manifest"),
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
            self.store.verify_changed(&stored, &sink, &CancelFlag::new(false))?;
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
            let (expected, found) = (fixture.files["weights.bin"].sha256, Sha256::of(&bytes));
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
        let identity = Sha256::of(b"other");
        let stored = StoredFiles { folder: &folder, identity, files: &fixture.files, title: "m", repair: "" };
        let cancelled = fixture.store.verify_changed(&stored, &Quiet, &CancelFlag::new(true));
        assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
        fs::remove_file(fixture.path("weights.bin")).unwrap();
        let missing = fixture.verify().unwrap_err().to_string();
        assert!(missing.contains("weights.bin"), "{missing}");
    }

    #[test]
    fn a_folder_without_digests_is_used_only_while_it_is_unchanged() {
        let fixture = Fixture::new();
        let machine = fixture.store.machine_of(Sha256::of(b"manifest"));
        assert_eq!(machine.unchanged_folder("packed").unwrap(), None);
        let store = || {
            let staging = machine.stage("packed").unwrap();
            fs::write(staging.path().join("a"), [7; 100]).unwrap();
            fs::write(staging.path().join("b"), [8; 100]).unwrap();
            let folder = staging.commit_with_state().unwrap();
            assert_eq!(machine.unchanged_folder("packed").unwrap().as_ref(), Some(&folder));
            folder
        };
        let later = SystemTime::now() + Duration::from_secs(60);
        let touch = |file: &Path| fs::File::options().write(true).open(file)?.set_modified(later);
        let check = |change: &dyn Fn(&Path) -> io::Result<()>| {
            let folder = store();
            change(&folder).unwrap();
            let error = machine.unchanged_folder("packed").unwrap_err().to_string();
            assert!(error.contains("changed after they were stored"), "{error}");
        };
        check(&|folder| fs::write(folder.join("a"), [7; 99]));
        check(&|folder| touch(&folder.join("b")));
        check(&|folder| fs::remove_file(folder.join("b")));
        check(&|folder| fs::write(folder.join("c"), []));
        check(&|folder| fs::write(folder.join(STATE_RECORD), "{"));
        check(&|folder| fs::remove_file(folder.join(STATE_RECORD)));
        store();
    }

    #[test]
    fn a_folder_that_two_processes_store_is_never_changed() {
        let fixture = Fixture::new();
        let machine = fixture.store.machine_of(Sha256::of(b"manifest"));
        let stage = || {
            let staging = machine.stage("packed").unwrap();
            fs::write(staging.path().join("a"), [7; 100]).unwrap();
            staging
        };
        let (first, second) = (stage(), stage());
        let folder = first.commit_with_state().unwrap();
        assert_eq!(machine.unchanged_folder("packed").unwrap().as_ref(), Some(&folder));
        // The second process replaces the folder after a third one has read the states in it.
        let second = Mutex::new(Some(second));
        let interrupted = |folder: &Path| {
            let found = states(folder);
            if let Some(staging) = second.lock().unwrap().take() {
                staging.commit_with_state()?;
            }
            found
        };
        assert_eq!(machine.unchanged_folder_by("packed", &interrupted).unwrap().as_ref(), Some(&folder));
        // A process removes the folder before the states are read.
        let removed = |folder: &Path| {
            files::remove_all(folder)?;
            states(folder)
        };
        assert_eq!(machine.unchanged_folder_by("packed", &removed).unwrap(), None);
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
