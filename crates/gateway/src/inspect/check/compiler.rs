//! The vendor's own compiler, asked about each graph of a check. Where it fails, the graph is taken apart until the nodes at
//! fault are named.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read,
    path::Path,
};

use narthex_check::{
    self as check, CheckOptions, CompilerResult, ControlResult, Evidence, FaultyNodes, ProcessEnd, Report,
    Rule, Severity,
    bisect::{self, Stopped},
    qnn_errors::{code_in, telling},
    write,
};
use narthex_device::precompile::LOG;
use narthex_graph::onnx::files::OnnxFile;
use narthex_spec::Target;

use super::{CheckRequest, note, trial::Trial};
use crate::{
    cancel::Cancel,
    error::{Error, ErrorKind},
    library::Library,
};

/// FailureKind often the compiler is asked about parts of a graph.
const TRIES: usize = 64;

/// The most bytes of weights of a graph that is taken apart, since each part is written down with its own.
const MOST_BYTES: u64 = 4 << 30;

/// A compiler that is installed here.
pub(super) struct Compiler<'a> {
    library: &'a Library,
    cancel: &'a Cancel,
    trial: Trial<'a>,
    target: &'a Target,
}

/// The compiler for a request's target, where it is installed and wanted. Nothing is installed for a check.
pub(super) fn of<'a>(
    library: &'a Library,
    request: &'a CheckRequest,
    cancel: &'a Cancel,
) -> Result<Option<Compiler<'a>>, Error> {
    let target = &request.target;
    let trial = Trial::of(library, target, &request.compiler, cancel)?;
    Ok(trial.map(|trial| Compiler { library, cancel, trial, target }))
}

/// Records what the compiler made of parts when they were compiled, and what it makes of every other part whose shapes are
/// fixed and whose files are whole.
pub(super) fn finalize(
    compiler: &Option<Compiler<'_>>,
    report: &mut Report,
    (parts, options): (&[OnnxFile], &CheckOptions),
    mut compiled: BTreeMap<String, CompilerResult>,
) -> Result<(), Error> {
    let mut not_asked = Vec::new();
    let asked = compiler.iter().flat_map(|compiler| parts.iter().map(move |part| (compiler, part)));
    for (compiler, part) in asked {
        if compiled.contains_key(&part.name) {
            continue;
        }
        if is_ready(report, part) {
            compiled.insert(part.name.clone(), compiler.ask(part)?);
        } else {
            let message = format!("the vendor's compiler was not asked about {} as it stands", part.name);
            not_asked.push(note(Rule::Compiler, message, None));
        }
    }
    if !compiled.is_empty() {
        report.record(parts, options, &compiled);
    }
    report.findings.extend(not_asked);
    Ok(())
}

/// Whether there is any sense in asking: what is open or broken was told already.
fn is_ready(report: &Report, part: &OnnxFile) -> bool {
    let broken = |finding: &&check::Finding| {
        finding.severity == Severity::Refuses
            && matches!(finding.rule, Rule::Malformed | Rule::ExternalData)
            && finding.part.as_ref() == Some(&part.name)
    };
    part.graph.unread.is_empty()
        && !part.graph.nodes.is_empty()
        && check::symbols(std::slice::from_ref(part)).is_empty()
        && report.findings.iter().find(broken).is_none()
}

/// A way to fail by which a piece of a graph is known to fail as the whole does.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FailureKind {
    Code(u32),
    Crash(String),
}

impl FailureKind {
    /// FailureKind a compiler failed, where that says anything of the nodes: a process that was killed ran out of memory, most likely.
    fn of(outcome: &CompilerResult) -> Option<Self> {
        match outcome {
            CompilerResult::Failed { message, .. } => code_in(message).map(Self::Code),
            CompilerResult::Ended { how: ProcessEnd::Crashed(status), .. } => {
                Some(Self::Crash(status.clone()))
            }
            _ => None,
        }
    }
}

/// The file of the piece of a graph on which the compiler fails.
const PIECE: &str = "graph.onnx";

/// The most bytes of a log that are looked through.
const MOST_LOG: u64 = 64 << 20;

/// Some nodes of a graph as a graph; nothing where they are none by themselves.
fn extract(part: &OnnxFile, nodes: &BTreeSet<usize>) -> Option<OnnxFile> {
    let graph = part.graph.extract(nodes, &part.graph.infer(&|_| None))?;
    Some(OnnxFile { graph, ..part.clone() })
}

fn weight_bytes(part: &OnnxFile) -> u64 {
    part.graph.weight_bytes()
}

/// A log as far as it can be read.
fn read_log(path: &Path) -> String {
    let mut bytes = Vec::new();
    // A process that the compiler took down may have left none.
    let _ = File::open(path).map(|file| file.take(MOST_LOG).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Compiler<'_> {
    fn ask(&self, part: &OnnxFile) -> Result<CompilerResult, Error> {
        let mut outcome = self.try_out(&part.folder.join(&part.name))?;
        let how = FailureKind::of(&outcome);
        let (found_fault, found_evidence) = match &mut outcome {
            CompilerResult::Failed { fault, evidence, .. } => (fault, evidence),
            CompilerResult::Ended { how: ProcessEnd::Crashed(_), fault, evidence } => (fault, evidence),
            _ => return Ok(outcome),
        };
        let mut piece = None;
        if let Some(how) = how {
            match self.nodes(part, &how)? {
                Ok(nodes) => {
                    piece = extract(part, &nodes);
                    *found_fault = self.named(part, &nodes);
                }
                Err(reason) => *found_fault = FaultyNodes::NotFound { reason },
            }
        }
        *found_evidence = match self.evidence(part, piece) {
            Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
            // What the compiler made of the graph is known without it.
            Err(error) => {
                tracing::warn!(%error, "what the vendor's compiler told could not be kept");
                None
            }
            Ok(evidence) => evidence,
        };
        Ok(outcome)
    }

    /// What the compiler makes of a file. An interrupt alone is an error.
    fn try_out(&self, graph: &Path) -> Result<CompilerResult, Error> {
        self.trial.run(graph, self.cancel)
    }

    /// Takes a graph on which the compiler fails in some way apart, down to the nodes at fault; or the reason why they were
    /// not found.
    fn nodes(&self, part: &OnnxFile, how: &FailureKind) -> Result<Result<BTreeSet<usize>, String>, Error> {
        let bytes = weight_bytes(part);
        if bytes > MOST_BYTES {
            return Ok(Err(format!(
                "its {:.1} GB of weights are too many to take apart",
                bytes as f64 / 1e9
            )));
        }
        let mut fails = |nodes: &BTreeSet<usize>| {
            let Some(piece) = extract(part, nodes) else { return Ok(false) };
            Ok::<_, Error>(FailureKind::of(&self.try_piece(&piece)?).as_ref() == Some(how))
        };
        match bisect::smallest(part.graph.nodes.len(), TRIES, &mut fails) {
            Ok(nodes) => Ok(Ok(nodes)),
            Err(Stopped::Failed(error)) => Err(error),
            Err(Stopped::Takes) => Ok(Err("it takes each part of the graph by itself".to_owned())),
            Err(Stopped::Tries) => Ok(Err(format!("it was asked {TRIES} times"))),
        }
    }

    /// Keeps what the compiler tells of the graph on which it fails, or of the piece of it that fails as the whole does, in
    /// a folder of the store.
    fn evidence(&self, part: &OnnxFile, piece: Option<OnnxFile>) -> Result<Option<Evidence>, Error> {
        let whole = part.folder.join(&part.name);
        let staging = self.library.store.failure(&format!("{} for {}", whole.display(), self.target))?;
        let graph = match &piece {
            Some(piece) => {
                let piece = OnnxFile { name: PIECE.to_owned(), ..piece.clone() };
                write::write(std::slice::from_ref(&piece), staging.path())?;
                staging.path().join(PIECE)
            }
            None if weight_bytes(part) > MOST_BYTES => return Ok(None),
            None => whole.clone(),
        };
        let control = self.trial.record(&graph, staging.path(), self.cancel)?;
        let log = read_log(&staging.path().join(LOG));
        let folder = staging.commit()?;
        let graph = if piece.is_some() { folder.join(PIECE) } else { whole };
        Ok(Some(Evidence {
            words: telling(&log),
            control: control.map(|found| match found {
                CompilerResult::Whole { .. } | CompilerResult::Partly { .. } => ControlResult::Takes,
                CompilerResult::Failed { .. } | CompilerResult::Ended { .. } => ControlResult::Fails,
            }),
            again: format!("narthex check {} --target {}", graph.display(), self.target),
            folder,
        }))
    }

    /// Writes a piece of a graph with its weights and lets the compiler have it.
    fn try_piece(&self, piece: &OnnxFile) -> Result<CompilerResult, Error> {
        let scratch = self.library.store.scratch()?;
        write::write(std::slice::from_ref(piece), scratch.path())?;
        self.try_out(&scratch.path().join(&piece.name))
    }

    /// Nodes by their paths, with the fix that a rule knows for one of them.
    fn named(&self, part: &OnnxFile, nodes: &BTreeSet<usize>) -> FaultyNodes {
        let rules = check::reasons(part, self.target);
        let paths: Vec<String> =
            nodes.iter().filter_map(|&at| part.graph.nodes.get(at)).map(narthex_graph::Node::path).collect();
        let fix = paths.iter().find_map(|path| rules.get(path)?.fix.clone());
        FaultyNodes::Nodes { paths, fix }
    }
}
