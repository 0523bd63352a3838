//! The draft model of a chat model. It is loaded and unloaded together with that model.

use std::{sync::Arc, time::Instant};

use narthex_device::memory;
use narthex_engine::{draft_model::DraftModel, supervise::SupervisedExecutor};
use narthex_spec::{ModelName, ProgressSink, Variant, manifest::Manifest};

use crate::{
    cancel::Cancel,
    config::Config,
    error::Error,
    library::{Library, package::Package},
    load::{open_model::OpenModel, request::LoadRequest},
    report::models::{DraftModelStatus, ModelKind},
};

/// The package of a draft model with the vocabulary of a chat model.
pub(crate) struct DraftPackage {
    package: Arc<Package>,
    /// Maximum bytes of its KV cache.
    pub(crate) kv_budget: usize,
}

impl DraftPackage {
    /// Verifies and opens the package that the settings name. Returns `None` if they name none, for an encoder, and for
    /// the draft model itself, which has no other draft model.
    ///
    /// # Errors
    /// [`Error::NotInstalled`], [`Error::WrongKind`], and [`Error::Invalid`] for another vocabulary.
    pub(crate) fn of(
        library: &Library,
        target: &Package,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<Option<Self>, Error> {
        let key = library.draft_model()?.filter(|key| *key != target.key);
        let Some(key) = key.filter(|_| target.manifest.architecture.is_decoder()) else { return Ok(None) };
        let folder = library.package_folder(&key)?;
        let package = Package::open_verified(&library.store, &key, &folder, progress, cancel)?;
        if !package.manifest.architecture.is_decoder() {
            let is = ModelKind::of(&package.manifest);
            return Err(Error::WrongKind { name: key.name, is, wanted: ModelKind::Chat });
        }
        check_vocabulary(target, &package)?;
        // The tokenizers that were compared are freed.
        memory::release_freed_memory();
        let kv_budget = kv_budget(library.config.kv_memory().budget, &target.manifest, &package.manifest);
        Ok(Some(Self { package: Arc::new(package), kv_budget }))
    }

    /// Returns the bytes of its files.
    pub(crate) fn bytes(&self) -> u64 {
        self.package.bytes()
    }

    /// Opens the package by `open`, with the settings of `request`, which is that of the chat model.
    pub(crate) fn open(
        self,
        request: &LoadRequest<'_>,
        open: impl FnOnce(&LoadRequest<'_>) -> Result<OpenModel, Error>,
    ) -> Result<OpenDraftModel, Error> {
        let config = Config { slots: 1, kv_budget: Some(self.kv_budget), ..(*request.config).clone() };
        let request = LoadRequest { package: self.package, config: Arc::new(config), ..request.clone() };
        let executor = open(&request)?.model.decoder(&request.package.key.name)?;
        Ok(OpenDraftModel { package: request.package, executor })
    }
}

/// A draft model that is open on its device.
pub(crate) struct OpenDraftModel {
    pub(crate) package: Arc<Package>,
    executor: SupervisedExecutor,
}

impl OpenDraftModel {
    /// Returns the draft model for the engine of `target`. Its failure is logged.
    pub(crate) fn for_engine(self, target: ModelName) -> DraftModel {
        let start = Instant::now();
        let name = self.package.key.name.clone();
        DraftModel::new(self.executor.timed_by(move || start.elapsed()), move |error| {
            tracing::warn!(
                "the draft model {name} failed: {error}; {target} answers without it until it is loaded again"
            );
        })
    }
}

pub(crate) fn status(package: &Package) -> DraftModelStatus {
    DraftModelStatus { name: package.key.name.clone(), scheme: package.key.scheme, bytes: package.bytes() }
}

/// Refuses a draft model whose tokens are not those of the chat model.
fn check_vocabulary(target: &Package, draft: &Package) -> Result<(), Error> {
    let of_target = target.read_tokenizer()?;
    let of_draft = draft.read_tokenizer()?;
    let Some(token) = of_target.first_difference(&of_draft) else { return Ok(()) };
    let [target_text, draft_text] = [&of_target, &of_draft].map(|tokenizer| {
        tokenizer.id_text(token).map_or_else(|| "missing".to_owned(), |text| format!("{text:?}"))
    });
    let message = format!(
        "expected a model with the vocabulary of {}, found {}, whose token {token} is {draft_text} instead of \
         {target_text}; name a smaller model of the same family, or none",
        target.key.name, draft.key.name
    );
    Err(Error::invalid("draft_model", message))
}

/// Returns the bytes of the draft model's KV cache for the longest sequence of the chat model, at most `limit`.
fn kv_budget(limit: usize, target: &Manifest, draft: &Manifest) -> usize {
    let (Some(of_target), Some(of_draft)) = (token_bytes(target), token_bytes(draft)) else { return limit };
    let tokens = target.max_length.min(draft.max_length).min(limit / of_target);
    tokens.saturating_mul(of_draft).saturating_add(state_bytes(draft)).min(limit)
}

/// Returns the bytes of the states of a sequence of a model.
fn state_bytes(manifest: &Manifest) -> usize {
    let graph = manifest.graphs.iter().find(|graph| graph.variant == Variant::Dynamic);
    graph.map_or(0, |graph| narthex_device::bytes_per_slot(&graph.kv))
}

/// Returns the bytes that a token takes in the KV cache of a model, if it has one.
fn token_bytes(manifest: &Manifest) -> Option<usize> {
    let graph = manifest.graphs.iter().find(|graph| graph.variant == Variant::Dynamic)?;
    let bytes = graph.kv.iter().map(|layer| layer.bytes_per_token()).sum();
    (bytes > 0).then_some(bytes)
}
