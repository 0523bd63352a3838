//! A single run of a graph with given inputs, for callers that need a graph's outputs but no engine.
//!
//! This module is independent of the computation of a graph and the meaning of its inputs.

use std::{ffi::CString, path::Path};

use narthex_spec::{DType, Elements, Feed, Fetch};

use crate::{
    ep::Device,
    error::DeviceError,
    inventory,
    ort::{Binding, Session, SessionOptions, Tensor},
    runtime::Runtime,
};

pub use crate::ort::CpuOperators;

/// Loads a graph on the CPU, runs it once with ONNX Runtime's own operators, and returns outputs. `threads` has the
/// same meaning as for an executor.
///
/// # Errors
/// [`DeviceError::Ort`] for a graph that ONNX Runtime refuses, and for names and shapes that do not match the graph's;
/// [`DeviceError::Package`] for an input whose number of elements does not match its shape.
pub fn run(
    runtime: &Runtime,
    graph: &Path,
    threads: usize,
    inputs: Vec<Feed>,
    outputs: &[Fetch],
) -> Result<Vec<Vec<f32>>, DeviceError> {
    run_with(runtime, graph, CpuRun { threads, operators: CpuOperators::OnnxRuntime }, inputs, outputs)
}

/// Settings of one run on the CPU.
#[derive(Debug, Clone, Copy)]
pub struct CpuRun {
    /// Number of threads, with the same meaning as for an executor.
    pub threads: usize,
    /// Implementation of the operators.
    pub operators: CpuOperators,
}

/// Loads a graph on the CPU, runs it once and returns outputs.
///
/// # Errors
/// The errors of [`run`].
pub fn run_with(
    runtime: &Runtime,
    graph: &Path,
    settings: CpuRun,
    mut inputs: Vec<Feed>,
    outputs: &[Fetch],
) -> Result<Vec<Vec<f32>>, DeviceError> {
    let options = SessionOptions::on(&Device::Cpu, inventory::threads(settings.threads));
    let options = SessionOptions { operators: settings.operators, ..options };
    let mut session = Session::open(runtime, graph, options)?;
    let mut results = Vec::with_capacity(outputs.len());
    for output in outputs {
        results.push(vec![0.0f32; elements(&output.shape)?]);
    }

    let mut binding = Binding::new(&session).map_err(DeviceError::binding)?;
    for input in &mut inputs {
        let name = name(&input.name)?;
        let shape = extents(&input.shape);
        let expected = elements(&input.shape)?;
        let found = input.elements.len();
        if expected != found {
            return Err(DeviceError::package(format!("{expected} elements of {}", input.name), found));
        }
        let tensor = match &mut input.elements {
            Elements::F32(values) => Tensor::new(values, DType::F32, &shape),
            Elements::I32(values) => Tensor::new(values, DType::I32, &shape),
            Elements::I64(values) => Tensor::new(values, DType::I64, &shape),
            Elements::Bool(values) => Tensor::new(values, DType::Bool, &shape),
        };
        // SAFETY: the elements belong to `inputs`, which outlives the binding and is not accessed until the run has
        // ended.
        unsafe { binding.input(&name, tensor) }.map_err(|error| DeviceError::step("take an input", error))?;
    }

    for (output, values) in outputs.iter().zip(&mut results) {
        let shape = extents(&output.shape);
        // SAFETY: as above; the results are not resized or moved until the run has ended.
        unsafe { binding.output(&name(&output.name)?, Tensor::new(values, DType::F32, &shape)) }
            .map_err(|error| DeviceError::step("take an output", error))?;
    }

    binding.run(&mut session).map_err(|error| DeviceError::step("run the graph", error))?;
    drop(binding);
    Ok(results)
}

fn elements(shape: &[usize]) -> Result<usize, DeviceError> {
    let product = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
    product.ok_or_else(|| DeviceError::package("a tensor that fits into memory", format!("{shape:?}")))
}

fn extents(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|&extent| extent as i64).collect()
}

fn name(name: &str) -> Result<CString, DeviceError> {
    CString::new(name)
        .map_err(|_| DeviceError::package("tensor names without zero bytes", format!("{name:?}")))
}
