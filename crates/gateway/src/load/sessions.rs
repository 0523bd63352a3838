//! ONNX Runtime sessions of a package's graphs on given devices. [`crate::load::device_selection`] decides which
//! devices.

use narthex_device::{
    dynamic::{DynamicExecutor, ExecutorOptions},
    encoder::{DynamicEncoder, EncoderOptions},
    ep::Device,
    placement::{GraphPlacement, Placement},
    static_shapes::{DecoderLoad, Form, GraphLoad, StaticEncoder, StaticExecutor, StaticOptions},
};
use narthex_engine::supervise::{SupervisedEncoder, SupervisedExecutor};
use narthex_spec::{KvPrecision, ModelName, Variant, arch::Structure};

use crate::{
    config::Config,
    error::Error,
    load::request::{DeviceAssignment, LoadRequest, SelectedDevice},
    report::models::ModelKind,
};

/// Tokens by which the KV cache grows.
const KV_STEP: usize = 256;

/// Maximum new tokens of a prompt in one step.
const PREFILL_CHUNK: usize = 256;

/// Maximum tokens of an encoder's batch, padding included.
const ENCODER_BATCH_TOKENS: usize = 4096;

/// A decoder or encoder that no thread runs yet.
pub(crate) enum Model {
    Decoder(SupervisedExecutor),
    Encoder(SupervisedEncoder),
}

impl Model {
    /// Returns the decoder.
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
    let (runtime, folder, manifest) = (request.runtime, &request.package.folder, request.manifest());
    let Config { slots, kv_budget, kv_cache_dtype, threads, .. } = *request.config;
    let main = &devices.main.device;
    match (variant, &manifest.architecture) {
        (Variant::Dynamic, structure) if structure.is_decoder() => {
            let options = ExecutorOptions {
                threads,
                slots,
                kv_budget,
                kv_step: KV_STEP,
                chunk: PREFILL_CHUNK,
                // What `auto` means is decided by `kv_precision`.
                kv_precision: kv_cache_dtype.precision().unwrap_or(KvPrecision::Single),
            };
            let executor = DynamicExecutor::open(runtime, folder, manifest, main, &options)?;
            let placements = executor.placements();
            Ok(Sessions { model: Model::Decoder(Box::new(executor).into()), placements })
        }
        (Variant::Dynamic, _) => {
            let options = EncoderOptions { threads, max_batch_tokens: ENCODER_BATCH_TOKENS };
            let encoder = DynamicEncoder::open(runtime, folder, manifest, main, &options)?;
            let placements = vec![dynamic_placement(request, encoder.placement())];
            Ok(Sessions { model: Model::Encoder(SupervisedEncoder::new(Box::new(encoder))), placements })
        }
        (Variant::Static, Structure::Decoder(_) | Structure::ImportedDecoder(_)) => {
            let options = StaticOptions { slots, kv_budget };
            let places = match &devices.head {
                None => place(request, main, form).into(),
                Some(head) => {
                    let form_on =
                        |on: &SelectedDevice| if on.compiles_contexts() { form } else { Form::Graph };
                    DecoderLoad {
                        layers: place(request, main, form_on(&devices.main)),
                        head: place(request, &head.device, form_on(head)),
                    }
                }
            };
            let executor = StaticExecutor::open(runtime, folder, manifest, places, &options)?;
            let placements = executor.placements();
            Ok(Sessions { model: Model::Decoder(Box::new(executor).into()), placements })
        }
        (Variant::Static, Structure::Encoder(_) | Structure::ImportedEncoder(_)) => {
            let encoder = StaticEncoder::open(runtime, folder, manifest, place(request, main, form))?;
            let placements = encoder.placements();
            Ok(Sessions { model: Model::Encoder(SupervisedEncoder::new(Box::new(encoder))), placements })
        }
    }
}

fn place<'a>(request: &LoadRequest<'_>, device: &'a Device, form: Form<'a>) -> GraphLoad<'a> {
    GraphLoad { device, threads: request.config.threads, form, rest: request.rest() }
}

/// Placement of the dynamic variant, which is one graph.
fn dynamic_placement(request: &LoadRequest<'_>, placement: &Placement) -> GraphPlacement {
    let entry = request.manifest().graphs.iter().find(|entry| entry.variant == Variant::Dynamic);
    let graph = entry.map(|entry| entry.file.clone()).unwrap_or_default();
    GraphPlacement { graph, placement: placement.clone() }
}
