//! The small files of a package: manifest, tokenizer and template. Errors name the file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use narthex_spec::manifest::{FORMAT, MANIFEST_FILE, Manifest};
use narthex_text::tokenizer::Tokenizer;

use crate::{error::Error, library::package_key::PackageKey};

/// Maximum bytes of a manifest, tokenizer or template.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// A package in a folder, with its manifest and tokenizer.
pub(crate) struct Package {
    pub(crate) key: PackageKey,
    pub(crate) folder: PathBuf,
    pub(crate) manifest: Manifest,
    pub(crate) tokenizer: Tokenizer,
}

impl Package {
    /// Reads the manifest and the tokenizer.
    pub(crate) fn open(key: &PackageKey, folder: &Path) -> Result<Self, Error> {
        let manifest = read_manifest(folder, key)?;
        let tokenizer = Tokenizer::from_json(&read(folder, &manifest.tokenizer.file)?)?;
        Ok(Self { key: key.clone(), folder: folder.to_owned(), manifest, tokenizer })
    }
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
    for (file, entry) in &manifest.files {
        let found = fs::metadata(folder.join(file)).map(|data| data.len()).ok();
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
    let path = folder.join(file);
    let failed = |source| Error::Io { what: format!("cannot read {}", path.display()), source };
    let bytes = fs::metadata(&path).map_err(failed)?.len();
    if bytes > MAX_FILE_BYTES {
        let message = format!("{bytes} bytes, expected at most {MAX_FILE_BYTES}");
        return Err(failed(std::io::Error::other(message)));
    }
    fs::read(&path).map_err(failed)
}

/// Reads a UTF-8 file of the package.
pub(crate) fn read_text(folder: &Path, file: &str) -> Result<String, Error> {
    String::from_utf8(read(folder, file)?).map_err(|error| Error::Io {
        what: format!("cannot read {}", folder.join(file).display()),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
    })
}
