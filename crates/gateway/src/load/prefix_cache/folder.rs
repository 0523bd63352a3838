//! The files of a prefix cache: `<folder>/<identity>/<index>-<digest>.kv`.
//!
//! Several models and processes may share a folder. Files are complete or absent, because they are renamed into place.
//! The time of a file's last change is that of its last use. Only files and folders with names of this form are
//! counted or removed.

use std::{
    cmp::Reverse,
    collections::HashSet,
    fs::{self, DirEntry, File, OpenOptions},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use blake3::Hash;
use narthex_engine::{executor::KvBlock, position::Position, prefix_storage::BlockKey};

use super::block_file::{self, FileLabel};

/// End of the name of a file with a block.
const EXTENSION: &str = ".kv";

/// End of the name of a file that is being written.
const NEW: &str = ".new";

/// Age from which the incomplete file of a process that was killed is removed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Files that were used within the same period are evicted from the end of their prefixes, because a block is useless
/// without those before it.
const PERIOD_SECS: u64 = 600;

/// Maximum number of files of one model that are known.
const MAX_FILES: usize = 1 << 20;

/// Maximum sizes in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct FolderLimits {
    /// Size of all files of all models.
    pub(super) total: u64,
    /// Size of one file.
    pub(super) file: u64,
}

/// The files of one model in a folder of all models.
#[derive(Debug)]
pub(super) struct PrefixFolder {
    root: PathBuf,
    own: PathBuf,
    identity: [u8; 32],
    pub(super) limits: FolderLimits,
}

/// A file that may be evicted.
struct StoredFile {
    path: PathBuf,
    bytes: u64,
    index: u32,
    used: SystemTime,
}

impl PrefixFolder {
    /// Returns the folder of a model under `root`, which need not exist.
    pub(super) fn new(root: &Path, identity: [u8; 32], limits: FolderLimits) -> Self {
        let own = root.join(Hash::from_bytes(identity).to_hex().as_str());
        Self { root: root.to_owned(), own, identity, limits }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Creates the folder, which only this user may read.
    pub(super) fn create(&self) -> io::Result<()> {
        narthex_files::create_private_folder(&self.own)
    }

    /// Refuses folders that another user can change: their files would be read as keys and values of the model.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] with the reason; otherwise the system's error.
    pub(super) fn check_own(&self) -> io::Result<()> {
        for folder in [&self.root, &self.own] {
            match fs::metadata(folder) {
                Ok(meta) => narthex_files::check_own(&meta).map_err(|error| {
                    io::Error::new(error.kind(), format!("{}: {error}", folder.display()))
                })?,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the keys of all files.
    pub(super) fn list(&self) -> io::Result<HashSet<BlockKey>> {
        match fs::read_dir(&self.own) {
            Ok(entries) => Ok(entries.flatten().filter_map(|entry| key_of(&entry)).take(MAX_FILES).collect()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(HashSet::new()),
            Err(error) => Err(error),
        }
    }

    /// Reads a block with the size of its file; `None` if there is no such file.
    ///
    /// # Errors
    /// The reason for a file that is damaged or foreign, or that cannot be read.
    pub(super) fn read(&self, key: BlockKey) -> Result<Option<(KvBlock, u64)>, String> {
        match narthex_files::read_own(&self.path(&key), self.limits.file) {
            Ok(bytes) => {
                let block = block_file::decode(&bytes, self.label(key))?;
                Ok(Some((block, bytes.len() as u64)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns the contents of a file, as [`block_file::encode`].
    pub(super) fn encode(&self, key: BlockKey, block: &KvBlock) -> Option<Vec<u8>> {
        block_file::encode(self.label(key), block)
    }

    /// Writes a file, unless it exists.
    pub(super) fn write(&self, key: &BlockKey, bytes: &[u8]) -> io::Result<()> {
        self.write_by(write_new, key, bytes)
    }

    /// Writes a file by `put`, unless it exists.
    fn write_by(
        &self,
        put: impl Fn(&Path, &[u8]) -> io::Result<()>,
        key: &BlockKey,
        bytes: &[u8],
    ) -> io::Result<()> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let path = self.path(key);
        if path.exists() {
            return Ok(());
        }

        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Containers have processes with the same id, and a killed one leaves its file.
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let new = self.own.join(format!("{}-{number}-{}{NEW}", std::process::id(), time.as_nanos()));
        let write = || put(&new, bytes).and_then(|()| fs::rename(&new, &path));
        let written = match write() {
            // Another process has removed the folder after it evicted all files.
            Err(error) if error.kind() == ErrorKind::NotFound => self.create().and_then(|()| write()),
            written => written,
        };

        if written.is_err() {
            // The incomplete file is useless; the error has the reason.
            let _ = fs::remove_file(&new);
        }

        // On Windows, a file that another process has just written cannot be replaced while it is open.
        if path.exists() { Ok(()) } else { written }
    }

    /// Removes a file, if it exists.
    pub(super) fn remove(&self, key: &BlockKey) {
        // Without it, each later read ignores the file again.
        let _ = fs::remove_file(self.path(key));
    }

    /// Records the use of files.
    pub(super) fn touch(&self, keys: impl IntoIterator<Item = BlockKey>) {
        let now = SystemTime::now();
        for key in keys {
            // A file that cannot be changed is evicted earlier.
            let _ = open_to_touch(&self.path(&key)).and_then(|file| file.set_modified(now));
        }
    }

    /// Removes the files that were not used for the longest time, of any model, until `room` bytes can be written.
    ///
    /// # Errors
    /// The system's error if the folder cannot be listed.
    pub(super) fn evict(&self, room: u64) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.root)?.flatten() {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && entry.file_name().to_str().is_some_and(|name| hash(name).is_some()) {
                stored_files(&entry.path(), &mut files);
            }
        }
        let mut total: u64 = files.iter().map(|file| file.bytes).sum();
        files.sort_by_cached_key(|file| {
            let age = file.used.duration_since(UNIX_EPOCH).unwrap_or_default();
            (age.as_secs() / PERIOD_SECS, Reverse(file.index), age)
        });
        for file in files {
            if total.saturating_add(room) <= self.limits.total {
                break;
            }
            if let Ok(()) = fs::remove_file(&file.path) {
                total = total.saturating_sub(file.bytes);
                // This fails unless the folder is empty.
                let _ = file.path.parent().map(fs::remove_dir);
            }
        }
        Ok(())
    }

    fn label(&self, key: BlockKey) -> FileLabel {
        FileLabel { identity: self.identity, key }
    }

    pub(super) fn path(&self, key: &BlockKey) -> PathBuf {
        self.own.join(format!("{:08x}-{}{EXTENSION}", key.index, Hash::from_bytes(key.hash).to_hex()))
    }

    /// Returns the key of the first block of a prefix, or of the block after `parent`. Returns `None` if the digest of a
    /// medium is not known.
    pub(super) fn key(&self, parent: Option<&BlockKey>, tokens: &[Position]) -> Option<BlockKey> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(parent.map_or(&self.identity, |parent| &parent.hash));
        let has_media = tokens.iter().any(|position| position.as_token().is_none());
        for position in tokens {
            match position.as_row() {
                Some((media, row)) => {
                    hasher.update(&[1]);
                    hasher.update(&(row as u64).to_le_bytes());
                    hasher.update(&media.digest()?);
                }
                None => {
                    // A block with media is longer than one without, so that both never have the same bytes.
                    hasher.update(&[0][..usize::from(has_media)]);
                    hasher.update(&position.as_token().unwrap_or(0).to_le_bytes());
                }
            }
        }
        let index = parent.map_or(0, |parent| parent.index.saturating_add(1));
        Some(BlockKey { index, hash: *hasher.finalize().as_bytes() })
    }
}

/// Opens a regular file to change its times, for which its owner needs no write access.
#[cfg(unix)]
fn open_to_touch(path: &Path) -> io::Result<File> {
    narthex_files::open_regular(path)
}

/// Opens a file to change its times.
#[cfg(not(unix))]
fn open_to_touch(path: &Path) -> io::Result<File> {
    File::options().write(true).open(path)
}

/// Adds the files of one model. Removes incomplete files that were abandoned.
fn stored_files(folder: &Path, files: &mut Vec<StoredFile>) {
    // Another process may have removed the folder.
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().take(MAX_FILES) {
        let Ok(meta) = entry.metadata() else { continue };
        let used = meta.modified().unwrap_or(UNIX_EPOCH);
        if let Some(key) = key_of(&entry).filter(|_| meta.is_file()) {
            files.push(StoredFile { path: entry.path(), bytes: meta.len(), index: key.index, used });
        } else if is_new(&entry) && used.elapsed().is_ok_and(|age| age > ABANDONED) {
            // The next eviction tries again.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns whether a file has the name of an incomplete one.
fn is_new(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let stem = name.to_str().and_then(|name| name.strip_suffix(NEW));
    stem.is_some_and(|stem| stem.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'))
}

/// Returns the key in a file's name.
fn key_of(entry: &DirEntry) -> Option<BlockKey> {
    let name = entry.file_name();
    let (index, digest) = name.to_str()?.strip_suffix(EXTENSION)?.split_once('-')?;
    let index = u32::from_str_radix(index, 16).ok().filter(|_| index.len() == 8)?;
    Some(BlockKey { index, hash: hash(digest)? })
}

/// Returns the digest in a name.
fn hash(name: &str) -> Option<[u8; 32]> {
    Hash::from_hex(name).ok().map(|hash| *hash.as_bytes())
}

/// Writes a file that only this user may read.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use narthex_engine::position::MediaRows;

    use super::{super::block_file::tests::block, *};

    fn key(index: u32, number: u8) -> BlockKey {
        BlockKey { index, hash: [number; 32] }
    }

    fn folder(root: &Path, identity: u8, total: u64) -> PrefixFolder {
        PrefixFolder::new(root, [identity; 32], FolderLimits { total, file: 1 << 20 })
    }

    fn put(folder: &PrefixFolder, key: BlockKey) -> u64 {
        let bytes = folder.encode(key, &block(f32::from(key.hash[0]))).unwrap();
        folder.write(&key, &bytes).unwrap();
        bytes.len() as u64
    }

    /// Moves the last use of a file into the past.
    fn age(folder: &PrefixFolder, key: &BlockKey, seconds: u64) {
        let file = File::options().write(true).open(folder.path(key)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    }

    #[test]
    fn keys_follow_from_tokens_and_the_digests_of_media() {
        let root = tempfile::tempdir().unwrap();
        let own = folder(root.path(), 1, 1 << 20);
        let medium = |number: u8| MediaRows::new([number; 32], 1, vec![0.0; 3].into()).unwrap();
        let text = Position::of_tokens(&[0, 1, 2]);
        let with = |medium: MediaRows| medium.positions().collect::<Vec<Position>>();
        let blocks = [
            text.clone(),
            with(medium(101)),
            with(medium(102)),
            [&text[..2], &with(medium(101))[..1]].concat(),
            [&text[..2], &with(medium(101))[1..2]].concat(),
        ];
        let keys = blocks.each_ref().map(|block| own.key(None, block).unwrap());
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "block {index}");
        }
        // Files that were stored before media existed are still found.
        let hash = blake3::hash(&[&own.identity[..], &[0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]].concat());
        assert_eq!(keys[0].hash, *hash.as_bytes());
        let next = own.key(Some(&keys[1]), &text).unwrap();
        assert!(next.index == 1 && next.hash != own.key(Some(&keys[2]), &text).unwrap().hash);
    }

    #[test]
    fn files_are_private_and_read_back() {
        let root = tempfile::tempdir().unwrap();
        let own = folder(&root.path().join("cache"), 1, 1 << 20);
        assert_eq!((own.list().unwrap().len(), own.read(key(0, 1))), (0, Ok(None)));
        put(&own, key(0, 1));
        put(&own, key(0, 1));
        assert_eq!(own.read(key(0, 1)).unwrap().unwrap().0, block(1.0));
        assert_eq!(own.list().unwrap(), HashSet::from([key(0, 1)]));
        assert_eq!(folder(own.root(), 2, 1).list().unwrap().len(), 0);
        #[cfg(unix)]
        for (path, expect) in
            [(own.path(&key(0, 1)), 0o600), (own.own.clone(), 0o700), (own.root.clone(), 0o700)]
        {
            let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
            assert_eq!(mode & 0o777, expect, "{}", path.display());
        }
        own.remove(&key(0, 1));
        assert_eq!(own.read(key(0, 1)), Ok(None));
    }

    #[cfg(unix)]
    #[test]
    fn what_another_user_can_change_is_refused() {
        use std::os::unix::fs::PermissionsExt;

        let root = tempfile::tempdir().unwrap();
        let own = folder(&root.path().join("cache"), 1, 1 << 20);
        own.check_own().unwrap();
        put(&own, key(0, 1));
        own.check_own().unwrap();
        let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for path in [&own.root, &own.own] {
            open(path, 0o777);
            let error = own.check_own().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            let text = error.to_string();
            assert!(text.starts_with(&path.display().to_string()) && text.contains("mode 777"), "{text}");
            open(path, 0o700);
        }
        own.check_own().unwrap();
        open(&own.path(&key(0, 1)), 0o666);
        assert!(own.read(key(0, 1)).unwrap_err().contains("mode 666"));
    }

    #[test]
    fn a_disk_that_is_full_in_the_middle_of_a_file_keeps_nothing_of_it() {
        let root = tempfile::tempdir().unwrap();
        let own = folder(root.path(), 1, 1 << 20);
        put(&own, key(0, 1));
        let full = |path: &Path, bytes: &[u8]| {
            write_new(path, &bytes[..bytes.len() / 2])?;
            Err(ErrorKind::StorageFull.into())
        };
        let bytes = own.encode(key(1, 2), &block(2.0)).unwrap();
        let error = own.write_by(full, &key(1, 2), &bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        let files: Vec<_> = fs::read_dir(&own.own).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files, [own.path(&key(0, 1))]);
        assert_eq!(own.read(key(0, 1)).unwrap().unwrap().0, block(1.0));
    }

    #[test]
    fn files_that_are_not_what_they_should_be_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let own = folder(root.path(), 1, 1 << 20);
        put(&own, key(0, 1));
        let path = own.path(&key(0, 1));
        let good = fs::read(&path).unwrap();
        let check = |bytes: &[u8], expect: &str| {
            fs::write(&path, bytes).unwrap();
            let error = own.read(key(0, 1)).unwrap_err();
            assert!(error.contains(expect), "{error}");
        };
        check(&[], "found 0");
        check(b"notes", "found 5");
        check(&good[..good.len() / 2], "truncated");
        check(&vec![0; (1 << 20) + 1], "at most 1048576 bytes");
        let foreign = folder(root.path(), 2, 1 << 20).encode(key(0, 1), &block(1.0)).unwrap();
        check(&foreign, "another model");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(own.read(key(0, 1)).unwrap_err().contains("found a folder"));
    }

    #[cfg(unix)]
    #[test]
    fn a_named_pipe_in_the_place_of_a_file_is_not_waited_for() {
        use std::{process::Command, sync::mpsc, thread};

        let root = tempfile::tempdir().unwrap();
        let own = folder(root.path(), 1, 1 << 20);
        put(&own, key(0, 1));
        age(&own, &key(0, 1), 9000);
        let pipe = own.path(&key(0, 2));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let used = own.path(&key(0, 1));
        let (done, touched) = mpsc::channel();
        thread::spawn(move || {
            own.touch([key(0, 2), key(0, 1)]);
            done.send(()).unwrap();
        });
        touched.recv_timeout(Duration::from_secs(60)).expect("the pipe is not waited for");
        let age = fs::metadata(used).unwrap().modified().unwrap().elapsed().unwrap();
        assert!(age < Duration::from_secs(9000), "the other file is touched");
    }

    #[test]
    fn the_files_that_were_not_used_for_the_longest_time_are_evicted() {
        let root = tempfile::tempdir().unwrap();
        let (own, other) = (folder(root.path(), 1, 1 << 20), folder(root.path(), 2, 1 << 20));
        let size = put(&own, key(0, 1));
        put(&own, key(1, 2));
        put(&own, key(0, 3));
        put(&other, key(0, 4));
        for (seconds, file) in [(9000, key(0, 1)), (9000, key(1, 2)), (8000, key(0, 3))] {
            age(&own, &file, seconds);
        }
        age(&other, &key(0, 4), 20_000);
        fs::write(root.path().join("notes.kv"), "a file of the user").unwrap();
        own.touch([key(0, 3)]);
        let left = |total: u64, room: u64| {
            folder(root.path(), 3, total).evict(room).unwrap();
            let files: Vec<u8> = (1..5)
                .filter(|&number| {
                    [&own, &other]
                        .iter()
                        .any(|folder| folder.list().unwrap().iter().any(|key| key.hash[0] == number))
                })
                .collect();
            files
        };
        assert_eq!(left(5 * size, size), [1, 2, 3, 4]);
        assert_eq!(left(4 * size, size), [1, 2, 3]);
        assert!(!other.own.exists(), "an empty folder is removed");
        // The end of a prefix goes before its beginning.
        assert_eq!(left(3 * size, size), [1, 3]);
        assert_eq!(left(2 * size, size), [3]);
        assert_eq!(left(0, 0), [0; 0]);
        assert!(root.path().join("notes.kv").exists());
    }

    #[test]
    fn only_abandoned_incomplete_files_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let own = folder(root.path(), 1, 1 << 20);
        own.create().unwrap();
        let file = |name: &str, age: u64| {
            let path = own.own.join(name);
            let file = File::create(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
            path
        };
        let (old, new, foreign) = (file("12-3.new", 9000), file("12-4.new", 5), file("a.new", 9000));
        own.evict(0).unwrap();
        assert!(!old.exists() && new.exists() && foreign.exists());
    }
}
