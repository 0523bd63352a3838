//! The emitter: the graph under construction and the file of its weights, which are written together.
//!
//! Large weights pass through in pieces, so that none is ever decoded as a whole: see `stream`. In a dry run, the graph
//! and the offsets in the file come out the same, but no weight is read or written.

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
use narthex_spec::{DType, Recipe, manifest::FileRange, progress::Stage};

pub(crate) use self::stream::{WeightSink, pieces};
use crate::{
    error::{CompileError, Result},
    quant::{Plan, Scaling, Storage},
};

/// Operator sets of every graph.
const OPSETS: [(&str, i64); 2] = [("", 20), ("com.microsoft", 1)];

/// A lowering in progress.
pub(crate) struct Emitter<'a> {
    /// The graph under construction.
    pub(crate) graph: TypedBuilder,
    /// The checkpoint's weights.
    pub(crate) weights: &'a dyn WeightSource,
    /// The storage of each linear weight.
    pub(crate) plan: &'a Plan,
    /// The factors that calibration gives channels; empty without calibration.
    pub(crate) scaling: &'a Scaling,
    /// Block size, accuracy level and passes.
    pub(crate) recipe: &'a Recipe,
    /// Name of the weights file, relative to the package.
    pub(crate) data_file: &'a str,
    /// The weights file.
    pub(crate) data: ExternalWriter<WeightSink>,
    /// Reports the bytes written.
    pub(crate) stage: &'a Stage<'a>,
    /// Set when the job is to stop.
    pub(crate) cancel: &'a AtomicBool,
    /// Tensors in the weights file, which all graphs of a package share.
    pub(crate) written: WrittenTensors,
    /// Element type of activations.
    pub(crate) compute: DType,
}

/// Tensors of the weights file that a later graph may use again, by name.
#[derive(Default)]
pub(crate) struct WrittenTensors {
    quantized: BTreeMap<String, Quantized>,
    plain: BTreeMap<(String, DType), ByteRange>,
}

/// A quantised weight in the weights file.
#[derive(Clone, Copy)]
pub(crate) struct Quantized {
    pub(crate) storage: Storage,
    pub(crate) quants: ByteRange,
    pub(crate) scales: ByteRange,
    pub(crate) zeros: Option<ByteRange>,
}

/// Bytes of a tensor.
fn size(shape: &[usize], dtype: DType) -> u64 {
    shape.iter().map(|&extent| extent as u64).product::<u64>() * dtype.size() as u64
}

/// Values as the bytes of `f32` or `f16` elements.
fn encoded(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        _ => bytemuck::cast_slice(values).to_vec(),
    }
}

/// An empty graph.
pub(crate) fn new_graph(name: &str) -> TypedBuilder {
    TypedBuilder::new(name, &OPSETS)
}

impl<'a> Emitter<'a> {
    /// Begins another graph over the same weights.
    pub(crate) fn begin_graph(&mut self, name: &str) {
        self.graph = new_graph(name);
    }

    /// Returns the graph under construction, checked; the next one is empty.
    pub(crate) fn finish_graph(&mut self) -> Result<Graph> {
        let graph = std::mem::replace(&mut self.graph, new_graph("")).finish();
        graph.check()?;
        Ok(graph)
    }

    /// Completes the weights file and returns its length in bytes.
    pub(crate) fn close(self) -> Result<u64> {
        let (path, length) = (self.data_file.into(), self.data.length());
        match self.data.finish().map_err(|source| CompileError::Write { path, source })? {
            WeightSink::File(file) => file.sync()?,
            WeightSink::Discard => {}
        }
        Ok(length)
    }

    /// A weight, checked for its shape.
    pub(crate) fn weight(&self, name: &str, shape: &[usize]) -> Result<Weight<'a>> {
        let weight = self.weights.weight(name)?;
        weight.expect_shape(shape)?;
        Ok(weight)
    }

    /// Every element of a small weight.
    pub(crate) fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let values = self.weight(name, shape)?.to_f32();
        self.weights.check_finite(name, &values)?;
        Ok(values)
    }

    /// Declares a small tensor in the activations' type, and writes it unless an earlier graph did.
    pub(crate) fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        values: impl FnOnce(&Self) -> Result<Vec<f32>>,
    ) -> Result<Tensor> {
        let dtype = self.compute;
        let place = self.once(name, dtype, |e| {
            let bytes = if e.is_dry_run() { Vec::new() } else { encoded(&values(e)?, dtype) };
            e.stream(size(shape, dtype), |append| append(&bytes))
        })?;
        Ok(self.external(name, dtype, shape, place))
    }

    /// Declares a tensor that the file stores in this type, cast to the activations' type where that differs. ONNX
    /// Runtime folds the cast when it loads the graph. `write` is called unless an earlier graph wrote the tensor.
    pub(crate) fn stored(
        &mut self,
        scope: &Scope,
        dtype: DType,
        shape: &[usize],
        write: impl FnOnce(&mut Self) -> Result<ByteRange>,
    ) -> Result<Tensor> {
        let name = scope.to_string();
        let place = self.once(&name, dtype, write)?;
        let stored = self.external(&name, dtype, shape, place);
        if dtype == self.compute {
            return Ok(stored);
        }
        Ok(self.graph.cast(scope, stored, self.compute)?)
    }

    /// The place where an earlier graph wrote this tensor, or where it is written now.
    pub(crate) fn once(
        &mut self,
        name: &str,
        dtype: DType,
        write: impl FnOnce(&mut Self) -> Result<ByteRange>,
    ) -> Result<ByteRange> {
        if let Some(place) = self.place_of(name, dtype) {
            return Ok(place);
        }
        let place = write(self)?;
        self.written.plain.insert((name.to_owned(), dtype), place);
        Ok(place)
    }

    /// A scalar constant in the activations' type.
    pub(crate) fn number(&mut self, value: f64) -> Tensor {
        match self.compute {
            DType::F16 => self.graph.half_scalar(f16::from_f64(value).to_bits()),
            _ => self.graph.scalar(value as f32),
        }
    }

    /// `x · factor`; nothing is added for a factor of 1.
    pub(crate) fn scale(&mut self, scope: &Scope, x: Tensor, factor: f64) -> Result<Tensor> {
        if factor == 1.0 {
            return Ok(x);
        }
        let factor = self.number(factor);
        Ok(self.graph.mul(scope, x, factor)?)
    }

    /// The place of a tensor that has been written.
    pub(crate) fn place_of(&self, name: &str, dtype: DType) -> Option<ByteRange> {
        self.written.plain.get(&(name.to_owned(), dtype)).copied()
    }

    /// A weight vector in the activations' type, scaled by calibration.
    pub(crate) fn vector(&mut self, name: &str, length: usize) -> Result<Tensor> {
        self.tensor(name, &[length], |e| {
            let mut values = e.values(name, &[length])?;
            e.scaling.divide(name, &mut values);
            Ok(values)
        })
    }

    /// A vector of ones, stored under this name.
    pub(crate) fn ones(&mut self, name: &str, length: usize) -> Result<Tensor> {
        self.tensor(name, &[length], |_| Ok(vec![1.0; length]))
    }

    /// Some columns of a weight `[rows, cols]`, transposed: `[columns, rows]`.
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

    /// Declares a tensor of the weights file to the graph.
    pub(crate) fn external(&mut self, name: &str, dtype: DType, shape: &[usize], place: ByteRange) -> Tensor {
        let at = External { file: self.data_file, offset: place.offset, length: place.length };
        self.graph.external(name, dtype, shape, at)
    }

    /// A place in the weights file, as the manifest writes it.
    pub(crate) fn range(&self, place: ByteRange) -> FileRange {
        FileRange { file: self.data_file.to_owned(), offset: place.offset, length: place.length }
    }
}
