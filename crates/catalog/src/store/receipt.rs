//! Receipts, which list the files unpacked into a folder of the store and their origin.
//!
//! A receipt is written before the staging folder is renamed into place, so a folder with a receipt was complete once.
//! [`Receipt::is_intact`] returns whether it still is.

use std::{collections::BTreeMap, fs, path::Path};

use narthex_spec::{ModelName, Sha256, manifest::FileEntry};
use serde::{Deserialize, Serialize};

use crate::{error::Error, files};

/// The receipt's file name inside the folder.
pub(crate) const RECEIPT_FILE: &str = "receipt.json";

/// The longest receipt that is read, in bytes.
const LIMIT: u64 = 4 << 20;

/// The contents of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Receipt {
    /// The model or runtime that it was unpacked for.
    pub(crate) made_for: String,
    /// Origin for people.
    pub(crate) source: String,
    /// The archive's digest.
    pub(crate) archive: Sha256,
    /// Its files, by path relative to the folder, with `/`.
    pub(crate) files: BTreeMap<String, FileEntry>,
}

impl Receipt {
    /// Reads a receipt, if there is a readable one.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&narthex_mmap::read(path, LIMIT).ok()?).ok()
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

    /// Returns whether the folder belongs to a model.
    pub(crate) fn made_for(&self, name: &ModelName) -> bool {
        self.made_for == name.as_str()
    }

    fn is_intact(&self, folder: &Path) -> bool {
        let whole = |(name, entry): (&String, &FileEntry)| {
            fs::metadata(folder.join(name)).is_ok_and(|meta| meta.is_file() && meta.len() == entry.bytes)
        };
        !self.files.is_empty() && self.files.iter().all(whole)
    }
}
