//! Magnitudes of channels, and samples of the inputs of layers, for their scales.

use std::collections::HashMap;

use super::{
    AT_ONCE, CalibrationGraph, CalibrationModel, GraphRunner, bad,
    probe::{ChannelOutputs, MeasuredChannels, channel_magnitudes},
    probe_run::ProbeRun,
    spread_rows,
};
use crate::error::Result;

/// Maximum number of windows of the text.
const WINDOWS: usize = 4;

/// Maximum number of tokens of a window whose inputs are kept.
const SAMPLED_TOKENS: usize = 32;

/// Magnitudes of the channels of an input over a text.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChannelStatistics {
    /// Sum of the mean magnitudes over the windows, for each channel.
    pub(crate) magnitudes: Vec<f32>,
    /// Largest magnitude of each channel.
    pub(crate) peaks: Vec<f32>,
    /// The input for some tokens, in rows.
    pub(crate) rows: Vec<f32>,
}

/// Measures the channels of inputs of a decoder for a part of the text, and passes them to `take` with the index of the input.
/// Those of a few layers are in memory at a time.
///
/// # Errors
/// [`CompileError::Calibration`](crate::CompileError::Calibration) if the runner fails or its results are not usable, errors
/// from reading the token table and from writing the probe, and the errors of `take`.
pub(crate) fn channel_statistics(
    runner: &dyn GraphRunner,
    model: &CalibrationModel<'_>,
    inputs: &[MeasuredChannels],
    graph: CalibrationGraph<'_>,
    take: &mut dyn FnMut(usize, ChannelStatistics) -> Result<()>,
) -> Result<()> {
    let CalibrationGraph { graph, entry, folder } = graph;
    let mut windows = model.windows()?;
    windows.truncate(WINDOWS);
    let length = windows.first().map_or(0, Vec::len);
    let tokens = spread_rows(length, length.min(SAMPLED_TOKENS));
    let probe = channel_magnitudes(graph, inputs, &tokens)?;

    let run = ProbeRun { model, entry: &entry, logits: 1, folder, most_bytes: AT_ONCE };
    // What was measured so far, and the number of outputs it came from.
    let mut measured: HashMap<usize, (ChannelStatistics, usize)> = HashMap::new();
    run.each_output(runner, &probe, &windows, &mut |name, values| {
        let found = inputs.iter().enumerate().find(|(_, input)| input.outputs.names().contains(&&name));
        let Some((index, input)) = found else { return bad(format!("{name} was not requested")) };
        if let Some(value) = values.iter().find(|value| !value.is_finite()) {
            return bad(format!("the activations of the model are not finite: {name} has {value}"));
        }
        let (statistics, count) = measured.entry(index).or_default();
        statistics.extend(&input.outputs, &name, values);
        *count += 1;
        if *count < windows.len() * input.outputs.names().len() {
            return Ok(());
        }
        let (statistics, _) = measured.remove(&index).unwrap_or_default();
        let lengths = [statistics.magnitudes.len(), statistics.peaks.len()];
        if let Some(found) = lengths.into_iter().find(|&found| found != input.channels) {
            return bad(format!(
                "{} has {} channels, but {found} were measured",
                input.value, input.channels
            ));
        }
        take(index, statistics)
    })
}

impl ChannelStatistics {
    /// Adds an output of the probe for one window.
    fn extend(&mut self, outputs: &ChannelOutputs, name: &str, values: Vec<f32>) {
        if name == outputs.rows {
            self.rows.extend(values);
            return;
        }
        let is_mean = name == outputs.magnitudes;
        let all = if is_mean { &mut self.magnitudes } else { &mut self.peaks };
        if all.is_empty() {
            *all = values;
            return;
        }
        let combine = if is_mean { |x, y| x + y } else { f32::max };
        all.iter_mut().zip(values).for_each(|(x, y)| *x = combine(*x, y));
    }
}
