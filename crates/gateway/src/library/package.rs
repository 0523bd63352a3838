//! The small files of a package: manifest, tokenizer and template. Errors name the file.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use narthex_catalog::store::{Store, StoredFiles};
use narthex_graph::onnx::find_reference;
use narthex_spec::{
    ProgressSink, Target,
    manifest::{
        FORMAT, FileEntry, MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest, VoiceEntry, check_consistency,
        check_digest, check_text,
    },
};
use narthex_text::tokenizer::{MAX_FILE_BYTES, Tokenizer};

use crate::{cancel::Cancel, error::Error, library::package_key::PackageKey};

/// A package in a folder, with its manifest.
pub(crate) struct Package {
    pub(crate) key: PackageKey,
    pub(crate) folder: PathBuf,
    pub(crate) manifest: Manifest,
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
        // The stamp is taken first, so that a replacement during the verification is noticed.
        let stamp = manifest_stamp(folder);
        verified_manifest(store, key, folder, progress, cancel)?;
        Ok(Self { stamp, ..Self::open(key, folder)? })
    }

    /// Reads the manifest.
    pub(crate) fn open(key: &PackageKey, folder: &Path) -> Result<Self, Error> {
        // The stamp is taken first, so that a replacement during the read is noticed.
        let stamp = manifest_stamp(folder);
        let manifest = read_manifest(folder, key)?;
        Ok(Self { key: key.clone(), folder: folder.to_owned(), manifest, stamp })
    }

    /// Reads the tokenizer. This takes longer than most other steps of a load.
    pub(crate) fn read_tokenizer(&self) -> Result<Tokenizer, Error> {
        let Some(entry) = &self.manifest.tokenizer else {
            return Err(bad_package(&self.key, "it has no tokenizer"));
        };
        Ok(Tokenizer::from_json(&read(&self.folder, &entry.file)?)?)
    }

    /// Returns the bytes of its files without the manifest.
    pub(crate) fn bytes(&self) -> u64 {
        self.manifest.bytes()
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

/// Reads the manifest of an installed package, verifies the files that changed since their last verification, and checks
/// the files to which the graphs refer.
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
    check_graphs(folder, key, &manifest)?;
    Ok(manifest)
}

/// Checks the manifest of a package and the files to which the graphs refer, as a load does. No digest is checked.
pub(crate) fn check(folder: &Path, key: &PackageKey) -> Result<(), Error> {
    check_graphs(folder, key, &read_manifest(folder, key)?)
}

/// Checks that each graph refers only to files of the manifest's list. ONNX Runtime opens them without any check.
fn check_graphs(folder: &Path, key: &PackageKey, manifest: &Manifest) -> Result<(), Error> {
    let graphs = manifest.every_graph().map(|graph| &graph.file);
    let graphs = graphs.chain(manifest.voice.iter().flat_map(VoiceEntry::graphs));
    // Blobs of Intel's compiler are no graphs, and refer to nothing.
    let contexts = manifest.contexts.iter().filter(|context| !matches!(context.target, Target::IntelNpu(_)));
    let files: BTreeSet<&String> = graphs.chain(contexts.map(|context| &context.file)).collect();
    for file in files {
        check_references(folder, file, &manifest.files).map_err(|reason| bad_package(key, reason))?;
    }
    Ok(())
}

/// Checks that a graph refers only to listed files, or returns the reason why not.
fn check_references(folder: &Path, graph: &str, files: &BTreeMap<String, FileEntry>) -> Result<(), String> {
    let bytes = narthex_files::map(&folder.join(graph))
        .map_err(|error| format!("{graph} cannot be read: {error}"))?;
    let beside = graph.rfind('/').map_or("", |end| &graph[..=end]);
    // Listed paths are inside the package, so another spelling of one counts as not listed.
    match find_reference(&bytes, &|name: &str| {
        !files.contains_key(&format!("{beside}{}", name.strip_prefix("./").unwrap_or(name)))
    }) {
        Ok(None) => Ok(()),
        Ok(Some(name)) => Err(format!("{graph} uses {name:?}, but {MANIFEST_FILE} states no digest of it")),
        Err(error) => Err(format!("{graph} cannot be read: {error}")),
    }
}

/// Returns the error of a package that cannot be used.
pub(crate) fn bad_package(key: &PackageKey, reason: impl Into<String>) -> Error {
    Error::BadPackage { name: key.name.clone(), scheme: key.scheme, reason: reason.into() }
}

/// Returns the key that the manifest of a package states.
pub(crate) fn stated_key(folder: &Path) -> io::Result<PackageKey> {
    let manifest: Manifest = serde_json::from_slice(&manifest_text(folder)?)?;
    Ok(PackageKey { name: manifest.name, scheme: manifest.recipe.scheme })
}

/// Reads `manifest.json` and checks that every file has the size stated there.
pub(crate) fn read_manifest(folder: &Path, key: &PackageKey) -> Result<Manifest, Error> {
    let bytes = manifest_text(folder).map_err(|error| {
        if is_of_system(folder, &error) {
            Error::io("read", folder.join(MANIFEST_FILE))(error)
        } else {
            bad_package(key, format!("{MANIFEST_FILE} is not a manifest: {error}"))
        }
    })?;
    let manifest = parse_manifest(&bytes, key).map_err(|reason| bad_package(key, reason))?;

    for (file, entry) in &manifest.files {
        let length = folder.join(file).metadata().map(|data| data.len()).ok();
        if length != Some(entry.bytes) {
            let state = length.map_or("is missing".to_owned(), |bytes| format!("has {bytes} bytes"));
            let reason = format!("{file} {state}, but the manifest states {} bytes", entry.bytes);
            return Err(bad_package(key, reason));
        }
    }
    Ok(manifest)
}

/// Parses the manifest of a package, or returns the reason why it cannot be used.
fn parse_manifest(text: &[u8], key: &PackageKey) -> Result<Manifest, String> {
    let FormatOnly { format } = serde_json::from_slice(text)
        .map_err(|error| format!("{MANIFEST_FILE} is not a manifest: {error}"))?;
    if format != FORMAT {
        return Err(format!("it has format {format}, but this version reads format {FORMAT}"));
    }

    let manifest: Manifest =
        serde_json::from_slice(text).map_err(|error| format!("{MANIFEST_FILE} is malformed: {error}"))?;
    let name = &manifest.name;
    let scheme = manifest.recipe.scheme;
    if *name != key.name || scheme != key.scheme {
        return Err(format!("its manifest is that of {name}@{scheme}"));
    }

    check_consistency(&manifest).map_err(|error| error.to_string())?;
    if let Some(file) = manifest.unlisted().first() {
        return Err(format!("{MANIFEST_FILE} states no digest of {file}"));
    }
    check_digest(text).map_err(|error| error.to_string())?;
    Ok(manifest)
}

/// Reads the text of the manifest. Fails if it is too long or may have too many values.
fn manifest_text(folder: &Path) -> io::Result<Vec<u8>> {
    let text = narthex_files::read_inside(folder, MANIFEST_FILE, MAX_MANIFEST_BYTES)?;
    check_text(&text)?;
    Ok(text)
}

/// Returns whether an error about the manifest is not the fault of the package: the manifest was removed, or the system
/// refused access.
fn is_of_system(folder: &Path, error: &io::Error) -> bool {
    match error.kind() {
        // A link may lead to nothing.
        io::ErrorKind::NotFound => folder.join(MANIFEST_FILE).symlink_metadata().is_err(),
        _ => error.raw_os_error().is_some(),
    }
}

#[derive(serde::Deserialize)]
struct FormatOnly {
    format: u32,
}

/// Reads a file of the package: the tokenizer, the template or the list of tokens.
pub(crate) fn read(folder: &Path, file: &str) -> Result<Vec<u8>, Error> {
    narthex_files::read_inside(folder, file, MAX_FILE_BYTES).map_err(Error::io("read", folder.join(file)))
}

/// Reads a UTF-8 file of the package.
pub(crate) fn read_text(folder: &Path, file: &str) -> Result<String, Error> {
    narthex_files::utf8(read(folder, file)?).map_err(Error::io("read", folder.join(file)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use narthex_graph::{Builder, build::External};
    use narthex_spec::{DType, Sha256};

    use super::*;

    #[test]
    fn what_is_no_manifest_is_a_malformed_package() {
        let key = PackageKey { name: "a".parse().unwrap(), scheme: narthex_spec::Scheme::W8 };
        let found = |put: &dyn Fn(&Path)| {
            let folder = tempfile::tempdir().unwrap();
            put(&folder.path().join(MANIFEST_FILE));
            read_manifest(folder.path(), &key).unwrap_err()
        };
        let check = |put: &dyn Fn(&Path), expect: &str| match found(put) {
            Error::BadPackage { reason, .. } => assert!(reason.contains(expect), "{reason}"),
            error => panic!("{error}"),
        };
        check(&|path| fs::create_dir(path).unwrap(), "expected a file, found a folder");
        check(&|path| fs::write(path, " ".repeat(5_000_000)).unwrap(), "at most 4194304 bytes");
        let values = format!("[{}0]", "0,".repeat(300_000));
        check(&|path| fs::write(path, &values).unwrap(), "at most 262144 values, found 300001");
        #[cfg(unix)]
        {
            use std::os::unix::fs::symlink;
            check(&|path| symlink(MANIFEST_FILE, path).unwrap(), "a link that leads to itself");
            check(&|path| symlink("none", path).unwrap(), MANIFEST_FILE);
            check(&|path| symlink("/dev/zero", path).unwrap(), "it leads out of the folder");
            let pipe = |path: &Path| {
                assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
            };
            check(&pipe, "found a named pipe");
        }
        assert!(matches!(found(&|_| ()), Error::Io { .. }));
    }

    #[test]
    fn files_beyond_the_limit_of_a_checkpoint_s_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::File::create(folder.path().join("t")).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        let error = read(folder.path(), "t").unwrap_err().to_string();
        assert!(error.contains("expected at most 67108864 bytes"), "{error}");
    }

    #[test]
    fn a_graph_refers_only_to_listed_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("graphs")).unwrap();
        let entry = FileEntry { bytes: 8, sha256: Sha256([0; 32]) };
        let files = ["model.data", "graphs/model.data", "graphs/more/a.data"];
        let files = BTreeMap::from(files.map(|file| (file.to_owned(), entry)));
        let check = |graph: &str, file: &str, is_listed: bool| {
            let mut b = Builder::new("g", &[("", 20)]);
            let w = b.external("w", DType::U8, &[8], External { file, offset: 0, length: 8 });
            b.output(&w, DType::U8, &[8usize.into()]);
            fs::write(folder.path().join(graph), b.finish().encode()).unwrap();
            let found = check_references(folder.path(), graph, &files);
            let unlisted = format!("{graph} uses {file:?}, but manifest.json states no digest of it");
            assert_eq!(found, if is_listed { Ok(()) } else { Err(unlisted) });
        };
        check("model.onnx", "model.data", true);
        check("model.onnx", "./model.data", true);
        check("model.onnx", "graphs/more/a.data", true);
        check("graphs/model.onnx", "model.data", true);
        check("graphs/model.onnx", "more/a.data", true);
        for file in ["other.data", "../model.data", "/etc/passwd", "..", ""] {
            check("graphs/model.onnx", file, false);
        }
        fs::write(folder.path().join("model.onnx"), [0xFF]).unwrap();
        let error = check_references(folder.path(), "model.onnx", &files).unwrap_err();
        assert!(error.contains("model.onnx cannot be read: not an ONNX file"), "{error}");
    }
}
