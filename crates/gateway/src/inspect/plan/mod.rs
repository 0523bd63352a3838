//! `narthex plan`: sizes, cache and NPU verdicts of a model from its settings only, and the devices of this machine
//! with enough memory for it.
//!
//! The figures are those of a compile without weights; `fit` compares them with the memory of devices.

mod fit;
mod memory_plan;
mod model_estimate;
#[cfg(test)]
mod tests;

use narthex_catalog::{
    index::{Access, KnownDivergence, Purpose},
    source::hub::RepoSummary,
};
use narthex_check::CheckError;
use narthex_device::inventory;
use narthex_graph::onnx::files::OnnxFileError;
use narthex_spec::{ContextFactor, ModelName, OpenVinoDevice, QnnChip, Target, arch::Architecture};
use serde::Serialize;

use self::model_estimate::NpuMachine;
pub use self::{
    fit::{DeviceFit, MinimumMemory, SchemeFit},
    memory_plan::{Conversations, DeviceMemory, MemoryPlan, SchemeMemory, WeightsMemory},
    model_estimate::{
        CacheEstimate, ModelEstimate, RequiredMemory, SchemeEstimate, TargetEstimate, TowerEstimate,
    },
};
pub use crate::library::suitability::{
    MachineSpeed, RankedModel, SpeedClass, Suitability, has_room, kept_quality,
};
use crate::{
    cancel::Cancel,
    error::Error,
    gateway::Gateway,
    inspect::check::{NpuTarget, RyzenAiVerdict},
    library::{
        Library,
        model_ref::{self, ResolvedModel},
        package_key::split_scheme,
        suitability::rank,
    },
    report::models::ModelListing,
};

/// Assumed maximum memory of machines with an NPU in bytes: 64 GB. A machine with more memory uses its own.
const NPU_MACHINE_MEMORY: u64 = 64_000_000_000;

/// Assumed memory bandwidth of machines with an NPU, in bytes per second: that of LPDDR5X-8533 on 128 bits, which the
/// fastest laptops with such NPUs have.
const NPU_MACHINE_BANDWIDTH: u64 = 136_500_000_000;

/// Request for the plan of a model.
///
/// ```
/// use narthex_gateway::plan::PlanRequest;
///
/// let request = PlanRequest::new("smollm2:135m");
/// assert!(request.targets.is_empty());
/// ```
#[derive(Debug, Clone)]
pub struct PlanRequest {
    /// Catalogue name, `hf:owner/repo`, folder of a checkpoint, or GGUF file.
    pub subject: String,
    /// NPUs to include; empty for all. The verdict for AMD's NPUs, for which there are no rules, is part of every plan.
    pub targets: Vec<NpuTarget>,
    /// Factor by which YaRN extends the context.
    pub yarn: Option<ContextFactor>,
    /// Conversations for a plan of the memory.
    pub conversations: Option<Conversations>,
}

impl PlanRequest {
    /// Creates a request for every NPU, without an extended context and without conversations.
    pub fn new(subject: impl Into<String>) -> Self {
        Self { subject: subject.into(), targets: Vec::new(), yarn: None, conversations: None }
    }
}

/// Source of a model, as far as the catalogue or the hub states it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Origin {
    /// Source in the notation of the command line.
    pub source: Option<String>,
    /// Licence.
    pub license: Option<String>,
    /// Access to the download.
    pub access: Option<Access>,
    /// Download size in bytes.
    pub download_bytes: Option<u64>,
    /// Notes for users.
    pub notes: Option<String>,
    /// Factor of YaRN that the publisher's card describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub yarn: Option<ContextFactor>,
    /// Devices whose answers were found to differ from the CPU's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub divergences: Vec<KnownDivergence>,
}

impl Origin {
    /// Returns the source of the model that `subject` names; `stated` is the metadata of its repository.
    fn new(library: &Library, subject: &str, stated: Option<&RepoSummary>) -> Self {
        let reference = library.reference(split_scheme(subject).0).ok();
        let resolved = reference.and_then(|reference| reference.resolve(&library.catalog).ok());
        let Some(resolved) = resolved else { return Self::default() };
        let entry = library.entry(&resolved);
        Self {
            license: entry
                .and_then(|entry| entry.license.clone())
                .or_else(|| stated.and_then(|stated| stated.license.clone())),
            access: entry.map(|entry| entry.access),
            download_bytes: stated.map_or_else(|| entry?.checkpoint_bytes(), |stated| stated.bytes),
            notes: entry.and_then(|entry| entry.notes.clone()),
            yarn: entry.and_then(|entry| entry.yarn),
            divergences: entry.map(|entry| entry.divergences.clone()).unwrap_or_default(),
            source: Some(resolved.provenance),
        }
    }
}

/// Plan of a model.
#[derive(Debug, Clone, Serialize)]
pub struct PlanReport {
    /// Model: a path or a name.
    pub subject: String,
    /// Source.
    #[serde(flatten)]
    pub origin: Origin,
    /// Factor by which YaRN extends the context in these figures.
    #[serde(rename = "extended_by", skip_serializing_if = "Option::is_none")]
    pub yarn: Option<ContextFactor>,
    /// Figures of the compiler.
    #[serde(flatten)]
    pub estimate: ModelEstimate,
    /// Verdict for AMD's NPUs, for which there are no rules.
    pub ryzen_ai: RyzenAiVerdict,
    /// Maximum bytes of the KV cache with the default settings, which also limits the sequences.
    pub kv_budget: u64,
    /// Devices of this machine with the sequences that fit.
    pub machine: Vec<DeviceFit>,
    /// Memory of the requested conversations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryPlan>,
    /// Minimum memory, if no device is known to have enough and the CPU is known not to.
    pub least: Option<MinimumMemory>,
}

impl Gateway {
    /// Plans a model from its settings only.
    ///
    /// # Errors
    /// [`Error::Invalid`] for ONNX files and for families that are not supported, [`Error::UnknownModel`], and errors
    /// of reading the settings.
    pub fn plan(&self, request: &PlanRequest, cancel: &Cancel) -> Result<PlanReport, Error> {
        let library = self.library();
        let found = match model_ref::find(library, &request.subject, cancel) {
            Err(Error::Check(CheckError::Open(OnnxFileError::NoModel { .. }))) => {
                return not_a_model(request);
            }
            Ok(ResolvedModel::Graphs(files))
                if !files
                    .iter()
                    .any(|file| file.extension().is_some_and(|end| end.eq_ignore_ascii_case("onnx"))) =>
            {
                return not_a_model(request);
            }
            found => found?,
        };

        let (architecture, stated) = match found {
            ResolvedModel::Package(manifest, _) => (manifest.architecture.architecture(), None),
            ResolvedModel::Checkpoint(found) => (Some(found.architecture), found.stated),
            ResolvedModel::Unsupported(error) => return Err(*error),
            ResolvedModel::Graphs(_) => (None, None),
        };
        let Some(mut architecture) = architecture else {
            let message = "a plan needs a checkpoint; for ONNX files use `narthex check`";
            return Err(Error::invalid("model", message));
        };

        if let Some(factor) = request.yarn {
            narthex_checkpoint::extend(&mut architecture, factor)
                .map_err(|error| Error::invalid("yarn", error))?;
        }

        let ryzen_ai = RyzenAiVerdict::of_compiled(matches!(architecture, Architecture::Decoder(_)));
        let targets = match request.targets.as_slice() {
            [] => every_target(),
            targets => targets.iter().filter_map(NpuTarget::with_rules).cloned().collect(),
        };
        let mut estimate = ModelEstimate::new(&architecture, &targets)?;
        let kv_budget = library.config.kv_memory().budget;
        let memories = fit::memories();
        let machine = fit::machine(&estimate, &memories, kv_budget);
        let memory_plan = match request.conversations {
            Some(conversations) => Some(planned_memory(&estimate, &memories, conversations)?),
            None => None,
        };
        let origin = Origin::new(library, &request.subject, stated.as_ref());
        let memory = inventory::memory_bytes().unwrap_or(0).max(NPU_MACHINE_MEMORY);
        estimate.adjust_scores(NpuMachine { memory, bandwidth: NPU_MACHINE_BANDWIDTH }, &origin.divergences);

        Ok(PlanReport {
            subject: request.subject.clone(),
            origin,
            yarn: request.yarn,
            least: fit::least(&estimate, &machine),
            estimate,
            ryzen_ai,
            kv_budget: kv_budget as u64,
            machine,
            memory: memory_plan,
        })
    }
}

/// Plans the memory of conversations.
///
/// # Errors
/// [`Error::Invalid`] for no conversation, for an encoder, and for more tokens than the model has.
fn planned_memory(
    estimate: &ModelEstimate,
    memories: &[fit::Memory],
    conversations: Conversations,
) -> Result<MemoryPlan, Error> {
    let longest = estimate.longest as u64;
    if let Some(context) = conversations.context.filter(|context| !(1..=longest).contains(context)) {
        let message = format!("expected 1 to {longest} tokens, the maximum of the model, found {context}");
        return Err(Error::invalid("context", message));
    }
    if conversations.users == 0 {
        return Err(Error::invalid("users", "expected at least one conversation, found 0"));
    }
    if estimate.cache.is_empty() {
        return Err(Error::invalid("context", "expected a model with a KV cache, found an encoder"));
    }
    Ok(MemoryPlan::new(estimate, memories, conversations))
}

fn not_a_model(request: &PlanRequest) -> Result<PlanReport, Error> {
    let message = format!(
        "{} is not a model; expected a name of `narthex list --available`, hf:owner/repo, a folder with \
         config.json, or a GGUF file",
        request.subject
    );
    Err(Error::invalid("model", message))
}

impl Gateway {
    /// Sorts models by kind, then by their usefulness on this machine. Measures its memory bandwidth for that, and keeps
    /// the highest figure in the store.
    pub fn rank(&self, models: Vec<ModelListing>) -> Vec<RankedModel> {
        rank(models, self.library().machine_speed())
    }

    /// Returns the first choices for a purpose that fit this machine and that anyone may download, the most useful first.
    pub fn first_choices(&self, purpose: Purpose) -> Result<Vec<ModelName>, Error> {
        let mut models = self.models()?;
        models.retain(|model| model.pick == Some(purpose) && model.access == Access::Open);
        let fitting =
            self.rank(models).into_iter().filter(|ranked| ranked.here.is_some_and(|here| here.fits));
        Ok(fitting.map(|ranked| ranked.model.name).collect())
    }

    /// Returns true at the first call with this name in the store, for advice that is given once.
    pub fn is_first_time(&self, name: &str) -> bool {
        let records = self.library().store.own_machine();
        let record = format!("advice-{name}.json");
        // A store that cannot be written gives the advice again.
        match records.read(&record) {
            Ok(Some(_)) => false,
            Ok(None) | Err(_) => {
                if let Err(error) = records.write(&record, b"{}") {
                    tracing::debug!(%error, "the advice is not recorded");
                }
                true
            }
        }
    }
}

/// Returns every supported NPU.
fn every_target() -> Vec<Target> {
    let chips = QnnChip::ALL.into_iter().map(|chip| Target::Qnn(vec![chip]));
    chips.chain([Target::OpenVino(OpenVinoDevice::Npu)]).collect()
}
