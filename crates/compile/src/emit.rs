//! Where a lowering writes: a graph under construction and the file of its weights, filled together tensor by tensor.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use half::f16;
use narthex_graph::{
    Builder, Graph,
    build::External,
    onnx::external::{ExternalWriter, Place},
};
use narthex_spec::{DType, Recipe, manifest::FileRange, progress::Stage};
use rayon::prelude::*;

use crate::{
    checkpoint::{Encoding, Weight, WeightSource},
    error::CompileError,
    package::HashedFile,
    quant::{
        Plan, Scaling, Storage,
        block::{Factors, QuantRow, quantize_w4, quantize_w8, quantize_w8_zeros},
    },
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
    pub(crate) data: ExternalWriter<HashedFile>,
    /// Counts written tensors.
    pub(crate) stage: &'a Stage<'a>,
    /// Set when the job is to stop.
    pub(crate) cancel: &'a AtomicBool,
    /// Tensors written so far.
    pub(crate) written: u64,
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

    /// Completes the data file.
    pub(crate) fn close(self) -> Result<(), CompileError> {
        let path = self.data_file.into();
        let file = self.data.finish().map_err(|source| CompileError::Write { path, source })?;
        file.sync()
    }

    /// A weight that must have this shape.
    pub(crate) fn weight(&self, name: &str, shape: &[usize]) -> Result<Weight<'a>, CompileError> {
        let weight = self.weights.weight(name)?;
        weight.expect_shape(shape)?;
        Ok(weight)
    }

    /// Writes bytes to the data file.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<Place, CompileError> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(CompileError::Cancelled);
        }
        let place = self
            .data
            .write(bytes)
            .map_err(|source| CompileError::Write { path: self.data_file.into(), source })?;
        self.written += 1;
        self.stage.advance(self.written);
        Ok(place)
    }

    /// Declares a tensor in the activations' type, and writes it unless an earlier graph did.
    pub(crate) fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        values: impl FnOnce(&Self) -> Result<Vec<f32>, CompileError>,
    ) -> Result<String, CompileError> {
        let (dtype, key) = (self.compute, (name.to_owned(), self.compute));
        let place = match self.places.plain.get(&key) {
            Some(place) => *place,
            None => {
                let values = values(self)?;
                let place = self.write(&encoded(&values, dtype))?;
                self.places.plain.insert(key, place);
                place
            }
        };
        Ok(self.external(name, dtype, shape, place))
    }

    /// Writes values in single precision, which no graph need declare.
    pub(crate) fn place(
        &mut self,
        name: &str,
        values: impl FnOnce() -> Vec<f32>,
    ) -> Result<Place, CompileError> {
        let place = self.write(bytemuck::cast_slice(&values()))?;
        self.places.plain.insert((name.to_owned(), DType::F32), place);
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
            let mut values = e.weight(name, &[length])?.to_f32();
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

    /// Weights of one width, stacked row upon row, quantised and written unless an earlier graph did.
    pub(crate) fn quantize(
        &mut self,
        names: &[String],
        cols: usize,
        storage: Storage,
    ) -> Result<Quantized, CompileError> {
        let key = names.join("+");
        if let Some(known) = self.places.quantized.get(&key) {
            return Ok(*known);
        }
        let quantized = self.write_quantized(names, cols, storage)?;
        self.places.quantized.insert(key, quantized);
        Ok(quantized)
    }

    fn write_quantized(
        &mut self,
        names: &[String],
        cols: usize,
        storage: Storage,
    ) -> Result<Quantized, CompileError> {
        let mut all = QuantRow::default();
        for name in names {
            for row in self.quantized_rows(name, cols, storage)? {
                all.quants.extend_from_slice(&row.quants);
                all.scales.extend_from_slice(&row.scales);
                all.zeros.extend_from_slice(&row.zeros);
            }
        }
        let quants = self.write(&all.quants)?;
        let scales = self.write(bytemuck::cast_slice(&all.scales))?;
        let zeros = if all.zeros.is_empty() { None } else { Some(self.write(&all.zeros)?) };
        Ok(Quantized { storage, quants, scales, zeros })
    }

    /// A weight's rows, scaled and quantised.
    fn quantized_rows(
        &self,
        name: &str,
        cols: usize,
        storage: Storage,
    ) -> Result<Vec<QuantRow>, CompileError> {
        let rows = self.plan.get(name).map_or(0, |planned| planned.rows);
        let weight = self.weight(name, &[rows, cols])?;
        let (block, steps) = (self.recipe.block, steps(weight.encoding));
        let factors = self.scaling.factors(name).map(|columns| Factors::new(columns, block));
        let divisors = self.scaling.divisors(name);
        let quantized = |buffer: &mut Vec<f32>, row| {
            weight.read_row(row, buffer);
            if let Some(factors) = &factors {
                factors.multiply(buffer);
            }
            if let Some(divisor) = divisors.and_then(|all| all.get(row)) {
                buffer.iter_mut().for_each(|x| *x /= divisor);
            }
            match storage {
                Storage::W4 => quantize_w4(buffer, block),
                Storage::W8Zeros => quantize_w8_zeros(buffer, block, steps, factors.as_ref()),
                Storage::W8 | Storage::F32 => quantize_w8(buffer, block),
            }
        };
        Ok((0..rows).into_par_iter().map_init(|| vec![0.0; cols], quantized).collect())
    }
}

/// Steps over a block's range in the encodings that have fewer than 8 bits.
fn steps(encoding: Encoding) -> Option<u8> {
    match encoding {
        Encoding::Q4_0 | Encoding::Q4_1 | Encoding::Q4K => Some(15),
        Encoding::Q5_0 | Encoding::Q5_1 | Encoding::Q5K => Some(31),
        Encoding::Q6K => Some(63),
        Encoding::F32 | Encoding::F16 | Encoding::Bf16 | Encoding::Q8_0 => None,
    }
}
