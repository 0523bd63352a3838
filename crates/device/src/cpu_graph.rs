//! A graph on the CPU whose inputs decide the shapes of its outputs, for models without an engine.
//!
//! This module is independent of the computation of a graph and the meaning of its inputs.

use std::path::Path;

use narthex_engine::executor::StepError;
use narthex_spec::Feed;

use crate::{
    ep::Device,
    error::DeviceError,
    inventory,
    ort::{CpuOperators, Session, SessionOptions},
    placement::Placement,
    runtime::Runtime,
};

pub use crate::ort::OutputTensor;

/// A loaded graph.
pub struct CpuGraph {
    session: Session,
}

impl CpuGraph {
    /// Loads a graph on the CPU, with the operators of ONNX Runtime. `threads` has the same meaning as for an executor.
    ///
    /// # Errors
    /// [`DeviceError::Ort`] for a graph that ONNX Runtime refuses.
    pub fn open(runtime: &Runtime, graph: &Path, threads: usize) -> Result<Self, DeviceError> {
        let options = SessionOptions::on(&Device::Cpu, inventory::threads(threads));
        let options = SessionOptions { operators: CpuOperators::OnnxRuntime, ..options };
        Ok(Self { session: Session::open(runtime, graph, options)? })
    }

    /// Returns the names of the graph's inputs, in order.
    pub fn inputs(&self) -> Vec<&str> {
        self.session.input_names()
    }

    /// Returns the names of the graph's outputs, in order.
    pub fn outputs(&self) -> Vec<&str> {
        self.session.output_names()
    }

    /// Returns the placement of the graph's nodes.
    pub fn placement(&self) -> &Placement {
        self.session.placement()
    }

    /// Runs the graph and returns the outputs of these names.
    ///
    /// # Errors
    /// [`StepError::Device`] for names, shapes and elements that the graph does not have, and for an output of another
    /// type than `f32`, `i32` and `i64`.
    pub fn run(&mut self, inputs: Vec<Feed>, outputs: &[&str]) -> Result<Vec<OutputTensor>, StepError> {
        let tensors = self.session.run(inputs, outputs);
        tensors.map_err(|message| StepError::Device { message: format!("run the graph: {message}") })
    }
}
