//! The prefix cache as the engine's storage. One thread writes files, and another one reads them.
//!
//! Both queues have limits. A file that is damaged or foreign is removed with a warning. After a write that fails,
//! nothing more is written until the model is loaded again, and reads go on.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use narthex_engine::{
    executor::{KvBlock, StepError},
    position::Position,
    prefix_storage::{BlockKey, BlockState, PrefixRead, PrefixStorage},
    worker::StorageProgress,
};
use narthex_spec::ModelName;
use parking_lot::Mutex;

use super::folder::PrefixFolder;

/// Maximum bytes of the blocks that wait to be written, unless a single block is larger.
const QUEUE_BYTES: u64 = 256 << 20;

/// Maximum number of blocks that wait to be written.
const QUEUE_BLOCKS: u64 = 1024;

/// Maximum bytes of the files of one read.
const READ_BYTES: u64 = 1 << 30;

/// Time after which a read starts no more files.
const READ_TIME: Duration = Duration::from_secs(2);

/// Time after which a read is given up, even if the system has not returned from it. The engine polls a read without
/// progress after five seconds.
const READ_TIMEOUT: Duration = Duration::from_secs(4);

/// Maximum number of waiting reads. The engine has one at a time, so others were given up.
const READS: usize = 4;

/// Maximum time in which the last blocks are written when a model is unloaded.
const CLOSE_TIME: Duration = Duration::from_secs(5);

/// Part of the total size that a process writes between two evictions. Other processes may write as much meanwhile.
const SLACK: u64 = 16;

/// Number of bytes that may be written to a folder before the next eviction.
type WriteBudget = Mutex<u64>;

/// The budgets of the folders that storages of this process write to.
static WRITE_BUDGETS: Mutex<BTreeMap<PathBuf, Weak<WriteBudget>>> = Mutex::new(BTreeMap::new());

/// Returns the write budget of a folder, which all models of this process share.
fn write_budget(root: &Path) -> Arc<WriteBudget> {
    let mut budgets = WRITE_BUDGETS.lock();
    budgets.retain(|_, budget| budget.strong_count() > 0);
    if let Some(budget) = budgets.get(root).and_then(Weak::upgrade) {
        return budget;
    }
    let budget = Arc::<WriteBudget>::default();
    budgets.insert(root.to_owned(), Arc::downgrade(&budget));
    budget
}

/// A prefix cache in files.
pub(super) struct FileStorage {
    shared: Arc<StorageContext>,
    /// `None` when the storage is dropped.
    writes: Option<Sender<(BlockKey, KvBlock)>>,
    reads: SyncSender<ReadJob>,
    /// Disconnected when the writing thread has ended.
    written: Receiver<()>,
}

struct StorageContext {
    folder: PrefixFolder,
    name: ModelName,
    state: Mutex<State>,
    /// Locked during writes and evictions, because an eviction counts only complete files.
    budget: Arc<WriteBudget>,
    progress: StorageProgress,
}

#[derive(Default)]
struct State {
    /// Blocks in files and in the queue of writes.
    stored: HashSet<BlockKey>,
    /// Stored blocks whose use has not been recorded in their files.
    used: HashSet<BlockKey>,
    /// Number of blocks in the queue.
    queued: u64,
    is_closed: bool,
}

struct ReadJob {
    keys: Vec<BlockKey>,
    blocks: Sender<Vec<KvBlock>>,
    start: Instant,
}

struct FileRead {
    blocks: Receiver<Vec<KvBlock>>,
    start: Instant,
}

impl FileStorage {
    /// Lists the files of a model and starts its threads.
    ///
    /// # Errors
    /// The reason for a folder that another user can change; the system's error if the folder cannot be listed or a
    /// thread cannot be started.
    pub(super) fn open(folder: PrefixFolder, name: ModelName, progress: StorageProgress) -> io::Result<Self> {
        let created = folder.create();
        folder.check_own()?;
        let state = State { stored: folder.list()?, ..State::default() };
        let budget = write_budget(folder.root());
        let shared = Arc::new(StorageContext { folder, name, state: Mutex::new(state), budget, progress });
        if let Err(error) = created {
            shared.close(&error);
        }
        let (writes, blocks) = mpsc::channel();
        let (reads, jobs) = mpsc::sync_channel(READS);
        let (end, written) = mpsc::channel();
        let writer = shared.clone();
        let reader = shared.clone();
        thread::Builder::new().name("prefix-write".to_owned()).spawn(move || {
            let _end: Sender<()> = end;
            writer.write_all(&blocks);
        })?;
        thread::Builder::new().name("prefix-read".to_owned()).spawn(move || {
            jobs.iter().for_each(|job: ReadJob| reader.read_all(&job));
        })?;
        Ok(Self { shared, writes: Some(writes), reads, written })
    }
}

impl StorageContext {
    /// Ends all writes, with a warning.
    fn close(&self, error: &dyn std::fmt::Display) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.is_closed, true) {
            let folder = self.folder.root().display();
            tracing::warn!(
                "no more prefixes of {} are stored in {folder} until it is loaded again: {error}",
                self.name
            );
        }
    }

    /// Maximum number of blocks in the queue of writes.
    fn queue_limit(&self) -> u64 {
        // The limit of a file is several times its usual size.
        (4 * QUEUE_BYTES / self.folder.limits.file.max(1)).clamp(1, QUEUE_BLOCKS)
    }

    /// Writes blocks until the storage is dropped.
    fn write_all(&self, blocks: &Receiver<(BlockKey, KvBlock)>) {
        let slack = self.folder.limits.total / SLACK;
        if let Err(error) = self.make_room(&mut self.budget.lock(), slack) {
            self.close(&error);
        }
        for (key, block) in blocks {
            let outcome = if self.state.lock().is_closed { Ok(false) } else { self.write(key, &block) };
            let mut state = self.state.lock();
            state.queued = state.queued.saturating_sub(1);
            if matches!(outcome, Ok(true)) {
                state.stored.insert(key);
            } else {
                state.stored.remove(&key);
            }
            drop(state);
            if let Err(error) = outcome {
                self.close(&error);
            }
            self.progress.report();
        }
        let used = std::mem::take(&mut self.state.lock().used);
        self.folder.touch(used);
    }

    /// Writes a block. Returns false if it must not be stored.
    fn write(&self, key: BlockKey, block: &KvBlock) -> io::Result<bool> {
        let Some(bytes) = self.folder.encode(key, block) else { return Ok(false) };
        let size = bytes.len() as u64;
        let total = self.folder.limits.total;
        if size > total {
            let reason = format!("a block takes {size} bytes of {total}; use a larger --prefix-cache-size");
            return Err(io::Error::other(reason));
        }
        let mut budget = self.budget.lock();
        if size > *budget {
            self.make_room(&mut budget, size.max(total / SLACK))?;
        }
        self.folder.write(&key, &bytes)?;
        *budget -= size;
        Ok(true)
    }

    /// Evicts files until there is room for `bytes`.
    fn make_room(&self, budget: &mut u64, bytes: u64) -> io::Result<()> {
        let used = std::mem::take(&mut self.state.lock().used);
        self.folder.touch(used);
        self.folder.evict(bytes)?;
        *budget = bytes;
        let left = self.folder.list()?;
        // Blocks in the queue are added when they have been written.
        self.state.lock().stored = left;
        Ok(())
    }

    /// Reads blocks up to the first one that is missing or damaged.
    fn read_all(&self, job: &ReadJob) {
        let mut blocks = Vec::new();
        let mut bytes = 0u64;
        for &key in &job.keys {
            if job.start.elapsed() >= READ_TIME || bytes >= READ_BYTES {
                break;
            }
            match self.folder.read(key) {
                Ok(Some((block, size))) => {
                    blocks.push(block);
                    bytes = bytes.saturating_add(size);
                }
                // Another storage has evicted it, or it waits to be written, which adds it again.
                Ok(None) => {
                    self.state.lock().stored.remove(&key);
                    break;
                }
                Err(reason) => {
                    self.discard(&key, &reason);
                    break;
                }
            }
        }

        // The engine may have given up.
        let _ = job.blocks.send(blocks);
        self.progress.report();
    }

    /// Removes a file that cannot be used, with a warning.
    fn discard(&self, key: &BlockKey, reason: &dyn std::fmt::Display) {
        let path = self.folder.path(key);
        tracing::warn!("{} of the prefix cache is ignored and removed: {reason}", path.display());
        self.folder.remove(key);
        let mut state = self.state.lock();
        state.stored.remove(key);
        state.used.remove(key);
    }
}

impl PrefixStorage for FileStorage {
    fn key(&self, parent: Option<&BlockKey>, tokens: &[Position]) -> Option<BlockKey> {
        self.shared.folder.key(parent, tokens)
    }

    fn state(&mut self, key: &BlockKey) -> BlockState {
        let mut state = self.shared.state.lock();
        if state.stored.contains(key) {
            state.used.insert(*key);
            return BlockState::Stored;
        }
        match () {
            () if state.is_closed => BlockState::Closed,
            () if state.queued >= self.shared.queue_limit() => BlockState::QueueFull,
            () => BlockState::Missing,
        }
    }

    fn write(&mut self, key: BlockKey, block: KvBlock) {
        let mut state = self.shared.state.lock();
        if state.is_closed || state.queued >= self.shared.queue_limit() {
            return;
        }
        // A failed send means that the thread has ended, by a panic.
        if self.writes.as_ref().is_some_and(|writes| writes.send((key, block)).is_ok()) {
            state.queued += 1;
            state.stored.insert(key);
        } else {
            state.is_closed = true;
        }
    }

    fn read(&mut self, keys: Vec<BlockKey>) -> Box<dyn PrefixRead> {
        let (sender, blocks) = mpsc::channel();
        let start = Instant::now();
        // If the thread is stuck, the job is dropped, and the read ends without blocks.
        let _ = self.reads.try_send(ReadJob { keys, blocks: sender, start });
        Box::new(FileRead { blocks, start })
    }

    fn remove(&mut self, key: &BlockKey, error: &StepError) {
        self.shared.discard(key, error);
    }
}

impl PrefixRead for FileRead {
    fn poll(&mut self) -> Option<Vec<KvBlock>> {
        match self.blocks.try_recv() {
            Ok(blocks) => Some(blocks),
            Err(TryRecvError::Disconnected) => Some(Vec::new()),
            Err(TryRecvError::Empty) => (self.start.elapsed() >= READ_TIMEOUT).then(Vec::new),
        }
    }
}

impl Drop for FileStorage {
    /// Waits for the last writes.
    fn drop(&mut self) {
        self.writes = None;
        if self.written.recv_timeout(CLOSE_TIME) == Err(RecvTimeoutError::Timeout) {
            let folder = self.shared.folder.root().display();
            tracing::warn!("not all prefixes of {} were stored in {folder} in time", self.shared.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::{
        super::{block_file::tests::block, folder::FolderLimits},
        *,
    };

    fn open(root: &Path, total: u64) -> io::Result<FileStorage> {
        let folder = PrefixFolder::new(root, [1; 32], FolderLimits { total, file: 1 << 20 });
        FileStorage::open(folder, "tiny".parse().unwrap(), StorageProgress::default())
    }

    /// Returns the keys of a prefix whose blocks have these tokens.
    fn keys(storage: &FileStorage, tokens: &[u32]) -> Vec<BlockKey> {
        let mut keys: Vec<BlockKey> = Vec::new();
        for token in tokens {
            keys.push(storage.key(keys.last(), &Position::of_tokens(&[*token])).unwrap());
        }
        keys
    }

    /// Calls `done` until it returns a value.
    fn wait<T>(mut done: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(found) = done() {
                return found;
            }
            assert!(Instant::now() < deadline, "nothing happens");
            thread::yield_now();
        }
    }

    fn read(storage: &mut FileStorage, keys: &[BlockKey]) -> Vec<KvBlock> {
        let mut read = storage.read(keys.to_vec());
        wait(|| read.poll())
    }

    fn states(storage: &mut FileStorage, keys: &[BlockKey]) -> Vec<BlockState> {
        keys.iter().map(|key| storage.state(key)).collect()
    }

    fn files(root: &Path) -> Vec<fs::Metadata> {
        let folders = fs::read_dir(root).unwrap().flatten();
        let files = folders.flat_map(|folder| fs::read_dir(folder.path()).unwrap().flatten());
        files.map(|file| file.metadata().unwrap()).collect()
    }

    #[test]
    fn blocks_outlive_the_storage_until_one_is_damaged() {
        use BlockState::{Missing, Stored};
        let root = tempfile::tempdir().unwrap();
        let mut storage = open(root.path(), 1 << 20).unwrap();
        let keys = keys(&storage, &[1, 2, 3]);
        assert_eq!(states(&mut storage, &keys), [Missing; 3]);
        for (number, key) in keys.iter().enumerate() {
            storage.write(*key, block(number as f32));
        }
        // They wait to be written, or are written.
        assert_eq!(states(&mut storage, &keys), [Stored; 3]);
        drop(storage);
        let mut storage = open(root.path(), 1 << 20).unwrap();
        assert_eq!(states(&mut storage, &keys), [Stored; 3]);
        assert_eq!(read(&mut storage, &keys), [block(0.0), block(1.0), block(2.0)]);
        assert_eq!(read(&mut storage, &keys[1..]), [block(1.0), block(2.0)]);
        let path = storage.shared.folder.path(&keys[1]);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(read(&mut storage, &keys), [block(0.0)]);
        assert!(!path.exists());
        assert_eq!(states(&mut storage, &keys), [Stored, Missing, Stored]);
        storage.write(keys[1], block(1.0));
        drop(storage);
        let mut storage = open(root.path(), 1 << 20).unwrap();
        assert_eq!(read(&mut storage, &keys).len(), 3);
        storage.remove(&keys[0], &StepError::bad_plan("it does not fit"));
        assert_eq!((states(&mut storage, &keys)[0], read(&mut storage, &keys).len()), (Missing, 0));
    }

    #[test]
    fn values_that_are_not_finite_are_not_stored() {
        let root = tempfile::tempdir().unwrap();
        let mut storage = open(root.path(), 1 << 20).unwrap();
        let keys = keys(&storage, &[1]);
        storage.write(keys[0], block(f32::NAN));
        drop(storage);
        assert_eq!(states(&mut open(root.path(), 1 << 20).unwrap(), &keys), [BlockState::Missing]);
    }

    #[test]
    fn several_storages_share_a_folder_within_its_size() {
        let root = tempfile::tempdir().unwrap();
        let total = 20_000;
        thread::scope(|scope| {
            for number in 0..4 {
                let root = root.path();
                scope.spawn(move || {
                    let mut storage = open(root, total).unwrap();
                    // Half of the blocks are the same in all of them.
                    for token in
                        (0..200).map(|token| if token % 2 == 0 { token } else { 1000 * number + token })
                    {
                        let key = storage.key(None, &Position::of_tokens(&[token])).unwrap();
                        wait(|| (storage.state(&key) != BlockState::QueueFull).then_some(()));
                        storage.write(key, block(token as f32));
                        for found in read(&mut storage, &[key]) {
                            assert_eq!(found, block(token as f32));
                        }
                    }
                });
            }
        });
        let mut storage = open(root.path(), total).unwrap();
        let stored = storage.shared.folder.list().unwrap();
        assert!(stored.len() > 10, "{}", stored.len());
        // Some of them are evicted at this moment.
        assert!(stored.iter().all(|key| storage.shared.folder.read(*key).is_ok()));
        // Its first eviction has run before the first write.
        let key = storage.key(None, &Position::of_tokens(&[9999])).unwrap();
        storage.write(key, block(1.0));
        drop(storage);
        let files = files(root.path());
        assert!(files.iter().map(fs::Metadata::len).sum::<u64>() <= total && files.len() > 10);
    }

    #[test]
    fn all_models_together_keep_the_size() {
        let root = tempfile::tempdir().unwrap();
        let sample = open(root.path(), 1 << 20).unwrap();
        let size = sample
            .shared
            .folder
            .encode(sample.key(None, &Position::of_tokens(&[0])).unwrap(), &block(0.0))
            .unwrap()
            .len() as u64;
        drop(sample);
        let total = 32 * size;
        let mut storages: Vec<FileStorage> = (0..8).map(|_| open(root.path(), total).unwrap()).collect();
        let write = |storage: &mut FileStorage, token: u32| {
            let key = storage.key(None, &Position::of_tokens(&[token])).unwrap();
            storage.write(key, block(token as f32));
            let path = storage.shared.folder.path(&key);
            wait(|| path.exists().then_some(()));
            let found: u64 = files(root.path()).iter().map(fs::Metadata::len).sum();
            assert!(found <= total, "token {token}: {found} bytes of {total}");
        };
        // After its first write, a storage evicts only if the room is used up.
        for (storage, token) in storages.iter_mut().zip(0..) {
            write(storage, token);
        }
        for token in 100..140 {
            write(&mut storages[0], token);
        }
        for (storage, token) in storages.iter_mut().zip(200..) {
            write(storage, token);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_read_only() {
        let root = tempfile::tempdir().unwrap();
        let is_closed = |storage: &mut FileStorage| {
            let key = storage.key(None, &Position::of_tokens(&[5])).unwrap();
            storage.write(key, block(1.0));
            wait(|| (storage.state(&key) == BlockState::Closed).then_some(()));
            storage.write(key, block(1.0));
            assert!(read(storage, &[key]).is_empty());
        };
        // A block is larger than the whole cache.
        is_closed(&mut open(root.path(), 10).unwrap());
        let mut storage = open(root.path(), 1 << 20).unwrap();
        fs::remove_dir(
            storage
                .shared
                .folder
                .path(&storage.key(None, &Position::of_tokens(&[5])).unwrap())
                .parent()
                .unwrap(),
        )
        .unwrap();
        fs::remove_dir(root.path()).unwrap();
        fs::write(root.path(), "a file").unwrap();
        is_closed(&mut storage);
        assert!(open(root.path(), 1 << 20).is_err());
        fs::remove_file(root.path()).unwrap();
        fs::create_dir(root.path()).unwrap();
    }
}
