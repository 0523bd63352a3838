//! The emitter: the graph under construction and the file of its weights, which are written together.
//!
//! Large weights are processed in pieces, so that none is decoded as a whole: see `stream`. A dry run produces the same
//! graph and the same offsets, but reads and writes no weight.

mod rounded;
mod stream;

use std::{collections::BTreeMap, sync::atomic::AtomicBool};

use half::f16;
use narthex_checkpoint::{Weight, WeightSource};
use narthex_graph::{
    Graph,
    build::External,
    onnx::external::{ByteRange, ExternalWriter},
    typed::{Scope, Tensor, TypedBuilder},
};
use narthex_spec::{BlockSize, DType, Recipe, manifest::FileRange, progress::Stage};

pub(crate) use self::{
    rounded::{RoundedWeights, RowShape},
    stream::{ScaledWeight, StackedRows, WeightSink, pieces},
};
use crate::{
    error::{CompileError, Result},
    quant::{ActivationRanges, Plan, Scaling, Storage},
};

/// Operator sets of every graph whose weights need no later ones.
const OPSETS: [(&str, i64); 2] = [("", 20), ("com.microsoft", 1)];

/// Operator sets of graphs with `DequantizeLinear`, which supports 4 and 16 bits since opset 21.
const INTEGER_OPSETS: [(&str, i64); 2] = [("", 21), ("com.microsoft", 1)];

/// A lowering in progress.
pub(crate) struct Emitter<'a> {
    /// The graph under construction.
    pub(crate) graph: TypedBuilder,
    /// The checkpoint's weights.
    pub(crate) weights: &'a dyn WeightSource,
    /// The storage of each linear weight.
    pub(crate) plan: &'a Plan,
    /// Factors of channels from calibration; empty without calibration.
    pub(crate) scaling: &'a Scaling,
    /// Weights that have been rounded.
    pub(crate) rounded: &'a RoundedWeights,
    /// Measured activations around linear layers; empty without integer activations.
    pub(crate) ranges: &'a ActivationRanges,
    /// Block size, accuracy level and passes.
    pub(crate) recipe: &'a Recipe,
    /// Name of the weights file, relative to the package.
    pub(crate) data_file: &'a str,
    /// The weights file.
    pub(crate) data: ExternalWriter<WeightSink>,
    /// Reports the bytes written.
    pub(crate) stage: &'a Stage<'a>,
    /// Set when the job must stop.
    pub(crate) cancel: &'a AtomicBool,
    /// Tensors in the weights file, which all graphs of a package share.
    pub(crate) written: WrittenTensors,
    /// Element type of activations.
    pub(crate) compute: DType,
}

/// Tensors of the weights file that a later graph may reuse, by name.
#[derive(Default)]
pub(crate) struct WrittenTensors {
    quantized: BTreeMap<String, QuantizedWeight>,
    plain: BTreeMap<(String, DType), ByteRange>,
    /// Weights of each product, by the path of its layer: `/layers.3/attn/qkv_proj`.
    pub(crate) products: BTreeMap<String, Vec<String>>,
}

/// A quantised weight in the weights file.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedWeight {
    pub(crate) storage: Storage,
    pub(crate) quants: ByteRange,
    pub(crate) scales: ByteRange,
    pub(crate) zeros: Option<ByteRange>,
    /// Offsets in half precision, `[blocks, rows]`.
    pub(crate) offsets: Option<ByteRange>,
    /// Scales and zero points of whole rows, for graphs with fixed shapes.
    pub(crate) row_scales: Option<RowScales>,
}

/// Scales and zero points of a weight's rows in the weights file.
#[derive(Clone, Copy)]
pub(crate) struct RowScales {
    pub(crate) scales: ByteRange,
    pub(crate) zeros: ByteRange,
}

/// Returns the size of a tensor in bytes.
fn size(shape: &[usize], dtype: DType) -> u64 {
    shape.iter().map(|&extent| extent as u64).product::<u64>() * dtype.size() as u64
}

/// Encodes values as the bytes of `f32` or `f16` elements.
fn encoded(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        _ => bytemuck::cast_slice(values).to_vec(),
    }
}

/// Returns an empty graph.
pub(crate) fn new_graph(name: &str) -> TypedBuilder {
    TypedBuilder::new(name, &OPSETS)
}

impl<'a> Emitter<'a> {
    /// Begins another graph with the same weights.
    pub(crate) fn begin_graph(&mut self, name: &str) {
        let has_integers = self.recipe.block == BlockSize::Channel || self.recipe.activations.is_some();
        let opsets = if has_integers { &INTEGER_OPSETS } else { &OPSETS };
        self.graph = TypedBuilder::new(name, opsets);
    }

    /// Checks the graph under construction and returns it; the next graph is empty.
    pub(crate) fn finish_graph(&mut self) -> Result<Graph> {
        let graph = std::mem::replace(&mut self.graph, new_graph("")).finish();
        graph.check()?;
        Ok(graph)
    }

    /// Completes the weights file and returns its length in bytes.
    pub(crate) fn close(self) -> Result<u64> {
        let path = self.data_file.into();
        let length = self.data.length();
        match self.data.finish().map_err(|source| CompileError::Write { path, source })? {
            WeightSink::File(file) => file.sync()?,
            WeightSink::Discard => {}
        }
        Ok(length)
    }

    /// Returns a weight after a check of its shape.
    pub(crate) fn weight(&self, name: &str, shape: &[usize]) -> Result<Weight<'a>> {
        let weight = self.weights.weight(name)?;
        weight.expect_shape(shape)?;
        Ok(weight)
    }

    /// Returns every element of a small weight; fails if one is not finite.
    pub(crate) fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let values = self.weight(name, shape)?.to_f32();
        self.weights.check_finite(name, &values)?;
        Ok(values)
    }

    /// Declares a small tensor in the activations' type. Writes it unless an earlier graph did.
    pub(crate) fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        values: impl FnOnce(&Self) -> Result<Vec<f32>>,
    ) -> Result<Tensor> {
        let dtype = self.compute;
        let range = self.once(name, dtype, |e| {
            let bytes = if e.is_dry_run() { Vec::new() } else { encoded(&values(e)?, dtype) };
            e.stream(size(shape, dtype), |append| append(&bytes))
        })?;
        Ok(self.external(name, dtype, shape, range))
    }

    /// Declares a tensor that the file stores in the type `dtype`, with a cast if the activations have another type.
    /// ONNX Runtime folds the cast when it loads the graph. `write` is called unless an earlier graph wrote the tensor.
    pub(crate) fn stored(
        &mut self,
        scope: &Scope,
        dtype: DType,
        shape: &[usize],
        write: impl FnOnce(&mut Self) -> Result<ByteRange>,
    ) -> Result<Tensor> {
        let name = scope.to_string();
        let range = self.once(&name, dtype, write)?;
        let stored = self.external(&name, dtype, shape, range);
        if dtype == self.compute {
            return Ok(stored);
        }
        Ok(self.graph.cast(scope, stored, self.compute)?)
    }

    /// Returns the location where an earlier graph wrote this tensor, or calls `write` if none did.
    pub(crate) fn once(
        &mut self,
        name: &str,
        dtype: DType,
        write: impl FnOnce(&mut Self) -> Result<ByteRange>,
    ) -> Result<ByteRange> {
        if let Some(range) = self.written_range(name, dtype) {
            return Ok(range);
        }
        let range = write(self)?;
        self.written.plain.insert((name.to_owned(), dtype), range);
        Ok(range)
    }

    /// Returns a scalar constant in the activations' type.
    pub(crate) fn number(&mut self, value: f64) -> Tensor {
        match self.compute {
            DType::F16 => self.graph.half_scalar(f16::from_f64(value).to_bits()),
            _ => self.graph.scalar(value as f32),
        }
    }

    /// Adds `x · factor`; adds no node if the factor is 1.
    pub(crate) fn scale(&mut self, scope: &Scope, x: Tensor, factor: f64) -> Result<Tensor> {
        if factor == 1.0 {
            return Ok(x);
        }
        let factor = self.number(factor);
        Ok(self.graph.mul(scope, x, factor)?)
    }

    /// Returns the location of a tensor that has been written.
    pub(crate) fn written_range(&self, name: &str, dtype: DType) -> Option<ByteRange> {
        self.written.plain.get(&(name.to_owned(), dtype)).copied()
    }

    /// Returns a weight vector in the activations' type, scaled by calibration.
    pub(crate) fn vector(&mut self, name: &str, length: usize) -> Result<Tensor> {
        self.tensor(name, &[length], |e| {
            let mut values = e.values(name, &[length])?;
            e.scaling.divide(name, &mut values);
            Ok(values)
        })
    }

    /// Returns a vector of ones, stored under this name.
    pub(crate) fn ones(&mut self, name: &str, length: usize) -> Result<Tensor> {
        self.tensor(name, &[length], |_| Ok(vec![1.0; length]))
    }

    /// Returns some columns of a weight `[rows, cols]`, transposed to `[columns, rows]`.
    pub(crate) fn columns(
        &self,
        name: &str,
        [rows, cols]: [usize; 2],
        columns: &[usize],
    ) -> Result<Vec<f32>> {
        let weight = self.weight(name, &[rows, cols])?;
        let mut picked = vec![0.0; columns.len() * rows];
        let mut buffer = vec![0.0; cols];
        for row in 0..rows {
            weight.read_row(row, &mut buffer);
            self.weights.check_finite(name, &buffer)?;
            for (index, &column) in columns.iter().enumerate() {
                picked[index * rows + row] = buffer[column];
            }
        }
        Ok(picked)
    }

    /// Declares a tensor of the weights file in the graph.
    pub(crate) fn external(&mut self, name: &str, dtype: DType, shape: &[usize], range: ByteRange) -> Tensor {
        let at = External { file: self.data_file, offset: range.offset, length: range.length };
        self.graph.external(name, dtype, shape, at)
    }

    /// Returns a location in the weights file in the manifest's form.
    pub(crate) fn file_range(&self, range: ByteRange) -> FileRange {
        FileRange { file: self.data_file.to_owned(), offset: range.offset, length: range.length }
    }
}
