//! `GET /v1/catalogue` and `GET /v1/catalogue/{id}`: the models for this machine, the most useful first, and the plan of
//! one of them. Neither needs the model's files.

use axum::{
    Json,
    extract::{
        Path, Query,
        rejection::{PathRejection, QueryRejection},
    },
    http::StatusCode,
};
use narthex_gateway::{
    Cancel,
    check::Verdict,
    models::Access,
    plan::{
        Conversations, DeviceFit, DeviceMemory, MemoryPlan, PlanReport, PlanRequest, RankedModel, SpeedClass,
        Suitability, WeightsMemory,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{app::App, error::ApiError, protocol::blocking::CancelOnDrop, reports::tenths};

/// The models of the catalogue and of the store.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Catalogue {
    /// Sorted by kind, then by usefulness on this machine.
    models: Vec<CatalogueModel>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CatalogueModel {
    id: String,
    title: String,
    /// Task, as in `/v1/models`.
    kind: &'static str,
    parameters: Option<u64>,
    license: Option<String>,
    /// True if the publisher asks users to accept a licence before the download.
    gated: bool,
    /// Purpose for which the model is one of the first choices: `chat`, `code`, `small` or `embedding`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pick: Option<&'static str>,
    notes: Option<String>,
    /// Media in conversations that the model reads beside text: `image`, `audio`.
    reads: Vec<&'static str>,
    /// Bytes of the download.
    download_bytes: Option<u64>,
    installed: bool,
    /// True if the caller's requests may install the model.
    available: bool,
    /// Usefulness on this machine, for a model whose sizes are known.
    here: Option<SuitabilityObject>,
}

/// Usefulness of a model in the better of `w8` and `w4`.
#[derive(Debug, Serialize, JsonSchema)]
struct SuitabilityObject {
    scheme: String,
    /// Bytes of the weights.
    bytes: u64,
    /// True if the memory of this machine has room for the weights.
    fits: bool,
    /// Expected speed: `fast` is 20 tokens or texts a second or more, `medium` 5 or more.
    speed: &'static str,
    /// Share of the quality in `f32` that the scheme keeps, if it was measured with this model.
    quality: Option<f64>,
    /// 0 to 100; 0 if the model does not fit.
    score: f64,
}

impl From<RankedModel> for CatalogueModel {
    fn from(RankedModel { model, here }: RankedModel) -> Self {
        Self {
            id: model.name.to_string(),
            title: model.title,
            kind: model.kind.as_str(),
            parameters: model.parameters,
            license: model.license,
            gated: model.access == Access::Gated,
            pick: model.pick.map(|purpose| purpose.as_str()),
            notes: model.notes,
            reads: model.reads.iter().map(|kind| kind.as_str()).collect(),
            download_bytes: model.download_bytes,
            installed: !model.installed.is_empty(),
            available: model.auto_pull,
            here: here.map(SuitabilityObject::from),
        }
    }
}

impl From<Suitability> for SuitabilityObject {
    fn from(here: Suitability) -> Self {
        Self {
            scheme: here.scheme.to_string(),
            bytes: here.bytes,
            fits: here.fits,
            speed: match here.speed {
                SpeedClass::Fast => "fast",
                SpeedClass::Medium => "medium",
                SpeedClass::Slow => "slow",
            },
            quality: here.quality,
            score: tenths(here.score),
        }
    }
}

/// Lists the models.
pub(crate) async fn list(app: App) -> Result<Json<Catalogue>, ApiError> {
    let gateway = app.gateway.clone();
    // The first call measures the memory bandwidth.
    let ranked = app.shared.jobs.run(move || gateway.models().map(|models| gateway.rank(models))).await?;
    Ok(Json(Catalogue { models: ranked.into_iter().map(CatalogueModel::from).collect() }))
}

/// Sizes of a model, and its room on the devices of this machine.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelPlan {
    id: String,
    /// Structure in words.
    structure: String,
    /// Maximum tokens of the weights.
    context: usize,
    /// Bytes of a token in the KV cache on a CPU in half precision.
    kv_token_bytes: u64,
    /// Bytes of the states of a conversation of any length; 0 if all layers have keys and values.
    kv_slot_bytes: u64,
    schemes: Vec<SchemeSize>,
    /// Devices of this machine.
    devices: Vec<DevicePlan>,
    /// Predictions for every supported NPU, in the best scheme.
    npus: Vec<NpuPlan>,
    /// Bytes of memory that the smallest scheme needs, if no device has enough.
    minimum_memory: Option<u64>,
    /// Memory of the conversations that the query states.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryPlanObject>,
}

/// Memory of conversations, as `narthex plan --context --users` prints it.
#[derive(Debug, Serialize, JsonSchema)]
struct MemoryPlanObject {
    /// Tokens of each conversation.
    context: u64,
    /// Number of conversations.
    users: u64,
    devices: Vec<DeviceMemoryObject>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DeviceMemoryObject {
    /// `cpu`, `gpu` or `npu`.
    device: &'static str,
    name: String,
    /// Bytes of memory, or of an NPU's address space, if they are known.
    memory: Option<u64>,
    /// `mapped` from files, which the system may drop, or `copied`.
    weights: &'static str,
    schemes: Vec<SchemeMemoryObject>,
}

/// Bytes of a model in one scheme.
#[derive(Debug, Serialize, JsonSchema)]
struct SchemeMemoryObject {
    scheme: String,
    weights: u64,
    /// Towers that read images and audio.
    towers: u64,
    /// KV caches of all conversations.
    kv: u64,
    /// The system, the program and activations.
    buffers: u64,
    /// True if there is enough memory; null if it is unknown.
    fits: Option<bool>,
    /// Maximum tokens of each conversation that fit.
    longest: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SchemeSize {
    scheme: String,
    /// Bytes of the weights.
    bytes: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DevicePlan {
    /// `cpu`, `gpu` or `npu`.
    device: &'static str,
    name: String,
    /// Bytes of memory, if they are known.
    memory: Option<u64>,
    schemes: Vec<SchemePlan>,
}

/// Room on a device in one scheme.
#[derive(Debug, Serialize, JsonSchema)]
struct SchemePlan {
    scheme: String,
    /// Maximum tokens of a conversation; null if the model does not fit.
    context: Option<u64>,
    /// Reason why it does not fit.
    reason: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct NpuPlan {
    /// As in `--target`.
    target: String,
    scheme: String,
    /// True if the NPU runs the model or a part of it.
    runs: bool,
    /// Nodes that run on the NPU, in words, or the reason of a refusal.
    verdict: String,
    /// 0 to 100.
    score: f64,
}

impl ModelPlan {
    fn new(id: String, report: PlanReport) -> Self {
        let estimate = report.estimate;
        let targets = estimate.schemes.first().map(|scheme| scheme.targets.as_slice()).unwrap_or_default();
        let best = targets.iter().filter_map(|target| estimate.best(|other| *other == target.target));
        let npus = best.map(|(scheme, target)| NpuPlan {
            target: target.target.to_string(),
            scheme: scheme.to_string(),
            runs: target.runs(),
            verdict: match &target.verdict {
                Verdict::Refused { reason } => reason.clone(),
                other => other.to_string(),
            },
            score: tenths(target.score.total),
        });
        Self {
            id,
            npus: npus.collect(),
            context: estimate.longest,
            kv_token_bytes: estimate.cpu_token_bytes(),
            kv_slot_bytes: estimate.state_bytes,
            schemes: estimate
                .schemes
                .iter()
                .map(|size| SchemeSize { scheme: size.scheme.to_string(), bytes: size.bytes })
                .collect(),
            structure: estimate.structure,
            devices: report.machine.into_iter().map(DevicePlan::from).collect(),
            minimum_memory: report.least.map(|least| least.memory),
            memory: report.memory.map(MemoryPlanObject::from),
        }
    }
}

impl From<DeviceFit> for DevicePlan {
    fn from(fit: DeviceFit) -> Self {
        let schemes = fit.schemes.into_iter().map(|scheme| SchemePlan {
            scheme: scheme.scheme.to_string(),
            context: scheme.context,
            reason: scheme.reason,
        });
        Self { device: fit.device, name: fit.text, memory: fit.memory, schemes: schemes.collect() }
    }
}

impl From<MemoryPlan> for MemoryPlanObject {
    fn from(plan: MemoryPlan) -> Self {
        let devices = plan.devices.into_iter().map(DeviceMemoryObject::from).collect();
        Self { context: plan.context, users: plan.users, devices }
    }
}

impl From<DeviceMemory> for DeviceMemoryObject {
    fn from(device: DeviceMemory) -> Self {
        let schemes = device.schemes.into_iter().map(|memory| SchemeMemoryObject {
            scheme: memory.scheme.to_string(),
            weights: memory.weights,
            towers: memory.towers,
            kv: memory.kv,
            buffers: memory.buffers,
            fits: memory.fits,
            longest: memory.longest,
        });
        Self {
            device: device.device,
            name: device.text,
            memory: device.memory,
            weights: match device.weights {
                WeightsMemory::Mapped => "mapped",
                WeightsMemory::Copied => "copied",
            },
            schemes: schemes.collect(),
        }
    }
}

/// Query of a plan.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct PlanQuery {
    /// Tokens of each conversation whose memory is planned; by default, the longest of the model.
    context: Option<u64>,
    /// Number of conversations whose memory is planned.
    users: Option<u64>,
}

impl PlanQuery {
    /// Returns the conversations, if the query states them.
    fn conversations(&self) -> Option<Conversations> {
        let Self { context, users } = *self;
        (context.is_some() || users.is_some()).then(|| Conversations { context, users: users.unwrap_or(1) })
    }
}

/// Plans one model of the catalogue or of the store.
pub(crate) async fn plan(
    app: App,
    id: Result<Path<String>, PathRejection>,
    query: Result<Query<PlanQuery>, QueryRejection>,
) -> Result<Json<ModelPlan>, ApiError> {
    let bad = |text| ApiError::plain(StatusCode::BAD_REQUEST, text);
    let Path(id) = id.map_err(|rejection| bad(rejection.body_text()))?;
    let Query(query) = query.map_err(|rejection| bad(rejection.body_text()))?;
    let gateway = app.gateway.clone();
    let cancel = Cancel::new();
    let _guard = CancelOnDrop(cancel.clone());
    let run = app.shared.jobs.run(move || {
        // The listing refuses paths and what the caller may not use.
        let name = gateway.model(&id)?.name.to_string();
        let request = PlanRequest { conversations: query.conversations(), ..PlanRequest::new(name.clone()) };
        gateway.plan(&request, &cancel).map(|report| ModelPlan::new(name, report))
    });
    Ok(Json(run.await?))
}
