//! The hub's standard cache, shared with the hub's own tools.
//!
//! ```text
//! models--owner--name/
//!   blobs/<etag>                   the bytes; <etag>.incomplete during the download
//!   snapshots/<commit>/<path>      a symbolic link to the blob; on Windows a second name of its file
//!   refs/<revision>                the commit of a branch or tag
//! .locks/models--owner--name/<etag>.lock
//! ```

use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    path::{Path, PathBuf},
};

use narthex_spec::Sha256;
use serde::Deserialize;

use super::{glob, reference::is_commit};
use crate::{error::Error, files};

/// Maximum size in bytes of an index of shards.
const INDEX_LIMIT: u64 = 32 << 20;

/// The part of the cache that belongs to one repository.
pub(super) struct RepoCache {
    pub(super) repo: String,
    root: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    pub(super) fn new(cache: &Path, repo: &str) -> Self {
        let folder = format!("models--{}", repo.replace('/', "--"));
        Self { repo: repo.to_owned(), root: cache.join(&folder), locks: cache.join(".locks").join(folder) }
    }

    /// Returns the repository's folder, which may not exist.
    pub(super) fn folder(&self) -> &Path {
        &self.root
    }

    /// Returns the path of a blob, which may not exist.
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(etag)
    }

    /// Returns the path of a partly downloaded blob.
    pub(super) fn partial(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Returns the path of a blob's lock file, and creates its folder.
    pub(super) fn lock_file(&self, etag: &str) -> Result<PathBuf, Error> {
        fs::create_dir_all(&self.locks).map_err(Error::io("create", &self.locks))?;
        Ok(self.locks.join(format!("{etag}.lock")))
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// Links a blob into a commit's snapshot under a file name.
    pub(super) fn link(&self, commit: &str, name: &str, etag: &str) -> Result<(), Error> {
        let target = self.snapshot(commit).join(name);
        if target.is_file() {
            return Ok(());
        }
        if target.is_dir() {
            files::remove_all(&target)?;
        }
        let parent = target.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        let up = "../".repeat(name.split('/').count() + 1);
        let relative = format!("{up}blobs/{etag}");
        files::replace(&target, |new| {
            link_file(Path::new(&relative), &self.blob(etag), new).map_err(Error::io("create", &target))
        })
    }

    /// Records the commit that a branch or tag points to.
    pub(super) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), Error> {
        if revision == commit {
            return Ok(());
        }
        let path = self.root.join("refs").join(revision);
        if narthex_files::read(&path, 100).is_ok_and(|known| known == commit.as_bytes()) {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        files::replace(&path, |new| files::write_durably(new, commit.as_bytes()))
    }

    /// Returns the commit and the selected files of a revision, if all of them are in the cache.
    pub(super) fn complete_snapshot(
        &self,
        revision: &str,
        patterns: &[String],
    ) -> Option<(String, Vec<String>)> {
        let commit = if is_commit(revision) {
            revision.to_owned()
        } else {
            String::from_utf8(narthex_files::read(&self.root.join("refs").join(revision), 100).ok()?).ok()?
        };
        let commit = commit.trim().to_owned();
        if !is_commit(&commit) {
            return None;
        }
        let folder = self.snapshot(&commit);
        let mut present = Vec::new();
        list(&folder, "", &mut present);
        let names = glob::choose(&self.repo, present.iter().map(String::as_str), patterns).ok()?;
        let gguf = names.iter().any(|name| glob::is_gguf(name));
        let configured = gguf || names.iter().any(|name| name == "config.json");
        (configured && shards_present(&folder, &names)).then_some((commit, names))
    }

    /// Returns the digest in the name of a file's blob; only blobs of the large-file storage have one.
    pub(super) fn digest_in_name(&self, path: &Path) -> Option<Sha256> {
        if let Ok(blob) = fs::read_link(path) {
            return blob.file_name()?.to_str()?.parse().ok();
        }
        let file = same_file::Handle::from_path(path).ok()?;
        for blob in fs::read_dir(self.root.join("blobs")).ok()?.flatten() {
            let Some(digest) = blob.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if same_file::Handle::from_path(blob.path()).is_ok_and(|blob| blob == file) {
                return Some(digest);
            }
        }
        None
    }
}

/// Index of the shards of a checkpoint.
#[derive(Deserialize)]
struct ShardIndex {
    /// File of each tensor, by the name of the tensor.
    weight_map: HashMap<String, String>,
}

/// Returns true if all shards in the indexes of a snapshot are present.
fn shards_present(folder: &Path, names: &[String]) -> bool {
    let indices = names.iter().filter(|name| name.ends_with(".safetensors.index.json"));
    indices.map(|name| folder.join(name)).all(|index| {
        let Ok(bytes) = narthex_files::read(&index, INDEX_LIMIT) else { return false };
        let Ok(ShardIndex { weight_map }) = serde_json::from_slice(&bytes) else { return false };
        let shards: BTreeSet<&String> = weight_map.values().collect();
        shards.into_iter().all(|shard| names.contains(shard))
    })
}

/// Collects the files of a snapshot, at most two folders deep, by their path in the repository.
fn list(folder: &Path, prefix: &str, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = entry.path();
        if path.is_file() {
            found.push(format!("{prefix}{name}"));
        } else if path.is_dir() && prefix.matches('/').count() < 2 {
            list(&path, &format!("{prefix}{name}/"), found);
        }
    }
}

#[cfg(unix)]
fn link_file(relative: &Path, _blob: &Path, target: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(relative, target)
}

/// Symbolic links require a privilege that most accounts of Windows lack.
#[cfg(windows)]
fn link_file(_relative: &Path, blob: &Path, target: &Path) -> io::Result<()> {
    name_again(blob, target)
}

/// Gives a blob a second name, which takes no space. File systems without such names get a copy.
#[cfg(any(windows, test))]
fn name_again(blob: &Path, target: &Path) -> io::Result<()> {
    fs::hard_link(blob, target).or_else(|_| fs::copy(blob, target).map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn filled(names: &[(&str, &str)]) -> (tempfile::TempDir, RepoCache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = RepoCache::new(folder.path(), "o/r");
        fs::create_dir_all(cache.blob("x").parent().unwrap()).unwrap();
        for (index, (name, text)) in names.iter().enumerate() {
            let etag = format!("e{index}");
            fs::write(cache.blob(&etag), text).unwrap();
            cache.link(COMMIT, name, &etag).unwrap();
        }
        cache.write_ref("main", COMMIT).unwrap();
        (folder, cache)
    }

    #[test]
    fn snapshots_show_blobs_at_any_depth() {
        let (_folder, cache) = filled(&[("config.json", "{}"), ("1_Pooling/config.json", "[]")]);
        let snapshot = cache.snapshot(COMMIT);
        assert_eq!(fs::read(snapshot.join("1_Pooling/config.json")).unwrap(), b"[]");
        fs::remove_file(cache.blob("e0")).unwrap();
        assert!(cfg!(windows) || !snapshot.join("config.json").is_file());
        fs::remove_file(snapshot.join("config.json")).unwrap();
        fs::write(cache.blob("e9"), "new").unwrap();
        cache.link(COMMIT, "config.json", "e9").unwrap();
        assert_eq!(fs::read(snapshot.join("config.json")).unwrap(), b"new");
    }

    #[test]
    fn a_second_name_takes_no_space_and_keeps_the_digest() {
        let (_folder, cache) = filled(&[("config.json", "{}")]);
        let digest = "1f3dea47f2f0e5117c2404cea7d21fd253ae7836a3bf167a501cdfbb2600d536";
        fs::write(cache.blob(digest), "weights").unwrap();
        let (named, linked) = (cache.snapshot(COMMIT).join("model.gguf"), "linked.gguf");
        name_again(&cache.blob(digest), &named).unwrap();
        assert!(same_file::is_same_file(&named, cache.blob(digest)).unwrap());
        cache.link(COMMIT, linked, digest).unwrap();
        for path in [&named, &cache.snapshot(COMMIT).join(linked)] {
            assert_eq!(cache.digest_in_name(path), digest.parse().ok(), "{}", path.display());
        }
        let other = cache.snapshot(COMMIT).join("other");
        fs::write(&other, "weights").unwrap();
        assert_eq!(cache.digest_in_name(&other), None);
        assert_eq!(cache.digest_in_name(&cache.snapshot(COMMIT).join("config.json")), None);
    }

    #[test]
    fn a_snapshot_with_a_missing_shard_is_not_complete() {
        let index = r#"{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}"#;
        let whole = [
            ("config.json", "{}"),
            ("model.safetensors.index.json", index),
            ("model-1.safetensors", "1"),
            ("model-2.safetensors", "2"),
        ];
        let check = |names: &[(&str, &str)], expect: bool| {
            let (_folder, cache) = filled(names);
            assert_eq!(cache.complete_snapshot("main", &[]).is_some(), expect);
            assert_eq!(cache.complete_snapshot(COMMIT, &[]).is_some(), expect);
            assert!(cache.complete_snapshot("other", &[]).is_none());
        };
        check(&whole, true);
        check(&whole[..3], false);
        check(&whole[1..], false);
        // A value of this depth cannot be built, and is not read.
        let deep = ["[".repeat(1000), "]".repeat(1000)].concat();
        let with_more = format!(r#"{{"metadata":{deep},"weight_map":{{"a":"model-1.safetensors"}}}}"#);
        check(&[whole[0], ("model.safetensors.index.json", with_more.as_str()), whole[2]], true);
        let no_texts = r#"{"weight_map":{"a":1}}"#;
        check(&[whole[0], ("model.safetensors.index.json", no_texts), whole[2]], false);
        check(&[("only.gguf", "g")], true);
    }
}
