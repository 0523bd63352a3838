//! Rounds the weights of a decoder by GPTQ, with the inputs that its layers receive for the calibration text. The layers
//! are independent: each is rounded for the inputs that it has in the model in 8 bits.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use narthex_checkpoint::CheckpointError;
use narthex_spec::{BlockSize, progress::Stage};
use rayon::prelude::*;

use crate::{
    calibration::{
        CalibrationGraph, CalibrationModel, GraphRunner, RunnerError, input_moments, probe::SharedInput,
    },
    emit::{RoundedWeights, ScaledWeight, pieces},
    error::{CompileError, Result},
    quant::{
        Plan, Scaling,
        block::Form4,
        gptq::{Compensation, Moments, RoundedRow},
        hybrid::LayerLoss,
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
    /// Loss of each layer.
    pub(crate) layers: Vec<LayerLoss>,
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
        let mut layers = Vec::new();
        let mut count = 0;
        let squares = input_moments(runner, self.model, &inputs, graph, &mut |input, moments| {
            let compensation = compensation(input, &moments)?;
            drop(moments);
            for layer in &input.layers {
                let weights = self.products.get(&layer.path).cloned().unwrap_or_default();
                let mut loss = 0.0;
                for name in &weights {
                    loss += self.round_weight(name, &compensation, &mut rounded)?;
                    count += 1;
                    self.stage.advance(count);
                }
                let bytes = weights.iter().map(|name| self.additional_bytes(name)).sum();
                layers.push(LayerLoss { path: layer.path.clone(), weights, loss, bytes, is_wide: false });
            }
            Ok(())
        })?;

        for layer in &mut layers {
            let rows = layer.weights.iter().filter_map(|name| self.plan.get(name)).map(|weight| weight.rows);
            let squares = squares.get(&layer.path).copied().unwrap_or(0.0) * rows.sum::<usize>() as f64;
            layer.loss /= squares.max(f64::MIN_POSITIVE);
        }
        Ok(Rounding { weights: rounded, layers })
    }

    /// Returns the additional size of a weight in 8 bits.
    fn additional_bytes(&self, name: &str) -> u64 {
        let Some(planned) = self.plan.get(name) else { return 0 };
        let wide = WeightPlan { storage: planned.storage.with_eight_bits(), ..planned.clone() };
        wide.bytes(self.block).saturating_sub(planned.bytes(self.block))
    }

    /// Returns `true` for a layer of which all weights have 4 bits.
    fn is_rounded(&self, path: &str) -> bool {
        self.products.get(path).is_some_and(|names| names.iter().all(|name| self.form(name).is_some()))
    }

    fn form(&self, name: &str) -> Option<Form4> {
        self.plan.storage(name)?.form_of_4_bits()
    }

    /// Rounds one weight. Returns the squared change of its outputs over the text.
    fn round_weight(
        &self,
        name: &str,
        compensation: &Compensation,
        rounded: &mut RoundedWeights,
    ) -> Result<f64> {
        let (Some(planned), Some(form)) = (self.plan.get(name), self.form(name)) else { return Ok(0.0) };
        let cols = planned.cols;
        let block = self.block.elements(cols);
        let weights = self.model.checkpoint.weights.as_ref();
        let weight = ScaledWeight::open(weights, self.scaling, name, [planned.rows, cols], block)?;

        let mut error = 0.0;
        rounded.begin(name);
        pieces(0..planned.rows, cols).try_for_each(|piece| {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(CompileError::Cancelled);
            }
            let mut values = decoded(&weight, piece, cols)?;
            let rows: Vec<RoundedRow> = compensation.round(&mut values, block, form);
            error += rows.iter().map(|row| row.error).sum::<f64>();
            rounded.append(rows.iter().map(|row| &row.row))
        })?;
        Ok(error)
    }
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

/// Decodes and scales some rows in parallel.
fn decoded(weight: &ScaledWeight<'_>, rows: Range<usize>, cols: usize) -> Result<Vec<f32>, CheckpointError> {
    let mut values = vec![0.0; rows.len() * cols];
    let decoded = values.par_chunks_mut(cols.max(1)).zip(rows);
    decoded.try_for_each(|(out, row)| weight.read_row(row, out))?;
    Ok(values)
}
