//! The compiler's port to ONNX Runtime: what it measures for a calibration runs on the CPU.

use std::path::Path;

use narthex_compile::quant::calibrate::{Feed, FeedData, Fetch, GraphRunner, RunnerError};
use narthex_device::once::{self, Elements, Input, Output};
use narthex_spec::ProgressSink;

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
        let inputs = feeds.into_iter().map(input).collect();
        let outputs: Vec<Output> = wanted.iter().map(output).collect();
        once::run(runtime, graph, self.inner.config.threads, inputs, &outputs)
            .map_err(|error| failed(error.into()))
    }
}

fn input(feed: Feed) -> Input {
    let elements = match feed.data {
        FeedData::F32(values) => Elements::F32(values),
        FeedData::I32(values) => Elements::I32(values),
        FeedData::I64(values) => Elements::I64(values),
    };
    Input { name: feed.name, shape: feed.shape, elements }
}

fn output(fetch: &Fetch) -> Output {
    Output { name: fetch.name.clone(), shape: fetch.shape.clone() }
}
