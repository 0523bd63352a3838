//! The compiler's port to ONNX Runtime: runs calibration graphs on the CPU.

use std::path::Path;

use narthex_compile::calibration::{GraphRunner, RunnerError};
use narthex_device::single_run;
use narthex_spec::{Feed, Fetch, ProgressSink};

use crate::{cancel::Cancel, library::Library, load::runtime_choice::cpu_runtime};

/// Runs graphs on the CPU. Loads ONNX Runtime for the first graph, and installs it on first need.
pub(super) struct CpuRunner<'a> {
    pub(super) library: &'a Library,
    pub(super) progress: &'a dyn ProgressSink,
    pub(super) cancel: &'a Cancel,
}

impl GraphRunner for CpuRunner<'_> {
    fn run(&self, graph: &Path, feeds: Vec<Feed>, fetches: &[Fetch]) -> Result<Vec<Vec<f32>>, RunnerError> {
        cpu_runtime(self.library, self.progress, self.cancel)
            .and_then(|runtime| {
                let threads = self.library.config.threads;
                Ok(single_run::run(runtime, graph, threads, feeds, fetches)?)
            })
            .map_err(|error| RunnerError { reason: error.to_string(), hint: error.hint() })
    }
}
