//! The small files of a package: manifest, tokenizer and template. Errors name the file.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use narthex_catalog::store::{Store, StoredFiles};
use narthex_spec::{
    ProgressSink,
    manifest::{FORMAT, MANIFEST_FILE, Manifest},
};
use narthex_text::tokenizer::Tokenizer;

use crate::{cancel::Cancel, error::Error, library::package_key::PackageKey};

/// Maximum bytes of a manifest, tokenizer or template.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// A package in a folder, with its manifest and tokenizer.
pub(crate) struct Package {
    pub(crate) key: PackageKey,
    pub(crate) folder: PathBuf,
    pub(crate) manifest: Manifest,
    pub(crate) tokenizer: Tokenizer,
    /// Time and length of the manifest's file when it was read.
    stamp: Option<ManifestStamp>,
}

/// Time and length of a manifest's file, which differ after a replacement of the package.
type ManifestStamp = (SystemTime, u64);

impl Package {
    /// Verifies the files of an installed package that changed since their last verification, and opens it.
    pub(crate) fn open_verified(
        store: &Store,
        key: &PackageKey,
        folder: &Path,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<Self, Error> {
        verified_manifest(store, key, folder, progress, cancel)?;
        Self::open(key, folder)
    }

    /// Reads the manifest and the tokenizer.
    pub(crate) fn open(key: &PackageKey, folder: &Path) -> Result<Self, Error> {
        // The stamp is taken first, so that a replacement during the reads is noticed.
        let stamp = manifest_stamp(folder);
        let manifest = read_manifest(folder, key)?;
        let tokenizer = Tokenizer::from_json(&read(folder, &manifest.tokenizer.file)?)?;
        Ok(Self { key: key.clone(), folder: folder.to_owned(), manifest, tokenizer, stamp })
    }

    /// Returns the bytes of its files without the manifest.
    pub(crate) fn bytes(&self) -> u64 {
        self.manifest.files.values().map(|file| file.bytes).sum()
    }

    /// Returns whether the package is still in its folder, neither removed nor replaced.
    pub(crate) fn is_current(&self) -> bool {
        self.stamp.is_some() && manifest_stamp(&self.folder) == self.stamp
    }
}

fn manifest_stamp(folder: &Path) -> Option<ManifestStamp> {
    let found = folder.join(MANIFEST_FILE).metadata().ok()?;
    Some((found.modified().ok()?, found.len()))
}

/// Reads the manifest of an installed package, and verifies the files that changed since their last verification.
pub(crate) fn verified_manifest(
    store: &Store,
    key: &PackageKey,
    folder: &Path,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<Manifest, Error> {
    let manifest = read_manifest(folder, key)?;
    let PackageKey { name, scheme } = key;
    let stored = StoredFiles {
        folder,
        identity: Store::package_digest(folder)?,
        files: &manifest.files,
        title: &format!("{name}@{scheme}"),
        repair: &format!("`narthex rm {name}@{scheme}` and `narthex pull {name}@{scheme}`"),
    };
    store.verify_changed(&stored, progress, cancel.flag())?;
    Ok(manifest)
}

/// Reads `manifest.json` and checks that every file has the size stated there.
pub(crate) fn read_manifest(folder: &Path, key: &PackageKey) -> Result<Manifest, Error> {
    let bad = |reason: String| Error::BadPackage { name: key.name.clone(), scheme: key.scheme, reason };
    let bytes = read(folder, MANIFEST_FILE)?;
    let format: FormatOnly = serde_json::from_slice(&bytes)
        .map_err(|error| bad(format!("{MANIFEST_FILE} is not a manifest: {error}")))?;
    if format.format != FORMAT {
        return Err(bad(format!("it has format {}, but this version reads format {FORMAT}", format.format)));
    }
    let manifest: Manifest = serde_json::from_slice(&bytes)
        .map_err(|error| bad(format!("{MANIFEST_FILE} is malformed: {error}")))?;
    if manifest.name != key.name || manifest.recipe.scheme != key.scheme {
        let (name, scheme) = (&manifest.name, manifest.recipe.scheme);
        return Err(bad(format!("its manifest is that of {name}@{scheme}")));
    }
    if let Some(file) = manifest.unlisted().first() {
        return Err(bad(format!("{MANIFEST_FILE} states no digest of {file}")));
    }
    for (file, entry) in &manifest.files {
        let found = folder.join(file).metadata().map(|data| data.len()).ok();
        if found != Some(entry.bytes) {
            let found = found.map_or("is missing".to_owned(), |bytes| format!("has {bytes} bytes"));
            return Err(bad(format!("{file} {found}, but the manifest states {} bytes", entry.bytes)));
        }
    }
    Ok(manifest)
}

#[derive(serde::Deserialize)]
struct FormatOnly {
    format: u32,
}

/// Reads a file of the package.
pub(crate) fn read(folder: &Path, file: &str) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Io { what: format!("cannot read {}", folder.join(file).display()), source };
    narthex_mmap::read_inside(folder, file, MAX_FILE_BYTES).map_err(failed)
}

/// Reads a UTF-8 file of the package.
pub(crate) fn read_text(folder: &Path, file: &str) -> Result<String, Error> {
    String::from_utf8(read(folder, file)?).map_err(|error| Error::Io {
        what: format!("cannot read {}", folder.join(file).display()),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
    })
}
