//! The vendor's own compiler, asked about each graph of a check. Where it fails, the graph is taken apart until the nodes at
//! fault are named.

use std::{collections::BTreeSet, path::PathBuf};

use narthex_catalog::runtimes::{self, RuntimeKind};
use narthex_compile::check::{
    self, Compiled, Fault, Left, Part, Report, Rule, Severity,
    bisect::{self, Stopped},
    qnn_errors::code_in,
    write,
};
use narthex_device::{
    DeviceError,
    ep::{Device, QnnOptions},
    precompile::try_out,
    runtime::Runtime,
};
use narthex_spec::{Target, progress::Quiet};

use super::{Asked, CheckRequest, note};
use crate::{cancel::Cancel, error::Error, gateway::Inner, job};

/// How often the compiler is asked about parts of a graph.
const TRIES: usize = 64;

/// The most bytes of weights of a graph that is taken apart, since each part is written down with its own.
const MOST_BYTES: u64 = 4 << 30;

/// A compiler that is installed here.
pub(super) struct Compiler<'a> {
    inner: &'a Inner,
    cancel: &'a Cancel,
    runtime: &'static Runtime,
    device: Device,
    target: &'a Target,
}

/// The compiler for a request's target, where it is installed and wanted. Nothing is installed for a check.
pub(super) fn of<'a>(
    inner: &'a Inner,
    request: &'a CheckRequest,
    cancel: &'a Cancel,
) -> Result<Option<Compiler<'a>>, Error> {
    let Target::Qnn(chips) = &request.target else { return Ok(None) };
    let found = runtimes::locate(&inner.store, RuntimeKind::Qnn);
    let (Some(plugin), Asked::IfInstalled, Some(_)) = (found, request.compiler, job::found_library(inner)?)
    else {
        return Ok(None);
    };
    let runtime = inner.runtime(&Quiet, cancel)?;
    runtime.register(request.target.ep(), &plugin.library)?;
    let device = Device::Qnn(QnnOptions::new(&plugin.library, chips));
    Ok(Some(Compiler { inner, cancel, runtime, device, target: &request.target }))
}

/// Records what the compiler makes of every part whose shapes are fixed and whose files are whole.
pub(super) fn finalize<'a>(
    compiler: &Option<Compiler<'_>>,
    report: &mut Report,
    parts: impl Iterator<Item = &'a Part>,
) -> Result<(), Error> {
    let Some(compiler) = compiler else { return Ok(()) };
    for part in parts {
        if !is_ready(report, part) {
            let message = format!("the vendor's compiler was not asked about {} as it stands", part.name);
            report.findings.push(note(Rule::CompilerFails, message, None));
            continue;
        }
        report.record(&part.name, &compiler.ask(part)?);
    }
    Ok(())
}

/// Whether there is any sense in asking: what is open or broken was told already.
fn is_ready(report: &Report, part: &Part) -> bool {
    let broken = |finding: &&check::Finding| {
        finding.severity == Severity::Refuses
            && matches!(finding.rule, Rule::Malformed | Rule::ExternalData)
            && finding.part.as_ref() == Some(&part.name)
    };
    part.graph.unread.is_empty()
        && check::symbols(std::slice::from_ref(part)).is_empty()
        && report.findings.iter().find(broken).is_none()
}

impl Compiler<'_> {
    fn ask(&self, part: &Part) -> Result<Compiled, Error> {
        match self.try_out(part.folder.join(&part.name))? {
            Ok(nodes) => Ok(Compiled::Whole { nodes }),
            Err(DeviceError::NotWhole { nodes, refused, .. }) => {
                let left = refused.into_iter().map(|node| Left { path: node.name, why: node.reason });
                Ok(Compiled::Partly { elsewhere: left.collect(), nodes })
            }
            Err(DeviceError::Ort { message, .. }) => {
                let fault = self.fault(part, &message)?;
                Ok(Compiled::Failed { message, fault })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What the compiler makes of a file. An interrupt alone is an error.
    fn try_out(&self, graph: PathBuf) -> Result<Result<usize, DeviceError>, Error> {
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        Ok(try_out(self.runtime, &self.device, &graph))
    }

    /// Takes a graph on which the compiler fails apart, down to the nodes at fault.
    fn fault(&self, part: &Part, message: &str) -> Result<Fault, Error> {
        let Some(code) = code_in(message) else { return Ok(Fault::NotSought) };
        let bytes: u64 = part.graph.initializers.iter().map(narthex_graph::Initializer::bytes).sum();
        if bytes > MOST_BYTES {
            let reason = format!("its {:.1} GB of weights are too many to take apart", bytes as f64 / 1e9);
            return Ok(Fault::NotFound { reason });
        }
        let known = part.graph.infer(&|_| None);
        let mut fails = |nodes: &BTreeSet<usize>| {
            let Some(graph) = part.graph.extract(nodes, &known) else { return Ok(false) };
            let piece = Part { graph, ..part.clone() };
            let outcome = self.try_piece(&piece)?;
            Ok::<_, Error>(
                matches!(outcome, Err(DeviceError::Ort { message, .. }) if code_in(&message) == Some(code)),
            )
        };
        let found = bisect::smallest(part.graph.nodes.len(), TRIES, &mut fails);
        let reason = match found {
            Ok(nodes) => return Ok(self.named(part, &nodes)),
            Err(Stopped::Failed(error)) => return Err(error),
            Err(Stopped::Takes) => "it takes each part of the graph by itself".to_owned(),
            Err(Stopped::Tries) => format!("it was asked {TRIES} times"),
        };
        Ok(Fault::NotFound { reason })
    }

    /// Writes a piece of a graph with its weights and lets the compiler have it.
    fn try_piece(&self, piece: &Part) -> Result<Result<usize, DeviceError>, Error> {
        let scratch = self.inner.store.scratch()?;
        write::write(std::slice::from_ref(piece), scratch.path())?;
        self.try_out(scratch.path().join(&piece.name))
    }

    /// Nodes by their paths, with the fix that a rule knows for one of them.
    fn named(&self, part: &Part, nodes: &BTreeSet<usize>) -> Fault {
        let rules = check::reasons(part, self.target);
        let paths: Vec<String> =
            nodes.iter().filter_map(|&at| part.graph.nodes.get(at)).map(narthex_graph::Node::path).collect();
        let fix = paths.iter().find_map(|path| rules.get(path)?.fix.clone());
        Fault::Nodes { paths, fix }
    }
}
