//! Starts what runs a package on one device: an engine for decoders, a queue for encoders. Which device that is, is
//! decided in [`crate::load::device_selection`].

use std::path::{Path, PathBuf};

use narthex_catalog::store::Store;
use narthex_device::{
    dynamic::{DynamicExecutor, ExecutorOptions},
    encoder::{DynamicEncoder, EncoderOptions},
    ep::Device,
    fixed::{Apart, FixedEncoder, FixedExecutor, FixedOptions, Form, Place},
    placement::{GraphPlacement, Placement},
    precompile::Rest,
    runtime::Runtime,
};
use narthex_engine::{
    executor::Executor,
    supervise::{SupervisedEncoder, SupervisedExecutor},
    worker::{Engine, EngineConfig},
};
use narthex_spec::{
    DeviceName, ModelName, NpuPolicy, ProgressSink, Variant, arch::Structure, manifest::Manifest,
    progress::Quiet,
};
use narthex_text::tokenizer::Tokenizer;

use crate::{
    cancel::Cancel,
    config::{Config, NPU_SHARE},
    encoder_queue::EncoderQueue,
    error::Error,
    load::{contexts, loaded_model::Worker},
    report::models::ModelKind,
};

/// Tokens by which the KV cache grows.
const KV_STEP: usize = 256;

/// New tokens of one prompt that run in one step.
const PREFILL_CHUNK: usize = 256;

/// Padded tokens that an encoder takes in one batch.
const ENCODER_BATCH_TOKENS: usize = 4096;

/// A package that is about to be loaded.
#[derive(Clone, Copy)]
pub(crate) struct Opening<'a> {
    /// The package's folder.
    pub(crate) folder: &'a Path,
    /// Its manifest.
    pub(crate) manifest: &'a Manifest,
    pub(crate) runtime: &'static Runtime,
    pub(crate) config: &'a Config,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) store: &'a Store,
    /// Where a decoder's head runs, if not with its layers.
    pub(crate) head: Option<(DeviceName, &'a Device)>,
    /// Hears what takes long.
    pub(crate) progress: &'a dyn ProgressSink,
    /// Ends the load.
    pub(crate) cancel: &'a Cancel,
}

/// What it takes to load a package again, long after its first load.
pub(crate) struct Kept {
    folder: PathBuf,
    manifest: Manifest,
    runtime: &'static Runtime,
    config: Config,
    tokenizer: Tokenizer,
    store: Store,
    head: Option<(DeviceName, Device)>,
    cancel: Cancel,
}

impl Kept {
    pub(crate) fn opening(&self) -> Opening<'_> {
        Opening {
            folder: &self.folder,
            manifest: &self.manifest,
            runtime: self.runtime,
            config: &self.config,
            tokenizer: &self.tokenizer,
            store: &self.store,
            head: self.head.as_ref().map(|(name, device)| (*name, device)),
            progress: &Quiet,
            cancel: &self.cancel,
        }
    }
}

/// A decoder or encoder in a session, before any thread runs it.
pub(crate) enum Model {
    Decoder(SupervisedExecutor),
    Encoder(SupervisedEncoder),
}

/// A model on a device, and where its nodes went.
pub(crate) struct Opened {
    pub(crate) model: Model,
    pub(crate) graphs: Vec<GraphPlacement>,
}

impl Opening<'_> {
    /// The same, to be kept.
    pub(crate) fn keep(&self) -> Kept {
        Kept {
            folder: self.folder.to_owned(),
            manifest: self.manifest.clone(),
            runtime: self.runtime,
            config: self.config.clone(),
            tokenizer: self.tokenizer.clone(),
            store: self.store.clone(),
            head: self.head.map(|(name, device)| (name, device.clone())),
            cancel: self.cancel.clone(),
        }
    }

    /// The graphs that a device runs: only those of fixed shape have parts, and what is bound to a device has one form.
    pub(crate) fn variant(&self, name: DeviceName) -> Variant {
        match self.manifest.bound {
            _ if self.head.is_some() => Variant::Static,
            Some(_) => Variant::Dynamic,
            None => name.variant(),
        }
    }

    /// Loads the variant of the package that `variant` names on a device. Of a decoder whose head has a device of its own,
    /// `form` is that of the graphs on the one that compiles ahead of time.
    pub(crate) fn open(&self, device: &Device, variant: Variant, form: Form<'_>) -> Result<Opened, Error> {
        match (variant, &self.manifest.architecture) {
            (Variant::Dynamic, structure) if structure.is_decoder() => self.dynamic_decoder(device),
            (Variant::Dynamic, _) => self.dynamic_encoder(device),
            (Variant::Static, Structure::Decoder(_) | Structure::ImportedDecoder(_)) => {
                let Config { slots, kv_budget, .. } = *self.config;
                let options = FixedOptions { slots, kv_budget };
                let places = match self.head {
                    None => self.place(device, form).into(),
                    Some((_, head)) => {
                        let form_on =
                            |device: &Device| if contexts::compiles(device) { form } else { Form::Graph };
                        Apart {
                            layers: self.place(device, form_on(device)),
                            head: self.place(head, form_on(head)),
                        }
                    }
                };
                let executor =
                    FixedExecutor::open(self.runtime, self.folder, self.manifest, places, &options)?;
                let graphs = executor.placements();
                Ok(Opened { model: Model::Decoder(Box::new(executor).into()), graphs })
            }
            (Variant::Static, Structure::Encoder(_) | Structure::ImportedEncoder(_)) => {
                let encoder =
                    FixedEncoder::open(self.runtime, self.folder, self.manifest, self.place(device, form))?;
                let graphs = encoder.placements();
                Ok(Opened { model: Model::Encoder(SupervisedEncoder::new(Box::new(encoder))), graphs })
            }
        }
    }

    fn place<'b>(&self, device: &'b Device, form: Form<'b>) -> Place<'b> {
        Place { device, threads: self.config.threads, form, rest: self.rest() }
    }

    /// What becomes of nodes that a device of fixed graphs refuses. Where a smaller share than the usual is required of the
    /// NPU, that share decides.
    pub(crate) fn rest(&self) -> Rest {
        let Config { npu, npu_share, .. } = *self.config;
        if npu == NpuPolicy::Require && npu_share < NPU_SHARE { Rest::OnCpu } else { Rest::Edges }
    }

    fn dynamic_decoder(&self, device: &Device) -> Result<Opened, Error> {
        let options = ExecutorOptions {
            threads: self.config.threads,
            slots: self.config.slots,
            kv_budget: self.config.kv_budget,
            kv_step: KV_STEP,
            chunk: PREFILL_CHUNK,
        };
        let executor = DynamicExecutor::open(self.runtime, self.folder, self.manifest, device, &options)?;
        let graphs = executor.placements();
        Ok(Opened { model: Model::Decoder(Box::new(executor).into()), graphs })
    }

    fn dynamic_encoder(&self, device: &Device) -> Result<Opened, Error> {
        let options = EncoderOptions { threads: self.config.threads, max_batch_tokens: ENCODER_BATCH_TOKENS };
        let encoder = DynamicEncoder::open(self.runtime, self.folder, self.manifest, device, &options)?;
        let graphs = self.only_graph(encoder.placement());
        Ok(Opened { model: Model::Encoder(SupervisedEncoder::new(Box::new(encoder))), graphs })
    }

    /// The placement of variant A, which is one graph.
    fn only_graph(&self, placement: &Placement) -> Vec<GraphPlacement> {
        let entry = self.manifest.graphs.iter().find(|entry| entry.variant == Variant::Dynamic);
        let graph = entry.map(|entry| entry.file.clone()).unwrap_or_default();
        vec![GraphPlacement { graph, placement: placement.clone() }]
    }
}

impl Model {
    /// The decoder.
    ///
    /// # Errors
    /// [`Error::WrongKind`] for an encoder; `name` is the model's.
    pub(crate) fn decoder(self, name: &ModelName) -> Result<SupervisedExecutor, Error> {
        match self {
            Self::Decoder(executor) => Ok(executor),
            Self::Encoder(_) => {
                let (is, wanted) = (ModelKind::Embedding.describe(), ModelKind::Chat.describe());
                Err(Error::WrongKind { name: name.clone(), is, wanted })
            }
        }
    }

    /// Starts the thread that runs it.
    pub(crate) fn start(self, config: &Config) -> Result<Worker, Error> {
        match self {
            Self::Decoder(executor) => {
                let mut settings = EngineConfig::for_limits(executor.limits());
                settings.max_queue = config.max_queue;
                let engine = Engine::start(executor, settings).map_err(|source| Error::Io {
                    what: "cannot start the engine's thread".to_owned(),
                    source,
                })?;
                Ok(Worker::Engine(engine))
            }
            Self::Encoder(encoder) => {
                Ok(Worker::Encoder(EncoderQueue::start(Box::new(encoder), config.max_queue)?))
            }
        }
    }
}
