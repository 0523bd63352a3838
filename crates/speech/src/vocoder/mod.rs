//! Samples of speech from a spectrum that a model computes: the vocoder of hibari (Maureese Williams, Apache-2.0).
//!
//! A frame of 12.5 ms has the magnitudes and phases of three parts. The harmonics filter a pulse train with the pitch of the
//! voice, noise has a random phase, and the rest has a phase of its own. The inverse Fourier transforms of all frames
//! overlap. `pulses` has the pulse train, `lanes` the functions of several numbers at once.

mod lanes;
mod pulses;

use std::sync::Arc;

use realfft::{ComplexToReal, RealFftPlanner, RealToComplex, num_complex::Complex};

use self::lanes::{LANES, Lanes};

/// Length of a transform in samples.
const LENGTH: usize = 1200;

/// Number of samples between two frames.
pub const HOP: usize = 300;

/// Number of frequencies of a frame.
pub const BINS: usize = LENGTH / 2 + 1;

/// Samples per second.
pub const SAMPLE_RATE: u32 = 24_000;

/// Highest logarithm of a magnitude.
const MAX_LOG_MAGNITUDE: f32 = 7.0;

/// Smallest sum of squared windows that a sample is divided by.
const MIN_WINDOW_SUM: f32 = 1e-11;

/// A spectrum. The parts have [`BINS`] rows of as many elements as the pitch has.
#[derive(Debug, Clone, Copy)]
pub struct Spectrum<'a> {
    /// Logarithms of the magnitudes of the harmonics.
    pub harmonic_magnitude: &'a [f32],
    /// Phases of the harmonics, before their limitation to -π to π.
    pub harmonic_phase: &'a [f32],
    /// Logarithms of the magnitudes of the noise.
    pub noise_magnitude: &'a [f32],
    /// Logarithms of the magnitudes of the rest.
    pub rest_magnitude: &'a [f32],
    /// Phases of the rest.
    pub rest_phase: &'a [f32],
    /// Pitch of each frame in Hz; 0 without a voice.
    pub pitch: &'a [f32],
}

/// A spectrum whose parts do not have the same number of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected} elements in each part of a spectrum of {frames} frames, found {found}")]
pub struct UnevenSpectrum {
    frames: usize,
    expected: usize,
    found: usize,
}

/// Transforms of one length, which are prepared once.
pub struct Vocoder {
    forward: Arc<dyn RealToComplex<f32>>,
    inverse: Arc<dyn ComplexToReal<f32>>,
    window: Vec<f32>,
}

impl Default for Vocoder {
    fn default() -> Self {
        let mut planner = RealFftPlanner::new();
        let turn = std::f64::consts::TAU / LENGTH as f64;
        let window = (0..LENGTH).map(|index| (0.5 - 0.5 * (turn * index as f64).cos()) as f32);
        Self {
            forward: planner.plan_fft_forward(LENGTH),
            inverse: planner.plan_fft_inverse(LENGTH),
            window: window.collect(),
        }
    }
}

impl Vocoder {
    /// Returns [`HOP`] samples for each frame of a spectrum. The noise depends on the seed alone.
    ///
    /// # Errors
    /// [`UnevenSpectrum`].
    pub fn samples(&self, spectrum: Spectrum<'_>, seed: u64) -> Result<Vec<f32>, UnevenSpectrum> {
        let frames = spectrum.pitch.len();
        let expected = BINS * frames;
        let Spectrum {
            harmonic_magnitude, harmonic_phase, noise_magnitude, rest_magnitude, rest_phase, ..
        } = spectrum;
        let parts = [harmonic_magnitude, harmonic_phase, noise_magnitude, rest_magnitude, rest_phase];
        if let Some(part) = parts.into_iter().find(|part| part.len() != expected) {
            return Err(UnevenSpectrum { frames, expected, found: part.len() });
        }
        if frames == 0 {
            return Ok(Vec::new());
        }

        let padded = pulses::padded(&pulses::train(spectrum.pitch), LENGTH / 2);
        let mut overlapped = vec![0.0; (frames - 1) * HOP + LENGTH];
        let mut block = Block::default();
        for first in (0..frames).step_by(LANES) {
            let count = LANES.min(frames - first);
            for (lane, row) in block.rows.iter_mut().enumerate().take(count) {
                self.transform_pulses(&padded[(first + lane) * HOP..], row);
            }
            block.filter(&spectrum, first, count, seed);
            for (lane, row) in block.rows.iter_mut().enumerate().take(count) {
                let start = (first + lane) * HOP;
                self.add_frame(row, &mut overlapped[start..start + LENGTH]);
            }
        }
        self.divide_by_windows(&mut overlapped, frames);
        let half = LENGTH / 2;
        Ok(overlapped[half..half + frames * HOP].to_vec())
    }

    /// Computes the spectrum of the pulses in a window. A cosine of amplitude 1 has the magnitude 1.
    fn transform_pulses(&self, pulses: &[f32], row: &mut Vec<Complex<f32>>) {
        let scale = 4.0 / LENGTH as f32;
        let mut windowed: Vec<f32> =
            pulses.iter().zip(&self.window).map(|(pulse, window)| pulse * (window * scale)).collect();
        row.resize(BINS, Complex::default());
        // The lengths are those of the plan.
        let done = self.forward.process(&mut windowed, row);
        debug_assert!(done.is_ok());
    }

    /// Adds the samples of a frame.
    fn add_frame(&self, row: &mut [Complex<f32>], to: &mut [f32]) {
        // The transform of real samples has real values at both ends.
        row[0].im = 0.0;
        row[BINS - 1].im = 0.0;
        let mut samples = vec![0.0; LENGTH];
        let done = self.inverse.process(row, &mut samples);
        debug_assert!(done.is_ok());
        let scale = 1.0 / LENGTH as f32;
        for ((to, sample), window) in to.iter_mut().zip(&samples).zip(&self.window) {
            *to += sample * scale * window;
        }
    }

    /// Divides samples by the sum of the squares of the windows over them.
    fn divide_by_windows(&self, samples: &mut [f32], frames: usize) {
        for (hop, samples) in samples.chunks_mut(HOP).enumerate() {
            let parts: Vec<&[f32]> = self
                .window
                .chunks(HOP)
                .enumerate()
                .filter(|(part, _)| hop >= *part && hop - part < frames)
                .map(|(_, window)| window)
                .collect();
            for (offset, sample) in samples.iter_mut().enumerate() {
                let sum: f32 = parts.iter().map(|window| window[offset] * window[offset]).sum();
                *sample /= sum.max(MIN_WINDOW_SUM);
            }
        }
    }
}

/// Consecutive frames that are computed together.
struct Block {
    rows: [Vec<Complex<f32>>; LANES],
}

impl Default for Block {
    fn default() -> Self {
        Self { rows: std::array::from_fn(|_| vec![Complex::default(); BINS]) }
    }
}

impl Block {
    /// Turns the spectra of pulses into those of speech.
    fn filter(&mut self, spectrum: &Spectrum<'_>, first: usize, count: usize, seed: u64) {
        let frames = spectrum.pitch.len();
        for bin in 0..BINS {
            let start = bin * frames + first;
            let place = start..start + count;
            let harmonic =
                Lanes::load(&spectrum.harmonic_magnitude[place.clone()]).min(MAX_LOG_MAGNITUDE).exp();
            let [sine, cosine] = Lanes::load(&spectrum.harmonic_phase[place.clone()])
                .tanh()
                .times(std::f32::consts::PI)
                .sin_cos();
            let rest = Lanes::load(&spectrum.rest_magnitude[place.clone()]).min(MAX_LOG_MAGNITUDE).exp();
            let [rest_sine, rest_cosine] = Lanes::load(&spectrum.rest_phase[place.clone()]).sin_cos();
            let noise = Lanes::load(&spectrum.noise_magnitude[place.clone()]).min(MAX_LOG_MAGNITUDE).exp();
            let [noise_real, noise_imaginary] = Lanes::noise(seed, (first * BINS + bin) as u64, BINS as u64);

            for (lane, row) in self.rows.iter_mut().enumerate().take(count) {
                let filter = Complex::new(cosine.0[lane], sine.0[lane]) * harmonic.0[lane];
                let noise = Complex::new(noise_real.0[lane], noise_imaginary.0[lane]) * noise.0[lane];
                let rest = Complex::new(rest_cosine.0[lane], rest_sine.0[lane]) * rest.0[lane];
                row[bin] = row[bin] * filter + noise + rest;
            }
        }
    }
}

#[cfg(test)]
mod tests;
