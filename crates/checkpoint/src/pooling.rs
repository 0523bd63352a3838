//! Pooling of embedding models whose files do not state it: that of a known family, or the one that the user states.
//!
//! A wrong pooling gives vectors that look right and rank badly, so it is never guessed.

use std::path::Path;

use narthex_spec::arch::Pooling;

/// Source of an embedding model's pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolingSource {
    /// The model's files.
    Files,
    /// The publishers of the models with this part in their names.
    Family(&'static str),
    /// The user.
    Request,
    /// None: the files do not state it, and the family is unknown.
    Unknown,
}

/// Poolings of published models by a part of their names, in the order in which they are searched.
const FAMILIES: &[(&str, Pooling)] = &[
    ("gte-base-en-v1.5", Pooling::Cls),
    ("gte-large-en-v1.5", Pooling::Cls),
    ("gte-modernbert", Pooling::Cls),
    ("gte-small", Pooling::Mean),
    ("gte-base", Pooling::Mean),
    ("gte-large", Pooling::Mean),
    ("bge", Pooling::Cls),
    ("e5", Pooling::Mean),
    ("arctic-embed", Pooling::Cls),
    ("mxbai-embed-large", Pooling::Cls),
    ("uae-large", Pooling::Cls),
    ("granite-embedding", Pooling::Cls),
    ("nomic-embed-text", Pooling::Mean),
    ("jina-embeddings", Pooling::Mean),
    ("minilm", Pooling::Mean),
    ("all-mpnet", Pooling::Mean),
    ("all-distilroberta", Pooling::Mean),
];

/// Returns the family that one of some names of a model contains, and its pooling.
pub(crate) fn family(names: &[String]) -> Option<(&'static str, Pooling)> {
    let names = plain(names);
    // Models that were trained for dot products have another pooling than the rest of their family.
    if names.iter().any(|name| has_word(name, "dot")) {
        return None;
    }
    FAMILIES.iter().copied().find(|(family, _)| names.iter().any(|name| has_word(name, family)))
}

/// Returns whether one of some names of a model contains `words`.
pub(crate) fn is_called(names: &[String], words: &str) -> bool {
    plain(names).iter().any(|name| has_word(name, words))
}

fn plain(names: &[String]) -> Vec<String> {
    names.iter().map(|name| name.to_lowercase().replace('_', "-")).collect()
}

/// Returns whether `name` contains `words`, not as a part of longer words.
fn has_word(name: &str, words: &str) -> bool {
    name.match_indices(words).any(|(start, _)| {
        let before = name[..start].chars().next_back();
        let after = name[start + words.len()..].chars().next();
        !before.into_iter().chain(after).any(char::is_alphanumeric)
    })
}

/// Returns the names of the model in a folder: those of the folder and of the repository in a hub's cache.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let path = narthex_files::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let parts: Vec<String> =
        path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    let repository = parts.iter().filter(|part| part.starts_with("models--"));
    repository.chain(parts.last()).cloned().collect()
}

impl PoolingSource {
    /// Returns a note for the user about a pooling that the files do not state, in a sentence.
    pub fn note(self, pooling: Pooling) -> Option<String> {
        match self {
            Self::Family(family) => Some(format!(
                "The files do not state the pooling; it is {pooling}, as in the published models of the family {family}."
            )),
            Self::Files | Self::Request | Self::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_models_have_the_pooling_of_their_family() {
        let check = |name: &str, expect: Option<Pooling>| {
            let found = family(&[name.to_owned()]).map(|(_, pooling)| pooling);
            assert_eq!(found, expect, "{name}");
        };
        check("BAAI/bge-small-en-v1.5", Some(Pooling::Cls));
        check("models--BAAI--bge-small-en-v1.5", Some(Pooling::Cls));
        check("/root/.cache/torch/sentence_transformers/BAAI_bge-small-en/", Some(Pooling::Cls));
        check("intfloat/multilingual-e5-small", Some(Pooling::Mean));
        check("sentence-transformers/all-MiniLM-L6-v2", Some(Pooling::Mean));
        check("Alibaba-NLP/gte-base-en-v1.5", Some(Pooling::Cls));
        check("thenlper/gte-base", Some(Pooling::Mean));
        check("multi-qa-MiniLM-L6-dot-v1", None);
        check("fridge5-model", None);
        check("bert-base-uncased", None);
    }
}
