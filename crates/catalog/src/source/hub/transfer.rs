//! One file of a repository: promised, fetched, resumed, checked, put into the cache.
//!
//! The bytes gather in `<etag>.incomplete`, so a file that changes on the hub starts anew under its new ETag. A file of
//! the large-file storage has its SHA-256 as ETag and is refused if its bytes do not have it.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use narthex_spec::Sha256;
use ureq::{Body, http::Response};

use super::{
    cache::RepoCache,
    client::{Client, Promise, header},
    reference::blob_name,
};
use crate::{
    Cancel, check_cancel,
    error::{Error, HubError},
    files::{self, CHUNK, Hasher},
};

/// Attempts in a row that may bring no byte further.
pub(super) const ATTEMPTS: usize = 5;

/// Bytes that a file may have whose length the hub does not state.
const UNSTATED_LIMIT: u64 = 1 << 30;

/// Bytes between two reports of progress.
const REPORT: usize = 256 << 10;

/// A file that is to be in the cache.
pub(super) struct Transfer<'a> {
    pub(super) client: &'a Client,
    pub(super) repo: &'a RepoCache,
    pub(super) commit: &'a str,
    pub(super) name: &'a str,
}

/// What one attempt is about.
struct Attempt {
    url: String,
    etag: String,
    bytes: Option<u64>,
}

impl Attempt {
    fn limit(&self) -> u64 {
        self.bytes.unwrap_or(UNSTATED_LIMIT)
    }
}

impl Transfer<'_> {
    /// Fetches what is missing of the file, shows it in the snapshot, and gives its bytes.
    ///
    /// Passing failures are tried again, `backoff` and then ever longer waits apart, as long as bytes arrive.
    pub(super) fn run(&self, backoff: Duration, seen: &dyn Fn(u64), cancel: &Cancel) -> Result<u64, Error> {
        let mut failures = 0;
        let mut wait = backoff;
        let mut reached = 0;
        let mut former: Option<String> = None;
        loop {
            check_cancel(cancel)?;
            let error = match self.attempt(&mut former, seen, cancel) {
                Ok(bytes) => return Ok(bytes),
                Err(Error::Hub(error)) if error.is_passing() => error,
                Err(other) => return Err(other),
            };
            tracing::debug!(file = self.name, %error, "attempt failed");
            let length = former.as_ref().map_or(0, |etag| files::tree_bytes(&self.repo.partial(etag)));
            failures = if length > reached { 1 } else { failures + 1 };
            if length > reached {
                wait = backoff;
            }
            // The furthest point counts, else a server that makes each other attempt begin anew would be asked forever.
            reached = reached.max(length);
            if failures >= ATTEMPTS {
                return Err(error.into());
            }
            pause(error.retry_after().unwrap_or(wait), cancel)?;
            wait *= 2;
        }
    }

    fn attempt(
        &self,
        former: &mut Option<String>,
        seen: &dyn Fn(u64),
        cancel: &Cancel,
    ) -> Result<u64, Error> {
        let url = self.client.file_url(&self.repo.repo, self.commit, self.name);
        let Promise { etag, bytes } = self.client.promise(&self.repo.repo, &url, self.name)?;
        let etag = etag.as_deref().and_then(blob_name).ok_or_else(|| HubError::BadAnswer {
            repo: self.repo.repo.clone(),
            reason: format!("{} has no usable ETag", self.name),
        })?;
        if let Some(old) = former.replace(etag.to_owned()).filter(|old| old != etag) {
            files::remove_all(&self.repo.partial(&old))?;
        }
        let attempt = Attempt { url, etag: etag.to_owned(), bytes };
        let blob = self.repo.blob(etag);
        if !self.is_whole(&blob, &attempt) {
            let _lock = self.lock(etag, cancel)?;
            // Another process may have finished it while this one waited.
            if !self.is_whole(&blob, &attempt) {
                self.fetch(&attempt, &blob, seen, cancel)?;
            }
        }
        self.repo.link(self.commit, self.name, etag)?;
        Ok(fs::metadata(&blob).map_err(Error::io("look at", &blob))?.len())
    }

    fn is_whole(&self, blob: &Path, attempt: &Attempt) -> bool {
        fs::metadata(blob)
            .is_ok_and(|meta| meta.is_file() && attempt.bytes.is_none_or(|bytes| bytes == meta.len()))
    }

    fn lock(&self, etag: &str, cancel: &Cancel) -> Result<File, Error> {
        let path = self.repo.lock_file(etag)?;
        let options = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = options.map_err(Error::io("open the lock", &path))?;
        loop {
            check_cancel(cancel)?;
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(fs::TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(100)),
                Err(fs::TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
            }
        }
    }

    /// Brings the file's bytes into its blob, going on where an earlier attempt stopped.
    fn fetch(
        &self,
        attempt: &Attempt,
        blob: &Path,
        seen: &dyn Fn(u64),
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let partial = self.repo.partial(&attempt.etag);
        if let Some(parent) = partial.parent() {
            fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        }
        let mut gathered = Gathered::open(&partial, attempt.limit(), cancel)?;
        let resumed = gathered.bytes > 0;
        if attempt.bytes != Some(gathered.bytes) {
            let from = gathered.bytes;
            let response = self.client.bytes_from(&self.repo.repo, &attempt.url, self.name, from)?;
            self.check_same(&response, attempt)?;
            if from > 0 && !continues(&response, from) {
                gathered.restart()?;
            }
            if response.status().as_u16() == 416 {
                return Err(self.short(attempt, 0).into());
            }
            self.receive(response, attempt, &mut gathered, seen, cancel)?;
        }
        if attempt.bytes.is_some_and(|bytes| gathered.bytes < bytes) {
            return Err(self.short(attempt, gathered.bytes).into());
        }
        gathered.file.sync_all().map_err(Error::io("flush", &partial))?;
        let found = gathered.hasher.finish();
        if let Some(expected) = attempt.etag.parse::<Sha256>().ok().filter(|expected| *expected != found) {
            files::remove_all(&partial)?;
            return Err(HubError::WrongHash { name: self.name.to_owned(), expected, found, resumed }.into());
        }
        fs::rename(&partial, blob).map_err(Error::io("move into place", blob))
    }

    /// The hub's own answer repeats the ETag; one that differs belongs to another version of the file.
    fn check_same(&self, response: &Response<Body>, attempt: &Attempt) -> Result<(), HubError> {
        let stated = header(response.headers(), "x-linked-etag").and_then(blob_name);
        if stated.is_some_and(|stated| stated != attempt.etag) {
            return Err(HubError::Changed { name: self.name.to_owned() });
        }
        Ok(())
    }

    fn receive(
        &self,
        mut response: Response<Body>,
        attempt: &Attempt,
        gathered: &mut Gathered<'_>,
        seen: &dyn Fn(u64),
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let mut reader = response.body_mut().with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; REPORT];
        let mut reported = gathered.bytes;
        loop {
            check_cancel(cancel)?;
            let count = match reader.read(&mut buffer) {
                Ok(count) => count,
                Err(error) => {
                    let source = Box::new(ureq::Error::from(error));
                    return Err(HubError::Broken { what: self.name.to_owned(), source }.into());
                }
            };
            let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { return Ok(()) };
            gathered.append(chunk)?;
            if gathered.bytes > attempt.limit() {
                files::remove_all(gathered.path)?;
                return Err(HubError::Long { name: self.name.to_owned(), expected: attempt.limit() }.into());
            }
            if gathered.bytes - reported >= REPORT as u64 {
                reported = gathered.bytes;
                seen(reported);
            }
        }
    }

    fn short(&self, attempt: &Attempt, found: u64) -> HubError {
        HubError::Short { name: self.name.to_owned(), expected: attempt.limit(), found }
    }
}

/// The bytes of a file so far, on disk and in the digest.
struct Gathered<'a> {
    path: &'a Path,
    file: File,
    hasher: Hasher,
    bytes: u64,
}

impl<'a> Gathered<'a> {
    /// Takes up what an earlier attempt left; more than `limit` bytes cannot be a beginning of the file.
    fn open(path: &'a Path, limit: u64, cancel: &Cancel) -> Result<Self, Error> {
        let options = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
        let file = options.map_err(Error::io("create", path))?;
        let mut gathered = Self { path, file, hasher: Hasher::default(), bytes: 0 };
        let mut buffer = vec![0; CHUNK];
        loop {
            check_cancel(cancel)?;
            let count = gathered.file.read(&mut buffer).map_err(Error::io("read", path))?;
            let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { break };
            gathered.hasher.update(chunk);
            gathered.bytes += count as u64;
        }
        if gathered.bytes > limit {
            gathered.restart()?;
        }
        Ok(gathered)
    }

    fn restart(&mut self) -> Result<(), Error> {
        self.file.set_len(0).map_err(Error::io("truncate", self.path))?;
        std::io::Seek::rewind(&mut self.file).map_err(Error::io("truncate", self.path))?;
        self.hasher = Hasher::default();
        self.bytes = 0;
        Ok(())
    }

    fn append(&mut self, chunk: &[u8]) -> Result<(), Error> {
        self.file.write_all(chunk).map_err(Error::io("write", self.path))?;
        self.hasher.update(chunk);
        self.bytes += chunk.len() as u64;
        Ok(())
    }
}

/// Whether an answer goes on at the byte that was asked for.
fn continues(response: &Response<Body>, from: u64) -> bool {
    let start = |text: &str| text.trim().strip_prefix("bytes ")?.split_once('-')?.0.parse::<u64>().ok();
    response.status().as_u16() == 206
        && header(response.headers(), "content-range").and_then(start) == Some(from)
}

/// Sleeps, but wakes when cancelled.
pub(super) fn pause(wait: Duration, cancel: &Cancel) -> Result<(), Error> {
    let end = Instant::now() + wait;
    loop {
        check_cancel(cancel)?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}
