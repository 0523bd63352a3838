//! A repository without its weights: its settings, and of each file of weights the beginning that says which tensors it
//! has. The rest of such a file is a hole: it has the file's length and takes no room.
//!
//! How long a beginning is, whoever reads it knows; nothing here looks inside.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::Path,
};

use super::{Hub, Listing, Sibling, cache::RepoCache, glob};
use crate::{
    Cancel, check_cancel,
    error::{Error, HubError},
    index::HubSource,
};

/// Bytes that are asked for first; few files of weights begin with more.
const FIRST: u64 = 256 << 10;

/// The longest beginning that is fetched, in bytes. A vocabulary of a quarter million tokens takes about 30 MB.
const MOST: u64 = 256 << 20;

/// The table of a sharded checkpoint.
const INDEX: &str = "model.safetensors.index.json";

/// Says how many bytes of a file's beginning are needed, by its name and those that are there; nothing once they suffice.
pub type Wanted<'a> = dyn Fn(&str, &[u8]) -> Option<u64> + 'a;

/// What a repository says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stated {
    /// The licence.
    pub license: Option<String>,
    /// Bytes of the files that a download would fetch, where every one is known.
    pub bytes: Option<u64>,
}

impl Hub {
    /// Brings a repository's outline into an empty folder, and gives what the repository says of itself. Without a network
    /// there is nothing to give, and the folder stays empty.
    ///
    /// # Errors
    /// [`HubError`], and those of writing.
    pub fn outline(
        &self,
        source: &HubSource,
        folder: &Path,
        wanted: &Wanted<'_>,
        cancel: &Cancel,
    ) -> Result<Option<Stated>, Error> {
        if self.options.network == super::Network::CacheOnly {
            return Ok(None);
        }
        let listing = match self.listing(source, cancel) {
            Err(Error::Hub(HubError::Unreachable { .. })) => return Ok(None),
            other => other?,
        };
        let names = listing.siblings.iter().map(|sibling| sibling.rfilename.as_str());
        let chosen = glob::choose(&source.repo, names, &source.files)?;
        let small = super::SETTINGS.iter().copied().chain([INDEX]);
        let repo = RepoCache::new(&self.options.cache, &source.repo);
        for name in small.filter(|&name| chosen.iter().any(|chosen| chosen == name)) {
            self.bring(&repo, &listing.sha, name, cancel)?;
            let target = folder.join(name);
            let parent = target.parent().unwrap_or(folder);
            fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
            let from = repo.snapshot(&listing.sha).join(name);
            fs::copy(&from, &target).map_err(Error::io("copy", &from))?;
        }
        for name in chosen.iter().filter(|name| glob::is_weights(name)) {
            self.beginning((source, &listing), name, &folder.join(name), wanted, cancel)?;
        }
        let (license, bytes) = (listing.license(), listing.bytes_of(&chosen));
        Ok(Some(Stated { license, bytes }))
    }

    /// Writes one file's beginning, and a hole behind it.
    fn beginning(
        &self,
        (source, listing): (&HubSource, &Listing),
        name: &str,
        target: &Path,
        wanted: &Wanted<'_>,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let url = self.client.file_url(&source.repo, &listing.sha, name);
        let stated = |sibling: &&Sibling| sibling.rfilename == name;
        let Some(length) = listing.siblings.iter().find(stated).and_then(|sibling| sibling.size) else {
            let reason = format!("it does not say how long {name} is");
            return Err(HubError::BadAnswer { repo: source.repo.clone(), reason }.into());
        };
        let mut bytes = Vec::new();
        let mut need = FIRST.min(length);
        loop {
            check_cancel(cancel)?;
            let mut response = self.client.first_bytes(&source.repo, &url, name, need)?;
            bytes.clear();
            let reader = response.body_mut().with_config().limit(u64::MAX).reader();
            let read = reader.take(need).read_to_end(&mut bytes);
            read.map_err(|error| HubError::Broken { what: name.to_owned(), source: Box::new(error.into()) })?;
            if (bytes.len() as u64) < need {
                let found = bytes.len() as u64;
                return Err(HubError::Short { name: name.to_owned(), expected: need, found }.into());
            }
            match wanted(name, &bytes).map(|more| more.min(length)) {
                Some(more) if more > need && more <= MOST => need = more,
                _ => break,
            }
        }
        let parent = target.parent().unwrap_or(target);
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        let mut file = File::create(target).map_err(Error::io("create", target))?;
        file.write_all(&bytes).map_err(Error::io("write", target))?;
        file.set_len(length).map_err(Error::io("write", target))
    }
}
