//! Models that are installed, available or loaded.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use narthex_catalog::index::Entry;
pub use narthex_catalog::{
    index::{Access, Figures, Purpose},
    store::{CheckpointUsage, PackageUsage, StoreUsage},
};
pub use narthex_spec::ModelKind;
use narthex_spec::{
    DeviceName, MediaKind, ModelName, Scheme, Sha256,
    manifest::{BoundDevice, PublishedSampling},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::report::{fallback::FallbackNodes, placement::PlacementReport};
pub use crate::report::{
    kv_cache::{KvCacheLoss, KvCacheStatus},
    proof::{CertifiedLoss, LossFigures, NumericsCheck, NumericsFigures},
};

/// A model that is installed or in the catalogue.
///
/// ```
/// use narthex_gateway::{Config, Gateway, models::ModelKind};
///
/// # fn main() -> Result<(), narthex_gateway::Error> {
/// # let home = tempfile::tempdir().unwrap();
/// # let config = Config { home: Some(home.path().to_owned()), ..Config::standard() };
/// let models = Gateway::open(config)?.models()?;
/// let small = models.iter().filter(|model| {
///     model.kind == ModelKind::Chat && model.download_bytes.is_some_and(|bytes| bytes < 1_000_000_000)
/// });
/// assert!(small.map(|model| model.name.as_str()).any(|name| name == "smollm2:135m"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Serialize)]
pub struct ModelListing {
    /// Name for requests and commands.
    pub name: ModelName,
    /// Task.
    pub kind: ModelKind,
    /// Media that the model reads in conversations: as its usual package does, or else as the catalogue states.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<MediaKind>,
    /// Name for people.
    pub title: String,
    /// Number of parameters, if known.
    pub parameters: Option<u64>,
    /// Download size in bytes, for a model of the catalogue.
    pub download_bytes: Option<u64>,
    /// Sizes and NPU score, for a model of the catalogue that this version compiles.
    pub figures: Option<Figures>,
    /// Licence, if known.
    pub license: Option<String>,
    /// Quality that the schemes keep, for a model with which it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<MeasuredQuality>,
    /// Access to the download, for a model of the catalogue.
    pub access: Access,
    /// Purpose for which the model is one of the first choices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pick: Option<Purpose>,
    /// Notes for users.
    pub notes: Option<String>,
    /// Source of the checkpoint.
    pub source: String,
    /// Packages on this machine.
    pub installed: Vec<InstalledPackage>,
    /// Permission of requests to download the model.
    pub auto_pull: bool,
}

/// Shares of the quality in `f32` that schemes keep, by perplexity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeasuredQuality {
    /// Share in `w8`.
    pub w8: f64,
    /// Share in `w4`.
    pub w4: f64,
}

impl MeasuredQuality {
    /// Returns the shares of a model of the catalogue, if they were measured.
    pub(crate) fn of(entry: &Entry) -> Option<Self> {
        let measured = entry.perplexity.as_ref()?;
        Some(Self { w8: measured.kept_quality(Scheme::W8)?, w4: measured.kept_quality(Scheme::W4)? })
    }
}

/// A model that was pulled.
#[derive(Debug, Clone)]
pub struct PulledModel {
    /// Its name.
    pub name: ModelName,
    /// Its package.
    pub package: InstalledPackage,
}

/// A package in the store.
#[derive(Debug, Clone, Serialize)]
pub struct InstalledPackage {
    /// Weight scheme.
    pub scheme: Scheme,
    /// Bytes of the package.
    pub bytes: u64,
    /// Bytes of the files that this machine made from the package, such as packed weights.
    pub machine_bytes: u64,
    /// Maximum sequence length of the model in tokens.
    pub max_length: usize,
    /// Maximum number of tokens of a conversation with the gateway's settings: the KV budget and the configured context
    /// may allow fewer than the model. For an encoder, the maximum length of a text.
    pub context_length: usize,
    /// KV cache on the CPU of this machine, for a chat model that was loaded there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<KvCacheStatus>,
    /// The only kind of device that runs the package, if it is bound to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<BoundDevice>,
    /// Media that the package reads in conversations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<MediaKind>,
    /// Set if answers may begin with reasoning.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reasons: bool,
    /// Sampling that the publisher recommends, for requests that state none.
    #[serde(skip_serializing_if = "PublishedSampling::is_empty")]
    pub sampling: PublishedSampling,
    /// Creation time; in JSON as seconds since 1970.
    #[serde(with = "crate::report::unix_seconds")]
    pub created: SystemTime,
    /// SHA-256 of the manifest, which identifies the package.
    pub digest: Sha256,
}

/// Space that a store and the hub's cache take on disk.
#[derive(Debug, Clone, Serialize)]
pub struct DiskUsage {
    /// Folder of the store.
    pub folder: PathBuf,
    /// Parts of the store.
    #[serde(flatten)]
    pub store: StoreUsage,
    /// Folder of the hub's cache, which other programs share.
    pub hub_cache: PathBuf,
    /// Bytes of the hub's cache.
    pub hub_cache_bytes: u64,
}

/// Packages and checkpoint that the removal of a model removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Name.
    pub name: ModelName,
    /// Schemes of the packages.
    pub schemes: Vec<Scheme>,
    /// Presence of a checkpoint in the store that is removed too.
    pub checkpoint: bool,
    /// Bytes of all files.
    pub bytes: u64,
}

/// A model that was requested since the gateway was opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ModelStatus {
    /// Name.
    pub name: ModelName,
    /// Task, once known.
    pub kind: Option<ModelKind>,
    /// Weight scheme.
    pub scheme: Scheme,
    /// Loading state.
    pub state: ModelState,
    /// Placement on devices, once loaded.
    pub placement: Option<PlacementReport>,
    /// Preferred devices that refused the model.
    pub passed_over: Vec<DeviceRefusal>,
    /// Counters of the engine or of the encoder's queue.
    pub engine: Option<EngineCounters>,
    /// Maximum number of tokens of a conversation or text: that of the model, or fewer if the KV budget or the
    /// configured context allow fewer.
    pub max_length: Option<usize>,
    /// KV cache of a chat model on the CPU.
    #[serde(default)]
    pub kv_cache: Option<KvCacheStatus>,
    /// Loss of its weights, if its compile measured it.
    #[serde(default)]
    pub certificate: Option<CertifiedLoss>,
    /// Comparisons of its devices with the CPU.
    #[serde(default)]
    pub numerics: Vec<NumericsCheck>,
    /// Bytes of its package, once loaded, with those of its draft model.
    #[serde(default)]
    pub package_bytes: Option<u64>,
    /// Draft model that was loaded with the model.
    #[serde(default)]
    pub draft_model: Option<DraftModelStatus>,
    /// Time after which the model is unloaded if no request uses it until then; `None` for no such time. It is not part of
    /// stored reports, which it would make old at once.
    #[serde(skip)]
    pub expires_in: Option<Duration>,
}

/// A draft model in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DraftModelStatus {
    /// Name.
    #[schemars(with = "String")]
    pub name: ModelName,
    /// Weight scheme.
    #[schemars(with = "String")]
    pub scheme: Scheme,
    /// Bytes of its package.
    pub bytes: u64,
}

impl ModelStatus {
    /// Returns the status of a model that is not in memory.
    pub(crate) fn unloaded(name: &ModelName, scheme: Scheme, state: ModelState) -> Self {
        Self {
            name: name.clone(),
            kind: None,
            scheme,
            state,
            placement: None,
            passed_over: Vec::new(),
            engine: None,
            max_length: None,
            kv_cache: None,
            certificate: None,
            numerics: Vec::new(),
            package_bytes: None,
            draft_model: None,
            expires_in: None,
        }
    }

    /// Returns the name of the model in requests: `smollm2:135m@w8`.
    pub fn id(&self) -> String {
        format!("{}@{}", self.name, self.scheme)
    }

    /// Returns the model's device, once loaded.
    pub fn device(&self) -> Option<DeviceName> {
        self.placement.as_ref().map(|report| report.device)
    }
}

/// Loading state of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ModelState {
    /// The model is being fetched, compiled or loaded.
    Loading,
    /// The model answers requests.
    Ready,
    /// The model could not be loaded.
    Failed {
        /// Reason.
        reason: String,
        /// The next step.
        hint: Option<String>,
    },
}

/// A speaker of a model that is installed or in the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoiceInfo {
    /// Name in requests.
    pub id: String,
    /// The model.
    pub model: ModelName,
    /// Language as a tag of BCP 47, such as `en-US`.
    pub language: String,
    /// True for the speaker of requests that name none.
    pub is_default: bool,
    /// True if the model is installed.
    pub is_installed: bool,
}

/// A preferred device that refused a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceRefusal {
    /// Device.
    #[schemars(with = "String")]
    pub device: DeviceName,
    /// Reason.
    pub reason: String,
    /// The next step, if it is known.
    pub fix: Option<String>,
    /// Set if users are warned, because the device is present or was named.
    pub announced: bool,
    /// Nodes that the device refused, if it was tried.
    #[serde(rename = "fallen", default, skip_serializing_if = "FallbackNodes::is_empty")]
    pub fallback: FallbackNodes,
}

/// Counters of an engine, or of the queue of an encoder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineCounters {
    /// Sequences in slots.
    pub running: usize,
    /// Sequences in the queue.
    pub waiting: usize,
    /// Slots.
    pub slots: usize,
    /// Bytes of the KV cache in use, including kept prefixes and the cache of the draft model.
    pub kv_used_bytes: usize,
    /// Bytes of prefixes that are kept in memory after their slots were taken.
    #[serde(default)]
    pub prefix_bytes: usize,
    /// Maximum bytes of the KV cache, including that of the draft model.
    pub kv_budget_bytes: usize,
    /// Bytes of one token in the model's own KV cache.
    #[serde(default)]
    pub kv_token_bytes: usize,
    /// Bytes of the states of one slot with its checkpoints; 0 if all layers have keys and values.
    #[serde(default)]
    pub kv_slot_bytes: usize,
    /// Prompt tokens since the load.
    pub prompt_tokens: u64,
    /// Prompt tokens that were not computed, because their keys and values were present.
    pub cached_tokens: u64,
    /// Tokens whose keys and values came from prefixes that are kept in memory.
    #[serde(default)]
    pub restored_tokens: u64,
    /// Tokens generated since the load.
    pub generated_tokens: u64,
    /// Draft tokens since the load that the model accepted.
    #[serde(default)]
    pub accepted_tokens: u64,
    /// Draft tokens since the load that the model rejected.
    #[serde(default)]
    pub rejected_tokens: u64,
}
