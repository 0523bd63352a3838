//! Where a lowering writes: a graph under construction and the file of its weights, filled together tensor by tensor.
//!
//! Large weights go through in pieces, so that no whole one is ever held decoded: see `stream`. On paper the graph and
//! every place in the file come out the same, but no weight is read and none is written.

mod stream;

use std::{collections::BTreeMap, sync::atomic::AtomicBool};

use half::f16;
use narthex_checkpoint::{Weight, WeightSource};
use narthex_graph::{
    Builder, Element, Graph,
    build::External,
    onnx::external::{ExternalWriter, Place},
};
use narthex_spec::{DType, Recipe, manifest::FileRange, progress::Stage};

pub(crate) use self::stream::{Data, pieces};
use crate::{
    error::CompileError,
    quant::{Plan, Scaling, Storage},
};

/// A lowering under way.
pub(crate) struct Emitter<'a> {
    /// The graph so far.
    pub(crate) graph: Builder,
    /// The checkpoint's weights.
    pub(crate) weights: &'a dyn WeightSource,
    /// Which storage each linear weight gets.
    pub(crate) plan: &'a Plan,
    /// What channels are scaled by; empty where nothing was measured.
    pub(crate) scaling: &'a Scaling,
    /// Block size and accuracy level.
    pub(crate) recipe: &'a Recipe,
    /// The weights' file name, relative to the package.
    pub(crate) data_file: &'a str,
    /// The weights' file.
    pub(crate) data: ExternalWriter<Data>,
    /// Counts written bytes.
    pub(crate) stage: &'a Stage<'a>,
    /// Set when the job is to stop.
    pub(crate) cancel: &'a AtomicBool,
    /// What was written, by role; graphs of one package share it.
    pub(crate) places: Places,
    /// Element type of activations.
    pub(crate) compute: DType,
}

/// Tensors of the data file that another graph may want again.
#[derive(Default)]
pub(crate) struct Places {
    quantized: BTreeMap<String, Quantized>,
    plain: BTreeMap<(String, DType), Place>,
}

/// A quantised weight in the data file.
#[derive(Clone, Copy)]
pub(crate) struct Quantized {
    pub(crate) storage: Storage,
    pub(crate) quants: Place,
    pub(crate) scales: Place,
    pub(crate) zeros: Option<Place>,
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

impl<'a> Emitter<'a> {
    /// The graph so far, checked; another one begins over the same weights.
    pub(crate) fn next_graph(&mut self, next: Builder) -> Result<Graph, CompileError> {
        let graph = std::mem::replace(&mut self.graph, next).finish();
        graph.check()?;
        Ok(graph)
    }

    /// Completes the data file, and gives its length in bytes.
    pub(crate) fn close(self) -> Result<u64, CompileError> {
        let (path, length) = (self.data_file.into(), self.data.length());
        match self.data.finish().map_err(|source| CompileError::Write { path, source })? {
            Data::File(file) => file.sync()?,
            Data::Paper => {}
        }
        Ok(length)
    }

    /// A weight that must have this shape.
    pub(crate) fn weight(&self, name: &str, shape: &[usize]) -> Result<Weight<'a>, CompileError> {
        let weight = self.weights.weight(name)?;
        weight.expect_shape(shape)?;
        Ok(weight)
    }

    /// Every element of a small weight.
    pub(crate) fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, CompileError> {
        let values = self.weight(name, shape)?.to_f32();
        self.weights.check_finite(name, &values)?;
        Ok(values)
    }

    /// Declares a small tensor in the activations' type, and writes it unless an earlier graph did.
    pub(crate) fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        values: impl FnOnce(&Self) -> Result<Vec<f32>, CompileError>,
    ) -> Result<String, CompileError> {
        let dtype = self.compute;
        let place = self.once(name, dtype, |e| {
            let bytes = if e.on_paper() { Vec::new() } else { encoded(&values(e)?, dtype) };
            e.stream(size(shape, dtype), |append| append(&bytes))
        })?;
        Ok(self.external(name, dtype, shape, place))
    }

    /// Declares a tensor that is stored in this type, as activations are computed with: cast where that is another one,
    /// which ONNX Runtime does once, when it loads the graph. `write` is called unless an earlier graph wrote it.
    pub(crate) fn stored(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        write: impl FnOnce(&mut Self) -> Result<Place, CompileError>,
    ) -> Result<String, CompileError> {
        let place = self.once(name, dtype, write)?;
        let stored = self.external(name, dtype, shape, place);
        if dtype == self.compute {
            return Ok(stored);
        }
        let to = Element::from(self.compute).code();
        Ok(self.graph.op_with(name, "Cast", &[&stored], &[("to", i64::from(to).into())]))
    }

    /// The place of what an earlier graph wrote under this name, or of what is written now.
    pub(crate) fn once(
        &mut self,
        name: &str,
        dtype: DType,
        write: impl FnOnce(&mut Self) -> Result<Place, CompileError>,
    ) -> Result<Place, CompileError> {
        if let Some(place) = self.place_of(name, dtype) {
            return Ok(place);
        }
        let place = write(self)?;
        self.places.plain.insert((name.to_owned(), dtype), place);
        Ok(place)
    }

    /// A scalar constant in the activations' type.
    pub(crate) fn number(&mut self, value: f64) -> String {
        match self.compute {
            DType::F16 => self.graph.half_scalar(f16::from_f64(value).to_bits()),
            _ => self.graph.scalar(value as f32),
        }
    }

    /// Where a tensor was written.
    pub(crate) fn place_of(&self, name: &str, dtype: DType) -> Option<Place> {
        self.places.plain.get(&(name.to_owned(), dtype)).copied()
    }

    /// A weight vector in the activations' type, scaled.
    pub(crate) fn vector(&mut self, name: &str, length: usize) -> Result<String, CompileError> {
        self.tensor(name, &[length], |e| {
            let mut values = e.values(name, &[length])?;
            e.scaling.divide(name, &mut values);
            Ok(values)
        })
    }

    /// Some columns of a weight `[rows, cols]`, transposed: `[columns, rows]`.
    pub(crate) fn columns(
        &self,
        name: &str,
        (rows, cols): (usize, usize),
        columns: &[usize],
    ) -> Result<Vec<f32>, CompileError> {
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

    /// Declares a tensor of the data file to the graph.
    pub(crate) fn external(&mut self, name: &str, dtype: DType, shape: &[usize], place: Place) -> String {
        let at = External { file: self.data_file, offset: place.offset, length: place.length };
        self.graph.external(name, dtype, shape, at)
    }

    /// A place in the data file, as the manifest writes it.
    pub(crate) fn range(&self, place: Place) -> FileRange {
        FileRange { file: self.data_file.to_owned(), offset: place.offset, length: place.length }
    }
}
