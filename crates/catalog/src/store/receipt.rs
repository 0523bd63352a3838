//! Receipts, which list the files unpacked into a folder of the store and their origin.
//!
//! A receipt is written before the staging folder is renamed into place, so a folder with a receipt was complete at
//! that time. [`Receipt::is_intact`] returns true if it still is.

use std::{collections::BTreeMap, fs, path::Path};

use narthex_spec::{ModelName, Sha256, manifest::FileEntry};
use serde::{Deserialize, Serialize};

use crate::{error::Error, files};

/// The receipt's file name inside the folder.
pub(crate) const RECEIPT_FILE: &str = "receipt.json";

/// Maximum size in bytes of a receipt.
const LIMIT: u64 = 4 << 20;

/// List of the files of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Receipt {
    /// The model or runtime for which it was unpacked.
    pub(crate) made_for: String,
    /// Origin as a text for display.
    pub(crate) source: String,
    /// Digest of the archive.
    pub(crate) archive: Sha256,
    /// Its files, by path relative to the folder, with `/`.
    pub(crate) files: BTreeMap<String, FileEntry>,
}

impl Receipt {
    /// Reads a receipt, if there is a readable one.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&narthex_files::read(path, LIMIT).ok()?).ok()
    }

    /// Reads the receipt of a folder, if all files are present with their sizes.
    pub(crate) fn of_intact(folder: &Path) -> Option<Self> {
        Self::read(&folder.join(RECEIPT_FILE)).filter(|receipt| receipt.is_intact(folder))
    }

    /// Writes the receipt into a folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Error> {
        let path = folder.join(RECEIPT_FILE);
        let text =
            serde_json::to_vec_pretty(self).map_err(|error| Error::io("write", &path)(error.into()))?;
        files::write_durably(&path, &text)
    }

    /// Returns true if the folder belongs to a model.
    pub(crate) fn made_for(&self, name: &ModelName) -> bool {
        self.made_for == name.as_str()
    }

    fn is_intact(&self, folder: &Path) -> bool {
        !self.files.is_empty()
            && self.files.iter().all(|(name, entry)| {
                fs::metadata(folder.join(name)).is_ok_and(|meta| meta.is_file() && meta.len() == entry.bytes)
            })
    }
}
