//! `narthex plan`: what a model would be, before anything of it is downloaded but its settings: sizes, cache, what NPUs
//! make of it, and what this machine has room for.
//!
//! The figures are the compiler's, from a compile on paper; what fits where is arithmetic over them, in `fit`.

mod fit;

use narthex_spec::{
    Target,
    target::{OpenVinoDevice, QnnChip},
};
use serde::Serialize;

pub use narthex_compile::outlook::{CacheOutlook, Outlook, SchemeOutlook, TargetOutlook};

pub use self::fit::{DeviceFit, Room, SchemeFit};
use crate::{
    cancel::Cancel,
    error::Error,
    gateway::Gateway,
    subject::{self, Subject},
};

/// What is planned.
#[derive(Debug, Clone)]
pub struct PlanRequest {
    /// A name of the catalogue, `hf:owner/repo`, a checkpoint's folder, or a GGUF file.
    pub subject: String,
    /// The NPUs to look at; none for all that are known.
    pub targets: Vec<Target>,
}

/// What a model would be.
#[derive(Debug, Clone, Serialize)]
pub struct PlanReport {
    /// The model: a path or a name.
    pub subject: String,
    /// Where it comes from, where the catalogue says.
    pub source: Option<String>,
    /// Its licence, where the catalogue says.
    pub license: Option<String>,
    /// Bytes to download, where the catalogue says.
    pub download_bytes: Option<u64>,
    /// The compiler's part.
    #[serde(flatten)]
    pub outlook: Outlook,
    /// What each device of this machine has room for.
    pub machine: Vec<DeviceFit>,
    /// Where none has room: the least that would do.
    pub least: Option<Room>,
}

impl Gateway {
    /// Plans a model by its settings alone.
    ///
    /// # Errors
    /// [`Error::Invalid`] for ONNX files and for families that are not compiled, [`Error::UnknownModel`], and those of
    /// reading settings.
    pub fn plan(&self, request: &PlanRequest, cancel: &Cancel) -> Result<PlanReport, Error> {
        let inner = self.inner();
        let refused = |message: String| Err(Error::Invalid { param: "model", message });
        let exports = "model: a plan is made of a checkpoint; `narthex check` looks at ONNX files";
        let architecture = match subject::find(inner, &request.subject, cancel)? {
            Subject::Package(manifest, _) => match manifest.architecture.architecture() {
                Some(architecture) => architecture,
                None => return refused(exports.to_owned()),
            },
            Subject::Checkpoint(found) => found.architecture,
            Subject::Unknown(reason) => return refused(format!("model: {reason}")),
            Subject::Graphs(_) => return refused(exports.to_owned()),
        };
        let targets = if request.targets.is_empty() { every_target() } else { request.targets.clone() };
        let outlook = Outlook::new(&architecture, &targets)?;
        let machine = fit::machine(&outlook, &fit::memories());
        let entry = request.subject.parse().ok().and_then(|name| inner.catalog.get(&name));
        let fits = machine.iter().any(DeviceFit::fits);
        Ok(PlanReport {
            subject: request.subject.clone(),
            source: entry.map(|entry| entry.source.describe()),
            license: entry.and_then(|entry| entry.license.clone()),
            download_bytes: entry.and_then(|entry| entry.checkpoint_bytes()),
            least: if fits { None } else { fit::least(&outlook) },
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
