//! `narthex plan`: what a model would be, before anything of it is downloaded but its settings: sizes, cache, what NPUs
//! make of it, and what this machine has room for.
//!
//! The figures are the compiler's, from a compile on paper; what fits where is arithmetic over them, in `fit`.

mod fit;
mod outlook;

use narthex_catalog::{index::Access, source::hub::RepoSummary};
use narthex_spec::{OpenVinoDevice, QnnChip, Target};
use serde::Serialize;

pub use self::{
    fit::{DeviceFit, Room, SchemeFit},
    outlook::{CacheOutlook, Outlook, RequiredMemory, SchemeOutlook, TargetOutlook},
};
use crate::{
    cancel::Cancel,
    error::Error,
    gateway::Gateway,
    library::{
        Library,
        model_ref::{self, ResolvedModel},
        package_key::split_scheme,
    },
};

/// What is planned.
#[derive(Debug, Clone)]
pub struct PlanRequest {
    /// A name of the catalogue, `hf:owner/repo`, a checkpoint's folder, or a GGUF file.
    pub subject: String,
    /// The NPUs to look at; none for all that are known.
    pub targets: Vec<Target>,
}

/// Where a model comes from, as far as the catalogue or the hub says.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Origin {
    /// The source as a person would write it.
    pub source: Option<String>,
    /// Its licence.
    pub license: Option<String>,
    /// Whether everybody may download it.
    pub access: Option<Access>,
    /// Bytes to download.
    pub download_bytes: Option<u64>,
    /// What a user should know before using it.
    pub notes: Option<String>,
}

impl Origin {
    /// That of a model by the text that names it, and by what its repository says of itself.
    fn new(library: &Library, subject: &str, stated: Option<&RepoSummary>) -> Self {
        let reference = library.reference(split_scheme(subject).0).ok();
        let resolved = reference.and_then(|reference| reference.resolve(&library.catalog).ok());
        let Some(resolved) = resolved else { return Self::default() };
        let entry = library.entry(&resolved);
        let hub = || stated.and_then(|stated| stated.license.clone());
        Self {
            license: entry.and_then(|entry| entry.license.clone()).or_else(hub),
            access: entry.map(|entry| entry.access),
            download_bytes: stated.map_or_else(|| entry?.checkpoint_bytes(), |stated| stated.bytes),
            notes: entry.and_then(|entry| entry.notes.clone()),
            source: Some(resolved.provenance),
        }
    }
}

/// What a model would be.
#[derive(Debug, Clone, Serialize)]
pub struct PlanReport {
    /// The model: a path or a name.
    pub subject: String,
    /// Where it comes from.
    #[serde(flatten)]
    pub origin: Origin,
    /// The compiler's part.
    #[serde(flatten)]
    pub outlook: Outlook,
    /// What each device of this machine has room for.
    pub machine: Vec<DeviceFit>,
    /// The least that would do, where no device is known to have room and the CPU is known not to.
    pub least: Option<Room>,
}

impl Gateway {
    /// Plans a model by its settings alone.
    ///
    /// # Errors
    /// [`Error::Invalid`] for ONNX files and for families that are not compiled, [`Error::UnknownModel`], and those of
    /// reading settings.
    pub fn plan(&self, request: &PlanRequest, cancel: &Cancel) -> Result<PlanReport, Error> {
        let library = self.library();
        let refused = |message: String| Err(Error::Invalid { param: "model", message });
        let exports = "model: a plan is made of a checkpoint; `narthex check` looks at ONNX files";
        let (architecture, stated) = match model_ref::find(library, &request.subject, cancel)? {
            ResolvedModel::Package(manifest, _) => match manifest.architecture.architecture() {
                Some(architecture) => (architecture, None),
                None => return refused(exports.to_owned()),
            },
            ResolvedModel::Checkpoint(found) => (found.architecture, found.stated),
            ResolvedModel::Unsupported(reason) => return refused(format!("model: {reason}")),
            ResolvedModel::Graphs(_) => return refused(exports.to_owned()),
        };
        let targets = if request.targets.is_empty() { every_target() } else { request.targets.clone() };
        let outlook = Outlook::new(&architecture, &targets)?;
        let machine = fit::machine(&outlook, &fit::memories());
        Ok(PlanReport {
            subject: request.subject.clone(),
            origin: Origin::new(library, &request.subject, stated.as_ref()),
            least: fit::least(&outlook, &machine),
            outlook,
            machine,
        })
    }
}

/// Every NPU that is known.
fn every_target() -> Vec<Target> {
    let chips = QnnChip::ALL.into_iter().map(|chip| Target::Qnn(vec![chip]));
    chips.chain([Target::OpenVino(OpenVinoDevice::Npu)]).collect()
}
