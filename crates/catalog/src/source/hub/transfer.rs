//! Download of one file of a repository: metadata, bytes, resumption, verification, and the link in the cache.
//!
//! Bytes are written to `<etag>.incomplete`, so a file that changes on the hub is downloaded from its start under its
//! new ETag. A file in the large-file storage has its SHA-256 as ETag and is refused if its bytes have another digest.

use std::{
    fs::{self, File},
    path::Path,
    time::Duration,
};

use narthex_spec::Sha256;
use ureq::{Body, http::Response};

use super::{
    cache::RepoCache,
    client::{Client, FileMetadata},
    reference::blob_name,
};
use crate::{
    CancelFlag, check_cancel,
    error::{Error, HubError},
    files,
    source::{
        http::{broken, header},
        partial_file::{self, PartialFile, Retries, TransferEnd, continues},
    },
};

/// Maximum number of bytes of a file whose length the hub does not state.
const UNSTATED_LIMIT: u64 = 1 << 30;

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
        let mut retries = Retries::new(backoff);
        let mut former: Option<String> = None;
        loop {
            check_cancel(cancel)?;
            let error = match self.attempt(&mut former, seen, cancel) {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            tracing::debug!(file = self.name, %error, "attempt failed");
            let length = former.as_ref().map_or(0, |etag| files::tree_bytes(&self.repo.partial(etag)));
            retries.wait_after(error, length, cancel)?;
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
        let file = partial_file::open(&path).map_err(Error::io("open the lock", &path))?;
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

        let found = partial.finish()?;
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
        response: Response<Body>,
        remote: &RemoteFile,
        partial: &mut PartialFile<'_>,
        seen: &dyn Fn(u64),
        cancel: &CancelFlag,
    ) -> Result<(), Error> {
        match partial.receive(response, remote.limit(), seen, cancel)? {
            TransferEnd::Whole => Ok(()),
            TransferEnd::Broken(error) => Err(HubError::from(broken(self.name, error.into())).into()),
            TransferEnd::TooLong => {
                files::remove_all(partial.path)?;
                Err(HubError::Long { name: self.name.to_owned(), expected: remote.limit() }.into())
            }
        }
    }

    fn short(&self, remote: &RemoteFile, found: u64) -> HubError {
        HubError::Short { name: self.name.to_owned(), expected: remote.limit(), found }
    }
}
