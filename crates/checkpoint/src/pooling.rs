//! Pooling of embedding models whose files do not state it: that of a known family, or the one that the user states.
//!
//! A wrong pooling gives vectors that look right and rank badly, so it is never guessed.

use std::path::Path;

use narthex_spec::arch::{Architecture, EncoderHead, Pooling};

use crate::{
    checkpoint::Checkpoint,
    error::{CheckpointError, Result},
    limits::unsupported,
};

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
    let names: Vec<String> = names.iter().map(|name| name.to_lowercase().replace('_', "-")).collect();
    // Models that were trained for dot products have another pooling than the rest of their family.
    if names.iter().any(|name| has_word(name, "dot")) {
        return None;
    }
    FAMILIES.iter().copied().find(|(family, _)| names.iter().any(|name| has_word(name, family)))
}

/// Returns whether `name` contains `words`, not as a part of longer words.
fn has_word(name: &str, words: &str) -> bool {
    let is_inside = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    name.match_indices(words).any(|(at, _)| {
        let (before, after) = (&name[..at], &name[at + words.len()..]);
        !is_inside(before.chars().next_back()) && !is_inside(after.chars().next())
    })
}

/// Returns the names of the model in a folder: those of the folder and of the repository in a hub's cache.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let path = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
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

impl Checkpoint {
    /// Returns this model with the pooling `requested`, or else with its own.
    ///
    /// # Errors
    /// [`CheckpointError::NoPooling`] if there is neither; [`CheckpointError::Unsupported`] for a requested pooling of a
    /// model that is not an embedding model.
    pub fn pooled(mut self, requested: Option<Pooling>) -> Result<Self> {
        let found = self.architecture.describe();
        let Some(pooling) = embedding(&mut self.architecture) else {
            return match requested {
                None => Ok(self),
                Some(_) => Err(unsupported("pooling", "an embedding model; leave out --pooling", found)),
            };
        };
        match (requested, self.pooling) {
            (Some(requested), _) => {
                *pooling = requested;
                self.pooling = PoolingSource::Request;
            }
            (None, PoolingSource::Unknown) => {
                let path = self.files.first().cloned().unwrap_or_default();
                return Err(CheckpointError::NoPooling { path });
            }
            (None, _) => {}
        }
        Ok(self)
    }

    /// Returns a note for the user if the pooling is that of the model's family.
    pub fn pooling_note(&self) -> Option<String> {
        match &self.architecture {
            Architecture::Encoder(arch) => match arch.head {
                EncoderHead::Embedding { pooling, .. } => self.pooling.note(pooling),
                _ => None,
            },
            Architecture::Decoder(_) => None,
        }
    }
}

/// Returns the pooling of an embedding model.
fn embedding(architecture: &mut Architecture) -> Option<&mut Pooling> {
    match architecture {
        Architecture::Encoder(arch) => match &mut arch.head {
            EncoderHead::Embedding { pooling, .. } => Some(pooling),
            _ => None,
        },
        Architecture::Decoder(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use narthex_testkit::checkpoint::{tiny_bert_safetensors, tiny_llama_gguf};

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

    /// Opens a tiny BERT without files of sentence-transformers, in a folder called `name`.
    fn bert(name: &str) -> Checkpoint {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::create_dir(&path).unwrap();
        tiny_bert_safetensors(&path, 1).unwrap();
        std::fs::remove_file(path.join("modules.json")).unwrap();
        std::fs::remove_dir_all(path.join("1_Pooling")).unwrap();
        crate::open(&path).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn an_unknown_pooling_is_asked_for() {
        let pooling = |checkpoint: Checkpoint, requested| {
            let mut found = checkpoint.pooled(requested)?;
            Ok::<_, CheckpointError>((found.pooling_note(), embedding(&mut found.architecture).copied()))
        };
        let error = pooling(bert("mine"), None).unwrap_err();
        assert!(matches!(error, CheckpointError::NoPooling { .. }), "{error}");
        assert_eq!(pooling(bert("mine"), Some(Pooling::Cls)).unwrap(), (None, Some(Pooling::Cls)));
        let (note, found) = pooling(bert("bge-small"), None).unwrap();
        assert_eq!(found, Some(Pooling::Cls));
        assert!(
            note.is_some_and(|note| note.contains("it is cls, as in the published models of the family bge"))
        );
        assert_eq!(pooling(bert("bge-small"), Some(Pooling::Mean)).unwrap(), (None, Some(Pooling::Mean)));
    }

    #[test]
    fn a_chat_model_has_no_pooling() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, tiny_llama_gguf(1)).unwrap();
        let open = || crate::open(&path).unwrap_or_else(|error| panic!("{error}"));
        assert!(open().pooled(None).is_ok());
        let error = open().pooled(Some(Pooling::Mean)).err().unwrap().to_string();
        assert!(error.contains("expected an embedding model"), "{error}");
    }
}
