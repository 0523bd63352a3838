//! The log-mel spectrogram that Whisper's encoder reads.
//!
//! [`log_mel`] equals the feature extractors of OpenAI and transformers within 1e-4: Hann windows of 25 ms every 10 ms,
//! reflected at both ends, the power spectrum on the mel scale of Slaney, and its logarithm, limited to the upper 80 dB.

use std::{f64::consts::PI, sync::LazyLock};

use crate::{SPEECH_RATE, filter_bank::Filter, spectrum::Spectrum};

/// Samples of a window of Whisper, which are 30 seconds.
pub const WINDOW_SAMPLES: usize = 480_000;

/// Frames of a window of Whisper.
pub const WINDOW_FRAMES: usize = WINDOW_SAMPLES / HOP;

/// Number of samples in a frame.
const FRAME: usize = 400;

/// Samples from one frame to the next.
const HOP: usize = 160;

/// Frequencies of the spectrum of a frame.
const FREQUENCIES: usize = FRAME / 2 + 1;

/// Number of mel bins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MelBins {
    /// 80 bins, of all models but the following.
    Eighty,
    /// 128 bins, of large-v3 and the models that were made of it.
    OneHundredTwentyEight,
}

impl MelBins {
    /// Returns the number of bins.
    pub fn count(self) -> usize {
        match self {
            Self::Eighty => 80,
            Self::OneHundredTwentyEight => 128,
        }
    }

    /// Returns the variant with a number of bins.
    pub fn from_count(count: usize) -> Option<Self> {
        [Self::Eighty, Self::OneHundredTwentyEight].into_iter().find(|bins| bins.count() == count)
    }
}

/// Returns the features `[bins, WINDOW_FRAMES]`, row-major, of a window of mono samples with [`SPEECH_RATE`].
///
/// Missing samples are silence. Samples after the first [`WINDOW_SAMPLES`] are not read.
pub fn log_mel(samples: &[f32], bins: MelBins) -> Vec<f32> {
    let samples = &samples[..samples.len().min(WINDOW_SAMPLES)];
    let filters = match bins {
        MelBins::Eighty => &*EIGHTY,
        MelBins::OneHundredTwentyEight => &*ONE_HUNDRED_TWENTY_EIGHT,
    };
    let mut features = vec![0.0_f32; bins.count() * WINDOW_FRAMES];
    let window = (0..FRAME).map(|at| 0.5 - 0.5 * (2.0 * PI * at as f64 / FRAME as f64).cos());
    let mut power = Spectrum::new(window.collect(), FRAME);
    // The features of all frames that only contain padding are equal.
    let sounding = (samples.len() + FRAME / 2).div_ceil(HOP).min(WINDOW_FRAMES);
    let silence = 1e-10_f64.log10();

    let mut maximum = silence;
    for frame in 0..sounding {
        let spectrum =
            power.of_frame(|at| samples.get(reflected(frame * HOP + at)).copied().map_or(0.0, f64::from));
        for (bin, filter) in filters.iter().enumerate() {
            let value = filter.apply(spectrum).max(1e-10).log10();
            maximum = maximum.max(value);
            features[bin * WINDOW_FRAMES + frame] = value as f32;
        }
    }
    for row in features.chunks_exact_mut(WINDOW_FRAMES) {
        row[sounding..].fill(silence as f32);
    }

    let floor = (maximum - 8.0) as f32;
    for value in &mut features {
        *value = (value.max(floor) + 4.0) / 4.0;
    }
    features
}

/// Returns the position of a sample in a window that is extended by half a frame at both ends, by reflection.
fn reflected(at: usize) -> usize {
    const MARGIN: usize = FRAME / 2;
    let last = WINDOW_SAMPLES - 1;
    if at < MARGIN {
        MARGIN - at
    } else if at - MARGIN > last {
        2 * last - (at - MARGIN)
    } else {
        at - MARGIN
    }
}

static EIGHTY: LazyLock<Vec<Filter>> = LazyLock::new(|| filters(80, FREQUENCIES));
static ONE_HUNDRED_TWENTY_EIGHT: LazyLock<Vec<Filter>> = LazyLock::new(|| filters(128, FREQUENCIES));

/// Returns triangular filters with equal areas over the frequencies of a spectrum, at equal distances on the mel scale.
pub(crate) fn filters(bins: usize, frequencies: usize) -> Vec<Filter> {
    let nyquist = f64::from(SPEECH_RATE) / 2.0;
    let edges: Vec<f64> =
        (0..bins + 2).map(|at| hertz(mel(nyquist) * at as f64 / (bins + 1) as f64)).collect();
    let step = nyquist / (frequencies - 1) as f64;
    let triangles = edges.windows(3).map(|edges| {
        Filter::triangle([edges[0], edges[1], edges[2]], frequencies, step)
            .scaled(2.0 / (edges[2] - edges[0]))
    });
    triangles.collect()
}

/// Frequency from which Slaney's scale is logarithmic, and its mel.
const BREAK_HERTZ: f64 = 1_000.0;
const BREAK_MEL: f64 = 15.0;

/// Hertz per mel below the break.
const LINEAR_STEP: f64 = 200.0 / 3.0;

/// Mels per factor of 6.4 above the break.
const LOGARITHMIC_STEPS: f64 = 27.0;

fn mel(hertz: f64) -> f64 {
    if hertz < BREAK_HERTZ {
        hertz / LINEAR_STEP
    } else {
        BREAK_MEL + (hertz / BREAK_HERTZ).ln() * LOGARITHMIC_STEPS / 6.4_f64.ln()
    }
}

fn hertz(mel: f64) -> f64 {
    if mel < BREAK_MEL {
        mel * LINEAR_STEP
    } else {
        BREAK_HERTZ * ((mel - BREAK_MEL) * 6.4_f64.ln() / LOGARITHMIC_STEPS).exp()
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::test_sounds::chirp;

    #[derive(Deserialize)]
    struct Golden {
        frames: Vec<usize>,
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        samples: usize,
        bins: usize,
        frames: Vec<Vec<f32>>,
    }

    #[test]
    fn golden() {
        let golden: Golden = serde_json::from_str(include_str!("../tests/goldens/log_mel.json")).unwrap();
        assert_eq!(golden.cases.len(), 4);
        for case in golden.cases {
            let features =
                log_mel(&chirp(case.samples, 0.001, 0.0002), MelBins::from_count(case.bins).unwrap());
            assert_eq!(features.len(), case.bins * WINDOW_FRAMES);
            for (frame, expect) in golden.frames.iter().zip(&case.frames) {
                for (bin, expect) in expect.iter().enumerate() {
                    let value = features[bin * WINDOW_FRAMES + frame];
                    assert!(
                        (value - expect).abs() < 1e-4,
                        "{} bins, {} samples, frame {frame}, bin {bin}: {value}, not {expect}",
                        case.bins,
                        case.samples
                    );
                }
            }
        }
    }

    #[test]
    fn silence_and_excess_samples_are_allowed() {
        let silence = log_mel(&[], MelBins::Eighty);
        assert_eq!(silence.len(), 80 * WINDOW_FRAMES);
        assert!(silence.iter().all(|value| *value == -1.5));

        let long = chirp(WINDOW_SAMPLES + 1_000, 0.001, 0.0002);
        assert_eq!(log_mel(&long, MelBins::Eighty), log_mel(&long[..WINDOW_SAMPLES], MelBins::Eighty));
    }
}
