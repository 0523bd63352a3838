//! Chooses the scales of channels between the layers of a decoder by AWQ or SmoothQuant, with the inputs that its layers receive
//! for the calibration text. Groups of channels are independent: each has the inputs that it has in the unscaled model.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use narthex_graph::Graph;
use narthex_spec::{BlockSize, ScalingMethod, progress::Stage};
use rayon::prelude::*;

use crate::{
    calibration::{
        CalibrationGraph, CalibrationModel, ChannelStatistics, GraphRunner, RunnerError, channel_statistics,
        probe::{ChannelOutputs, MeasuredChannels},
    },
    emit::{ScaledWeight, pieces},
    error::{CompileError, Result},
    quant::{
        Plan, Scaling,
        block::Form4,
        channel_groups::ChannelGroup,
        channel_scales::{Candidate, InputSample, RowLoss, awq_candidates, best, smooth_scales},
        plan::WeightPlan,
        scaling::ScaledGroup,
    },
};

/// Maximum number of rows of a weight whose loss decides a strength of AWQ.
const SAMPLED_ROWS: usize = 64;

/// A decoder whose channels are scaled.
pub(crate) struct ChannelScaler<'a> {
    pub(crate) model: &'a CalibrationModel<'a>,
    pub(crate) plan: &'a Plan,
    pub(crate) block: BlockSize,
    pub(crate) method: ScalingMethod,
    /// Weights of each layer of the graph, by its path.
    pub(crate) products: &'a BTreeMap<String, Vec<String>>,
    /// Reports the number of scaled groups.
    pub(crate) stage: &'a Stage<'a>,
    pub(crate) cancel: &'a AtomicBool,
}

/// A weight and its shape.
struct Reader<'a> {
    weight: ScaledWeight<'a>,
    rows: usize,
    cols: usize,
    /// Form of its 4-bit blocks; `None` if it is not rounded to 4 bits.
    form: Option<Form4>,
}

impl ChannelScaler<'_> {
    /// Adds the scales of the groups to `scaling`. `graph` is the model's graph without these scales.
    ///
    /// # Errors
    /// [`CompileError::Calibration`] if the inputs cannot be measured or are not finite, the errors of reading weights, and
    /// [`CompileError::Cancelled`].
    pub(crate) fn scale(
        &self,
        runner: &dyn GraphRunner,
        groups: &[ChannelGroup],
        graph: CalibrationGraph<'_>,
        scaling: &mut Scaling,
    ) -> Result<()> {
        let inputs = groups.iter().map(|group| self.measured(group, &graph.graph));
        let inputs: Vec<MeasuredChannels> = inputs.collect::<Result<_>>()?;
        let mut found: BTreeMap<usize, ScaledGroup> = BTreeMap::new();
        channel_statistics(runner, self.model, &inputs, graph, &mut |index, statistics| {
            let group = &groups[index];
            let scaled = match self.method {
                ScalingMethod::Awq => self.searched(group, &statistics)?,
                _ => self.balanced(group, &statistics)?,
            };
            found.insert(index, scaled);
            self.stage.advance(found.len() as u64);
            Ok(())
        })?;
        found.into_values().for_each(|scaled| scaling.add_group(scaled));
        Ok(())
    }

    /// Finds the value of the graph with the channels of a group.
    fn measured(&self, group: &ChannelGroup, graph: &Graph) -> Result<MeasuredChannels> {
        let reader = group.readers.first().and_then(|name| self.plan.get(name));
        let node = reader.and_then(|reader| {
            let (path, _) = self.products.iter().find(|(_, weights)| weights.contains(&reader.name))?;
            let names = ["MatMulNBits", "MatMul"].map(|op| format!("{path}/{op}"));
            graph.nodes.iter().find(|node| names.contains(&node.name))
        });
        let (Some(reader), Some(node)) = (reader, node) else {
            let reason = format!("the graph has no layer that reads the channels {}", group.name);
            return Err(CompileError::Calibration(RunnerError { reason, hint: None }));
        };
        Ok(MeasuredChannels {
            value: node.inputs.first().cloned().unwrap_or_default(),
            node: node.name.clone(),
            channels: reader.cols,
            outputs: ChannelOutputs::of(&group.name),
        })
    }

    /// Returns the scales of AWQ with the least loss.
    fn searched(&self, group: &ChannelGroup, statistics: &ChannelStatistics) -> Result<ScaledGroup> {
        let magnitudes = group.of_channels(&statistics.magnitudes, |x, y| x + y);
        let mut candidates = awq_candidates(&magnitudes);
        let columns: Vec<Vec<f32>> =
            candidates.iter().map(|candidate| group.of_columns(&candidate.scales)).collect();
        let sample = InputSample::new(statistics.magnitudes.len(), &statistics.rows);

        let mut losses = Vec::new();
        for name in &group.readers {
            let Some(reader) = self.open(name)? else { continue };
            let Some(form) = reader.form else { continue };
            let block = self.block.elements(reader.cols);
            let step = reader.rows.div_ceil(SAMPLED_ROWS).max(1);
            let rows: Vec<usize> = (0..reader.rows).step_by(step).collect();
            let rows: Vec<RowLoss> = rows
                .into_par_iter()
                .map(|row| {
                    let mut values = vec![0.0; reader.cols];
                    self.check_cancel()?;
                    reader.weight.read_row(row, &mut values)?;
                    Ok(sample.loss(&values, &columns, |row| form.round(row, block)))
                })
                .collect::<Result<_>>()?;
            // The order of the sum is that of the rows, so that it is always the same.
            let mut all = RowLoss::default();
            rows.iter().for_each(|row| all.add(row));
            losses.push(all);
        }
        let Candidate { strength, scales } = candidates.swap_remove(best(&losses));
        Ok(ScaledGroup { group: group.clone(), strength: Some(strength), scales })
    }

    /// Returns the scales of SmoothQuant.
    fn balanced(&self, group: &ChannelGroup, statistics: &ChannelStatistics) -> Result<ScaledGroup> {
        let mut peaks = vec![0.0; statistics.peaks.len()];
        for name in &group.readers {
            let Some(reader) = self.open(name)? else { continue };
            let cols = reader.cols;
            pieces(0..reader.rows, cols).try_for_each(|piece| {
                self.check_cancel()?;
                let values = reader.weight.read_rows(piece)?;
                for row in values.chunks(cols.max(1)) {
                    peaks.iter_mut().zip(row).for_each(|(peak, x)| *peak = f32::max(*peak, x.abs()));
                }
                Ok::<_, CompileError>(())
            })?;
        }
        let peaks = group.of_channels(&peaks, f32::max);
        let scales = smooth_scales(&group.of_channels(&statistics.peaks, f32::max), &peaks);
        Ok(ScaledGroup { group: group.clone(), strength: None, scales })
    }

    /// Opens a weight of the plan.
    fn open(&self, name: &str) -> Result<Option<Reader<'_>>> {
        let Some(planned) = self.plan.get(name) else { return Ok(None) };
        let WeightPlan { rows, cols, storage, .. } = *planned;
        let weight = ScaledWeight::plain(self.model.checkpoint.weights.as_ref(), name, [rows, cols])?;
        Ok(Some(Reader { weight, rows, cols, form: storage.form_of_4_bits() }))
    }

    fn check_cancel(&self) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) { Err(CompileError::Cancelled) } else { Ok(()) }
    }
}
