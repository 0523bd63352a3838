//! Entry points for fuzz targets: archives, without the check of their digest, key files, records of the store, and
//! variables of the environment. Not part of the product.

use std::{collections::BTreeMap, fmt::Debug, path::Path};

use narthex_spec::progress::Quiet;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    CancelFlag, Error, archive, keys,
    network::Network,
    source::{
        hub::{self, HubOptions},
        package_index::{self, ConfigurationTexts, IndexSettings},
    },
    store::{audit::ManifestFiles, receipt::Receipt, verification::FileState},
};

/// Unpacks every member of an archive into a folder.
///
/// # Errors
/// [`Error`] for archives that are broken or hostile.
pub fn unpack(wheel: &Path, into: &Path) -> Result<usize, Error> {
    let everything = |name: &str| Some(name.to_owned());
    archive::unpack("w", wheel, into, &everything, &Quiet, &CancelFlag::new(false)).map(|files| files.len())
}

/// Parses a key file, encodes its keys and parses the result. Returns the number of keys.
///
/// # Errors
/// The reason if the bytes are not a key file.
///
/// # Panics
/// The encoded keys differ when parsed again.
pub fn read_keys(bytes: &[u8]) -> Result<usize, String> {
    let keys = keys::parse(bytes)?;
    assert_eq!(
        keys::parse(&keys::encode(keys.clone())).as_ref(),
        Ok(&keys),
        "a written file differs after it is read"
    );
    Ok(keys.len())
}

/// File or answer that the store reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreRecord {
    /// Receipt of unpacked files.
    Receipt,
    /// Inodes, sizes and times of verified files.
    FileStates,
    /// Manifest of the package `tiny`, as the audit reads it.
    Manifest,
    /// The hub's list of a repository's files.
    Listing,
    /// Page of a package on a package index, in JSON or HTML.
    IndexPage,
    /// Configuration file of pip.
    PipConfiguration,
}

/// Reads a record. Records that the store writes are written and read again.
///
/// # Errors
/// The parser's message if it rejects the bytes.
///
/// # Panics
/// The written record differs after it is read.
pub fn read_store_record(record: StoreRecord, bytes: &[u8]) -> Result<(), String> {
    match record {
        StoreRecord::Receipt => read_again::<Receipt>(bytes),
        StoreRecord::FileStates => read_again::<BTreeMap<String, FileState>>(bytes),
        StoreRecord::Manifest => ManifestFiles::read(bytes, "tiny").map(drop),
        StoreRecord::IndexPage => package_index::read_page(bytes).map(drop),
        StoreRecord::PipConfiguration => {
            let text = narthex_files::user_text(bytes.to_vec()).map_err(|error| error.to_string())?;
            let texts = ConfigurationTexts { pip: vec![text.clone()], uv: vec![text] };
            IndexSettings::new(&|_| None, &texts, None);
            Ok(())
        }
        StoreRecord::Listing => hub::parse_listing("a/b", bytes).map(drop).map_err(|error| error.to_string()),
    }
}

fn read_again<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> Result<(), String> {
    let parse = serde_json::from_slice::<T>;
    let read = parse(bytes).map_err(|error| error.to_string())?;
    let written = serde_json::to_vec(&read).map_err(|error| error.to_string())?;
    assert_eq!(parse(&written).ok().as_ref(), Some(&read), "a written record differs after it is read");
    Ok(())
}

/// Reads the variables of the hub's tools.
///
/// # Errors
/// The reason if they name no folder.
pub fn read_hub_variables(get: &dyn Fn(&str) -> Option<String>) -> Result<(), String> {
    let network = Network::from_variables(&|name| get(name).map(Into::into));
    HubOptions::from_variables(get, None, network).map(drop).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use narthex_spec::manifest::FORMAT;

    use super::*;
    use crate::archive::tests::write_wheel;

    #[test]
    fn every_member_is_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("w.whl");
        write_wheel(&wheel, &[("a/b", b"1"), ("c", b"2")]);
        assert_eq!(unpack(&wheel, &folder.path().join("out")).unwrap(), 2);
        write_wheel(&wheel, &[("../a", b"1")]);
        assert!(unpack(&wheel, &folder.path().join("else")).is_err());
    }

    #[test]
    fn key_files_are_read_and_written() {
        let text =
            r#"{"version":1,"keys":[{"name":"a","hash":"HASH","created":1,"limits":{"concurrency":2}}]}"#;
        assert_eq!(read_keys(text.replace("HASH", &"0".repeat(64)).as_bytes()), Ok(1));
        assert!(read_keys(text.as_bytes()).unwrap_err().contains("64 hexadecimal digits"));
    }

    #[test]
    fn records_and_variables_are_read() {
        let check = |record, text: &str, is_read: bool| {
            let found = read_store_record(record, text.as_bytes());
            assert_eq!(found.is_ok(), is_read, "{record:?} {text}: {found:?}");
        };
        let digest = "0".repeat(64);
        let files = format!(r#"{{"a/b": {{"bytes": 3, "sha256": "{digest}"}}}}"#);
        let receipt =
            format!(r#"{{"made_for": "m", "source": "s", "archive": "{digest}", "files": {files}}}"#);
        check(StoreRecord::Receipt, &receipt, true);
        check(StoreRecord::Receipt, &receipt.replace("00", "0"), false);
        let states = r#"{"a": {"inode": 1, "bytes": 2, "modified": 3, "changed": -4}}"#;
        check(StoreRecord::FileStates, states, true);
        check(StoreRecord::FileStates, &states.replace('1', "-1"), false);
        let manifest = format!(r#"{{"format": {FORMAT}, "name": "tiny", "files": {files}}}"#);
        check(StoreRecord::Manifest, &manifest, true);
        check(StoreRecord::Manifest, &manifest.replace("a/b", "../b"), false);
        check(StoreRecord::Manifest, &manifest.replace("tiny", "other"), false);
        check(StoreRecord::Listing, &format!(r#"{{"sha": "{}"}}"#, "a".repeat(40)), true);
        check(StoreRecord::Listing, r#"{"sha": "main"}"#, false);
        check(StoreRecord::IndexPage, "<html><a href=p.whl>p</a>", true);
        check(StoreRecord::IndexPage, r#"{"files": {}}"#, false);
        check(StoreRecord::PipConfiguration, "[global]\nindex-url = https://i\n", true);
        let home = |name: &str| (name == "HF_HOME").then(|| "/nowhere".to_owned());
        assert_eq!(read_hub_variables(&home), Ok(()));
        assert!(read_hub_variables(&|_| None).is_err());
    }
}
