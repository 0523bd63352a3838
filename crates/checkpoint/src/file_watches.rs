//! Watches on the mapped files of a checkpoint.

use std::path::PathBuf;

use narthex_files::FileWatch;

use crate::error::CheckpointError;

/// Watches on mapped files, by path.
#[derive(Debug, Clone, Default)]
pub struct FileWatches(pub(crate) Vec<(PathBuf, FileWatch)>);

impl FileWatches {
    /// Adds watches.
    pub(crate) fn with(mut self, more: impl Iterator<Item = (PathBuf, FileWatch)>) -> Self {
        self.0.extend(more);
        self
    }

    /// Checks that no file has changed since it was opened. Call this after the last read of a weight.
    ///
    /// # Errors
    /// [`CheckpointError::Read`] with the file.
    pub fn check(&self) -> Result<(), CheckpointError> {
        let changed = self.0.iter().find_map(|(path, watch)| Some((path, watch.check().err()?)));
        changed.map_or(Ok(()), |(path, source)| Err(CheckpointError::Read { path: path.clone(), source }))
    }
}
