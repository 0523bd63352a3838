//! Rounds the weights of a decoder by GPTQ, with the inputs that its layers receive for the calibration text, or measures
//! what the nearest integers lose for these inputs. The layers are independent: each has the inputs that it has in the
//! model in 8 bits.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use narthex_spec::{BlockSize, progress::Stage};
use rayon::prelude::*;

use crate::{
    calibration::{
        CalibrationGraph, CalibrationModel, GraphRunner, MeanSquares, RunnerError, input_moments,
        input_squares, probe::SharedInput,
    },
    emit::{RoundedWeights, ScaledWeight, pieces},
    error::{CompileError, Result},
    quant::{
        Plan, Scaling,
        block::Form4,
        gptq::{Compensation, Moments, RoundedRow},
        plan::WeightPlan,
    },
};

/// Temporary file of the rounded weights, in the folder of the package.
const FILE: &str = "rounded";

/// A decoder whose weights are rounded.
pub(crate) struct WeightRounder<'a> {
    pub(crate) model: &'a CalibrationModel<'a>,
    /// Storage of the weights; those with 4 bits are rounded.
    pub(crate) plan: &'a Plan,
    pub(crate) scaling: &'a Scaling,
    pub(crate) block: BlockSize,
    /// Weights of each layer of the graph, by its path.
    pub(crate) products: &'a BTreeMap<String, Vec<String>>,
    /// Reports the number of rounded weights.
    pub(crate) stage: &'a Stage<'a>,
    pub(crate) cancel: &'a AtomicBool,
}

/// Rounded weights of a decoder, and what they lose.
pub(crate) struct Rounding {
    pub(crate) weights: RoundedWeights,
    /// Squared change of the outputs of each layer, relative to the square of the outputs, by its path.
    pub(crate) losses: BTreeMap<String, f64>,
}

impl WeightRounder<'_> {
    /// Rounds the weights. `graph` is the model's graph in 8 bits, in which the inputs of layers are measured.
    ///
    /// # Errors
    /// [`CompileError::Calibration`] if the inputs cannot be measured or are not finite, the errors of reading weights and
    /// of writing the temporary file, and [`CompileError::Cancelled`].
    pub(crate) fn round(
        &self,
        runner: &dyn GraphRunner,
        graph: CalibrationGraph<'_>,
        folder: &Path,
    ) -> Result<Rounding> {
        let mut rounded = RoundedWeights::create(&folder.join(FILE))?;
        let inputs = SharedInput::all(&graph.graph, |path| self.is_rounded(path));
        let mut errors = BTreeMap::new();
        let mut count = 0;
        let squares = input_moments(runner, self.model, &inputs, graph, &mut |input, moments| {
            let compensation = compensation(input, &moments)?;
            drop(moments);
            for layer in &input.layers {
                let mut error = 0.0;
                for name in self.weights_of(&layer.path) {
                    error += self.round_weight(name, &compensation, &mut rounded)?;
                    count += 1;
                    self.stage.advance(count);
                }
                errors.insert(layer.path.clone(), error);
            }
            Ok(())
        })?;
        Ok(Rounding { weights: rounded, losses: self.relative(errors, &squares) })
    }

    /// Measures what the layers lose if their weights are rounded to nearest. `graph` is the model's graph in 8 bits. Errors
    /// of different columns are taken as independent.
    ///
    /// # Errors
    /// As [`Self::round`].
    pub(crate) fn losses_of_nearest(
        &self,
        runner: &dyn GraphRunner,
        graph: CalibrationGraph<'_>,
    ) -> Result<BTreeMap<String, f64>> {
        let inputs = SharedInput::all(&graph.graph, |path| self.is_rounded(path));
        let MeanSquares { inputs: squares, outputs } = input_squares(runner, self.model, &inputs, graph)?;
        let mut errors = BTreeMap::new();
        let mut count = 0;
        for (input, squares) in inputs.iter().zip(&squares) {
            for layer in &input.layers {
                let mut error = 0.0;
                for name in self.weights_of(&layer.path) {
                    error += self.error_of_nearest(name, squares)?;
                    count += 1;
                    self.stage.advance(count);
                }
                errors.insert(layer.path.clone(), error);
            }
        }
        Ok(self.relative(errors, &outputs))
    }

    fn weights_of(&self, path: &str) -> &[String] {
        self.products.get(path).map(Vec::as_slice).unwrap_or_default()
    }

    /// Divides the errors of layers by the squares of all outputs; `squares` are those of one output.
    fn relative(
        &self,
        mut errors: BTreeMap<String, f64>,
        squares: &BTreeMap<String, f64>,
    ) -> BTreeMap<String, f64> {
        for (path, error) in &mut errors {
            let weights = self.weights_of(path).iter().filter_map(|name| self.plan.get(name));
            let rows: usize = weights.map(|weight| weight.rows).sum();
            let squares = squares.get(path).copied().unwrap_or(0.0) * rows as f64;
            *error /= squares.max(f64::MIN_POSITIVE);
        }
        errors
    }

    /// Returns `true` for a layer of which all weights have 4 bits.
    fn is_rounded(&self, path: &str) -> bool {
        self.products.get(path).is_some_and(|names| names.iter().all(|name| self.form(name).is_some()))
    }

    fn form(&self, name: &str) -> Option<Form4> {
        self.plan.storage(name)?.form_of_4_bits()
    }

    /// Returns the squared change of the outputs of one weight for inputs of these mean squares, if it is rounded to nearest.
    fn error_of_nearest(&self, name: &str, squares: &[f32]) -> Result<f64> {
        let Some(NarrowWeight { weight, cols, rows, block, form }) = self.open(name)? else { return Ok(0.0) };
        let mut error = 0.0;
        pieces(0..rows, cols).try_for_each(|piece| {
            let values = self.decoded(&weight, piece)?;
            let errors: Vec<f64> =
                values.par_chunks(cols.max(1)).map(|row| form.error(row, block, squares)).collect();
            // The order of the sum is that of the rows, so that it is always the same.
            error += errors.iter().sum::<f64>();
            Ok::<_, CompileError>(())
        })?;
        Ok(error)
    }

    /// Rounds one weight. Returns the squared change of its outputs over the text.
    fn round_weight(
        &self,
        name: &str,
        compensation: &Compensation,
        rounded: &mut RoundedWeights,
    ) -> Result<f64> {
        let Some(NarrowWeight { weight, cols, rows, block, form }) = self.open(name)? else { return Ok(0.0) };
        let mut error = 0.0;
        rounded.begin(name);
        pieces(0..rows, cols).try_for_each(|piece| {
            let mut values = self.decoded(&weight, piece)?;
            let rows: Vec<RoundedRow> = compensation.round(&mut values, block, form);
            error += rows.iter().map(|row| row.error).sum::<f64>();
            rounded.append(rows.iter().map(|row| &row.row))
        })?;
        Ok(error)
    }

    /// Opens a weight that is rounded; `None` for another one.
    fn open(&self, name: &str) -> Result<Option<NarrowWeight<'_>>> {
        let (Some(planned), Some(form)) = (self.plan.get(name), self.form(name)) else { return Ok(None) };
        let WeightPlan { rows, cols, .. } = *planned;
        let block = self.block.elements(cols);
        let weights = self.model.checkpoint.weights.as_ref();
        let weight = ScaledWeight::open(weights, self.scaling, name, [rows, cols], block)?;
        Ok(Some(NarrowWeight { weight, rows, cols, block, form }))
    }

    /// Decodes and scales some rows in parallel.
    fn decoded(&self, weight: &ScaledWeight<'_>, rows: Range<usize>) -> Result<Vec<f32>> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(CompileError::Cancelled);
        }
        Ok(weight.read_rows(rows)?)
    }
}

/// A weight that is rounded to 4 bits.
struct NarrowWeight<'a> {
    weight: ScaledWeight<'a>,
    rows: usize,
    cols: usize,
    /// Elements of a block.
    block: usize,
    form: Form4,
}

/// Returns the compensation for the layers that read an input.
fn compensation(input: &SharedInput, moments: &Moments) -> Result<Compensation> {
    Compensation::new(moments).ok_or_else(|| {
        let layers: Vec<&str> = input.layers.iter().map(|layer| layer.path.as_str()).collect();
        let layers = layers.join(" and ");
        let reason = format!("the inputs of {layers} have no second moments that GPTQ can use");
        CompileError::Calibration(RunnerError {
            reason,
            hint: Some("compile with --rounding nearest".to_owned()),
        })
    })
}
