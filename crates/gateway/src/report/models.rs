//! What is installed, what could be, and what is loaded: plain data for lists, `/health` and `ps`.

use std::time::SystemTime;

pub use narthex_catalog::index::{Access, Figures};
use narthex_spec::{
    DeviceName, ModelName, Scheme,
    arch::EncoderHead,
    manifest::{Bound, Manifest},
};
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    load::{fallback::Fallen, placement::PlacementReport},
};

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// It answers.
    Chat,
    /// It continues a text, and has no chat template.
    Text,
    /// It gives vectors.
    Embedding,
    /// It says how well a document answers a query.
    Rerank,
    /// It finds the answer to a question in a text.
    Answer,
    /// It fills masked words.
    Masked,
    /// Something that this version does not serve.
    Other,
}

impl ModelKind {
    /// Every kind.
    pub const ALL: [Self; 7] =
        [Self::Chat, Self::Text, Self::Embedding, Self::Rerank, Self::Answer, Self::Masked, Self::Other];

    /// The name used on the command line and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Text => "text",
            Self::Embedding => "embedding",
            Self::Rerank => "rerank",
            Self::Answer => "answer",
            Self::Masked => "masked",
            Self::Other => "other",
        }
    }

    /// The kind of what a package holds.
    pub fn of(manifest: &Manifest) -> Self {
        match manifest.architecture.head() {
            None if manifest.chat.is_none() => Self::Text,
            None => Self::Chat,
            Some(EncoderHead::Embedding { .. }) => Self::Embedding,
            Some(EncoderHead::Score { labels: 1, .. }) => Self::Rerank,
            Some(EncoderHead::Score { .. }) => Self::Other,
            Some(EncoderHead::Spans {}) => Self::Answer,
            Some(EncoderHead::MaskedLm { .. }) => Self::Masked,
        }
    }

    /// For sentences: `a chat model`.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Chat => "a chat model",
            Self::Text => "a model that continues texts",
            Self::Embedding => "an embedding model",
            Self::Rerank => "a reranker",
            Self::Answer => "a question-answering model",
            Self::Masked => "a masked language model",
            Self::Other => "a model of a kind that this version does not serve",
        }
    }
}

/// A model that is installed or in the catalogue.
#[derive(Debug, Clone, Serialize)]
pub struct ModelListing {
    /// The name to use.
    pub name: ModelName,
    /// What it is for.
    pub kind: ModelKind,
    /// What a person calls it.
    pub title: String,
    /// Parameters, where known.
    pub parameters: Option<u64>,
    /// Bytes to download, of a model in the catalogue.
    pub download_bytes: Option<u64>,
    /// What it comes to, of a model in the catalogue that this version compiles.
    pub figures: Option<Figures>,
    /// Licence, where known.
    pub license: Option<String>,
    /// Whether everybody may download it, of a model in the catalogue.
    pub access: Access,
    /// What a user should know before using it.
    pub notes: Option<String>,
    /// Where it comes from.
    pub source: String,
    /// Its packages on this machine.
    pub installed: Vec<InstalledPackage>,
    /// Whether a request for it sets off the download.
    pub auto_pull: bool,
}

/// A package in the store.
#[derive(Debug, Clone, Serialize)]
pub struct InstalledPackage {
    /// Its weight scheme.
    pub scheme: Scheme,
    /// Bytes on disk.
    pub bytes: u64,
    /// The longest sequence, in tokens.
    pub max_length: usize,
    /// The one kind of device that runs it, where there is only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    /// When it was made; in JSON seconds since 1970.
    #[serde(with = "crate::report::unix_seconds")]
    pub created: SystemTime,
}

impl ModelStatus {
    /// The device it runs on, once it does.
    pub fn device(&self) -> Option<DeviceName> {
        self.placement.as_ref().map(|report| report.device)
    }
}

/// A model that was asked for since the gateway was opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ModelStatus {
    /// Its name.
    pub name: ModelName,
    /// What it is for, once known.
    pub kind: Option<ModelKind>,
    /// Its weight scheme.
    pub scheme: Scheme,
    /// Where its life stands.
    pub state: ModelState,
    /// The device it runs on, and where each node went.
    pub placement: Option<PlacementReport>,
    /// The devices that came first in the order and did not take it.
    pub passed_over: Vec<PassedOver>,
    /// The engine's counters, for chat models.
    pub engine: Option<EngineCounters>,
    /// The longest sequence, in tokens.
    pub max_length: Option<usize>,
}

/// Where a model's life stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ModelState {
    /// It is being fetched, compiled or loaded.
    Loading,
    /// It answers.
    Ready,
    /// It could not be loaded.
    Failed {
        /// Why.
        reason: String,
        /// The next step.
        hint: Option<String>,
    },
}

/// A device of the order that a model was not loaded on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// The device.
    pub device: DeviceName,
    /// Why not.
    pub reason: String,
    /// The next step, where there is one.
    pub fix: Option<String>,
    /// Whether it is worth telling: the device is there or was asked for, and did not take the model.
    pub announced: bool,
    /// The nodes that it did not take, where it was tried.
    #[serde(default, skip_serializing_if = "Fallen::is_empty")]
    pub fallen: Fallen,
}

impl PassedOver {
    /// A device that was tried and failed.
    pub(crate) fn failed(device: DeviceName, error: &Error) -> Self {
        let fallen = match error {
            Error::NotWhole { fallen, .. } => fallen.clone(),
            _ => Fallen::default(),
        };
        Self { device, reason: error.to_string(), fix: error.hint(), announced: true, fallen }
    }
}

/// Counters of a chat model's engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineCounters {
    /// Sequences in slots.
    pub running: usize,
    /// Sequences waiting.
    pub waiting: usize,
    /// Slots.
    pub slots: usize,
    /// KV bytes reserved.
    pub kv_used_bytes: usize,
    /// KV bytes that may be reserved.
    pub kv_budget_bytes: usize,
    /// Prompt tokens since loading.
    pub prompt_tokens: u64,
    /// Prompt tokens that were in the cache already.
    pub cached_tokens: u64,
    /// Tokens generated since loading.
    pub generated_tokens: u64,
}
