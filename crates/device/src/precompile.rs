//! Ahead-of-time compilation: a vendor's compiler converts graphs to contexts for its NPU. This works on any machine
//! that has the compiler.
//!
//! A context is an ONNX file with one node, which refers to a binary in the same folder. This module is independent of
//! models.

use std::{
    collections::BTreeSet,
    env, io,
    ops::ControlFlow,
    path::{self, Path},
};

use narthex_graph::{Graph, onnx::files::MAX_FILE_BYTES};

use crate::{
    ep::Device,
    error::{DeviceError, RefusedNode},
    ort::{Context, Diagnostics, Session, SessionOptions, SharedWeights},
    placement::Placement,
    runtime::{LogRecording, Runtime},
    trace,
};

/// A graph to compile.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// File of the graph.
    pub graph: &'a Path,
    /// ONNX file of the context. Its folder must exist. The binary is written to the same folder.
    pub context: &'a Path,
}

/// Use of binaries, and of the weights in them, by the graphs of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// All graphs share one binary.
    Shared,
    /// Each graph has its own binary.
    Separate,
}

/// Policy for nodes of a graph that its device refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallbackPolicy {
    /// The graph is refused.
    Refused,
    /// The CPU runs nodes that only convert the graph's inputs or outputs. If there are others, the graph is refused.
    Conversions,
    /// The CPU runs all of them. The caller decides whether enough nodes remain on the device.
    OnCpu,
}

/// Compiles graphs for a device. Every node must be placed on the device, except for those that `fallback` permits
/// elsewhere. Returns the placements in the same order.
///
/// `done` is called with the number of compiled graphs after each one; if it breaks, the call is cancelled.
///
/// # Errors
/// [`DeviceError::Cancelled`] if `done` breaks, [`DeviceError::NotWhole`] with the nodes that the device refuses,
/// [`DeviceError::Ort`] with the reason why its compiler failed.
pub fn precompile(
    runtime: &Runtime,
    device: &Device,
    jobs: &[Job<'_>],
    weights: Weights,
    fallback: FallbackPolicy,
    done: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Vec<Placement>, DeviceError> {
    // Contexts that share a binary are written when the last of them is created, so all sessions stay open until then.
    let mut open = Vec::with_capacity(jobs.len());
    for (index, job) in jobs.iter().enumerate() {
        let sharing = match weights {
            Weights::Separate => SharedWeights::None,
            Weights::Shared if index + 1 < jobs.len() => SharedWeights::MoreFollow,
            Weights::Shared => SharedWeights::Last,
        };

        let context = Context::Written { path: job.context, sharing };
        let options = SessionOptions { context, ..SessionOptions::on(device, 1) };
        let session = Session::open(runtime, job.graph, options)?;
        check_placement(runtime, job.graph, device, session.placement(), fallback)?;
        open.push(session);
        if done(index + 1).is_break() {
            return Err(DeviceError::Cancelled);
        }
    }
    Ok(open.iter().map(|session| session.placement().clone()).collect())
}

/// Compiles a graph for a device without storing the result. Returns the number of its nodes, all of which must be
/// accepted.
///
/// # Errors
/// The errors of [`precompile`].
pub fn try_out(runtime: &Runtime, device: &Device, graph: &Path) -> Result<usize, DeviceError> {
    let session = Session::open(runtime, graph, SessionOptions::on(device, 1))?;
    check_placement(runtime, graph, device, session.placement(), FallbackPolicy::Refused)?;
    Ok(session.placement().nodes.len())
}

/// File name of the log that [`record`] writes.
pub const LOG: &str = "log.txt";

/// Compiles a graph for a device again and records the compilation in `folder`, which must exist: the provider's files
/// under their own names, and every line of its log in [`LOG`]. The outcome is not reported. If the compiler ends the
/// process, the files that were written until then remain.
///
/// # Errors
/// Returns an error if the log cannot be written.
pub fn record(runtime: &Runtime, device: &Device, graph: &Path, folder: &Path) -> io::Result<()> {
    let _log = LogRecording::to(&folder.join(LOG))?;
    let options =
        SessionOptions { diagnostics: Diagnostics::Everything(folder), ..SessionOptions::on(device, 1) };
    // The outcome is already known.
    drop(Session::open(runtime, graph, options));
    Ok(())
}

/// Loads a graph on a provider's control, a backend that accepts every valid graph for any chip. The control writes its
/// form of the graph to `folder`. Returns the number of nodes, or `None` if the provider has no such backend.
pub fn control(
    runtime: &Runtime,
    device: &Device,
    graph: &Path,
    folder: &Path,
) -> Option<Result<usize, DeviceError>> {
    let device = device.control_backend()?;
    let options = SessionOptions { diagnostics: Diagnostics::Form(folder), ..SessionOptions::on(&device, 1) };
    Some(Session::open(runtime, graph, options).map(|session| session.placement().nodes.len()))
}

/// Loads a graph on a provider's saver, a backend that records each call. The saver writes a C program and its data to
/// `saver_output` in `folder`, so that the vendor can repeat the calls without ONNX Runtime. The outcome is not
/// reported. QNN's plugin (2.7) has no option for the folder, so the process changes its working directory to `folder`
/// during the call. Callers should use a separate process.
///
/// # Errors
/// Returns an error if the process cannot change its working directory.
pub fn save(runtime: &Runtime, device: &Device, graph: &Path, folder: &Path) -> io::Result<()> {
    let Some(saver) = device.saver_backend() else { return Ok(()) };
    let graph = path::absolute(graph)?;
    let before = env::current_dir()?;
    env::set_current_dir(folder)?;
    drop(Session::open(runtime, &graph, SessionOptions::on(&saver, 1)));
    env::set_current_dir(before)
}

/// Checks that a placement is on its device, except for the nodes that `fallback` permits elsewhere. The error has the
/// provider's reason for each refused node, if it gives one.
pub(crate) fn check_placement(
    runtime: &Runtime,
    graph: &Path,
    device: &Device,
    placement: &Placement,
    fallback: FallbackPolicy,
) -> Result<(), DeviceError> {
    let ep = device.ep();
    let mut left = placement.nodes.iter().filter(|node| node.ep != ep).peekable();
    let granted = left.peek().is_none()
        || match fallback {
            FallbackPolicy::Refused => false,
            FallbackPolicy::Conversions => {
                let edges = read(graph).map(|graph| edges(&graph)).unwrap_or_default();
                left.all(|node| {
                    CONVERSIONS.contains(&node.op.as_str()) && is_derived_from(&node.name, &edges)
                })
            }
            FallbackPolicy::OnCpu => true,
        };

    if granted {
        return Ok(());
    }

    let reasons = trace::reasons(runtime, device, graph);
    let refused = placement.nodes.iter().filter(|node| node.ep != ep).map(|node| RefusedNode {
        name: node.name.clone(),
        op: node.op.clone(),
        reason: reasons.get(&node.name).cloned(),
    });

    Err(DeviceError::NotWhole {
        graph: graph.file_name().unwrap_or(graph.as_os_str()).to_string_lossy().into_owned(),
        ep,
        nodes: placement.nodes.len(),
        refused: refused.collect(),
    })
}

/// Reads the graph of a file; `None` if it cannot be read.
fn read(path: &Path) -> Option<Graph> {
    Graph::decode(&narthex_files::read(path, MAX_FILE_BYTES).ok()?).ok()
}

/// Operators that only change the element type.
const CONVERSIONS: [&str; 3] = ["Cast", "DequantizeLinear", "QuantizeLinear"];

/// Returns the paths of the conversions between a graph's inputs or outputs and its other nodes.
fn edges(graph: &Graph) -> BTreeSet<String> {
    // Nodes without a name cannot be distinguished.
    let conversions =
        graph.nodes.iter().filter(|node| CONVERSIONS.contains(&node.op.as_str()) && !node.name.is_empty());
    let mut inputs: BTreeSet<&str> = graph.inputs.iter().map(|input| input.name.as_str()).collect();
    let mut outputs: BTreeSet<&str> = graph.outputs.iter().map(|output| output.name.as_str()).collect();
    let mut edges = BTreeSet::new();
    // Nodes of a graph are in topological order.
    for node in conversions.clone() {
        if node.input(0).is_some_and(|input| inputs.contains(input)) {
            inputs.extend(node.outputs.iter().map(String::as_str));
            edges.insert(node.name.clone());
        }
    }
    for node in conversions.rev() {
        if node.outputs.iter().all(|output| outputs.contains(output.as_str())) {
            outputs.extend(node.input(0));
            edges.insert(node.name.clone());
        }
    }
    edges
}

/// Returns whether a node is one of these, or was derived from one by ONNX Runtime, which appends to its name
/// (`…/duplicated`).
fn is_derived_from(name: &str, paths: &BTreeSet<String>) -> bool {
    paths
        .iter()
        .filter_map(|path| name.strip_prefix(path))
        .any(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use narthex_graph::Builder;
    use narthex_spec::DType;

    use super::*;

    #[test]
    fn the_conversions_at_a_graph_s_edges_are_known() {
        let mut b = Builder::new("g", &[]);
        let x = b.input("x", DType::F32, &[]);
        let scale = b.scalar(0.5);
        let quantised = b.op("/in", "QuantizeLinear", &[&x, &scale]);
        let back = b.op("/in", "DequantizeLinear", &[&quantised, &scale]);
        let y = b.op("/mid", "Relu", &[&back]);
        let inner = b.op("/mid", "Cast", &[&y]);
        let z = b.op("/mid", "Abs", &[&inner]);
        let out = b.op("/out", "QuantizeLinear", &[&z, &scale]);
        let out = b.op("/out", "Cast", &[&out]);
        b.output(&out, DType::U8, &[]);
        let expected = ["/in/DequantizeLinear", "/in/QuantizeLinear", "/out/Cast", "/out/QuantizeLinear"];
        let edges = edges(&b.finish());
        assert_eq!(edges, expected.map(str::to_owned).into());
        assert!(
            is_derived_from("/out/Cast", &edges)
                && is_derived_from("/in/DequantizeLinear/duplicated", &edges)
        );
        assert!(!is_derived_from("/mid/Cast", &edges) && !is_derived_from("/out/Cast_1", &edges));
    }
}
