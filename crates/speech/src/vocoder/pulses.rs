//! The pulse train of a voice: all harmonics of the pitch with the same amplitude.

use super::{HOP, SAMPLE_RATE, lanes::sin_cos};

/// Pitch below which a frame has no voice, in Hz.
const MIN_PITCH: f32 = 40.0;

/// Highest frequency of a harmonic, in Hz.
const MAX_FREQUENCY: f32 = 11_000.0;

/// Sine below which the sum of the harmonics is replaced by its limit.
const MIN_SINE: f32 = 2e-3;

/// Returns [`HOP`] samples for each frame. The pitch is interpolated between the middles of the frames.
///
/// The sum of the cosines of h · t for h from 1 to H is sin((H + ½) t) / (2 sin(t / 2)) - ½.
pub(super) fn train(pitch: &[f32]) -> Vec<f32> {
    let mut samples = Vec::with_capacity(pitch.len() * HOP);
    let mut turns = 0.0f64;
    let half = HOP / 2;
    for frame in 0..pitch.len() {
        let before = pitch[frame.saturating_sub(1)];
        let after = pitch[(frame + 1).min(pitch.len() - 1)];
        for offset in 0..HOP {
            let [from, to] = if offset < half { [before, pitch[frame]] } else { [pitch[frame], after] };
            let position = ((offset as f64 + 0.5) / HOP as f64 + 0.5).fract() as f32;
            let frequency = from * (1.0 - position) + to * position;
            let is_voiced = frequency > MIN_PITCH;
            // A pitch that is not a number would stay in the phase.
            let frequency = if is_voiced { frequency.min(SAMPLE_RATE as f32) } else { MIN_PITCH };
            turns = (turns + f64::from(frequency) / f64::from(SAMPLE_RATE)).fract();
            samples.push(if is_voiced { harmonics(turns, frequency) } else { 0.0 });
        }
    }
    samples
}

/// Returns the sum of the harmonics at a phase in turns.
fn harmonics(turns: f64, frequency: f32) -> f32 {
    let phase = (turns * std::f64::consts::TAU) as f32;
    let count = (MAX_FREQUENCY / frequency).floor() + 0.5;
    let sine = 2.0 * sin_cos(phase * 0.5)[0];
    if sine.abs() <= MIN_SINE { count - 0.5 } else { sin_cos(count * phase)[0] / sine - 0.5 }
}

/// Returns samples with a mirror image of `count` samples at both ends.
pub(super) fn padded(samples: &[f32], count: usize) -> Vec<f32> {
    let last = samples.len() - 1;
    // The image of a short signal is mirrored again.
    let period = (2 * last).max(1) as isize;
    (-(count as isize)..(samples.len() + count) as isize)
        .map(|index| {
            let index = index.rem_euclid(period) as usize;
            samples[if index > last { 2 * last - index } else { index }]
        })
        .collect()
}
