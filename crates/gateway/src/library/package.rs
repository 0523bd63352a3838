//! Reading a package's small files, with errors that name them.

use std::{fs, path::Path};

use narthex_spec::manifest::{FORMAT, MANIFEST_FILE, Manifest};

use crate::{error::Error, library::names::PackageKey};

/// The most bytes that a manifest, tokenizer or template may have.
const SMALL_FILE: u64 = 256 << 20;

/// Reads and checks `manifest.json`.
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
            return Err(bad(format!("{file} {found}, but the manifest says {} bytes", entry.bytes)));
        }
    }
    Ok(manifest)
}

#[derive(serde::Deserialize)]
struct FormatOnly {
    format: u32,
}

/// Reads one file of the package.
pub(crate) fn read(folder: &Path, file: &str) -> Result<Vec<u8>, Error> {
    let path = folder.join(file);
    let failed = |source| Error::Io { what: format!("cannot read {}", path.display()), source };
    let bytes = fs::metadata(&path).map_err(failed)?.len();
    if bytes > SMALL_FILE {
        return Err(failed(std::io::Error::other(format!("{bytes} bytes, expected at most {SMALL_FILE}"))));
    }
    fs::read(&path).map_err(failed)
}

/// Reads one text file of the package.
pub(crate) fn read_text(folder: &Path, file: &str) -> Result<String, Error> {
    String::from_utf8(read(folder, file)?).map_err(|error| Error::Io {
        what: format!("cannot read {}", folder.join(file).display()),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
    })
}
