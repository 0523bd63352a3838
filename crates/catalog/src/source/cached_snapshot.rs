//! Files of the hub's cache that a user names by their path: their links, and the digests in the names of their blobs.
//!
//! A snapshot has links to `../../blobs`, so its files lie outside the named folder. A link out of the repository's folder
//! is refused: a package would contain the file that it leads to.

use std::{
    fs,
    path::{Path, PathBuf},
};

use narthex_spec::Sha256;

use crate::{CancelFlag, check_cancel, error::Error, files};

/// Maximum depth of the folders of a snapshot.
const MAX_DEPTH: usize = 16;

/// A folder or file in a snapshot of the hub's cache.
#[derive(Debug)]
pub(crate) struct CachedSnapshot {
    /// Absolute path of the folder or file. A file keeps the name of its link.
    path: PathBuf,
    /// Folder of the repository: `models--owner--name`.
    repository: PathBuf,
    /// Folder of the snapshot.
    root: PathBuf,
}

/// A file of a snapshot, and the blob that its link leads to.
struct CachedFile {
    link: PathBuf,
    blob: PathBuf,
}

impl CachedSnapshot {
    /// Returns the snapshot of an absolute path whose folders are no links; `None` for other paths.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let root = path.ancestors().find(|folder| {
            let above = folder.parent().filter(|above| above.ends_with("snapshots"));
            above.and_then(Path::parent).is_some_and(|repository| repository_name(repository).is_some())
        })?;
        let repository = root.parent()?.parent()?.to_owned();
        Some(Self { path: path.to_owned(), repository, root: root.to_owned() })
    }

    /// Returns the name of the repository, if the path is the whole snapshot, whose own name is a commit.
    pub(crate) fn name(&self) -> Option<&str> {
        repository_name(&self.repository).filter(|_| self.path == self.root)
    }

    /// Checks that no link leads out of the repository's folder.
    ///
    /// # Errors
    /// [`Error::LinkLeaves`] with the first link that does.
    pub(crate) fn check_links(&self) -> Result<(), Error> {
        self.files().map(drop)
    }

    /// Compares every file whose blob is named after its SHA-256 with that name.
    ///
    /// # Errors
    /// [`Error::Damaged`] with the first file that differs.
    pub(crate) fn check_digests(&self, cancel: &CancelFlag) -> Result<(), Error> {
        for CachedFile { link, blob } in self.files()? {
            check_cancel(cancel)?;
            let Some(expected) = stated_digest(&blob) else { continue };
            let found = files::digest_file(&blob, cancel, |_| ())?;
            if found != expected {
                return Err(Self::damaged(link, &blob, expected, found));
            }
        }
        Ok(())
    }

    /// Compares the digest of a file with the name of its blob.
    ///
    /// # Errors
    /// [`Error::Damaged`] if they differ.
    pub(crate) fn check_digest(file: &Path, found: Sha256) -> Result<(), Error> {
        let blob = narthex_files::canonicalize(file).map_err(Error::io("find", file))?;
        match stated_digest(&blob) {
            Some(expected) if expected != found => {
                Err(Self::damaged(file.to_owned(), &blob, expected, found))
            }
            _ => Ok(()),
        }
    }

    fn damaged(link: PathBuf, blob: &Path, expected: Sha256, found: Sha256) -> Error {
        let repair = format!("the hub's file: remove {} and download the repository again", blob.display());
        Error::Damaged { path: link, expected, found, repair }
    }

    /// Returns the files of the path, by name.
    fn files(&self) -> Result<Vec<CachedFile>, Error> {
        let mut found = Vec::new();
        self.add(&self.path, 0, &mut found)?;
        found.sort_by(|one, other| one.link.cmp(&other.link));
        Ok(found)
    }

    fn add(&self, path: &Path, depth: usize, found: &mut Vec<CachedFile>) -> Result<(), Error> {
        let blob = narthex_files::canonicalize(path).map_err(Error::io("find", path))?;
        if !blob.starts_with(&self.repository) {
            let folder = self.repository.clone();
            return Err(Error::LinkLeaves { path: path.to_owned(), target: blob, folder });
        }
        if blob.is_file() {
            found.push(CachedFile { link: path.to_owned(), blob });
        } else if blob.is_dir() && depth < MAX_DEPTH {
            for entry in fs::read_dir(path).map_err(Error::io("list", path))? {
                self.add(&entry.map_err(Error::io("list", path))?.path(), depth + 1, found)?;
            }
        }
        Ok(())
    }
}

/// Returns the name of a repository from its folder in the cache: `name` from `models--owner--name`.
fn repository_name(folder: &Path) -> Option<&str> {
    folder.file_name()?.to_str()?.strip_prefix("models--")?.rsplit("--").next()
}

/// Returns the digest in the name of a blob.
fn stated_digest(blob: &Path) -> Option<Sha256> {
    let is_blob = blob.parent().is_some_and(|folder| folder.ends_with("blobs"));
    blob.file_name().filter(|_| is_blob)?.to_str()?.parse().ok()
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    /// A cache with one repository, whose snapshot has `config.json` and `onnx/model.onnx`.
    struct Cache {
        folder: tempfile::TempDir,
    }

    impl Cache {
        fn new() -> Self {
            let cache = Self { folder: tempfile::tempdir().unwrap() };
            fs::create_dir_all(cache.repository().join("blobs")).unwrap();
            fs::create_dir_all(cache.snapshot().join("onnx")).unwrap();
            cache.link("config.json", "{}", "../../blobs");
            cache.link("onnx/model.onnx", "graph", "../../../blobs");
            cache
        }

        fn repository(&self) -> PathBuf {
            narthex_files::canonicalize(self.folder.path()).unwrap().join("models--o--The-Model")
        }

        fn snapshot(&self) -> PathBuf {
            self.repository().join("snapshots").join(COMMIT)
        }

        fn blob(&self, text: &str) -> PathBuf {
            self.repository().join("blobs").join(Sha256::of(text.as_bytes()).to_string())
        }

        fn link(&self, name: &str, text: &str, blobs: &str) {
            fs::write(self.blob(text), text).unwrap();
            let target = Path::new(blobs).join(self.blob(text).file_name().unwrap());
            symlink(target, self.snapshot().join(name)).unwrap();
        }

        fn of(&self) -> CachedSnapshot {
            CachedSnapshot::of(&self.snapshot()).unwrap()
        }
    }

    #[test]
    fn links_to_the_blobs_are_followed() {
        let cache = Cache::new();
        let snapshot = cache.of();
        assert_eq!(snapshot.name(), Some("The-Model"));
        snapshot.check_digests(&CancelFlag::new(false)).unwrap();
        let file = CachedSnapshot::of(&cache.snapshot().join("onnx/model.onnx")).unwrap();
        assert_eq!((file.name(), file.check_links().is_ok()), (None, true));
        assert!(CachedSnapshot::of(cache.folder.path()).is_none());
        assert!(CachedSnapshot::of(&cache.repository().join("blobs")).is_none());
    }

    #[test]
    fn a_link_out_of_the_repository_is_refused() {
        let cache = Cache::new();
        let secret = cache.folder.path().join("secret");
        fs::write(&secret, "s").unwrap();
        let through_a_blob = cache.repository().join("blobs/0");
        symlink(&secret, &through_a_blob).unwrap();
        for target in [&secret, &through_a_blob] {
            let link = cache.snapshot().join("tokenizer.json");
            symlink(target, &link).unwrap();
            let error = cache.of().check_links().unwrap_err();
            assert!(matches!(&error, Error::LinkLeaves { path, .. } if *path == link), "{error}");
            fs::remove_file(link).unwrap();
        }
        cache.of().check_links().unwrap();
    }

    #[test]
    fn a_damaged_blob_is_named_with_both_digests() {
        let cache = Cache::new();
        fs::write(cache.blob("graph"), "grapf").unwrap();
        let error = cache.of().check_digests(&CancelFlag::new(false)).unwrap_err().to_string();
        let digests = ["graph", "grapf"].map(|text| Sha256::of(text.as_bytes()).to_string());
        assert!(error.contains("onnx/model.onnx is damaged"), "{error}");
        assert!(digests.iter().all(|digest| error.contains(digest)), "{error}");
        let found = Sha256::of(b"grapf");
        assert!(CachedSnapshot::check_digest(&cache.snapshot().join("onnx/model.onnx"), found).is_err());
    }
}
