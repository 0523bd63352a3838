//! Power spectra of frames.

use std::sync::Arc;

use realfft::{RealFftPlanner, RealToComplex, num_complex::Complex};

/// The power spectrum of one frame, with the buffers to compute it.
pub(crate) struct Spectrum {
    transform: Arc<dyn RealToComplex<f64>>,
    window: Vec<f64>,
    frame: Vec<f64>,
    spectrum: Vec<Complex<f64>>,
    scratch: Vec<Complex<f64>>,
    power: Vec<f64>,
}

impl Spectrum {
    /// Creates the transform of frames that are weighted by a window, and extended by zeros to `length`, which is at least
    /// the length of the window.
    pub(crate) fn new(window: Vec<f64>, length: usize) -> Self {
        let transform = RealFftPlanner::new().plan_fft_forward(length);
        Self {
            window,
            frame: transform.make_input_vec(),
            spectrum: transform.make_output_vec(),
            scratch: transform.make_scratch_vec(),
            power: vec![0.0; length / 2 + 1],
            transform,
        }
    }

    /// Returns the power of each frequency of a frame, whose samples `sample` returns.
    pub(crate) fn of_frame(&mut self, sample: impl Fn(usize) -> f64) -> &[f64] {
        self.frame.fill(0.0);
        for (at, (value, weight)) in self.frame.iter_mut().zip(&self.window).enumerate() {
            *value = sample(at) * weight;
        }
        // The lengths are those of the transform, so it cannot fail.
        let computed =
            self.transform.process_with_scratch(&mut self.frame, &mut self.spectrum, &mut self.scratch);
        debug_assert!(computed.is_ok());

        for (power, value) in self.power.iter_mut().zip(&self.spectrum) {
            *power = value.norm_sqr();
        }
        &self.power
    }
}
