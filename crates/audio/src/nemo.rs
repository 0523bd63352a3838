//! The log-mel spectrogram that encoders of NeMo read.
//!
//! [`normalized_log_mel`] equals `AudioToMelSpectrogramPreprocessor` of NeMo without dither: emphasis of high frequencies, Hann
//! windows of 25 ms every 10 ms, the power spectrum on the mel scale of Slaney, its natural logarithm, and for each bin a mean
//! of 0 and a deviation of 1 over the frames.

use std::{f64::consts::PI, sync::LazyLock};

use crate::{
    filter_bank::Filter,
    mel::{MelBins, filters},
    spectrum::Spectrum,
};

/// Number of samples in a frame.
const FRAME: usize = 400;

/// Length of the transform of a frame.
const TRANSFORM: usize = 512;

/// Samples from one frame to the next.
const HOP: usize = 160;

/// Share of the sample before that is subtracted from a sample.
const EMPHASIS: f32 = 0.97;

/// Summand that keeps the logarithm of silence finite.
const GUARD: f64 = 1.0 / (1 << 24) as f64;

/// Summand that keeps the quotient of a constant bin finite.
const DEVIATION_GUARD: f64 = 1e-5;

/// Returns the features `[bins, frames]`, row-major, of mono samples with [`SPEECH_RATE`](crate::SPEECH_RATE), and the number
/// of frames that have sound. After these, there is one frame of zeros.
pub fn normalized_log_mel(samples: &[f32], bins: MelBins) -> (Vec<f32>, usize) {
    let filters = match bins {
        MelBins::Eighty => &*EIGHTY,
        MelBins::OneHundredTwentyEight => &*ONE_HUNDRED_TWENTY_EIGHT,
    };
    let sounding = samples.len() / HOP;
    let window = (0..FRAME).map(|at| 0.5 - 0.5 * (2.0 * PI * at as f64 / (FRAME - 1) as f64).cos());
    let mut power = Spectrum::new(window.collect(), TRANSFORM);
    let mut features = vec![0.0_f32; bins.count() * (sounding + 1)];
    let mut logarithms = vec![0.0; bins.count() * sounding];

    for frame in 0..sounding {
        let spectrum = power.of_frame(|at| f64::from(emphasized(samples, frame * HOP + at)));
        for (bin, filter) in filters.iter().enumerate() {
            logarithms[bin * sounding + frame] = (filter.apply(spectrum) + GUARD).ln();
        }
    }
    if sounding > 0 {
        let rows = features.chunks_exact_mut(sounding + 1).zip(logarithms.chunks_exact(sounding));
        rows.for_each(|(row, values)| normalize(values, row));
    }
    (features, sounding)
}

/// Returns a sample after emphasis. Frames are centred: the first one begins half a frame before the sound, with zeros around
/// the sound. Single precision as in NeMo, because its rounding changes quiet bins.
fn emphasized(samples: &[f32], at: usize) -> f32 {
    let own = at.checked_sub(FRAME / 2).filter(|&at| at < samples.len());
    let before = own.and_then(|at| at.checked_sub(1));
    let [own, before] = [own, before].map(|at| at.and_then(|at| samples.get(at)).copied().unwrap_or(0.0));
    own - EMPHASIS * before
}

/// Writes values with a mean of 0 and a deviation of 1.
fn normalize(values: &[f64], to: &mut [f32]) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = (squares / (count - 1.0).max(1.0)).sqrt() + DEVIATION_GUARD;
    for (value, to) in values.iter().zip(to) {
        *to = ((value - mean) / deviation) as f32;
    }
}

static EIGHTY: LazyLock<Vec<Filter>> = LazyLock::new(|| filters(80, TRANSFORM / 2 + 1));
static ONE_HUNDRED_TWENTY_EIGHT: LazyLock<Vec<Filter>> = LazyLock::new(|| filters(128, TRANSFORM / 2 + 1));

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::test_sounds::chirp;

    #[derive(Deserialize)]
    struct Case {
        samples: usize,
        bins: usize,
        count: usize,
        sounding: usize,
        frames: Vec<usize>,
        features: Vec<Vec<f32>>,
    }

    #[test]
    fn golden() {
        let cases: Vec<Case> =
            serde_json::from_str(include_str!("../tests/goldens/nemo_log_mel.json")).unwrap();
        assert_eq!(cases.len(), 6);
        for case in cases {
            let bins = MelBins::from_count(case.bins).unwrap();
            let (features, sounding) = normalized_log_mel(&chirp(case.samples, 0.0, 0.02), bins);
            assert_eq!((features.len(), sounding), (case.bins * case.count, case.sounding));
            for (frame, expect) in case.frames.iter().zip(&case.features) {
                for (bin, expect) in expect.iter().enumerate() {
                    let found = features[bin * case.count + frame];
                    assert!(
                        (found - expect).abs() < 1e-4,
                        "{} bins, {} samples, frame {frame}, bin {bin}: {found}, not {expect}",
                        case.bins,
                        case.samples
                    );
                }
            }
        }
    }

    #[test]
    fn silence_and_short_sounds_have_finite_features() {
        for samples in [&[][..], &[0.5; 3], &[0.5; 160], &[0.0; 1600]] {
            let (features, sounding) = normalized_log_mel(samples, MelBins::Eighty);
            assert_eq!((features.len(), sounding), (80 * (samples.len() / 160 + 1), samples.len() / 160));
            assert!(features.iter().all(|value| value.is_finite()));
        }
    }
}
