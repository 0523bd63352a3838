//! The compiler's port to ONNX Runtime: what it measures for a calibration runs on the CPU.

use std::path::Path;

use narthex_compile::quant::calibrate::{GraphRunner, RunnerError};
use narthex_device::once;
use narthex_spec::{Feed, Fetch, ProgressSink};

use crate::{cancel::Cancel, error::Error, gateway::Inner};

/// Runs graphs on the CPU; ONNX Runtime is loaded, and installed where need be, for the first of them.
pub(crate) struct CpuRunner<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) progress: &'a dyn ProgressSink,
    pub(crate) cancel: &'a Cancel,
}

impl GraphRunner for CpuRunner<'_> {
    fn run(&self, graph: &Path, feeds: Vec<Feed>, wanted: &[Fetch]) -> Result<Vec<Vec<f32>>, RunnerError> {
        let failed = |error: Error| RunnerError { reason: error.to_string(), hint: error.hint() };
        let runtime = self.inner.runtime(self.progress, self.cancel).map_err(failed)?;
        once::run(runtime, graph, self.inner.config.threads, feeds, wanted)
            .map_err(|error| failed(error.into()))
    }
}
