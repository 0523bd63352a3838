//! A model in memory: its manifest, its text side, and the engine or encoder that runs it.

use std::path::Path;

use narthex_catalog::store::Store;
use narthex_device::{ep::Facts, runtime::Runtime};
use narthex_engine::{
    supervise::NumericsMonitor,
    worker::{Drain, Engine},
};
use narthex_spec::{ProgressSink, manifest::Manifest};
use narthex_text::{template::ChatTemplate, tokenizer::Tokenizer};

use crate::{
    cancel::Cancel,
    config::Config,
    encoder_queue::{EncoderQueue, Load},
    error::Error,
    library::{names::PackageKey, package},
    load::{
        device_selection::{self, Placed},
        placement::{PlacementReport, RanOn},
        sessions::Opening,
    },
    report::models::{EngineCounters, ModelKind, ModelState, ModelStatus, PassedOver},
};

/// A model that answers.
pub(crate) struct Loaded {
    pub(crate) key: PackageKey,
    pub(crate) manifest: Manifest,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) worker: Worker,
    /// Sequences that may run and wait at once.
    pub(crate) capacity: usize,
    placement: PlacementReport,
    passed_over: Vec<PassedOver>,
    monitors: Vec<NumericsMonitor>,
}

/// What runs a model.
pub(crate) enum Worker {
    /// Generates tokens.
    Engine(Engine),
    /// Reads texts once.
    Encoder(EncoderQueue),
}

impl Loaded {
    /// Loads the package in `folder` where the settings say.
    pub(crate) fn open(
        key: &PackageKey,
        folder: &Path,
        runtime: &'static Runtime,
        (config, store, facts): (&Config, &Store, &Facts),
        watched: (&dyn ProgressSink, &Cancel),
    ) -> Result<Self, Error> {
        let place = |opening: &Opening<'_>| device_selection::place(opening, facts);
        Self::open_by(key, folder, runtime, (config, store), watched, place)
    }

    /// Loads the package in `folder` where `place` puts it.
    pub(crate) fn open_by(
        key: &PackageKey,
        folder: &Path,
        runtime: &'static Runtime,
        (config, store): (&Config, &Store),
        (progress, cancel): (&dyn ProgressSink, &Cancel),
        place: impl FnOnce(&Opening<'_>) -> Result<Placed, Error>,
    ) -> Result<Self, Error> {
        let manifest = package::read_manifest(folder, key)?;
        let tokenizer = Tokenizer::from_json(&package::read(folder, &manifest.tokenizer.file)?)?;
        let template = template(folder, &manifest)?;
        let opening = Opening {
            folder,
            manifest: &manifest,
            runtime,
            config,
            tokenizer: &tokenizer,
            store,
            head: None,
            progress,
            cancel,
        };
        let Placed { worker, report: placement, passed_over, monitors } = place(&opening)?;
        let capacity = config.slots.max(1).saturating_add(config.max_queue);
        Ok(Self {
            key: key.clone(),
            manifest,
            tokenizer,
            template,
            worker,
            capacity,
            placement,
            passed_over,
            monitors,
        })
    }

    pub(crate) fn kind(&self) -> ModelKind {
        ModelKind::of(&self.manifest)
    }

    /// The engine, or an error that says what the model is instead.
    pub(crate) fn engine(&self) -> Result<&Engine, Error> {
        match &self.worker {
            Worker::Engine(engine) => Ok(engine),
            Worker::Encoder(_) => Err(self.wrong_kind(ModelKind::Chat)),
        }
    }

    /// The encoder of a model of this kind, or an error that says what the model is instead.
    pub(crate) fn encoder(&self, wanted: ModelKind) -> Result<&EncoderQueue, Error> {
        match &self.worker {
            Worker::Encoder(encoder) if self.kind() == wanted => Ok(encoder),
            Worker::Encoder(_) | Worker::Engine(_) => Err(self.wrong_kind(wanted)),
        }
    }

    fn wrong_kind(&self, wanted: ModelKind) -> Error {
        Error::WrongKind {
            name: self.key.name.clone(),
            is: self.kind().describe(),
            wanted: wanted.describe(),
        }
    }

    /// Where it runs.
    pub(crate) fn placement(&self) -> &PlacementReport {
        &self.placement
    }

    pub(crate) fn status(&self) -> ModelStatus {
        let engine = match &self.worker {
            Worker::Engine(engine) => counters(engine),
            Worker::Encoder(queue) => {
                let Load { running, waiting } = queue.load();
                EngineCounters { running, waiting, ..EngineCounters::default() }
            }
        };
        ModelStatus {
            name: self.key.name.clone(),
            kind: Some(self.kind()),
            scheme: self.key.scheme,
            state: ModelState::Ready,
            placement: Some(self.placement.clone()),
            passed_over: self.passed_over.clone(),
            engine: Some(engine),
            max_length: Some(self.manifest.max_length),
        }
    }

    /// Whether it gave nonsense and must answer no more.
    pub(crate) fn is_broken(&self) -> bool {
        self.monitors.iter().any(NumericsMonitor::has_failed)
    }

    /// Where its answers come from.
    pub(crate) fn ran_on(&self) -> RanOn {
        let announced = self.passed_over.iter().filter(|passed| passed.announced);
        let reasons: Vec<String> =
            announced.map(|passed| format!("{}: {}", passed.device, passed.reason)).collect();
        RanOn { device: self.placement.name(), fallback: (!reasons.is_empty()).then(|| reasons.join("; ")) }
    }

    /// Stops the worker; running sequences finish or end, as `drain` says.
    pub(crate) fn shutdown(&self, drain: Drain) {
        match &self.worker {
            Worker::Engine(engine) => engine.shutdown(drain),
            Worker::Encoder(queue) => queue.shutdown(drain),
        }
    }
}

/// The chat template of a package, if it has one.
fn template(folder: &Path, manifest: &Manifest) -> Result<Option<ChatTemplate>, Error> {
    let Some(chat) = &manifest.chat else { return Ok(None) };
    let source = package::read_text(folder, &chat.template)?;
    Ok(Some(ChatTemplate::new(&source, chat.special_tokens.clone())?))
}

fn counters(engine: &Engine) -> EngineCounters {
    let stats = engine.stats();
    EngineCounters {
        running: stats.running,
        waiting: stats.waiting,
        slots: stats.slots,
        kv_used_bytes: stats.kv_used_bytes,
        kv_budget_bytes: stats.kv_budget_bytes,
        prompt_tokens: stats.prompt_tokens,
        cached_tokens: stats.cached_tokens,
        generated_tokens: stats.generated_tokens,
    }
}
