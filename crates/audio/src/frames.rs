//! The log-mel spectrogram that audio towers of chat models read.
//!
//! [`log_mel_frames`] equals `Gemma3nAudioFeatureExtractor` of transformers: frames with emphasis of high frequencies in Hann
//! windows, the magnitudes of their spectrum on HTK's mel scale, and the natural logarithm.

use std::f64::consts::PI;

use narthex_spec::manifest::SoundPreprocessing;
use realfft::RealFftPlanner;

use crate::filter_bank::Filter;

/// Returns the features `[frames, bins]`, row-major, of mono samples. A sound that is shorter than a frame is extended by
/// silence.
pub fn log_mel_frames(samples: &[f32], spec: &SoundPreprocessing) -> Vec<f32> {
    let &SoundPreprocessing { frame, hop, transform, .. } = spec;
    let count = spec.frames(samples.len());
    let filters = filters(spec);
    let window: Vec<f64> =
        (0..frame).map(|at| 0.5 - 0.5 * (2.0 * PI * at as f64 / frame as f64).cos()).collect();
    let fourier = RealFftPlanner::<f64>::new().plan_fft_forward(transform);
    let mut input = fourier.make_input_vec();
    let mut spectrum = fourier.make_output_vec();
    let mut scratch = fourier.make_scratch_vec();
    let mut magnitudes = vec![0.0; spectrum.len()];

    let mut features = Vec::with_capacity(count * spec.bins);
    for start in (0..count).map(|index| index * hop) {
        input.fill(0.0);
        for (at, (value, weight)) in input.iter_mut().zip(&window).enumerate() {
            *value = emphasized(samples, start, at, spec) * weight;
        }
        // The lengths are those of the transform, so it cannot fail.
        let computed = fourier.process_with_scratch(&mut input, &mut spectrum, &mut scratch);
        debug_assert!(computed.is_ok());
        for (magnitude, value) in magnitudes.iter_mut().zip(&spectrum) {
            *magnitude = value.norm();
        }

        for (bin, filter) in filters.iter().enumerate() {
            let value = filter.apply(&magnitudes).max(spec.floor).ln();
            let mean = spec.mean.as_ref().map_or(0.0, |mean| mean[bin]);
            let divisor = spec.std.as_ref().map_or(1.0, |std| std[bin]);
            features.push(((value - mean) / divisor) as f32);
        }
    }
    features
}

/// Returns an element of the frame that begins at `start`, after emphasis.
fn emphasized(samples: &[f32], start: usize, at: usize, spec: &SoundPreprocessing) -> f64 {
    let sample = sample_at(samples, start + at, spec.scale);
    if spec.preemphasis <= 0.0 {
        sample
    } else if !spec.emphasis_in_frames {
        sample_at(samples, start + at + 1, spec.scale) - spec.preemphasis * sample
    } else if at == 0 {
        sample * (1.0 - spec.preemphasis)
    } else {
        sample - spec.preemphasis * sample_at(samples, start + at - 1, spec.scale)
    }
}

/// Returns a scaled sample, or silence after the end.
fn sample_at(samples: &[f32], at: usize, scale: f64) -> f64 {
    scale * f64::from(samples.get(at).copied().unwrap_or(0.0))
}

/// Returns triangular filters at equal distances on HTK's mel scale.
fn filters(spec: &SoundPreprocessing) -> Vec<Filter> {
    let &SoundPreprocessing { bins, transform, min_frequency, max_frequency, .. } = spec;
    let step = spec.sample_rate as f64 / transform as f64;
    let [lowest, highest] = [min_frequency, max_frequency].map(mel);
    let edges: Vec<f64> =
        (0..bins + 2).map(|at| hertz(lowest + (highest - lowest) * at as f64 / (bins + 1) as f64)).collect();
    let triangles = edges.windows(3);
    triangles.map(|edges| Filter::triangle([edges[0], edges[1], edges[2]], transform / 2 + 1, step)).collect()
}

fn mel(hertz: f64) -> f64 {
    2595.0 * (1.0 + hertz / 700.0).log10()
}

fn hertz(mel: f64) -> f64 {
    700.0 * (10.0_f64.powf(mel / 2595.0) - 1.0)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::test_sounds::chirp;

    fn published(bins: usize) -> SoundPreprocessing {
        SoundPreprocessing {
            sample_rate: 16_000,
            max_samples: 480_000,
            bins,
            frame: 512,
            hop: 160,
            transform: 1024,
            min_frequency: 125.0,
            max_frequency: 7600.0,
            preemphasis: 0.97,
            emphasis_in_frames: true,
            scale: 1.0,
            floor: 1e-5,
            mean: None,
            std: None,
        }
    }

    #[derive(Deserialize)]
    struct Case {
        samples: usize,
        bins: usize,
        variant: String,
        count: usize,
        frames: Vec<usize>,
        features: Vec<Vec<f32>>,
    }

    #[test]
    fn golden() {
        let cases: Vec<Case> =
            serde_json::from_str(include_str!("../tests/goldens/log_mel_frames.json")).unwrap();
        assert_eq!(cases.len(), 6);
        for case in cases {
            let spec = published(case.bins);
            let spec = match case.variant.as_str() {
                "published" => spec,
                "global" => SoundPreprocessing { emphasis_in_frames: false, transform: 512, ..spec },
                "none" => SoundPreprocessing { preemphasis: 0.0, scale: 0.5, ..spec },
                "normed" => SoundPreprocessing {
                    mean: Some((0..case.bins).map(|bin| bin as f64 / 10.0).collect()),
                    std: Some((0..case.bins).map(|bin| 1.0 + bin as f64 / 10.0).collect()),
                    ..spec
                },
                other => panic!("{other}"),
            };
            assert_eq!(spec.contradiction(), None);
            let features = log_mel_frames(&chirp(case.samples, 0.0, 0.04), &spec);
            assert_eq!(features.len(), case.count * case.bins, "{} samples", case.samples);
            for (frame, expect) in case.frames.iter().zip(&case.features) {
                // The reference transforms in single precision: its errors are shares of the loudest bin of a frame.
                let loudest = expect.iter().copied().fold(f32::MIN, f32::max);
                for (found, expect) in features[frame * case.bins..].iter().zip(expect) {
                    let distance = (found - expect).abs();
                    let bound = 2e-4 + 4e-9 * (loudest - expect).exp();
                    assert!(distance < bound, "{} frame {frame}: {found}, not {expect}", case.variant);
                }
            }
        }
    }

    #[test]
    fn a_short_sound_has_a_frame() {
        let spec = published(128);
        for samples in [&[][..], &[0.5; 3]] {
            assert_eq!(log_mel_frames(samples, &spec).len(), 128);
        }
        let silence = log_mel_frames(&[0.0; 16_000], &spec);
        assert!(silence.iter().all(|value| (f64::from(*value) - 1e-5_f64.ln()).abs() < 1e-6));
    }
}
