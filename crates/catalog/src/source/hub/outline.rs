//! A repository without its weights: its settings, and the header of each weights file, which lists the tensors. The
//! rest of such a file is a hole: the file has its full length but takes no disk space.
//!
//! The caller determines the length of a header; this module does not interpret headers.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::Path,
};

use super::{Hub, cache::RepoCache, glob};
use crate::{
    CancelFlag, check_cancel,
    error::{Error, HubError},
    index::HubSource,
    source::http::broken,
};

/// Number of bytes of the first request. Few headers are longer.
const FIRST: u64 = 256 << 10;

/// Maximum size in bytes of a header. A vocabulary of a quarter million tokens takes about 30 MB.
const MAX_HEADER_BYTES: u64 = 256 << 20;

/// The index of a sharded checkpoint.
const INDEX: &str = "model.safetensors.index.json";

/// Function that returns the number of bytes to download for a file's header, given the file's name and its first
/// bytes. Returns `None` if the given bytes suffice.
pub type HeaderLength<'a> = dyn Fn(&str, &[u8]) -> Option<u64> + 'a;

/// Facts that a repository states about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoSummary {
    /// Licence.
    pub license: Option<String>,
    /// Total size in bytes of the files that a download would fetch, if all sizes are known.
    pub bytes: Option<u64>,
    /// Path of its GGUF file, or of the first part of it, if its weights have this format.
    pub gguf: Option<String>,
}

impl Hub {
    /// Downloads a repository's settings and headers into an empty folder. Returns `None` without a network.
    ///
    /// # Errors
    /// [`HubError`], and errors of writing.
    pub fn outline(
        &self,
        source: &HubSource,
        folder: &Path,
        header_length: &HeaderLength<'_>,
        cancel: &CancelFlag,
    ) -> Result<Option<RepoSummary>, Error> {
        if self.options.network == crate::network::Network::CacheOnly {
            return Ok(None);
        }

        let listing = match self.listing(source, cancel) {
            Err(Error::Hub(error)) if error.is_unreachable() => return Ok(None),
            other => other?,
        };

        let names = listing.siblings.iter().map(|sibling| sibling.rfilename.as_str());
        let chosen = glob::choose(&source.repo, names, &source.files)?;
        let small = super::SETTINGS.iter().copied().chain([INDEX]);
        let repo = RepoCache::new(&self.options.cache, &source.repo);
        for name in small.filter(|&name| chosen.iter().any(|chosen| chosen == name)) {
            self.download_file(&repo, &listing.sha, name, cancel)?;
            let target = folder.join(name);
            let parent = target.parent().unwrap_or(folder);
            fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
            let from = repo.snapshot(&listing.sha).join(name);
            let copied = narthex_files::open_regular(&from)
                .and_then(|mut file| io::copy(&mut file, &mut File::create(&target)?));
            copied.map_err(Error::io("copy", &from))?;
        }

        for name in chosen.iter().filter(|name| glob::is_weights(name)) {
            let size = listing.siblings.iter().find(|sibling| sibling.rfilename == *name);
            let Some(size) = size.and_then(|sibling| sibling.size) else {
                let reason = format!("it does not state the length of {name}");
                return Err(HubError::BadAnswer { repo: source.repo.clone(), reason }.into());
            };
            let url = self.client.file_url(&source.repo, &listing.sha, name);
            let remote = WeightsFile { repo: &source.repo, url: &url, name, size };
            let header = self.header(&remote, header_length, cancel)?;
            write_header(&folder.join(name), &header, size)?;
        }

        let license = listing.license();
        let bytes = listing.bytes_of(&chosen);
        Ok(Some(RepoSummary { license, bytes, gguf: glob::gguf_of(&chosen).cloned() }))
    }

    /// Downloads the header of a weights file.
    fn header(
        &self,
        file: &WeightsFile<'_>,
        header_length: &HeaderLength<'_>,
        cancel: &CancelFlag,
    ) -> Result<Vec<u8>, Error> {
        let WeightsFile { repo, url, name, size } = *file;
        let mut bytes = Vec::new();
        let mut need = FIRST.min(size);
        loop {
            check_cancel(cancel)?;
            let mut response = self.client.first_bytes(repo, url, name, need)?;
            bytes.clear();
            let reader = response.body_mut().with_config().limit(u64::MAX).reader();
            let read = reader.take(need).read_to_end(&mut bytes);
            read.map_err(|error| HubError::from(broken(name, error.into())))?;
            if (bytes.len() as u64) < need {
                let found = bytes.len() as u64;
                return Err(HubError::Short { name: name.to_owned(), expected: need, found }.into());
            }
            match header_length(name, &bytes).map(|more| more.min(size)) {
                Some(more) if more > need && more <= MAX_HEADER_BYTES => need = more,
                _ => return Ok(bytes),
            }
        }
    }
}

/// A weights file on the hub.
struct WeightsFile<'a> {
    repo: &'a str,
    url: &'a str,
    name: &'a str,
    size: u64,
}

/// Writes a file of `size` bytes that starts with `header`, followed by a hole.
fn write_header(path: &Path, header: &[u8], size: u64) -> Result<(), Error> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    let mut file = File::create(path).map_err(Error::io("create", path))?;
    file.write_all(header).map_err(Error::io("write", path))?;
    file.set_len(size).map_err(Error::io("write", path))
}
