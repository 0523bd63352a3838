//! Ahead-of-time compiles: a vendor's compiler turns graphs into contexts for its NPU, on any machine that has it.
//!
//! A context is an ONNX file with one node that names a binary beside it. Nothing here knows of models.

use std::{io, ops::ControlFlow, path::Path};

use crate::{
    ep::Device,
    error::{DeviceError, RefusedNode},
    ort::{Context, Session, SessionOptions, Sharing, Writes},
    placement::Placement,
    runtime::{Recording, Runtime},
    trace,
};

/// One graph to compile.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The graph's file.
    pub graph: &'a Path,
    /// The context's ONNX file; its folder exists. The binary is written beside it.
    pub context: &'a Path,
}

/// Whether the graphs of one call share a binary, and with it their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// One binary for all.
    Shared,
    /// A binary for each.
    Apart,
}

/// Compiles graphs for a device, each of which must go to the device whole. Gives their placements in the same order.
///
/// `done` hears how many graphs are compiled, and answers whether to go on.
///
/// # Errors
/// [`DeviceError::Cancelled`] where `done` broke off, [`DeviceError::NotWhole`] names the nodes that the device refuses, [`DeviceError::Ort`] says why its compiler failed.
pub fn precompile(
    runtime: &Runtime,
    device: &Device,
    jobs: &[Job<'_>],
    weights: Weights,
    done: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Vec<Placement>, DeviceError> {
    // Contexts that share a binary are written when the last of them is made, so all stay open until then.
    let mut open = Vec::with_capacity(jobs.len());
    for (index, job) in jobs.iter().enumerate() {
        let sharing = match weights {
            Weights::Apart => Sharing::Alone,
            Weights::Shared if index + 1 < jobs.len() => Sharing::More,
            Weights::Shared => Sharing::Last,
        };
        let context = Context::Written { path: job.context, sharing };
        let options = SessionOptions { context, ..SessionOptions::on(device, 1) };
        let session = Session::open(runtime, job.graph, options)?;
        whole(runtime, job.graph, device, session.placement())?;
        open.push(session);
        if done(index + 1).is_break() {
            return Err(DeviceError::Cancelled);
        }
    }
    Ok(open.iter().map(|session| session.placement().clone()).collect())
}

/// Lets a device's compiler have a graph, and keeps nothing of it; gives the number of its nodes, all of which it took.
///
/// # Errors
/// As for [`precompile`].
pub fn try_out(runtime: &Runtime, device: &Device, graph: &Path) -> Result<usize, DeviceError> {
    let session = Session::open(runtime, graph, SessionOptions::on(device, 1))?;
    whole(runtime, graph, device, session.placement())?;
    Ok(session.placement().nodes.len())
}

/// The log's file in a folder that [`record`] filled.
pub const LOG: &str = "log.txt";

/// Lets a device's compiler have a graph once more, and has everything that it tells on the way written into `folder`, which
/// exists: what the provider writes, under its own names, and every line of its log in [`LOG`]. What comes of the graph is
/// not told. A compiler that ends the process leaves what was written until then.
///
/// # Errors
/// Where the log cannot be written.
pub fn record(runtime: &Runtime, device: &Device, graph: &Path, folder: &Path) -> io::Result<()> {
    let _log = Recording::to(&folder.join(LOG))?;
    let options = SessionOptions { writes: Writes::Everything(folder), ..SessionOptions::on(device, 1) };
    // Whether it compiles was told before.
    drop(Session::open(runtime, graph, options));
    Ok(())
}

/// Lets a provider's control have a graph: a backend that takes every sound graph, whatever the chip, and writes its own
/// form of it into `folder`. Gives the number of nodes; `None` for a provider that has no such backend.
pub fn control(
    runtime: &Runtime,
    device: &Device,
    graph: &Path,
    folder: &Path,
) -> Option<Result<usize, DeviceError>> {
    let device = device.control()?;
    let options = SessionOptions { writes: Writes::Form(folder), ..SessionOptions::on(&device, 1) };
    Some(Session::open(runtime, graph, options).map(|session| session.placement().nodes.len()))
}

/// Refuses a placement that is not wholly on its device; each node with the provider's reason, where it gives one.
pub(crate) fn whole(
    runtime: &Runtime,
    graph: &Path,
    device: &Device,
    placement: &Placement,
) -> Result<(), DeviceError> {
    let ep = device.ep();
    if placement.nodes.iter().all(|node| node.ep == ep) {
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
