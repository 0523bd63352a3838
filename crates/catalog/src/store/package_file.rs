//! A package in one file, which can be copied to another machine: a zip archive with the manifest and the files of its
//! list, without compression.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, Read, Write},
    path::Path,
};

use narthex_files::environment;
use narthex_spec::{
    ProgressSink,
    manifest::{FileEntry, MANIFEST_FILE},
    progress::{Stage, Unit},
};
use zip::{CompressionMethod, ZipWriter, result::ZipError, write::SimpleFileOptions};

use super::{Staging, Store};
use crate::{
    CancelFlag,
    archive::{Members, unpack_members},
    check_cancel,
    error::Error,
    files::CHUNK,
};

/// Extension of the files.
pub const PACKAGE_EXTENSION: &str = "narthex";

/// A package from a file, in a folder of the store that is not in place yet.
pub struct UnpackedPackage {
    /// The folder.
    pub staging: Staging,
    /// The unpacked files with their digests, by name. The manifest is one of them.
    pub files: BTreeMap<String, FileEntry>,
}

/// Writes the package in `folder`, whose manifest lists `files`, to the file `out`.
///
/// # Errors
/// [`Error::Io`], also if `out` exists; [`Error::Cancelled`]. Nothing is left of an incomplete file.
pub fn pack(
    folder: &Path,
    files: &BTreeMap<String, FileEntry>,
    out: &Path,
    progress: &dyn ProgressSink,
    cancel: &CancelFlag,
) -> Result<(), Error> {
    let total = files.values().map(|entry| entry.bytes).sum();
    environment::check_space(out, total).map_err(Error::io("write", out))?;
    let file = File::create_new(out).map_err(Error::io("create", out))?;
    let stage = Stage::start(progress, format!("Writing {}", out.display()), Unit::Bytes, Some(total));
    let written = write_members(folder, files, out, file, &|bytes| stage.advance(bytes), cancel);
    if written.is_err() {
        // The error of the write matters more than a second one.
        let _ = fs::remove_file(out);
    }
    written
}

fn write_members(
    folder: &Path,
    files: &BTreeMap<String, FileEntry>,
    out: &Path,
    file: File,
    seen: &dyn Fn(u64),
    cancel: &CancelFlag,
) -> Result<(), Error> {
    let failed = |error: ZipError| Error::io("write", out)(io::Error::other(error));
    let mut zip = ZipWriter::new(BufWriter::new(file));
    let mut buffer = Vec::with_capacity(CHUNK);
    let mut done = 0;

    // The manifest is the first member.
    for name in std::iter::once(MANIFEST_FILE).chain(files.keys().map(String::as_str)) {
        let path = folder.join(name);
        let mut source = narthex_files::open_inside(folder, name).map_err(Error::io("open", &path))?;
        let bytes = source.metadata().map_err(Error::io("look at", &path))?.len();
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(bytes >= u64::from(u32::MAX));
        zip.start_file(name, options).map_err(failed)?;
        loop {
            check_cancel(cancel)?;
            buffer.clear();
            let read = Read::by_ref(&mut source).take(CHUNK as u64).read_to_end(&mut buffer);
            if read.map_err(Error::io("read", &path))? == 0 {
                break;
            }
            zip.write_all(&buffer).map_err(Error::io("write", out))?;
            done += buffer.len() as u64;
            seen(done);
        }
    }

    let file = zip.finish().map_err(failed)?.into_inner();
    file.map_err(|error| Error::io("write", out)(error.into_error()))?
        .sync_all()
        .map_err(Error::io("write", out))
}

impl Store {
    /// Unpacks a package from the file `archive` into a new folder of the store. Its digests are computed, not compared.
    ///
    /// # Errors
    /// [`Error::BadArchive`] and [`Error::HostileArchive`] for a file that [`pack`] cannot have written,
    /// [`Error::MissingMember`] without a manifest, [`Error::Io`], [`Error::Cancelled`].
    pub fn unpack_package(
        &self,
        archive: &Path,
        progress: &dyn ProgressSink,
        cancel: &CancelFlag,
    ) -> Result<UnpackedPackage, Error> {
        // Without compression, the members are not larger than the archive.
        let limit = fs::metadata(archive).map_err(Error::io("open", archive))?.len();
        let staging = self.scratch()?;
        let members = Members { choose: &|name| Some(name.to_owned()), limit };
        let title = archive.file_name().unwrap_or_default().to_string_lossy();
        let files = unpack_members(&title, archive, staging.path(), &members, progress, cancel)?;
        if !files.contains_key(MANIFEST_FILE) {
            return Err(Error::MissingMember { path: archive.to_owned(), member: MANIFEST_FILE.to_owned() });
        }
        Ok(UnpackedPackage { staging, files })
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::{Sha256, progress::Quiet};

    use super::*;
    use crate::archive::tests::write_wheel;

    fn entry(bytes: &[u8]) -> FileEntry {
        FileEntry { bytes: bytes.len() as u64, sha256: Sha256::of(bytes) }
    }

    #[test]
    fn a_package_survives_the_way_through_one_file() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(Some(home.path().join("store"))).unwrap();
        let folder = home.path().join("package");
        fs::create_dir_all(folder.join("npu")).unwrap();
        fs::write(folder.join(MANIFEST_FILE), "{}").unwrap();
        fs::write(folder.join("model.onnx"), "graph").unwrap();
        fs::write(folder.join("npu/a.bin"), "context").unwrap();
        fs::write(folder.join("notes.txt"), "not listed").unwrap();
        let listed = [("model.onnx", &b"graph"[..]), ("npu/a.bin", b"context")];
        let listed: BTreeMap<String, FileEntry> =
            listed.into_iter().map(|(name, bytes)| (name.to_owned(), entry(bytes))).collect();
        let (out, go) = (home.path().join("m.narthex"), CancelFlag::new(false));
        pack(&folder, &listed, &out, &Quiet, &go).unwrap();
        assert!(pack(&folder, &listed, &out, &Quiet, &go).is_err(), "an existing file is not replaced");
        assert!(out.is_file());

        let whole = fs::read(&out).unwrap();
        let mut changed = whole.clone();
        let at = whole.windows(5).position(|bytes| bytes == b"graph").unwrap();
        changed[at] ^= 1;
        for damaged in [&changed[..], &whole[..whole.len() / 2]] {
            let path = home.path().join("damaged.narthex");
            fs::write(&path, damaged).unwrap();
            let error = store.unpack_package(&path, &Quiet, &go).err().unwrap();
            assert!(matches!(error, Error::BadArchive { .. }), "{error}");
            assert!(error.to_string().contains("damaged"), "{error}");
        }

        let found = store.unpack_package(&out, &Quiet, &go).unwrap();
        let mut expect = listed.clone();
        expect.insert(MANIFEST_FILE.to_owned(), entry(b"{}"));
        assert_eq!(found.files, expect);
        let name = "tiny".parse().unwrap();
        let installed = found.staging.into_package(&name, narthex_spec::Scheme::W8).commit().unwrap();
        assert_eq!(store.package(&name, narthex_spec::Scheme::W8), Some(installed.clone()));
        assert_eq!(fs::read(installed.join("npu/a.bin")).unwrap(), b"context");
    }

    #[test]
    fn a_package_that_does_not_fit_is_refused_before_it_is_written() {
        let home = tempfile::tempdir().unwrap();
        let out = home.path().join("m.narthex");
        let large = FileEntry { bytes: u64::MAX, sha256: Sha256::of(b"") };
        let listed = BTreeMap::from([("absent".to_owned(), large)]);
        let error = pack(home.path(), &listed, &out, &Quiet, &CancelFlag::new(false)).unwrap_err();
        assert!(error.to_string().contains("MB of free space") && !out.exists(), "{error}");
    }

    #[test]
    fn an_incomplete_file_is_removed_and_a_foreign_archive_refused() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(Some(home.path().join("store"))).unwrap();
        let (out, go) = (home.path().join("m.narthex"), CancelFlag::new(false));
        let listed = BTreeMap::from([("absent".to_owned(), entry(b""))]);
        fs::write(home.path().join(MANIFEST_FILE), "{}").unwrap();
        assert!(pack(home.path(), &listed, &out, &Quiet, &go).is_err());
        assert!(!out.exists());
        write_wheel(&out, &[("a", b"x")]);
        let error = store.unpack_package(&out, &Quiet, &go).err().unwrap();
        assert!(matches!(error, Error::MissingMember { .. }), "{error}");
        write_wheel(&out, &[(MANIFEST_FILE, &[b' '; 100_000])]);
        let error = store.unpack_package(&out, &Quiet, &go).err().unwrap();
        assert!(matches!(error, Error::HostileArchive { .. }), "a compressed member: {error}");
    }
}
