//! ONNX Runtime sessions of a package's graphs on given devices. [`crate::load::device_selection`] decides which
//! devices.

use std::path::Path;

use narthex_catalog::store::MachineFolder;
use narthex_device::{
    dynamic::{DynamicExecutor, ExecutorOptions},
    encoder::{DynamicEncoder, EncoderOptions},
    ep::Device,
    packed_weights::PackedWeights,
    placement::{GraphPlacement, Placement},
    speech::{DynamicSpeech, SpeechOptions},
    static_shapes::{
        DecoderLoad, Form, GraphLoad, StaticEncoder, StaticExecutor, StaticOptions, StaticSpeech,
    },
};
use narthex_engine::supervise::{SupervisedEncoder, SupervisedExecutor, SupervisedSpeech};
use narthex_spec::{KvPrecision, ModelName, Variant, arch::Structure};

use crate::{
    config::{Config, KV_STEP},
    error::Error,
    load::{
        packed_weights,
        request::{DeviceAssignment, LoadRequest, SelectedDevice},
    },
    report::models::ModelKind,
};

/// Maximum new tokens of a prompt in one step.
const PREFILL_CHUNK: usize = 256;

/// Maximum tokens of an encoder's batch, padding included.
const ENCODER_BATCH_TOKENS: usize = 4096;

/// A model that no thread runs yet.
pub(crate) enum Model {
    Decoder(SupervisedExecutor),
    Encoder(SupervisedEncoder),
    Speech(SupervisedSpeech),
}

impl Model {
    /// Returns the decoder.
    ///
    /// # Errors
    /// [`Error::WrongKind`] for another model; `name` is its name.
    pub(crate) fn decoder(self, name: &ModelName) -> Result<SupervisedExecutor, Error> {
        match self {
            Self::Decoder(executor) => Ok(executor),
            Self::Encoder(_) => Err(Error::WrongKind {
                name: name.clone(),
                is: ModelKind::Embedding,
                wanted: ModelKind::Chat,
            }),
            Self::Speech(_) => Err(Error::WrongKind {
                name: name.clone(),
                is: ModelKind::Transcription,
                wanted: ModelKind::Chat,
            }),
        }
    }
}

/// The open sessions of a model, and the placement of their nodes.
pub(crate) struct Sessions {
    pub(crate) model: Model,
    pub(crate) placements: Vec<GraphPlacement>,
}

/// Opens one variant of a package. If the layers and the head run on two devices, `form` applies to the graphs of the
/// one that compiles ahead of time.
pub(crate) fn open(
    request: &LoadRequest<'_>,
    devices: &DeviceAssignment,
    variant: Variant,
    form: Form<'_>,
) -> Result<Sessions, Error> {
    match variant {
        Variant::Dynamic => Ok(open_dynamic(request, &devices.main.device, None)?.sessions),
        Variant::Static => open_static(request, devices, form),
    }
}

/// Opens the dynamic variant of a package on the CPU. Its packed weights come from the machine's folder, and are stored
/// there by the first load.
pub(crate) fn open_on_cpu(request: &LoadRequest<'_>, machine: &MachineFolder) -> Result<Sessions, Error> {
    let stored = packed_weights::stored(machine);
    let DynamicSessions { sessions, packed } = open_dynamic(request, &Device::Cpu, stored.as_deref())?;
    packed_weights::store(machine, &packed, request.progress);
    Ok(sessions)
}

/// The open sessions of a dynamic variant.
struct DynamicSessions {
    sessions: Sessions,
    /// Packed weights of its graphs.
    packed: Vec<PackedWeights>,
}

fn open_dynamic(
    request: &LoadRequest<'_>,
    device: &Device,
    packed_weights: Option<&Path>,
) -> Result<DynamicSessions, Error> {
    let runtime = request.runtime;
    let folder = &request.package.folder;
    let manifest = request.manifest();
    let Config { slots, kv_cache_dtype, threads, .. } = *request.config;
    let kv_budget = request.config.kv_memory().budget;
    if manifest.architecture.is_decoder() {
        let options = ExecutorOptions {
            threads,
            slots,
            kv_budget,
            kv_step: KV_STEP,
            chunk: PREFILL_CHUNK,
            // `kv_precision` has replaced `auto`.
            kv_precision: kv_cache_dtype.precision().unwrap_or(KvPrecision::F32),
            packed_weights,
        };
        let executor = DynamicExecutor::open(runtime, folder, manifest, device, &options)?;
        let placements = executor.placements();
        let packed = executor.packed_weights();
        let sessions = Sessions { model: Model::Decoder(Box::new(executor).into()), placements };
        return Ok(DynamicSessions { sessions, packed });
    }

    if let Structure::Speech(_) = manifest.architecture {
        let options = SpeechOptions { threads, packed_weights };
        let speech = DynamicSpeech::open(runtime, folder, manifest, device, &options)?;
        let placements = speech.placements();
        let packed = speech.packed_weights();
        let model = Model::Speech(SupervisedSpeech::new(Box::new(speech)));
        return Ok(DynamicSessions { sessions: Sessions { model, placements }, packed });
    }

    let options = EncoderOptions { threads, max_batch_tokens: ENCODER_BATCH_TOKENS, packed_weights };
    let encoder = DynamicEncoder::open(runtime, folder, manifest, device, &options)?;
    let placements = vec![dynamic_placement(request, encoder.placement())];
    let packed = encoder.packed_weights().cloned().into_iter().collect();
    let model = Model::Encoder(SupervisedEncoder::new(Box::new(encoder)));
    Ok(DynamicSessions { sessions: Sessions { model, placements }, packed })
}

fn open_static(
    request: &LoadRequest<'_>,
    devices: &DeviceAssignment,
    form: Form<'_>,
) -> Result<Sessions, Error> {
    let runtime = request.runtime;
    let folder = &request.package.folder;
    let manifest = request.manifest();
    let Config { slots, .. } = *request.config;
    let kv_budget = request.config.kv_memory().budget;
    let main = &devices.main.device;
    if manifest.architecture.is_decoder() {
        let options = StaticOptions { slots, kv_budget };
        let loads = match &devices.head {
            None => graph_load(request, main, form).into(),
            Some(head) => {
                let form_on = |on: &SelectedDevice| if on.compiles_contexts() { form } else { Form::Graph };
                DecoderLoad {
                    layers: graph_load(request, main, form_on(&devices.main)),
                    head: graph_load(request, &head.device, form_on(head)),
                }
            }
        };
        let executor = StaticExecutor::open(runtime, folder, manifest, loads, &options)?;
        let placements = executor.placements();
        return Ok(Sessions { model: Model::Decoder(Box::new(executor).into()), placements });
    }

    if let Structure::Speech(_) = manifest.architecture {
        let speech = StaticSpeech::open(runtime, folder, manifest, graph_load(request, main, form))?;
        let placements = speech.placements();
        let model = Model::Speech(SupervisedSpeech::new(Box::new(speech)));
        return Ok(Sessions { model, placements });
    }

    let encoder = StaticEncoder::open(runtime, folder, manifest, graph_load(request, main, form))?;
    let placements = encoder.placements();
    Ok(Sessions { model: Model::Encoder(SupervisedEncoder::new(Box::new(encoder))), placements })
}

fn graph_load<'a>(request: &LoadRequest<'_>, device: &'a Device, form: Form<'a>) -> GraphLoad<'a> {
    GraphLoad { device, threads: request.config.threads, form, fallback: request.fallback_policy() }
}

/// Placement of the dynamic variant, which is one graph.
fn dynamic_placement(request: &LoadRequest<'_>, placement: &Placement) -> GraphPlacement {
    let entry = request.manifest().graphs.iter().find(|entry| entry.variant == Variant::Dynamic);
    let graph = entry.map(|entry| entry.file.clone()).unwrap_or_default();
    GraphPlacement { graph, placement: placement.clone() }
}
