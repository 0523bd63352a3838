//! An opened [`Checkpoint`]: architecture, weights, tokenizer and the files that it was read from.

use std::path::PathBuf;

use narthex_spec::{
    TokenId,
    arch::{Architecture, EmbedderArch, EncoderArch, EncoderHead, Pooling},
    manifest::{
        ClassifierEntry, PairTemplate, PicturePlaceholder, PicturePreprocessing, Prompts, PublishedSampling,
        SoundPlaceholder, SoundPreprocessing, SpeechEntry,
    },
};
use narthex_text::tokenizer::{GgufVocab, Tokenizer, TokenizerError, gguf_json, package_json};

use crate::{
    error::{CheckpointError, Result},
    file_watches::FileWatches,
    limits::unsupported,
    pooling::PoolingSource,
    prune::PrunedWeights,
    special::SpecialTokens,
    weight::WeightSource,
};

/// An opened checkpoint.
pub struct Checkpoint {
    /// Architecture.
    pub architecture: Architecture,
    /// Its weights.
    pub weights: Box<dyn WeightSource>,
    /// Its tokenizer.
    pub tokenizer: TokenizerSource,
    /// Special token rules.
    pub special: SpecialTokens,
    /// Text of the chat template, if there is one.
    pub chat_template: Option<String>,
    /// Control tokens, for models that transcribe speech.
    pub speech: Option<SpeechEntry>,
    /// Values and tokens of pictures, for decoders with a vision tower.
    pub vision: Option<(PicturePreprocessing, PicturePlaceholder)>,
    /// Features and tokens of sounds, for decoders with an audio tower.
    pub audio: Option<(SoundPreprocessing, SoundPlaceholder)>,
    /// Prefixes of inputs, for embedding models.
    pub prompts: Prompts,
    /// Labels, for classifiers and rerankers.
    pub classifier: Option<ClassifierEntry>,
    /// Template of a pair of texts, for rerankers that read query and document as a conversation.
    pub pairs: Option<PairTemplate>,
    /// Sampling that the publisher recommends, for decoders.
    pub sampling: PublishedSampling,
    /// Source of the pooling, for embedding models.
    pub pooling: PoolingSource,
    /// Maximum sequence length that its publisher serves, in tokens.
    pub max_length: usize,
    /// Files that it was read from.
    pub files: Vec<PathBuf>,
    /// Licence that it states.
    pub license: Option<String>,
    /// Watches on the files with its weights.
    pub watches: FileWatches,
}

impl Checkpoint {
    /// Returns this model with a head for only the tokens `kept`, in ascending order. Models other than decoders are returned
    /// unchanged.
    pub fn pruned(mut self, kept: &[TokenId]) -> Self {
        if let Architecture::Decoder(arch) = &mut self.architecture {
            self.weights = Box::new(PrunedWeights::new(self.weights, arch, kept));
        }
        self
    }

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
            Architecture::Encoder(EncoderArch { head, .. })
            | Architecture::Embedder(EmbedderArch { head, .. }) => match *head {
                EncoderHead::Embedding { pooling, .. } => self.pooling.note(pooling),
                _ => None,
            },
            Architecture::Decoder(_) | Architecture::Speech(_) => None,
        }
    }
}

/// Returns the pooling of an embedding model.
fn embedding(architecture: &mut Architecture) -> Option<&mut Pooling> {
    match architecture {
        Architecture::Encoder(EncoderArch { head, .. })
        | Architecture::Embedder(EmbedderArch { head, .. }) => match head {
            EncoderHead::Embedding { pooling, .. } => Some(pooling),
            _ => None,
        },
        Architecture::Decoder(_) | Architecture::Speech(_) => None,
    }
}

/// Tokenizer of a checkpoint.
#[derive(Debug, Clone)]
pub enum TokenizerSource {
    /// GGUF metadata in the form that `narthex-text` reads.
    Gguf(Box<GgufVocab>),
    /// The bytes of a `tokenizer.json`.
    Json(Vec<u8>),
}

impl TokenizerSource {
    /// Reads the tokenizer.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::from_gguf`] and [`Tokenizer::from_json`].
    pub fn tokenizer(&self) -> std::result::Result<Tokenizer, TokenizerError> {
        match self {
            Self::Gguf(vocab) => Tokenizer::from_gguf(vocab),
            Self::Json(bytes) => Tokenizer::from_json(bytes),
        }
    }

    /// Returns the `tokenizer.json` of a package.
    ///
    /// # Errors
    /// The errors of [`gguf_json`] and [`package_json`].
    pub fn package_json(&self) -> std::result::Result<Vec<u8>, TokenizerError> {
        match self {
            Self::Gguf(vocab) => package_json(&gguf_json(vocab)?),
            Self::Json(bytes) => package_json(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_testkit::checkpoint::{tiny_bert_safetensors, tiny_llama_gguf};

    use super::*;

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
