//! Audit of a store: reads every file of every package, checkpoint and runtime, and every large file that this machine
//! made from a package, and compares it with its digest.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use narthex_spec::{
    ModelName, ProgressSink, Scheme, Sha256,
    manifest::{FORMAT, FileEntry, MANIFEST_FILE, check_digest, check_files, check_path},
    progress::{Stage, Unit},
};
use serde::{Deserialize, Serialize};

use super::{
    Store,
    packages::read_manifest,
    receipt::{RECEIPT_FILE, Receipt},
    verification::{digest, forget, forget_state, made_files},
};
use crate::{CancelFlag, check_cancel, error::Error};

/// Result of the audit of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditedFile {
    /// Model, or runtime: `smollm2:135m`, `runtime cpu`.
    pub subject: String,
    /// Package, checkpoint or runtime with the file: `smollm2:135m@w8`, `runtime cpu`; `smollm2:135m@w8 on this machine`
    /// for a file that a load made from the package.
    pub owner: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Its state.
    #[serde(flatten)]
    pub state: FileCondition,
}

/// State of an audited file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum FileCondition {
    /// The file has the recorded digest.
    Intact {
        /// The digest.
        sha256: Sha256,
    },
    /// The file has another digest.
    Damaged {
        /// The recorded digest.
        expected: Sha256,
        /// Digest that was found.
        found: Sha256,
    },
    /// The file cannot be read, or it is a manifest or receipt that does not fit its folder.
    Unreadable {
        /// Reason.
        reason: String,
    },
}

impl FileCondition {
    /// Returns true if the file has the recorded digest.
    pub fn is_intact(&self) -> bool {
        matches!(self, Self::Intact { .. })
    }
}

/// The fields of a manifest that the audit reads.
#[derive(Deserialize)]
pub(crate) struct ManifestFiles {
    format: u32,
    name: ModelName,
    pub(crate) files: BTreeMap<String, FileEntry>,
}

impl ManifestFiles {
    /// Reads the manifest of the package whose folder has this name, or returns the reason why it is not valid.
    pub(crate) fn read(bytes: &[u8], stem: &str) -> Result<Self, String> {
        let manifest: Self =
            serde_json::from_slice(bytes).map_err(|error| format!("is malformed: {error}"))?;
        if manifest.format != FORMAT {
            return Err(format!("has format {}, but this version reads format {FORMAT}", manifest.format));
        }
        if manifest.name.file_stem() != stem {
            return Err(format!("belongs to {}", manifest.name));
        }
        check_files(&manifest.files).map_err(|error| format!("is malformed: {error}"))?;
        if let Some(path) = manifest.files.keys().find_map(|path| check_path(path).err()) {
            return Err(path.to_string());
        }
        Ok(manifest)
    }
}

struct AuditFolder {
    subject: String,
    owner: String,
    folder: PathBuf,
    origin: FileOrigin,
    files: BTreeMap<String, FileEntry>,
}

/// Origin of a folder's files.
enum FileOrigin {
    /// They were fetched or compiled. Their verifications are recorded under this identity.
    Stored(Sha256),
    /// A load on this machine made them.
    Made,
}

impl Store {
    /// Audits the packages of `name`, or everything in the store without a name. `scheme` selects one package.
    ///
    /// # Errors
    /// [`Error::NoPackage`] if the model is not installed, [`Error::Cancelled`]. Damage is a result, not an error.
    pub fn audit(
        &self,
        name: Option<&ModelName>,
        scheme: Option<Scheme>,
        progress: &dyn ProgressSink,
        cancel: &CancelFlag,
    ) -> Result<Vec<AuditedFile>, Error> {
        let mut results = Vec::new();
        let mut listed = Vec::new();
        let folders = match name {
            Some(name) => self.packages_of(name, scheme)?,
            None => self.package_folders(),
        };

        for (folder, scheme) in folders {
            match package(&folder, scheme) {
                Ok(found) => {
                    listed.extend(self.made_from(&found));
                    listed.push(found);
                }
                Err(unreadable) => results.push(*unreadable),
            }
        }

        if name.is_none() {
            for kind in ["checkpoints", "runtimes"] {
                for folder in subfolders(&self.root().join(kind)) {
                    match receipt(kind, &folder) {
                        Ok(found) => listed.push(found),
                        Err(unreadable) => results.push(*unreadable),
                    }
                }
            }
        }

        let total = listed.iter().flat_map(|listed| listed.files.values()).map(|entry| entry.bytes).sum();
        let stage = Stage::start(progress, "Verifying", Unit::Bytes, Some(total));
        let mut done = 0;
        for listed in listed {
            self.audit_folder(&listed, &mut results, &|bytes| stage.advance(done + bytes), cancel)?;
            done += listed.files.values().map(|entry| entry.bytes).sum::<u64>();
        }
        Ok(results)
    }

    /// Returns the folders that loads on this machine made from a package, if their digests are recorded.
    fn made_from(&self, package: &AuditFolder) -> Vec<AuditFolder> {
        let FileOrigin::Stored(identity) = package.origin else { return Vec::new() };
        let devices = subfolders(&self.machine_of(identity).path);
        devices
            .iter()
            .flat_map(|device| subfolders(device))
            .filter_map(|folder| {
                Some(AuditFolder {
                    subject: package.subject.clone(),
                    owner: format!("{} on this machine", package.owner),
                    origin: FileOrigin::Made,
                    files: made_files(&folder)?,
                    folder,
                })
            })
            .collect()
    }

    /// Audits the files of a folder. If one is damaged, the next load verifies the folder again or makes it again.
    fn audit_folder(
        &self,
        listed: &AuditFolder,
        results: &mut Vec<AuditedFile>,
        seen: &dyn Fn(u64),
        cancel: &CancelFlag,
    ) -> Result<(), Error> {
        let mut done = 0;
        let mut intact = true;
        for (name, entry) in &listed.files {
            check_cancel(cancel)?;
            let state = match digest(&listed.folder, name, cancel, |bytes| seen(done + bytes)) {
                Ok(found) if found == entry.sha256 => FileCondition::Intact { sha256: found },
                Ok(found) => FileCondition::Damaged { expected: entry.sha256, found },
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(error) => FileCondition::Unreadable { reason: error.to_string() },
            };
            intact &= state.is_intact();
            done += entry.bytes;
            let path = listed.folder.join(name);
            results.push(AuditedFile {
                subject: listed.subject.clone(),
                owner: listed.owner.clone(),
                path,
                state,
            });
        }

        if !intact {
            match listed.origin {
                FileOrigin::Stored(identity) => forget(&self.machine_of(identity)),
                FileOrigin::Made => forget_state(&listed.folder),
            }
        }
        Ok(())
    }

    fn packages_of(&self, name: &ModelName, scheme: Option<Scheme>) -> Result<Vec<(PathBuf, Scheme)>, Error> {
        let wanted = Scheme::ALL.into_iter().filter(|found| scheme.is_none_or(|scheme| scheme == *found));
        let found: Vec<_> = wanted.filter_map(|scheme| Some((self.package(name, scheme)?, scheme))).collect();
        if found.is_empty() { Err(Error::NoPackage { name: name.clone(), scheme }) } else { Ok(found) }
    }

    /// Returns the folders of all packages, readable or not.
    fn package_folders(&self) -> Vec<(PathBuf, Scheme)> {
        let models = subfolders(&self.root().join("packages"));
        models
            .iter()
            .flat_map(|model| {
                let model = model.clone();
                Scheme::ALL.into_iter().map(move |scheme| (model.join(scheme.as_str()), scheme))
            })
            .filter(|(folder, _)| folder.is_dir())
            .collect()
    }
}

/// Returns the files in a package's manifest, or its manifest with the reason why it cannot be read.
fn package(folder: &Path, scheme: Scheme) -> Result<AuditFolder, Box<AuditedFile>> {
    let stem = folder.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    let path = folder.join(MANIFEST_FILE);
    let bytes = match read_manifest(&path) {
        Ok(bytes) => bytes,
        Err(error) => return Err(unreadable(scheme, path, stem, format!("cannot be read: {error}"))),
    };

    let manifest = match ManifestFiles::read(&bytes, &stem) {
        Ok(manifest) => manifest,
        Err(reason) => return Err(unreadable(scheme, path, stem, reason)),
    };
    let subject = manifest.name.to_string();
    if let Err(error) = check_digest(&bytes) {
        return Err(unreadable(scheme, path, subject, error.to_string()));
    }
    let origin = FileOrigin::Stored(Sha256::of(&bytes));
    let owner = format!("{subject}@{scheme}");
    Ok(AuditFolder { subject, owner, folder: folder.to_owned(), origin, files: manifest.files })
}

/// Returns the entry of a manifest that cannot be read.
fn unreadable(scheme: Scheme, path: PathBuf, subject: String, reason: String) -> Box<AuditedFile> {
    Box::new(AuditedFile {
        owner: format!("{subject}@{scheme}"),
        subject,
        path,
        state: FileCondition::Unreadable { reason },
    })
}

fn receipt(kind: &str, folder: &Path) -> Result<AuditFolder, Box<AuditedFile>> {
    let path = folder.join(RECEIPT_FILE);
    let kind = kind.trim_end_matches('s');
    let receipt = Receipt::read(&path);
    let made_for = match &receipt {
        Some(receipt) => receipt.made_for.clone(),
        None => folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    };
    let owner = format!("{kind} {made_for}");
    let subject = if kind == "runtime" { owner.clone() } else { made_for };
    match receipt.filter(|receipt| receipt.files.keys().all(|path| check_path(path).is_ok())) {
        Some(receipt) => Ok(AuditFolder {
            subject,
            owner,
            folder: folder.to_owned(),
            origin: FileOrigin::Stored(receipt.archive),
            files: receipt.files,
        }),
        None => {
            let reason = "is missing or malformed".to_owned();
            Err(Box::new(AuditedFile { subject, owner, path, state: FileCondition::Unreadable { reason } }))
        }
    }
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use narthex_spec::progress::Quiet;

    use super::*;

    /// Creates a store with the package `a:b` of one file and a runtime of one file.
    fn store(home: &Path) -> Store {
        let store = Store::open(Some(home.to_owned())).unwrap();
        let entry = FileEntry { bytes: 3, sha256: Sha256::of(b"abc") };
        let package = home.join("packages/a--b/w8");
        fs::create_dir_all(&package).unwrap();
        fs::write(package.join("model.bin"), "abc").unwrap();
        let manifest = serde_json::json!({"format": FORMAT, "name": "a:b", "files": {"model.bin": entry}});
        fs::write(package.join(MANIFEST_FILE), manifest.to_string()).unwrap();
        let runtime = home.join("runtimes/cpu-1");
        fs::create_dir_all(&runtime).unwrap();
        fs::write(runtime.join("lib.so"), "abc").unwrap();
        let (made_for, source) = ("cpu".to_owned(), "wheel".to_owned());
        let files = BTreeMap::from([("lib.so".to_owned(), entry)]);
        Receipt { made_for, source, archive: Sha256::of(b"w"), files }.write(&runtime).unwrap();
        store
    }

    fn audit(store: &Store, name: Option<&str>) -> Vec<(String, bool)> {
        let name = name.map(|name| name.parse().unwrap());
        let results = store.audit(name.as_ref(), None, &Quiet, &CancelFlag::new(false)).unwrap();
        results.into_iter().map(|file| (file.owner, file.state.is_intact())).collect()
    }

    #[test]
    fn every_file_is_held_against_its_digest() {
        let home = tempfile::tempdir().unwrap();
        let store = store(home.path());
        let owners =
            |intact: [bool; 2]| vec![("a:b@w8".to_owned(), intact[0]), ("runtime cpu".to_owned(), intact[1])];
        assert_eq!(audit(&store, None), owners([true, true]));
        fs::write(home.path().join("runtimes/cpu-1/lib.so"), "abd").unwrap();
        assert_eq!(audit(&store, None), owners([true, false]));
        fs::remove_file(home.path().join("packages/a--b/w8/model.bin")).unwrap();
        assert_eq!(audit(&store, None), owners([false, false]));
        assert_eq!(audit(&store, Some("a:b")), owners([false, false])[..1]);
        let absent = "c".parse().unwrap();
        let none = store.audit(Some(&absent), None, &Quiet, &CancelFlag::new(false));
        assert!(matches!(none, Err(Error::NoPackage { .. })));
        let cancelled = store.audit(None, None, &Quiet, &CancelFlag::new(true));
        assert!(matches!(cancelled, Err(Error::Cancelled)));
    }

    #[test]
    fn files_that_a_load_made_from_a_package_are_audited_and_made_again_if_damaged() {
        let home = tempfile::tempdir().unwrap();
        let store = store(home.path());
        let machine = store.machine(&home.path().join("packages/a--b/w8"), "cpu").unwrap();
        let staging = machine.stage("packed").unwrap();
        fs::write(staging.path().join("g.packed"), [7; 100]).unwrap();
        let folder = staging.commit_with_state().unwrap();
        let owned = |is_intact| ("a:b@w8 on this machine".to_owned(), is_intact);
        assert!(audit(&store, Some("a:b")).contains(&owned(true)));
        assert_eq!(machine.unchanged_folder("packed").unwrap().as_ref(), Some(&folder));
        fs::write(folder.join("g.packed"), [8; 100]).unwrap();
        assert!(audit(&store, Some("a:b")).contains(&owned(false)));
        // Even if the state of the damaged file is the recorded one.
        assert!(!folder.join("state.json").exists());
        machine.unchanged_folder("packed").unwrap_err();
    }

    #[test]
    fn folders_without_a_usable_list_are_results() {
        let check = |manifest: &str, expect: &str| {
            let home = tempfile::tempdir().unwrap();
            let store = store(home.path());
            fs::write(home.path().join("packages/a--b/w8").join(MANIFEST_FILE), manifest).unwrap();
            let results = store.audit(None, None, &Quiet, &CancelFlag::new(false)).unwrap();
            let found = results.into_iter().find(|file| !file.state.is_intact()).unwrap();
            let FileCondition::Unreadable { reason } = found.state else { panic!("{found:?}") };
            assert!(reason.contains(expect), "{reason}");
        };
        check("{", "is malformed");
        check(r#"{"format": 99, "name": "a:b", "files": {}}"#, "has format 99");
        check(r#"{"format": 1, "name": "other", "files": {}}"#, "belongs to other");
        check(&format!(r#"{{"values": [{}0]}}"#, "0,".repeat(300_000)), "at most 262144 values");
        check(&" ".repeat(5_000_000), "at most 4194304 bytes");
        let escape = Sha256::of(b"").to_string();
        let entry = |index| format!(r#""{index}": {{"bytes": 0, "sha256": "{escape}"}}"#);
        let files = (0..5000).map(entry).collect::<Vec<_>>().join(",");
        check(&format!(r#"{{"format": 1, "name": "a:b", "files": {{{files}}}}}"#), "at most 4096 files");
        let files = format!(r#"{{"../x": {{"bytes": 0, "sha256": "{escape}"}}}}"#);
        check(&format!(r#"{{"format": 1, "name": "a:b", "files": {files}}}"#), "\"../x\" is not the path");
    }
}
