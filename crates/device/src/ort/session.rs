//! A session pinned to the CPU, with a record of where its nodes went.

use std::path::Path;

use narthex_spec::Ep;
use ort::{AsPointer, session::builder::GraphOptimizationLevel};

use crate::{
    error::DeviceError,
    placement::{self, Placement},
    runtime::Runtime,
};

/// ONNX Runtime's name of its own kernels.
const CPU: &str = "CPUExecutionProvider";

/// A loaded graph.
pub(crate) struct Session {
    inner: ort::session::Session,
    placement: Placement,
}

/// How a graph is loaded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionOptions {
    /// Threads of each operator.
    pub(crate) threads: usize,
}

fn failed<R>(what: &'static str) -> impl FnOnce(ort::Error<R>) -> DeviceError {
    move |error| DeviceError::Ort { what, message: error.message().to_owned() }
}

impl Session {
    /// Loads a graph for the CPU, and nothing but the CPU.
    pub(crate) fn open(
        runtime: &Runtime,
        model: &Path,
        options: SessionOptions,
    ) -> Result<Self, DeviceError> {
        // Named outright, because a new builder prefers an NPU as soon as a plugin provider is registered.
        let cpu = runtime.environment().devices().filter(|device| device.ep().is_ok_and(|ep| ep == CPU));
        let mut builder = ort::session::Session::builder(runtime.environment())
            .map_err(failed("make a session"))?
            .with_devices(cpu, None)
            .map_err(failed("choose the CPU"))?
            .with_intra_threads(options.threads)
            .map_err(failed("set the number of threads"))?
            .with_inter_threads(1)
            .map_err(failed("set the number of threads"))?
            .with_optimization_level(GraphOptimizationLevel::All)
            .map_err(failed("set the optimisation level"))?
            .with_config_entry("session.record_ep_graph_assignment_info", "1")
            .map_err(failed("record the placement"))?;
        let inner = builder.commit_from_file(model).map_err(failed("load the graph"))?;
        let placement = placement::of(&inner)?;
        if let Some(node) = placement.nodes.iter().find(|node| node.ep != Ep::Cpu) {
            let message = format!("node {} went to {}", node.name, node.ep);
            return Err(DeviceError::Ort { what: "keep the graph on the CPU", message });
        }
        Ok(Self { inner, placement })
    }

    /// Where its nodes went.
    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    pub(super) fn ptr(&self) -> *mut ort_sys::OrtSession {
        self.inner.ptr().cast_mut()
    }
}
