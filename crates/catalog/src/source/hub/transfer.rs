//! Download of one file of a repository: metadata, bytes, resumption, verification, and the link in the cache.
//!
//! Bytes are written to `<etag>.incomplete`, so a file that changes on the hub is downloaded from its start under its
//! new ETag. A file in the large-file storage has its SHA-256 as ETag and is refused if its bytes have another digest.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use narthex_spec::Sha256;
use sha2::Digest;
use ureq::{Body, http::Response};

use super::{
    cache::RepoCache,
    client::{Client, FileMetadata, broken, header},
    reference::blob_name,
};
use crate::{
    CancelFlag, check_cancel,
    error::{Error, HubError},
    files,
};

/// Maximum number of consecutive attempts without progress.
pub(super) const ATTEMPTS: usize = 5;

/// Maximum number of bytes of a file whose length the hub does not state.
const UNSTATED_LIMIT: u64 = 1 << 30;

/// Number of bytes between two progress reports.
const REPORT: usize = 256 << 10;

/// The download of one file into the cache.
pub(super) struct Transfer<'a> {
    pub(super) client: &'a Client,
    pub(super) repo: &'a RepoCache,
    pub(super) commit: &'a str,
    pub(super) name: &'a str,
}

/// A file on the hub, as its metadata describes it.
struct RemoteFile {
    url: String,
    etag: String,
    bytes: Option<u64>,
}

impl RemoteFile {
    fn limit(&self) -> u64 {
        self.bytes.unwrap_or(UNSTATED_LIMIT)
    }
}

impl Transfer<'_> {
    /// Downloads the missing part of the file, links it into the snapshot, and returns its size.
    ///
    /// Transient failures are retried as long as bytes arrive. The first wait is `backoff`; each later one is twice
    /// as long.
    pub(super) fn run(
        &self,
        backoff: Duration,
        seen: &dyn Fn(u64),
        cancel: &CancelFlag,
    ) -> Result<u64, Error> {
        let mut failures = 0;
        let mut wait = backoff;
        let mut reached = 0;
        let mut former: Option<String> = None;

        loop {
            check_cancel(cancel)?;
            let error = match self.attempt(&mut former, seen, cancel) {
                Ok(bytes) => return Ok(bytes),
                Err(Error::Hub(error)) if error.is_transient() => error,
                Err(other) => return Err(other),
            };
            tracing::debug!(file = self.name, %error, "attempt failed");
            let length = former.as_ref().map_or(0, |etag| files::tree_bytes(&self.repo.partial(etag)));
            failures = if length > reached { 1 } else { failures + 1 };
            if length > reached {
                wait = backoff;
            }
            // Only bytes beyond the largest length so far are progress. Otherwise, attempts on a server that restarts
            // the file every other time would never end.
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
        cancel: &CancelFlag,
    ) -> Result<u64, Error> {
        let url = self.client.file_url(&self.repo.repo, self.commit, self.name);
        let FileMetadata { etag, bytes } = self.client.metadata(&self.repo.repo, &url, self.name)?;
        let etag = etag.as_deref().and_then(blob_name).ok_or_else(|| HubError::BadAnswer {
            repo: self.repo.repo.clone(),
            reason: format!("{} has no usable ETag", self.name),
        })?;
        if let Some(old) = former.replace(etag.to_owned()).filter(|old| old != etag) {
            files::remove_all(&self.repo.partial(&old))?;
        }

        let remote = RemoteFile { url, etag: etag.to_owned(), bytes };
        let blob = self.repo.blob(etag);
        if !self.is_whole(&blob, &remote) {
            let _lock = self.lock(etag, cancel)?;
            // Another process may have completed the file while this one waited.
            if !self.is_whole(&blob, &remote) {
                self.fetch(&remote, &blob, seen, cancel)?;
            }
        }

        self.repo.link(self.commit, self.name, etag)?;
        Ok(fs::metadata(&blob).map_err(Error::io("look at", &blob))?.len())
    }

    fn is_whole(&self, blob: &Path, remote: &RemoteFile) -> bool {
        fs::metadata(blob)
            .is_ok_and(|meta| meta.is_file() && remote.bytes.is_none_or(|bytes| bytes == meta.len()))
    }

    fn lock(&self, etag: &str, cancel: &CancelFlag) -> Result<File, Error> {
        let path = self.repo.lock_file(etag)?;
        let file = open(&path).map_err(Error::io("open the lock", &path))?;
        files::lock(&file, &path, cancel, || ())?;
        Ok(file)
    }

    /// Downloads the file's bytes into its blob, resuming after those of an earlier attempt.
    fn fetch(
        &self,
        remote: &RemoteFile,
        blob: &Path,
        seen: &dyn Fn(u64),
        cancel: &CancelFlag,
    ) -> Result<(), Error> {
        let path = self.repo.partial(&remote.etag);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        }

        let mut partial = PartialFile::open(&path, remote.limit(), cancel)?;
        let resumed = partial.bytes > 0;
        if remote.bytes != Some(partial.bytes) {
            let from = partial.bytes;
            let response = self.client.bytes_from(&self.repo.repo, &remote.url, self.name, from)?;
            self.check_same(&response, remote)?;
            if from > 0 && !continues(&response, from) {
                partial.restart()?;
            }
            if response.status().as_u16() == 416 {
                return Err(self.short(remote, 0).into());
            }
            self.receive(response, remote, &mut partial, seen, cancel)?;
        }

        if remote.bytes.is_some_and(|bytes| partial.bytes < bytes) {
            return Err(self.short(remote, partial.bytes).into());
        }

        partial.file.sync_all().map_err(Error::io("flush", &path))?;
        let found = Sha256(partial.hasher.finalize().into());
        if let Some(expected) = remote.etag.parse::<Sha256>().ok().filter(|expected| *expected != found) {
            files::remove_all(&path)?;
            return Err(HubError::WrongHash { name: self.name.to_owned(), expected, found, resumed }.into());
        }
        files::rename(&path, blob).map_err(Error::io("move into place", blob))
    }

    /// Checks that a response has the same ETag as the metadata; another ETag belongs to another version of the file.
    fn check_same(&self, response: &Response<Body>, remote: &RemoteFile) -> Result<(), HubError> {
        let stated = header(response.headers(), "x-linked-etag").and_then(blob_name);
        if stated.is_some_and(|stated| stated != remote.etag) {
            return Err(HubError::Changed { name: self.name.to_owned() });
        }
        Ok(())
    }

    fn receive(
        &self,
        mut response: Response<Body>,
        remote: &RemoteFile,
        partial: &mut PartialFile<'_>,
        seen: &dyn Fn(u64),
        cancel: &CancelFlag,
    ) -> Result<(), Error> {
        let mut reader = response.body_mut().with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; REPORT];
        let mut reported = partial.bytes;

        loop {
            check_cancel(cancel)?;
            let count = match reader.read(&mut buffer) {
                Ok(count) => count,
                Err(error) => return Err(broken(self.name, error.into()).into()),
            };
            let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { return Ok(()) };
            partial.append(chunk)?;
            if partial.bytes > remote.limit() {
                files::remove_all(partial.path)?;
                return Err(HubError::Long { name: self.name.to_owned(), expected: remote.limit() }.into());
            }
            if partial.bytes - reported >= REPORT as u64 {
                reported = partial.bytes;
                seen(reported);
            }
        }
    }

    fn short(&self, remote: &RemoteFile, found: u64) -> HubError {
        HubError::Short { name: self.name.to_owned(), expected: remote.limit(), found }
    }
}

/// A partly downloaded file, and the digest of its bytes so far.
struct PartialFile<'a> {
    path: &'a Path,
    file: File,
    hasher: sha2::Sha256,
    bytes: u64,
}

/// Opens a regular file for reading and writing, or creates it. Opening a named pipe for both does not block.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a regular file, found another kind of file"))
}

impl<'a> PartialFile<'a> {
    /// Opens the file of an earlier attempt, or creates it, and empties it if it is longer than `limit` bytes.
    fn open(path: &'a Path, limit: u64, cancel: &CancelFlag) -> Result<Self, Error> {
        let file = open(path).map_err(Error::io("create", path))?;
        let mut partial = Self { path, file, hasher: sha2::Sha256::new(), bytes: 0 };
        files::read_chunks(&mut partial.file, path, cancel, |chunk| {
            partial.hasher.update(chunk);
            partial.bytes += chunk.len() as u64;
        })?;
        if partial.bytes > limit {
            partial.restart()?;
        }
        Ok(partial)
    }

    fn restart(&mut self) -> Result<(), Error> {
        self.file.set_len(0).map_err(Error::io("truncate", self.path))?;
        std::io::Seek::rewind(&mut self.file).map_err(Error::io("truncate", self.path))?;
        self.hasher = sha2::Sha256::new();
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

/// Returns true if a response starts at the requested byte.
fn continues(response: &Response<Body>, from: u64) -> bool {
    response.status().as_u16() == 206
        && header(response.headers(), "content-range")
            .and_then(|text| text.trim().strip_prefix("bytes ")?.split_once('-')?.0.parse::<u64>().ok())
            == Some(from)
}

/// Sleeps for `wait`, before another attempt. Returns an error soon after `cancel` is set; a flag cannot wake a thread.
pub(super) fn pause(wait: Duration, cancel: &CancelFlag) -> Result<(), Error> {
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

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_named_pipe_in_the_place_of_a_file_is_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(open(&pipe).unwrap_err().to_string().contains("expected a regular file"));
        open(&folder.path().join("file")).unwrap();
    }
}
