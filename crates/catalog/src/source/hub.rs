//! The model hub: listing a repository and downloading selected files into the standard cache.
//!
//! The cache is that of the hub's own tools (`models--owner--name/{blobs,snapshots,refs}`), so downloads are shared
//! with them. Nothing here interprets the contents of a file. Reading order: this file (one repository), `transfer`
//! (one file), `client` (one request), `cache` (the folder structure).
//!
//! The listing, the redirects with their token, the resumption and verification of downloads, and the cache are our own
//! code, because `hf-hub` 1.0 no longer resumes interrupted downloads and depends on `hf-xet`.

mod cache;
mod card;
mod client;
pub(crate) mod glob;
mod outline;
pub(crate) mod reference;
mod transfer;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use narthex_files::environment;
use narthex_spec::{
    ProgressSink, Sha256,
    progress::{Progress, Quiet, Stage, Unit},
};
pub use outline::{HeaderLength, RepoSummary};
use serde::Deserialize;

use self::{cache::RepoCache, card::CardValue, client::Client, transfer::Transfer};
use crate::{
    CancelFlag, check_cancel,
    error::{Error, HubError},
    files,
    index::{self, HubSource, TokenizerFiles},
    network::Network,
    source::partial_file,
};

/// Default endpoint, unless `HF_ENDPOINT` names another.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Short name of the default endpoint's host, with which other programs write repositories.
pub const SHORT_HOST: &str = "hf.co";

/// Maximum size in bytes of a repository's listing.
const LISTING_LIMIT: u64 = 32 << 20;

/// Maximum size in bytes of a file outside the large-file storage whose digest is computed by reading it again.
const SMALL_FILE: u64 = 256 << 20;

/// Connection settings of a hub.
#[derive(Clone)]
pub struct HubOptions {
    /// Scheme, host and optional port and path: `https://hub.example`.
    pub endpoint: String,
    /// The user's token. It is sent only to the endpoint, never to a host that the endpoint redirects to.
    pub token: Option<String>,
    /// Folder with the `models--owner--name` folders.
    pub cache: PathBuf,
    /// Waiting time before the second attempt. Each later wait is twice as long.
    pub backoff: Duration,
    /// Use of the network.
    pub network: Network,
}

impl HubOptions {
    /// Returns the folder of a repository in the cache.
    pub(crate) fn repository_folder(&self, repo: &str) -> PathBuf {
        RepoCache::new(&self.cache, repo).folder().to_owned()
    }

    /// Reads the variables of the hub's own tools: `HF_ENDPOINT`, `HF_TOKEN` or the token file, `HF_HUB_CACHE` or
    /// `HF_HOME`.
    pub fn from_environment(network: Network) -> Result<Self, Error> {
        let home = directories::BaseDirs::new().map(|dirs| dirs.home_dir().to_path_buf());
        Self::from_variables(&|name| env::var(name).ok(), home, network)
    }

    /// Reads variables through `get`, as [`Self::from_environment`].
    pub(crate) fn from_variables(
        get: &dyn Fn(&str) -> Option<String>,
        user_home: Option<PathBuf>,
        network: Network,
    ) -> Result<Self, Error> {
        let variable = |name: &str| get(name).filter(|value| !value.is_empty());
        let path = |name: &str| variable(name).map(PathBuf::from);
        // The hub's tools use ~/.cache on every platform.
        let user_cache = path("XDG_CACHE_HOME").or_else(|| Some(user_home?.join(".cache")));
        let home = match path("HF_HOME") {
            Some(home) => home,
            None => user_cache.ok_or(Error::NoDataFolder)?.join("huggingface"),
        };
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .unwrap_or_else(|| home.join("hub"));
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
        let token = variable("HF_TOKEN")
            .or_else(|| variable("HUGGING_FACE_HUB_TOKEN"))
            .or_else(|| narthex_files::user_text(narthex_files::read(&token_file, 4096).ok()?).ok());

        Ok(Self {
            endpoint: variable("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()),
            token: token.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()),
            cache,
            backoff: Duration::from_millis(500),
            network,
        })
    }
}

/// Names of files that describe the computation of a model.
const SETTINGS: &[&str] = &[
    "config.json",
    "modules.json",
    "1_Pooling/config.json",
    "1_LogitScore/config.json",
    "2_Dense/config.json",
    "3_Dense/config.json",
    "sentence_bert_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// A client of the hub with its cache.
pub struct Hub {
    client: Client,
    options: HubOptions,
}

/// Selected files of a repository at one commit, on the local disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// File or folder to compile.
    pub path: PathBuf,
    /// Commit.
    pub commit: String,
    /// Digests of the files, by path in the repository.
    pub digests: BTreeMap<String, Sha256>,
    /// Licence that the repository states.
    pub license: Option<String>,
}

/// The hub's listing of a repository at a revision.
#[derive(Debug, Deserialize)]
pub(crate) struct Listing {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
    #[serde(default, rename = "cardData")]
    card: CardValue,
    #[serde(default)]
    tags: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
}

/// The files of a repository.
enum RepoFiles {
    /// The hub's listing.
    Listed(Listing),
    /// A complete snapshot in the cache.
    Cached { commit: String, names: Vec<String> },
}

impl Listing {
    fn license(&self) -> Option<String> {
        let stated = self.card.license.clone();
        stated.or_else(|| self.tags.iter().find_map(|tag| tag.strip_prefix("license:")).map(str::to_owned))
    }

    /// Returns the total size of some files, if all sizes are known.
    fn bytes_of(&self, names: &[String]) -> Option<u64> {
        let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let wanted = self.siblings.iter().filter(|sibling| names.contains(sibling.rfilename.as_str()));
        wanted.map(|sibling| sibling.size).try_fold(0u64, |sum, size| sum.checked_add(size?))
    }
}

impl Hub {
    /// Creates a client. Sends no request.
    pub fn new(options: HubOptions) -> Result<Self, Error> {
        let client = Client::new(&options)?;
        Ok(Self { client, options })
    }

    /// Downloads the selected files of a repository into the cache. Complete files are kept and partial ones resumed.
    ///
    /// Without a network, a complete snapshot in the cache is used.
    pub fn snapshot(
        &self,
        source: &HubSource,
        progress: &dyn ProgressSink,
        cancel: &CancelFlag,
    ) -> Result<Snapshot, Error> {
        let repo = RepoCache::new(&self.options.cache, &source.repo);
        let listing = match self.files(source, &repo, progress, cancel)? {
            RepoFiles::Listed(listing) => listing,
            RepoFiles::Cached { commit, names } => return self.describe(&repo, commit, names, None, cancel),
        };

        let names =
            glob::choose(&source.repo, listing.siblings.iter().map(|s| s.rfilename.as_str()), &source.files)?;
        let tokenizer_files = self.tokenizer(source, &names, &repo.snapshot(&listing.sha), cancel)?;
        let missing: Vec<String> =
            names.iter().filter(|name| !repo.snapshot(&listing.sha).join(name).exists()).cloned().collect();
        environment::check_space(&self.options.cache, listing.bytes_of(&missing).unwrap_or(0))
            .map_err(Error::io("download to", &self.options.cache))?;
        let title = format!("Downloading {}", source.repo);
        let stage = Stage::start(progress, title, Unit::Bytes, listing.bytes_of(&names));

        let mut before = 0;
        for name in &names {
            let transfer = Transfer { client: &self.client, repo: &repo, commit: &listing.sha, name };
            before += transfer.run(self.options.backoff, &|bytes| stage.advance(before + bytes), cancel)?;
            stage.advance(before);
        }

        repo.write_ref(&source.revision, &listing.sha)?;
        let license = listing.license();
        let names = names.into_iter().chain(tokenizer_files).collect();
        self.describe(&repo, listing.sha, names, license, cancel)
    }

    /// Checks, before weights are downloaded, that there is a tokenizer. If the source names a tokenizer in another
    /// repository, copies its files into the snapshot and returns their names.
    fn tokenizer(
        &self,
        source: &HubSource,
        names: &[String],
        snapshot: &Path,
        cancel: &CancelFlag,
    ) -> Result<Vec<String>, Error> {
        if glob::has_tokenizer(names) || glob::is_adapter(names) {
            return Ok(Vec::new());
        }
        let Some(TokenizerFiles { repo, files: tokenizer_files }) = &source.tokenizer else {
            return Err(HubError::NoTokenizer { repo: source.repo.clone() }.into());
        };

        let tokenizer_source =
            HubSource { repo: repo.clone(), revision: index::main_branch(), ..source.clone() };
        let commit = self.listing(&tokenizer_source, cancel)?.sha;
        let cache = RepoCache::new(&self.options.cache, repo);
        fs::create_dir_all(snapshot).map_err(Error::io("create", snapshot))?;

        for name in tokenizer_files {
            self.download_file(&cache, &commit, name, cancel)?;
            let from = cache.snapshot(&commit).join(name);
            let to = snapshot.join(name);
            let bytes = narthex_files::read(&from, SMALL_FILE).map_err(Error::io("read", &from))?;
            files::replace(&to, |new| files::write_durably(new, &bytes))?;
        }
        Ok(tokenizer_files.clone())
    }

    /// Downloads a repository's settings into the cache and returns their folder. Weights, tokenizers and other large
    /// files are left out. Without a network, the settings of a complete snapshot are used.
    pub fn settings(&self, source: &HubSource, cancel: &CancelFlag) -> Result<PathBuf, Error> {
        let repo = RepoCache::new(&self.options.cache, &source.repo);
        let listing = match self.files(source, &repo, &Quiet, cancel)? {
            RepoFiles::Listed(listing) => listing,
            RepoFiles::Cached { commit, .. } => return Ok(repo.snapshot(&commit)),
        };
        let patterns: Vec<String> = SETTINGS.iter().map(|&pattern| pattern.to_owned()).collect();
        for Sibling { rfilename: name, .. } in listing.siblings.iter().filter(|sibling| {
            glob::wanted(&sibling.rfilename, &patterns) && sibling.size.is_none_or(|size| size <= SMALL_FILE)
        }) {
            self.download_file(&repo, &listing.sha, name, cancel)?;
        }
        Ok(repo.snapshot(&listing.sha))
    }

    /// Requests a repository's listing. If the network is not used or the hub cannot be reached, looks for a complete
    /// snapshot in the cache.
    fn files(
        &self,
        source: &HubSource,
        repo: &RepoCache,
        progress: &dyn ProgressSink,
        cancel: &CancelFlag,
    ) -> Result<RepoFiles, Error> {
        let cached = || {
            let (commit, names) = repo.complete_snapshot(&source.revision, &source.files)?;
            Some(RepoFiles::Cached { commit, names })
        };
        if self.options.network == Network::CacheOnly {
            return cached().ok_or_else(|| HubError::NotCached { repo: source.repo.clone() }.into());
        }
        match self.listing(source, cancel) {
            Ok(listing) => Ok(RepoFiles::Listed(listing)),
            Err(Error::Hub(unreachable)) if unreachable.is_unreachable() => {
                let files = cached().ok_or(unreachable)?;
                let note =
                    format!("The hub cannot be reached; using the downloaded copy of {}.", source.repo);
                progress.event(Progress::Note(note));
                Ok(files)
            }
            Err(other) => Err(other),
        }
    }

    /// Downloads one small file into the cache.
    fn download_file(
        &self,
        repo: &RepoCache,
        commit: &str,
        name: &str,
        cancel: &CancelFlag,
    ) -> Result<(), Error> {
        let transfer = Transfer { client: &self.client, repo, commit, name };
        transfer.run(self.options.backoff, &|_| (), cancel).map(drop)
    }

    /// Requests a repository's listing. Retries while the hub is busy, but not if it is unreachable.
    fn listing(&self, source: &HubSource, cancel: &CancelFlag) -> Result<Listing, Error> {
        let url = self.client.listing_url(&source.repo, &source.revision);
        let mut wait = self.options.backoff;
        for attempt in 1.. {
            check_cancel(cancel)?;
            match self.client.get_small(&source.repo, &url, LISTING_LIMIT) {
                Ok(bytes) => return parse_listing(&source.repo, &bytes).map_err(Error::from),
                Err(error) if error.is_unreachable() => return Err(error.into()),
                Err(error) if attempt < partial_file::ATTEMPTS && error.is_transient() => {
                    partial_file::pause(error.retry_after().unwrap_or(wait), cancel)?;
                    wait *= 2;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Cancelled)
    }

    fn describe(
        &self,
        repo: &RepoCache,
        commit: String,
        names: Vec<String>,
        license: Option<String>,
        cancel: &CancelFlag,
    ) -> Result<Snapshot, Error> {
        let folder = repo.snapshot(&commit);
        let mut digests = BTreeMap::new();
        for name in &names {
            let path = folder.join(name);
            if let Some(digest) = repo.digest_in_name(&path) {
                digests.insert(name.clone(), digest);
            } else if fs::metadata(&path).is_ok_and(|meta| meta.len() <= SMALL_FILE) {
                digests.insert(name.clone(), files::digest_file(&path, cancel, |_| ())?);
            }
        }
        let path = glob::gguf_of(&names).map_or(folder.clone(), |file| folder.join(file));
        Ok(Snapshot { path, commit, digests, license })
    }
}

/// Returns the reference to the repository of a hub's address, as other programs write it: `hf.co/owner/repo`.
pub fn reference_of_address(name: &str) -> Option<String> {
    let address = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://")).unwrap_or(name);
    let (host, path) = address.split_once('/')?;
    if ![SHORT_HOST, "huggingface.co", "www.huggingface.co"].contains(&host.to_ascii_lowercase().as_str()) {
        return None;
    }
    let mut parts = path.split('/');
    let (owner, repository) = (parts.next()?, parts.next()?);
    // Ollama's addresses end with a scheme of a GGUF file.
    let repository = repository.split(':').next().unwrap_or_default();
    let is_named = !owner.is_empty() && !repository.is_empty();
    is_named.then(|| format!("hf:{owner}/{repository}"))
}

/// Parses the hub's list of a repository's files.
pub(crate) fn parse_listing(repo: &str, bytes: &[u8]) -> Result<Listing, HubError> {
    let bad = |reason: String| HubError::BadAnswer { repo: repo.to_owned(), reason };
    let listing: Listing = serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))?;
    if !reference::is_commit(&listing.sha) {
        return Err(bad(format!("{:?} is not a commit", listing.sha.chars().take(60).collect::<String>())));
    }
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hubs_own_variables_are_honoured() {
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        fs::write(&token_file, "from-file\n").unwrap();
        let token_file = token_file.display().to_string();
        let check = |given: &[(&str, &str)], cache: &str, token: Option<&str>| {
            let get = |name: &str| {
                given.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            let options = HubOptions::from_variables(&get, Some(PathBuf::from("/home/u")), Network::Allowed);
            let options = options.unwrap();
            assert_eq!(options.cache, PathBuf::from(cache), "{given:?}");
            assert_eq!(options.token.as_deref(), token, "{given:?}");
        };
        check(&[], "/home/u/.cache/huggingface/hub", None);
        check(&[("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub", None);
        check(&[("HF_HOME", "/h"), ("HF_TOKEN", " t ")], "/h/hub", Some("t"));
        check(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/c")], "/c", None);
        let with_file = [("HF_TOKEN_PATH", token_file.as_str()), ("HF_HOME", "/h")];
        check(&with_file, "/h/hub", Some("from-file"));
    }

    const SHA: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn listings_state_licence_and_size() {
        let text = format!(
            r#"{{"sha":"{SHA}","gated":"auto","cardData":{{"license":"mit"}},"tags":["x","license:gemma"],
                "siblings":[{{"rfilename":"a","size":3}},{{"rfilename":"b","size":4,"lfs":{{"size":4}}}},{{"rfilename":"c"}}]}}"#
        );
        let listing = parse_listing("o/r", text.as_bytes()).unwrap();
        assert_eq!(listing.license().as_deref(), Some("mit"));
        let check = |names: &[&str], expect: Option<u64>| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(listing.bytes_of(&names), expect);
        };
        check(&["a", "b"], Some(7));
        check(&["a", "c"], None);
        let tagged =
            parse_listing("o/r", format!(r#"{{"sha":"{SHA}","tags":["license:gemma"]}}"#).as_bytes())
                .unwrap();
        assert_eq!(tagged.license().as_deref(), Some("gemma"));
        let listed = r#""cardData":{"license":["mit"]},"tags":["license:gemma"]"#;
        let listed = parse_listing("o/r", format!(r#"{{"sha":"{SHA}",{listed}}}"#).as_bytes()).unwrap();
        assert_eq!(listed.license().as_deref(), Some("gemma"));
    }

    #[test]
    fn addresses_of_the_hub_become_references() {
        let check = |name: &str, expect: Option<&str>| {
            assert_eq!(reference_of_address(name).as_deref(), expect, "{name}")
        };
        check("hf.co/owner/repo", Some("hf:owner/repo"));
        check("hf.co/owner/repo-GGUF:Q4_K_M", Some("hf:owner/repo-GGUF"));
        check("https://huggingface.co/owner/repo/tree/main", Some("hf:owner/repo"));
        check("hf.co/owner", None);
        check("hf.co//repo", None);
        check("example.com/owner/repo", None);
    }

    #[test]
    fn answers_that_are_no_listings_are_refused() {
        for text in ["", "[]", "{}", r#"{"sha":"../../etc"}"#, r#"{"sha":5}"#] {
            assert!(
                matches!(parse_listing("o/r", text.as_bytes()), Err(HubError::BadAnswer { .. })),
                "{text}"
            );
        }
    }
}
