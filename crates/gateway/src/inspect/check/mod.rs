//! `narthex check`: rules and trials that show whether a model runs on an NPU.
//!
//! A file, folder or name becomes graphs, or an architecture if there are no graphs yet. The rules of `narthex_check`
//! read no weights and run nothing; the `compiler` module adds the results of the vendor's compiler, if it is
//! installed.

pub(crate) mod architecture;
mod compiler;
mod ryzen_ai;
mod trial;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use narthex_catalog::runtimes::{self, RuntimeKind};
use narthex_check::{
    self as check, Basis, CheckOptions, FallbackNode, Finding, Fix, Rule, Severity, fix, write,
};
use narthex_graph::{
    onnx::files::{self, OnnxFile},
    patch::PatchError,
};
use narthex_spec::{
    DeviceKind, Target, Variant,
    manifest::{Manifest, PlacementRecord},
};
use serde::Serialize;

pub use narthex_check::{CheckError, CompilerResult, Report, Verdict};
pub use ryzen_ai::{NpuTarget, RyzenAiReport, RyzenAiVerdict};
pub use trial::TrialProgram;

use crate::{
    cancel::Cancel,
    error::Error,
    gateway::Gateway,
    intel::INSTALL,
    library::{
        Library,
        model_ref::{self, ResolvedModel},
    },
    load::run_record::RunRecord,
};
use compiler::Compiler;

/// Check of a model for an NPU.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use narthex_gateway::check::{CheckRequest, VendorCompiler};
///
/// let request = CheckRequest {
///     subject: "model.onnx".to_owned(),
///     target: "qnn:x-elite".parse().unwrap(),
///     extents: BTreeMap::from([("sequence".to_owned(), 64)]),
///     fix: None,
///     compiler: VendorCompiler::Skip,
/// };
/// assert_eq!(request.extents["sequence"], 64);
/// ```
#[derive(Debug, Clone)]
pub struct CheckRequest {
    /// ONNX file, folder with ONNX files, checkpoint, or model name.
    pub subject: String,
    /// NPU.
    pub target: Target,
    /// Extents of the model's symbolic dimensions by name. The others are assumed by their names.
    pub extents: BTreeMap<String, u64>,
    /// Output folder for the model with Narthex's own fixes.
    pub fix: Option<PathBuf>,
    /// Use of the vendor's compiler.
    pub compiler: VendorCompiler,
}

/// Use of a vendor's compiler in a check. A trial takes as long as a compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VendorCompiler {
    /// In this process, if the compiler is installed. A crash of the compiler ends the process.
    InProcess,
    /// In a subprocess for each graph, if the compiler is installed. A crash of the compiler is a finding.
    Subprocess(TrialProgram),
    /// No trial.
    Skip,
}

/// Result of a check.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    /// Report on the model.
    #[serde(flatten)]
    pub report: Report,
    /// The model with fixes, if they were requested and there were any.
    pub fixed: Option<FixedModel>,
}

/// A model that was written with fixes.
#[derive(Debug, Clone, Serialize)]
pub struct FixedModel {
    /// Written files.
    pub files: Vec<PathBuf>,
    /// Report on those files.
    pub report: Report,
}

impl CheckReport {
    /// Returns the verdict on the fixed model, or on the model itself.
    pub fn verdict(&self) -> &Verdict {
        self.fixed.as_ref().map_or(&self.report.verdict, |fixed| &fixed.report.verdict)
    }
}

impl Gateway {
    /// Checks a model for an NPU from local files, from the catalogue or from a hub model's settings. With
    /// [`CheckRequest::fix`], writes a copy with Narthex's own fixes and checks that too.
    ///
    /// # Errors
    /// [`Error::Check`] for files that are unreadable or whose fixes cannot be written; [`Error::Invalid`] for extents
    /// and fixes that do not apply to the model; [`Error::UnknownModel`].
    pub fn check(&self, request: &CheckRequest, cancel: &Cancel) -> Result<CheckReport, Error> {
        let mut found = self.judge(request, cancel)?;
        let store = &self.library().store;
        let is_missing = || runtimes::locate(store, RuntimeKind::OpenVinoCompiler).is_none();
        if matches!(request.target, Target::IntelNpu(_))
            && request.compiler != VendorCompiler::Skip
            && is_missing()
        {
            let message = "Intel's compiler is not installed, so the verdict rests on rules";
            let note = Finding::new(Rule::Compiler, Severity::Note, message).fix(Fix::manual(INSTALL));
            found.report.findings.push(note);
        }
        Ok(found)
    }

    fn judge(&self, request: &CheckRequest, cancel: &Cancel) -> Result<CheckReport, Error> {
        let options = CheckOptions { target: request.target.clone(), extents: request.extents.clone() };
        let check = ModelCheck { library: self.library(), request, options, cancel };
        let subject = &request.subject;
        let options = &check.options;
        let report = match model_ref::find(self.library(), subject, cancel)? {
            ResolvedModel::Graphs(files) => return check.graphs(&files),
            ResolvedModel::Package(manifest, folder) => check.package(&manifest, &folder)?,
            ResolvedModel::Checkpoint(found) => {
                architecture::check_architecture(subject, &found.architecture, found.scheme, options)
            }
            ResolvedModel::Unsupported(error) => architecture::refused(subject, error.to_string(), options),
        };
        refuse_unused(request)?;
        Ok(CheckReport { report, fixed: None })
    }
}

struct ModelCheck<'a> {
    library: &'a Library,
    request: &'a CheckRequest,
    options: CheckOptions,
    cancel: &'a Cancel,
}

impl ModelCheck<'_> {
    /// Checks ONNX files, and writes them with fixes if requested.
    fn graphs(&self, files: &[PathBuf]) -> Result<CheckReport, Error> {
        let Self { library, request, options, cancel } = self;
        let parts = files::open_files(files).map_err(CheckError::from)?;
        refuse_unknown(&parts, options)?;
        let compiler = Compiler::new(library, request, cancel)?;
        let Some(folder) = &request.fix else {
            let judged = check::bound(&parts, options).map_err(cannot_fix)?;
            let mut report = self.judge(judged, compiler.as_ref())?;
            report.suggest_fix(&parts, options);
            return Ok(CheckReport { report, fixed: None });
        };

        let mut report = check::check(&request.subject, &parts, options);
        compiler::add_results(compiler.as_ref(), &mut report, &parts, options, BTreeMap::new())?;
        let (fixed, changes) = fix::fixed(&parts, options).map_err(cannot_fix)?;
        if changes.is_empty() {
            return Ok(CheckReport { report, fixed: None });
        }
        let files = write::write(&fixed, folder)?;
        let written: Vec<PathBuf> = fixed.iter().map(|part| folder.join(&part.name)).collect();
        let parts = files::open_files(&written).map_err(CheckError::from)?;
        let mut after = check::check(&folder.display().to_string(), &parts, options);
        compiler::add_results(compiler.as_ref(), &mut after, &parts, options, BTreeMap::new())?;
        Ok(CheckReport { report, fixed: Some(FixedModel { files, report: after }) })
    }

    /// Checks graphs whose dimensions the user may have set. The compiler then gets a copy of them.
    fn judge(&self, parts: Vec<OnnxFile>, compiler: Option<&Compiler<'_>>) -> Result<Report, Error> {
        let Self { library, request, options, .. } = self;
        let mut report = check::check(&request.subject, &parts, options);
        if options.extents.is_empty() || compiler.is_none() {
            compiler::add_results(compiler, &mut report, &parts, options, BTreeMap::new())?;
            return Ok(report);
        }

        let copy = library.store.scratch()?;
        write::write(&parts, copy.path())?;
        let written: Vec<PathBuf> = parts.iter().map(|part| copy.path().join(&part.name)).collect();
        let parts = files::open_files(&written).map_err(CheckError::from)?;
        compiler::add_results(compiler, &mut report, &parts, options, BTreeMap::new())?;
        Ok(report)
    }

    /// Checks the static graphs of a package with the results of their compile. Without such graphs, checks those that
    /// its architecture would have.
    fn package(&self, manifest: &Manifest, folder: &Path) -> Result<Report, Error> {
        let Self { library, request, options, cancel } = self;
        let architecture = manifest.architecture.architecture();
        // An imported package has no other graphs to check.
        let files: Vec<PathBuf> = manifest
            .graphs
            .iter()
            .filter(|graph| architecture.is_none() || graph.variant == Variant::Static)
            .map(|graph| folder.join(&graph.file))
            .collect();

        if let (true, Some(architecture)) = (files.is_empty(), &architecture) {
            let scheme = manifest.recipe.scheme;
            let mut report =
                architecture::check_architecture(&request.subject, architecture, scheme, options);
            let message = "the installed package has only the graph that CPUs and GPUs run";
            let fix = Fix::manual(format!("narthex compile {} --target {}", manifest.name, request.target));
            report.findings.push(Finding::new(Rule::Architecture, Severity::Note, message).fix(fix));
            return Ok(report);
        }

        let parts = files::open_files(&files).map_err(CheckError::from)?;
        let mut report = check::check(&request.subject, &parts, options);
        let contexts = || {
            let of_target = manifest.contexts.iter().filter(|context| context.target == request.target);
            of_target.filter(|_| request.compiler != VendorCompiler::Skip)
        };
        let known = contexts()
            .map(|context| (context.graph.clone(), placement_result(&context.placement, &request.target)))
            .collect();

        if let (Target::IntelNpu(_), Some(context)) = (&request.target, contexts().next()) {
            report.compiler = context.compiler.split_once(' ').map(|(_, version)| version.to_owned());
        }
        let compiler = Compiler::new(library, request, cancel)?;
        compiler::add_results(compiler.as_ref(), &mut report, &parts, options, known)?;
        for run in RunRecord::of_target(&library.store, folder, &options.target)? {
            add_run(&mut report, &run);
        }
        Ok(report)
    }
}

/// Adds the record of a run on this machine. A run in software is no evidence for the device.
fn add_run(report: &mut Report, run: &RunRecord) {
    let device = run.device();
    let message = format!(
        "the package ran on {} of this machine, and its results agreed with the CPU's: {}",
        device.describe(),
        run.placement
    );
    report.findings.push(Finding::new(Rule::Run, Severity::Note, message));
    if device.kind() != DeviceKind::StandIn && !matches!(report.verdict, Verdict::Refused { .. }) {
        report.basis = Basis::Ran;
    }
}

/// Converts a recorded placement to a result of the compiler.
fn placement_result(placement: &PlacementRecord, target: &Target) -> CompilerResult {
    let nodes = placement.nodes.values().flat_map(|operators| operators.values()).sum();
    let others = placement.nodes.iter().filter(|(ep, _)| **ep != target.ep());
    let elsewhere: Vec<FallbackNode> = others
        .flat_map(|(ep, operators)| operators.iter().map(move |(op, count)| format!("{count} {op} on {ep}")))
        .map(|path| FallbackNode { path, why: None })
        .collect();
    if elsewhere.is_empty() {
        CompilerResult::Whole { nodes }
    } else {
        CompilerResult::Partly { elsewhere, nodes }
    }
}

fn cannot_fix(error: PatchError) -> CheckError {
    CheckError::CannotFix { reason: error.to_string() }
}

/// Refuses extents of unknown dimensions.
fn refuse_unknown(parts: &[OnnxFile], options: &CheckOptions) -> Result<(), Error> {
    let known = check::symbols(parts);
    match options.extents.keys().find(|name| !known.contains(*name)) {
        None => Ok(()),
        Some(name) => {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let has = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message =
                format!("no input has a dimension {name:?}; the model's symbolic dimensions: {has}");
            Err(Error::invalid("set", message))
        }
    }
}

/// Refuses extents and fixes for a model that Narthex compiles.
fn refuse_unused(request: &CheckRequest) -> Result<(), Error> {
    let (param, what) = match request {
        CheckRequest { fix: Some(_), .. } => ("fix", "fixes are written"),
        CheckRequest { extents, .. } if !extents.is_empty() => ("set", "dimensions are set"),
        _ => return Ok(()),
    };
    let message = format!(
        "{what} for ONNX files, and {} is a model that Narthex compiles; `narthex compile --target {}` gives it \
         fixed shapes",
        request.subject, request.target
    );
    Err(Error::invalid(param, message))
}
