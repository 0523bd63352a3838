//! Resampling: a polyphase filter of a sinc in a Kaiser window.
//!
//! Frequencies up to 90 % of the smaller Nyquist frequency pass. Frequencies that would alias are reduced by 65 dB.

use std::{f64::consts::PI, sync::Arc};

use narthex_spec::divisor::greatest_common_divisor;

use crate::SPEECH_RATE;

/// Zero crossings of the sinc on each side.
const CROSSINGS: usize = 48;

/// Cutoff, as a share of the smaller Nyquist frequency.
const CUTOFF: f64 = 0.95;

/// Parameter of the window, for a stop band of 70 dB.
const BETA: f64 = 6.76;

/// Maximum number of filters. The ratios of usual sample rates need at most 640; positions between those of the other
/// ratios are rounded.
const MAX_PHASES: u64 = 2_048;

/// Lanes of the sum of products, which the compiler maps to vector registers.
const LANES: usize = 8;

/// Converts mono samples of one rate to another, in pieces.
#[derive(Debug, Clone)]
pub struct Resampler {
    ratio: Ratio,
    /// One filter for each phase, of `taps` weights.
    filters: Arc<[f32]>,
    phases: u64,
    taps: usize,
    /// Taps before the one at the position of an output.
    before: usize,
    /// Input that later outputs need, from the sample `start` of the extended input.
    buffer: Vec<f32>,
    start: u64,
    received: u64,
    produced: u64,
}

/// Input samples for one output sample, as a reduced fraction.
#[derive(Debug, Clone, Copy)]
struct Ratio {
    input: u64,
    output: u64,
}

impl Resampler {
    /// Creates a resampler to [`SPEECH_RATE`] from an input rate in Hz.
    pub fn new(rate: u32) -> Self {
        Self::between(rate, SPEECH_RATE)
    }

    /// Creates a resampler between two rates in Hz, from 8,000 to 192,000.
    pub fn between(input: u32, output: u32) -> Self {
        let divisor = greatest_common_divisor(input as usize, output as usize).max(1) as u64;
        let ratio = Ratio { input: u64::from(input) / divisor, output: u64::from(output) / divisor };
        // Below the output's Nyquist frequency, the filter is wider by the ratio.
        let scale = (f64::from(input) / f64::from(output)).max(1.0);
        let half = (CROSSINGS as f64 * scale).ceil() as usize;
        let taps = (2 * half).next_multiple_of(LANES);
        let phases = ratio.output.min(MAX_PHASES);

        let mut filters = Vec::with_capacity(taps * phases as usize);
        for phase in 0..phases {
            let offset = phase as f64 / phases as f64;
            let weights = (0..taps).map(|tap| weight((tap as f64 - (half - 1) as f64 - offset) / scale));
            let weights: Vec<f64> = weights.collect();
            let sum: f64 = weights.iter().sum();
            filters.extend(weights.iter().map(|weight| (weight / sum) as f32));
        }
        Self {
            ratio,
            filters: filters.into(),
            phases,
            taps,
            before: half - 1,
            // The first output is at the first sample, which has no input before it.
            buffer: vec![0.0; half - 1],
            start: 0,
            received: 0,
            produced: 0,
        }
    }

    /// Appends the outputs that follow from further input to `output`.
    pub fn push(&mut self, input: &[f32], output: &mut Vec<f32>) {
        self.received += input.len() as u64;
        if self.ratio.input == self.ratio.output {
            output.extend_from_slice(input);
            return;
        }
        self.buffer.extend_from_slice(input);
        self.produce(u64::MAX, output);
    }

    /// Appends the last outputs to `output`, and starts again with an empty input.
    pub fn finish(&mut self, output: &mut Vec<f32>) {
        if self.ratio.input != self.ratio.output {
            let total = (self.received * self.ratio.output).div_ceil(self.ratio.input);
            self.buffer.resize(self.buffer.len() + self.taps, 0.0);
            self.produce(total, output);
        }
        self.buffer.clear();
        self.buffer.resize(self.before, 0.0);
        self.start = 0;
        self.received = 0;
        self.produced = 0;
    }

    /// Produces outputs up to the number `end`, as far as their input has arrived.
    fn produce(&mut self, end: u64, output: &mut Vec<f32>) {
        while self.produced < end {
            let position = self.produced * self.ratio.input;
            let first = (position / self.ratio.output - self.start) as usize;
            let Some(input) = self.buffer.get(first..first + self.taps) else {
                break;
            };
            let phase = (position % self.ratio.output) * self.phases / self.ratio.output;
            let filter = &self.filters[phase as usize * self.taps..][..self.taps];
            output.push(dot(input, filter));
            self.produced += 1;
        }

        let next = self.produced * self.ratio.input / self.ratio.output - self.start;
        let consumed = (next as usize).min(self.buffer.len());
        self.buffer.drain(..consumed);
        self.start += consumed as u64;
    }
}

/// Returns the weight of the filter at a distance from its centre, in samples of the smaller rate.
fn weight(distance: f64) -> f64 {
    let share = distance / CROSSINGS as f64;
    if share.abs() >= 1.0 {
        return 0.0;
    }
    let angle = PI * distance * CUTOFF;
    let sinc = if angle == 0.0 { 1.0 } else { angle.sin() / angle };
    sinc * bessel(BETA * (1.0 - share * share).sqrt())
}

/// Modified Bessel function of the first kind and order 0, by its series.
fn bessel(x: f64) -> f64 {
    let mut term = 1.0;
    let mut sum = 1.0;
    let mut step = 1.0;
    while term > sum * 1e-12 {
        term *= (x / (2.0 * step)).powi(2);
        sum += term;
        step += 1.0;
    }
    sum
}

fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    for (left, right) in left.chunks_exact(LANES).zip(right.chunks_exact(LANES)) {
        for lane in 0..LANES {
            lanes[lane] += left[lane] * right[lane];
        }
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(rate: u32, hertz: f64, seconds: f64) -> Vec<f32> {
        let count = (f64::from(rate) * seconds) as usize;
        (0..count).map(|at| (2.0 * PI * hertz * at as f64 / f64::from(rate)).sin() as f32).collect()
    }

    fn resample(rate: u32, input: &[f32], piece: usize) -> Vec<f32> {
        let mut resampler = Resampler::new(rate);
        let mut output = Vec::new();
        for piece in input.chunks(piece) {
            resampler.push(piece, &mut output);
        }
        resampler.finish(&mut output);
        output
    }

    /// Largest difference, away from the ends.
    fn difference(left: &[f32], right: &[f32]) -> f32 {
        assert_eq!(left.len(), right.len());
        left.iter()
            .zip(right)
            .skip(100)
            .take(left.len() - 200)
            .map(|(left, right)| (left - right).abs())
            .fold(0.0, f32::max)
    }

    #[test]
    fn tones_keep_their_phase_and_amplitude() {
        for rate in [8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 37_123, 44_100, 48_000, 96_000, 192_000] {
            for share in [0.01, 0.3, 0.88] {
                let hertz = share * f64::from(rate.min(SPEECH_RATE)) / 2.0;
                let output = resample(rate, &tone(rate, hertz, 0.5), 1_000);
                let worst = difference(&output, &tone(SPEECH_RATE, hertz, 0.5)[..output.len()]);
                let bound = if rate == 37_123 { 4e-3 } else { 1e-3 };
                assert!(worst < bound, "{rate} Hz, tone of {hertz} Hz: {worst}");
            }
        }
    }

    #[test]
    fn tones_that_would_alias_are_removed() {
        for rate in [22_050, 44_100, 48_000, 96_000] {
            for hertz in [8_500.0, 10_500.0] {
                let output = resample(rate, &tone(rate, hertz, 0.5), 4_096);
                let worst = difference(&output, &vec![0.0; output.len()]);
                assert!(worst < 1e-3, "{rate} Hz, tone of {hertz} Hz: {worst}");
            }
        }
    }

    #[test]
    fn the_sizes_of_the_pieces_do_not_matter() {
        let input = tone(44_100, 1_234.0, 0.1);
        let whole = resample(44_100, &input, input.len());
        assert_eq!(whole.len(), 1_600);
        for piece in [1, 7, 441] {
            assert_eq!(resample(44_100, &input, piece), whole);
        }
    }

    #[test]
    fn a_finished_resampler_starts_again() {
        let input = tone(48_000, 440.0, 0.05);
        let mut resampler = Resampler::new(48_000);
        let mut first = Vec::new();
        resampler.push(&input, &mut first);
        resampler.finish(&mut first);
        let mut second = Vec::new();
        resampler.push(&input, &mut second);
        resampler.finish(&mut second);
        assert_eq!(first, second);

        let mut nothing = Vec::new();
        resampler.finish(&mut nothing);
        assert!(nothing.is_empty());
    }
}
