//! `narthex check`: whether a model would run on an NPU, what keeps it from that, and what can be done about it.
//!
//! Here a file, folder or name becomes graphs, or an architecture where there are none yet; the rules are the compiler's.
//! By themselves they read no weight and run no model; [`compiler`] asks the vendor's compiler, where it is installed, and
//! joins what it made of a graph with [`Report::record`].

pub(crate) mod architecture;
mod compiler;
mod trial;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use narthex_check::{self as check, CheckOptions, FallbackNode, Finding, Fix, Rule, Severity, fix, write};
use narthex_graph::onnx::files::{self, OnnxFile};
use narthex_spec::{
    Target, Variant,
    manifest::{Context, GraphEntry, Manifest, PlacementRecord},
};
use serde::Serialize;

pub use narthex_check::{CheckError, CompilerResult, Report, Verdict};
pub use trial::TrialProgram;

use crate::{
    cancel::Cancel,
    error::Error,
    gateway::Gateway,
    library::{
        Library,
        model_ref::{self, ResolvedModel},
    },
};

/// What is checked, and for what.
#[derive(Debug, Clone)]
pub struct CheckRequest {
    /// An ONNX file, a folder that holds some, a checkpoint, or a model by name.
    pub subject: String,
    /// The NPU.
    pub target: Target,
    /// Extents for dimensions that the model leaves open, by name. Those that are not given are assumed by their names.
    pub extents: BTreeMap<String, u64>,
    /// A folder for the model with the fixes that Narthex makes itself.
    pub fix: Option<PathBuf>,
    /// Whether the vendor's compiler is asked too.
    pub compiler: VendorCompiler,
}

/// Whether a check asks a vendor's compiler, which takes as long as a compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VendorCompiler {
    /// Where it is installed, in this process. A graph on which it crashes is the end of the process.
    InProcess,
    /// Where it is installed, in a process for each graph. One on which it crashes is a finding.
    Subprocess(TrialProgram),
    /// Never; the rules are enough.
    Skip,
}

/// What a check found.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    /// The model as it is.
    #[serde(flatten)]
    pub report: Report,
    /// The model as it was written with fixes, where that was asked for and there was anything to fix.
    pub fixed: Option<Fixed>,
}

/// A model that was written with fixes.
#[derive(Debug, Clone, Serialize)]
pub struct Fixed {
    /// The files.
    pub files: Vec<PathBuf>,
    /// What a check of those files found.
    pub report: Report,
}

impl CheckReport {
    /// The verdict on what stands at the end: the fixed model, or the model as it is.
    pub fn verdict(&self) -> &Verdict {
        self.fixed.as_ref().map_or(&self.report.verdict, |fixed| &fixed.report.verdict)
    }
}

impl Gateway {
    /// Checks a model for an NPU, from files that are here, from what the catalogue knows of a model, or from a hub model's settings alone; with [`CheckRequest::fix`], writes a copy with Narthex's own fixes and checks that too.
    ///
    /// # Errors
    /// [`Error::Check`] for files that are not to be read, or whose fixes cannot be written; [`Error::Invalid`] for
    /// extents and fixes that the subject has no use for; [`Error::UnknownModel`].
    pub fn check(&self, request: &CheckRequest, cancel: &Cancel) -> Result<CheckReport, Error> {
        let options = CheckOptions { target: request.target.clone(), extents: request.extents.clone() };
        let report = match model_ref::find(self.library(), &request.subject, cancel)? {
            ResolvedModel::Graphs(files) => {
                return graphs((self.library(), cancel), request, &files, &options);
            }
            ResolvedModel::Package(manifest, folder) => {
                package((self.library(), cancel), request, &manifest, &folder, &options)?
            }
            ResolvedModel::Checkpoint(found) => architecture::check_architecture(
                &request.subject,
                &found.architecture,
                found.scheme,
                &options,
            ),
            ResolvedModel::Unsupported(reason) => architecture::refused(&request.subject, reason, &options),
        };
        refuse_unused(request)?;
        Ok(CheckReport { report, fixed: None })
    }
}

/// Checks ONNX files, and writes them fixed where that is wanted.
fn graphs(
    (library, cancel): (&Library, &Cancel),
    request: &CheckRequest,
    files: &[PathBuf],
    options: &CheckOptions,
) -> Result<CheckReport, Error> {
    let parts = files::open_files(files).map_err(CheckError::from)?;
    refuse_unknown(&parts, options)?;
    let compiler = compiler::of(library, request, cancel)?;
    let mut report = check::check(&request.subject, &parts, options);
    compiler::finalize(&compiler, &mut report, (&parts, options), BTreeMap::new())?;
    let Some(folder) = &request.fix else { return Ok(CheckReport { report, fixed: None }) };
    let cannot =
        |error: narthex_graph::patch::PatchError| CheckError::CannotFix { reason: error.to_string() };
    let (fixed, changes) = fix::fixed(&parts, options).map_err(cannot)?;
    if changes.is_empty() {
        return Ok(CheckReport { report, fixed: None });
    }
    let files = write::write(&fixed, folder)?;
    let written: Vec<PathBuf> = fixed.iter().map(|part| folder.join(&part.name)).collect();
    let parts = files::open_files(&written).map_err(CheckError::from)?;
    let mut after = check::check(&folder.display().to_string(), &parts, options);
    compiler::finalize(&compiler, &mut after, (&parts, options), BTreeMap::new())?;
    Ok(CheckReport { report, fixed: Some(Fixed { files, report: after }) })
}

/// Checks the fixed graphs of a package, and enters what the vendor's compiler made of them; without such graphs, what
/// they would be.
fn package(
    (library, cancel): (&Library, &Cancel),
    request: &CheckRequest,
    manifest: &Manifest,
    folder: &Path,
    options: &CheckOptions,
) -> Result<Report, Error> {
    let compiled_here = manifest.architecture.architecture();
    // An imported graph is all that there is to check.
    let looked_at = |graph: &&GraphEntry| compiled_here.is_none() || graph.variant == Variant::Static;
    let files: Vec<PathBuf> =
        manifest.graphs.iter().filter(looked_at).map(|graph| folder.join(&graph.file)).collect();
    if let (true, Some(architecture)) = (files.is_empty(), &compiled_here) {
        let scheme = manifest.recipe.scheme;
        let mut report = architecture::check_architecture(&request.subject, architecture, scheme, options);
        report.findings.push(note(
            Rule::Architecture,
            "the installed package has only the graph that CPUs and GPUs run".to_owned(),
            Some(Fix::you(format!("narthex compile {} --target {}", manifest.name, request.target))),
        ));
        return Ok(report);
    }
    let parts = files::open_files(&files).map_err(CheckError::from)?;
    let mut report = check::check(&request.subject, &parts, options);
    let asked = request.compiler != VendorCompiler::Skip;
    let own = |context: &&Context| asked && context.target == request.target;
    let known = |context: &Context| (context.graph.clone(), compiled(&context.placement, &request.target));
    let known = manifest.contexts.iter().filter(own).map(known).collect();
    let compiler = compiler::of(library, request, cancel)?;
    compiler::finalize(&compiler, &mut report, (&parts, options), known)?;
    Ok(report)
}

/// What a placement says of a graph.
fn compiled(placement: &PlacementRecord, target: &Target) -> CompilerResult {
    let nodes = placement.nodes.values().flat_map(|operators| operators.values()).sum();
    let others = placement.nodes.iter().filter(|(ep, _)| **ep != target.ep());
    let left = |path| FallbackNode { path, why: None };
    let elsewhere: Vec<FallbackNode> = others
        .flat_map(|(ep, operators)| operators.iter().map(move |(op, count)| format!("{count} {op} on {ep}")))
        .map(left)
        .collect();
    if elsewhere.is_empty() {
        CompilerResult::Whole { nodes }
    } else {
        CompilerResult::Partly { elsewhere, nodes }
    }
}

fn note(rule: Rule, message: String, fix: Option<Fix>) -> Finding {
    Finding { rule, severity: Severity::Notes, part: None, places: Vec::new(), message, fix }
}

/// Refuses extents for dimensions that no graph has.
fn refuse_unknown(parts: &[OnnxFile], options: &CheckOptions) -> Result<(), Error> {
    let known = check::symbols(parts);
    match options.extents.keys().find(|name| !known.contains(*name)) {
        None => Ok(()),
        Some(name) => {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let has = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message =
                format!("set: no input has a dimension {name:?}; the model's open dimensions: {has}");
            Err(Error::Invalid { param: "set", message })
        }
    }
}

/// Refuses extents and fixes for models that Narthex compiles itself.
fn refuse_unused(request: &CheckRequest) -> Result<(), Error> {
    let (param, what) = match request {
        CheckRequest { fix: Some(_), .. } => ("fix", "fixes are written"),
        CheckRequest { extents, .. } if !extents.is_empty() => ("set", "dimensions are set"),
        _ => return Ok(()),
    };
    let message = format!(
        "{param}: {what} for ONNX files, and {} is a model that Narthex compiles; `narthex compile --target {}` gives it \
         fixed shapes",
        request.subject, request.target
    );
    Err(Error::Invalid { param, message })
}
