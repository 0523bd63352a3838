//! Partly downloaded files, and the attempts to complete them.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use narthex_spec::Sha256;
use sha2::Digest;
use ureq::{Body, http::Response};

use super::http::header;
use crate::{CancelFlag, check_cancel, error::Error, files};

/// Maximum number of consecutive attempts without progress.
pub(super) const ATTEMPTS: usize = 5;

/// Number of bytes between two progress reports.
const REPORT: usize = 256 << 10;

/// A partly downloaded file, and the digest of its bytes so far.
pub(super) struct PartialFile<'a> {
    pub(super) path: &'a Path,
    file: File,
    hasher: sha2::Sha256,
    /// Number of bytes.
    pub(super) bytes: u64,
}

/// End of a response.
pub(super) enum TransferEnd {
    Whole,
    /// The connection broke.
    Broken(io::Error),
    /// There were more bytes than allowed.
    TooLong,
}

/// Opens a regular file for reading and writing, or creates it. Opening a named pipe for both does not block.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a regular file, found another kind of file"))
}

impl<'a> PartialFile<'a> {
    /// Opens the file of an earlier attempt, or creates it, and empties it if it is longer than `limit` bytes.
    pub(super) fn open(path: &'a Path, limit: u64, cancel: &CancelFlag) -> Result<Self, Error> {
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

    /// Removes all bytes.
    pub(super) fn restart(&mut self) -> Result<(), Error> {
        self.file.set_len(0).map_err(Error::io("truncate", self.path))?;
        std::io::Seek::rewind(&mut self.file).map_err(Error::io("truncate", self.path))?;
        self.hasher = sha2::Sha256::new();
        self.bytes = 0;
        Ok(())
    }

    /// Appends the body of a response. Stops after more than `limit` bytes in all. Reports the number of bytes to `seen`.
    pub(super) fn receive(
        &mut self,
        mut response: Response<Body>,
        limit: u64,
        seen: &dyn Fn(u64),
        cancel: &CancelFlag,
    ) -> Result<TransferEnd, Error> {
        let mut reader = response.body_mut().with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; REPORT];
        let mut reported = self.bytes;

        loop {
            check_cancel(cancel)?;
            let count = match reader.read(&mut buffer) {
                Ok(count) => count,
                Err(error) => return Ok(TransferEnd::Broken(error)),
            };
            let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else {
                return Ok(TransferEnd::Whole);
            };
            self.append(chunk)?;
            if self.bytes > limit {
                return Ok(TransferEnd::TooLong);
            }
            if self.bytes - reported >= REPORT as u64 {
                reported = self.bytes;
                seen(reported);
            }
        }
    }

    /// Writes the bytes to disk and returns their digest.
    pub(super) fn finish(self) -> Result<Sha256, Error> {
        self.file.sync_all().map_err(Error::io("flush", self.path))?;
        Ok(Sha256(self.hasher.finalize().into()))
    }

    fn append(&mut self, chunk: &[u8]) -> Result<(), Error> {
        self.file.write_all(chunk).map_err(Error::io("write", self.path))?;
        self.hasher.update(chunk);
        self.bytes += chunk.len() as u64;
        Ok(())
    }
}

/// Returns true if a response starts at the requested byte.
pub(super) fn continues(response: &Response<Body>, from: u64) -> bool {
    response.status().as_u16() == 206
        && header(response.headers(), "content-range")
            .and_then(|text| text.trim().strip_prefix("bytes ")?.split_once('-')?.0.parse::<u64>().ok())
            == Some(from)
}

/// Attempts of one download.
pub(super) struct Retries {
    backoff: Duration,
    wait: Duration,
    /// Consecutive attempts without progress.
    failures: usize,
    /// Largest number of bytes so far. Only bytes beyond it are progress. Otherwise, attempts on a server that restarts the
    /// file every other time would never end.
    reached: u64,
}

impl Retries {
    /// Begins with an attempt. The first wait is `backoff`; each later one is twice as long, until bytes arrive.
    pub(super) fn new(backoff: Duration) -> Self {
        Self { backoff, wait: backoff, failures: 0, reached: 0 }
    }

    /// Waits after a failed attempt that left `length` bytes.
    ///
    /// # Errors
    /// The error, if it is not transient or after too many attempts without progress.
    pub(super) fn wait_after(&mut self, error: Error, length: u64, cancel: &CancelFlag) -> Result<(), Error> {
        if length > self.reached {
            self.reached = length;
            self.failures = 0;
            self.wait = self.backoff;
        }
        self.failures += 1;
        if self.failures >= ATTEMPTS || !error.is_transient() {
            return Err(error);
        }
        pause(error.retry_after().unwrap_or(self.wait), cancel)?;
        self.wait *= 2;
        Ok(())
    }
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
