//! A model in memory: its manifest, its text side, and the engine or encoder that runs it.

use std::path::Path;

use narthex_device::{
    dynamic::{DynamicExecutor, ExecutorOptions},
    encoder::{DynamicEncoder, EncoderOptions},
    placement::Placement,
    runtime::Runtime,
};
use narthex_engine::worker::{Drain, Engine, EngineConfig};
use narthex_spec::{arch::Architecture, manifest::Manifest};
use narthex_text::{template::ChatTemplate, tokenizer::Tokenizer};

use crate::{
    config::Config,
    encoding::{EncoderQueue, Load},
    error::Error,
    listing::{EngineCounters, ModelKind, ModelState, ModelStatus, PlacementLine},
    names::PackageKey,
    package,
};

/// Tokens by which the KV cache grows.
const KV_STEP: usize = 256;

/// New tokens of one prompt that run in one step.
const PREFILL_CHUNK: usize = 256;

/// Padded tokens that an encoder takes in one batch.
const ENCODER_BATCH_TOKENS: usize = 4096;

/// A model that answers.
pub(crate) struct Loaded {
    pub(crate) key: PackageKey,
    pub(crate) manifest: Manifest,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) worker: Worker,
    /// Sequences that may run and wait at once.
    pub(crate) capacity: usize,
    placement: Vec<PlacementLine>,
}

/// What runs a model.
pub(crate) enum Worker {
    /// Generates tokens.
    Engine(Engine),
    /// Gives vectors.
    Encoder(EncoderQueue),
}

impl Loaded {
    /// Loads the package in `folder`.
    pub(crate) fn open(
        key: &PackageKey,
        folder: &Path,
        runtime: &'static Runtime,
        config: &Config,
    ) -> Result<Self, Error> {
        let manifest = package::read_manifest(folder, key)?;
        let tokenizer = Tokenizer::from_json(&package::read(folder, &manifest.tokenizer.file)?)?;
        let template = match &manifest.chat {
            Some(chat) => {
                let source = package::read_text(folder, &chat.template)?;
                Some(ChatTemplate::new(&source, chat.special_tokens.clone())?)
            }
            None => None,
        };
        let (worker, placement) = match manifest.architecture {
            Architecture::Decoder(_) => start_engine(folder, &manifest, runtime, config)?,
            Architecture::Encoder(_) => start_encoder(folder, &manifest, runtime, config)?,
        };
        let capacity = config.slots.max(1).saturating_add(config.max_queue);
        Ok(Self { key: key.clone(), manifest, tokenizer, template, worker, capacity, placement })
    }

    pub(crate) fn kind(&self) -> ModelKind {
        ModelKind::of(&self.manifest.architecture)
    }

    /// The engine, or an error that says what the model is instead.
    pub(crate) fn engine(&self) -> Result<&Engine, Error> {
        match &self.worker {
            Worker::Engine(engine) => Ok(engine),
            Worker::Encoder(_) => Err(self.wrong_kind(ModelKind::Chat)),
        }
    }

    /// The encoder, or an error that says what the model is instead.
    pub(crate) fn encoder(&self) -> Result<&EncoderQueue, Error> {
        match &self.worker {
            Worker::Encoder(encoder) => Ok(encoder),
            Worker::Engine(_) => Err(self.wrong_kind(ModelKind::Embedding)),
        }
    }

    fn wrong_kind(&self, wanted: ModelKind) -> Error {
        Error::WrongKind {
            name: self.key.name.clone(),
            is: self.kind().describe(),
            wanted: wanted.describe(),
        }
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
            device: Some("cpu".to_owned()),
            placement: self.placement.clone(),
            engine: Some(engine),
            max_length: Some(self.manifest.max_length),
        }
    }

    /// Stops the worker; running sequences finish or end, as `drain` says.
    pub(crate) fn shutdown(&self, drain: Drain) {
        match &self.worker {
            Worker::Engine(engine) => engine.shutdown(drain),
            Worker::Encoder(queue) => queue.shutdown(),
        }
    }
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

fn start_engine(
    folder: &Path,
    manifest: &Manifest,
    runtime: &'static Runtime,
    config: &Config,
) -> Result<(Worker, Vec<PlacementLine>), Error> {
    let options = ExecutorOptions {
        threads: config.threads,
        slots: config.slots,
        kv_budget: config.kv_budget,
        kv_step: KV_STEP,
        chunk: PREFILL_CHUNK,
    };
    let executor = DynamicExecutor::open(runtime, folder, manifest, &options)?;
    let placement = lines(manifest, executor.placement());
    let limits = narthex_engine::executor::Executor::limits(&executor).clone();
    let mut engine_config = EngineConfig::for_limits(&limits);
    engine_config.max_queue = config.max_queue;
    let engine = Engine::start(Box::new(executor), engine_config)
        .map_err(|source| Error::Io { what: "cannot start the engine's thread".to_owned(), source })?;
    Ok((Worker::Engine(engine), placement))
}

fn start_encoder(
    folder: &Path,
    manifest: &Manifest,
    runtime: &'static Runtime,
    config: &Config,
) -> Result<(Worker, Vec<PlacementLine>), Error> {
    let options = EncoderOptions { threads: config.threads, max_batch_tokens: ENCODER_BATCH_TOKENS };
    let encoder = DynamicEncoder::open(runtime, folder, manifest, &options)?;
    let placement = lines(manifest, encoder.placement());
    let queue = EncoderQueue::start(Box::new(encoder), config.max_queue)?;
    Ok((Worker::Encoder(queue), placement))
}

fn lines(manifest: &Manifest, placement: &Placement) -> Vec<PlacementLine> {
    let graph = manifest.graphs.first().map(|graph| graph.file.clone()).unwrap_or_default();
    placement
        .nodes_per_ep()
        .into_iter()
        .map(|(ep, nodes)| PlacementLine { graph: graph.clone(), ep, nodes })
        .collect()
}
