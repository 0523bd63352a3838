//! Trials of a check's graphs with the vendor's compiler. A graph on which it fails is bisected to the faulty nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    path::Path,
};

use narthex_check::{
    self as check, CheckOptions, CompilerResult, ControlResult, Evidence, FaultyNodes, Finding, ProcessEnd,
    Report, Rule, Severity,
    bisect::{self, BisectionError, FailingNodes},
    intel_errors,
    qnn_errors::{code_in, relevant_lines},
    write,
};
use narthex_device::precompile::LOG;
use narthex_files::open_regular;
use narthex_graph::onnx::files::OnnxFile;

use super::{CheckRequest, trial::Trial};
use crate::{
    cancel::Cancel,
    error::{Error, ErrorKind},
    library::Library,
};

/// Maximum number of trials in the bisection of a graph.
const MAX_TRIALS: usize = 64;

/// Maximum bytes of weights of a graph that is bisected, since each piece is written with its weights.
const MAX_WEIGHT_BYTES: u64 = 4 << 30;

/// File name of the failing piece of a graph.
const PIECE: &str = "graph.onnx";

/// Maximum bytes of a log that are read.
const MAX_LOG_BYTES: u64 = 64 << 20;

/// An installed compiler.
pub(super) struct Compiler<'a> {
    library: &'a Library,
    cancel: &'a Cancel,
    trial: Trial<'a>,
    request: &'a CheckRequest,
}

/// Adds the compiler's results to a report: those of earlier compiles, and new ones for every other graph with fixed
/// shapes and complete files.
pub(super) fn add_results(
    compiler: Option<&Compiler<'_>>,
    report: &mut Report,
    parts: &[OnnxFile],
    options: &CheckOptions,
    mut results: BTreeMap<String, CompilerResult>,
) -> Result<(), Error> {
    let mut skipped = Vec::new();
    let untried = parts.iter().filter(|part| !results.contains_key(&part.name)).collect::<Vec<_>>();
    for (compiler, part) in
        compiler.iter().flat_map(|compiler| untried.iter().map(move |part| (compiler, part)))
    {
        if is_ready(report, part) {
            results.insert(part.name.clone(), compiler.examine(part)?);
        } else {
            let message =
                format!("the vendor's compiler was not tried on {}, which is incomplete", part.name);
            skipped.push(Finding::new(Rule::Compiler, Severity::Note, message));
        }
    }

    if let Some(compiler) = compiler.filter(|_| !untried.is_empty()) {
        report.compiler = compiler.trial.version();
    }
    if !results.is_empty() {
        report.record(parts, options, &results);
    }
    report.findings.extend(skipped);
    Ok(())
}

/// Returns whether a graph is complete and its shapes are fixed, so that a trial makes sense.
fn is_ready(report: &Report, part: &OnnxFile) -> bool {
    part.graph.unread.is_empty()
        && !part.graph.nodes.is_empty()
        && check::symbols(std::slice::from_ref(part)).is_empty()
        && !report.findings.iter().any(|finding| {
            finding.severity == Severity::Blocking
                && matches!(finding.rule, Rule::Malformed | Rule::ExternalData)
                && finding.part.as_ref() == Some(&part.name)
        })
}

/// Kind of a failure. A piece of a graph reproduces the failure of the whole graph if both kinds are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FailureKind {
    Code(u32),
    /// The failing pass or the message of Intel's compiler.
    Words(String),
    Crash(String),
}

impl FailureKind {
    /// Returns the kind of a failure that depends on the nodes. A killed process probably ran out of memory.
    fn of(result: &CompilerResult) -> Option<Self> {
        match result {
            CompilerResult::Failed { message, .. } => match intel_errors::kind_of(message) {
                Some(words) => Some(Self::Words(words.to_owned())),
                None => code_in(message).map(Self::Code),
            },
            CompilerResult::Ended { how: ProcessEnd::Crashed(status), .. } => {
                Some(Self::Crash(status.clone()))
            }
            _ => None,
        }
    }
}

/// Extracts some nodes of a graph as a graph; `None` if they cannot form one.
fn extract(part: &OnnxFile, nodes: &BTreeSet<usize>) -> Option<OnnxFile> {
    let graph = part.graph.extract(nodes, &part.graph.infer(&|_| None))?;
    Some(OnnxFile { graph, ..part.clone() })
}

/// Reads the beginning of a log; empty if the compiler ended the process before it was written.
fn read_log(path: &Path) -> String {
    let mut bytes = Vec::new();
    let _ = open_regular(path).map(|file| file.take(MAX_LOG_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

impl<'a> Compiler<'a> {
    /// Returns the compiler of a request's target, if it is installed and requested. Nothing is installed.
    pub(super) fn new(
        library: &'a Library,
        request: &'a CheckRequest,
        cancel: &'a Cancel,
    ) -> Result<Option<Self>, Error> {
        let trial = Trial::new(library, &request.target, &request.compiler, cancel)?;
        Ok(trial.map(|trial| Self { library, cancel, trial, request }))
    }

    /// Compiles a graph. After a failure, finds the faulty nodes and stores the compiler's messages.
    fn examine(&self, part: &OnnxFile) -> Result<CompilerResult, Error> {
        let mut result = self.trial.run(&part.folder.join(&part.name), self.cancel)?;
        let kind = FailureKind::of(&result);
        let (fault, evidence) = match &mut result {
            CompilerResult::Failed { fault, evidence, .. } => (fault, evidence),
            CompilerResult::Ended { how: ProcessEnd::Crashed(_), fault, evidence } => (fault, evidence),
            _ => return Ok(result),
        };

        let mut piece = None;
        if let Some(kind) = kind {
            match self.find_faulty_nodes(part, &kind)? {
                Ok(failing) => {
                    piece = extract(part, &failing.nodes);
                    *fault = self.describe(part, &failing);
                }
                Err(reason) => *fault = FaultyNodes::NotFound { reason },
            }
        }

        *evidence = match self.store_evidence(part, piece) {
            Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
            // The result is complete without the evidence.
            Err(error) => {
                tracing::warn!(%error, "the messages of the vendor's compiler cannot be stored");
                None
            }
            Ok(evidence) => evidence,
        };
        Ok(result)
    }

    /// Bisects a graph to the nodes on which the compiler fails in the same way. The inner error is the reason why they
    /// were not found.
    fn find_faulty_nodes(
        &self,
        part: &OnnxFile,
        kind: &FailureKind,
    ) -> Result<Result<FailingNodes, String>, Error> {
        let bytes = part.graph.weight_bytes();
        if bytes > MAX_WEIGHT_BYTES {
            return Ok(Err(format!(
                "its {:.1} GB of weights are too large for a bisection",
                bytes as f64 / 1e9
            )));
        }

        let smallest = bisect::smallest(part.graph.nodes.len(), MAX_TRIALS, &mut |nodes| {
            let Some(piece) = extract(part, nodes) else { return Ok(false) };
            Ok(FailureKind::of(&self.try_piece(&piece)?).as_ref() == Some(kind))
        });

        match smallest {
            Ok(failing) => Ok(Ok(failing)),
            Err(BisectionError::Failed(error)) => Err(error),
            Err(BisectionError::NotReproduced) => {
                Ok(Err("it compiles each part of the graph separately".to_owned()))
            }
            Err(BisectionError::TooManyAttempts) => {
                Ok(Err(format!("the bisection ended after {MAX_TRIALS} trials")))
            }
        }
    }

    /// Stores the compiler's messages about the failing piece of a graph, or about the whole graph, in a folder of the
    /// store.
    fn store_evidence(&self, part: &OnnxFile, piece: Option<OnnxFile>) -> Result<Option<Evidence>, Error> {
        let whole = part.folder.join(&part.name);
        let staging =
            self.library.store.failure(&format!("{} for {}", whole.display(), self.request.target))?;
        let graph = match &piece {
            Some(piece) => {
                let piece = OnnxFile { name: PIECE.to_owned(), ..piece.clone() };
                write::write(std::slice::from_ref(&piece), staging.path())?;
                staging.path().join(PIECE)
            }
            None if part.graph.weight_bytes() > MAX_WEIGHT_BYTES => return Ok(None),
            None => whole.clone(),
        };

        let control = self.trial.record(&graph, staging.path(), self.cancel)?;
        let log = read_log(&staging.path().join(LOG));
        let folder = staging.commit()?;
        let graph = piece.is_some().then(|| folder.join(PIECE));
        Ok(Some(Evidence {
            log_lines: relevant_lines(&log),
            control: control.map(|result| match result {
                CompilerResult::Whole { .. } | CompilerResult::Partly { .. } => ControlResult::Accepts,
                CompilerResult::Failed { .. } | CompilerResult::Ended { .. } => ControlResult::Fails,
            }),
            repeat_command: self.repeat_command(graph.as_deref()),
            folder,
        }))
    }

    /// Returns the command that repeats a failure, for a stored piece or for the whole model.
    fn repeat_command(&self, piece: Option<&Path>) -> String {
        let CheckRequest { subject, target, extents, .. } = self.request;
        if let Some(piece) = piece {
            return format!("narthex check {} --target {target}", piece.display());
        }
        let set: String = extents.iter().map(|(name, extent)| format!(" --set {name}={extent}")).collect();
        format!("narthex check {subject} --target {target}{set}")
    }

    /// Writes a piece of a graph with its weights and compiles it.
    fn try_piece(&self, piece: &OnnxFile) -> Result<CompilerResult, Error> {
        let scratch = self.library.store.scratch()?;
        write::write(std::slice::from_ref(piece), scratch.path())?;
        self.trial.run(&scratch.path().join(&piece.name), self.cancel)
    }

    /// Returns the paths of faulty nodes, with the fix that a rule has for one of them.
    fn describe(&self, part: &OnnxFile, failing: &FailingNodes) -> FaultyNodes {
        let rules = check::reasons(part, &self.request.target);
        let paths: Vec<String> = failing
            .nodes
            .iter()
            .filter_map(|&at| part.graph.nodes.get(at))
            .map(narthex_graph::Node::path)
            .collect();
        let fix = paths.iter().find_map(|path| rules.get(path)?.fix.clone());
        FaultyNodes::Nodes { paths, is_minimal: failing.is_minimal, fix }
    }
}
