//! The way in which wheels are downloaded: by the user's pip, or from the package index if there is no Python with pip.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use narthex_spec::progress::Stage;

use super::{
    package_index::PackageIndex,
    pinned::PinnedWheel,
    pip::{Pip, Requirement},
};
use crate::{CancelFlag, error::Error};

/// A way to download wheels.
#[derive(Debug, Clone)]
pub struct Downloader(DownloaderKind);

#[derive(Debug, Clone)]
enum DownloaderKind {
    Pip(Pip),
    Index(PackageIndex),
}

impl From<Pip> for Downloader {
    fn from(pip: Pip) -> Self {
        Self(DownloaderKind::Pip(pip))
    }
}

impl From<PackageIndex> for Downloader {
    fn from(index: PackageIndex) -> Self {
        Self(DownloaderKind::Index(index))
    }
}

/// Displays pip's command, or the hosts of the indexes.
impl fmt::Display for Downloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            DownloaderKind::Pip(pip) => pip.fmt(f),
            DownloaderKind::Index(index) => write!(f, "not found; wheels are downloaded from {index}"),
        }
    }
}

impl Downloader {
    /// Finds a Python with pip, or else the package index in the settings of pip and uv.
    ///
    /// # Errors
    /// [`Error::NoPip`] if there is neither, or if `NARTHEX_PYTHON` names a Python without pip; [`Error::Cancelled`].
    pub fn find(wanted: Requirement<'_>, cancel: &CancelFlag) -> Result<Self, Error> {
        match Pip::find(wanted, cancel) {
            Ok(pip) => Ok(pip.into()),
            // A Python that the user names is used, or an error.
            Err(error @ Error::NoPip { .. }) if Pip::is_named() => Err(error),
            Err(error @ Error::NoPip { .. }) => {
                let index = PackageIndex::from_environment().ok_or(error)?;
                tracing::info!("there is no Python with pip; wheels are downloaded from {index}");
                Ok(index.into())
            }
            Err(other) => Err(other),
        }
    }

    /// Downloads a wheel into an empty folder, and returns its path. Its digest is not checked here.
    pub(super) fn download(
        &self,
        pinned: &PinnedWheel<'_>,
        folder: &Path,
        stage: &Stage<'_>,
        cancel: &CancelFlag,
    ) -> Result<PathBuf, Error> {
        match &self.0 {
            DownloaderKind::Pip(pip) => pip.download(pinned.wanted, folder, stage, cancel),
            DownloaderKind::Index(index) => index.download(pinned, folder, stage, cancel),
        }
    }
}
