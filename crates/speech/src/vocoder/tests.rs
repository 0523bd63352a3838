//! Tests of the whole vocoder against the Python of hibari-tts, with the noise of this module.

use super::*;

/// Returns a spectrum of a made voice, which `conformance/speech/vocoder.py` computes too.
fn made(frames: usize) -> [Vec<f32>; 6] {
    let part = |seed: u64, scale: f32, offset: f32| -> Vec<f32> {
        let value = |place: usize| (lanes::mixed(seed, place as u64) >> 40) as f32 / (1u64 << 24) as f32;
        (0..BINS * frames).map(|place| (value(place) - 0.5) * scale + offset).collect()
    };
    let pitch = (0..frames).map(|frame| if frame % 7 == 3 { 0.0 } else { 120.0 + 3.0 * frame as f32 });
    [
        part(1, 4.0, -2.0),
        part(2, 6.0, 0.0),
        part(3, 4.0, -4.0),
        part(4, 4.0, -3.0),
        part(5, 40.0, 0.0),
        pitch.collect(),
    ]
}

fn samples(parts: &[Vec<f32>; 6], seed: u64) -> Vec<f32> {
    let [harmonic_magnitude, harmonic_phase, noise_magnitude, rest_magnitude, rest_phase, pitch] = parts;
    let spectrum =
        Spectrum { harmonic_magnitude, harmonic_phase, noise_magnitude, rest_magnitude, rest_phase, pitch };
    Vocoder::default().samples(spectrum, seed).unwrap()
}

#[test]
fn samples_are_those_of_the_reference() {
    let recorded: Vec<f32> = include_str!("../../tests/goldens/vocoder.txt")
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    let found = samples(&made(37), 11);
    assert_eq!(found.len(), 37 * HOP);
    // Every 13th sample is recorded.
    let found: Vec<f32> = found.into_iter().step_by(13).collect();
    assert_eq!(found.len(), recorded.len());
    let peak = recorded.iter().fold(0.0f32, |peak, sample| peak.max(sample.abs()));
    for (found, expect) in found.iter().zip(&recorded) {
        assert!((found - expect).abs() < 2e-4 * peak, "{found}, expected {expect} of {peak}");
    }
}

#[test]
fn a_seed_decides_the_noise() {
    let parts = made(5);
    assert_eq!(samples(&parts, 1), samples(&parts, 1));
    assert_ne!(samples(&parts, 1), samples(&parts, 2));
}

#[test]
fn odd_spectra_have_finite_samples_or_an_error() {
    for frames in [0, 1, 2, 16, 17] {
        assert_eq!(samples(&made(frames), 3).len(), frames * HOP);
    }
    let mut parts = made(3);
    for (part, value) in [(0, f32::INFINITY), (3, 1e30), (5, f32::NAN), (5, 1e9), (5, -5.0)] {
        let before = std::mem::replace(&mut parts[part][1], value);
        assert!(samples(&parts, 3).iter().all(|sample| sample.is_finite()), "{part}: {value}");
        parts[part][1] = before;
    }
    let short = Spectrum {
        harmonic_magnitude: &[0.0],
        harmonic_phase: &[0.0],
        noise_magnitude: &[0.0],
        rest_magnitude: &[0.0],
        rest_phase: &[0.0],
        pitch: &[0.0],
    };
    let error = Vocoder::default().samples(short, 0).unwrap_err().to_string();
    assert!(
        error.contains("expected 601 elements in each part of a spectrum of 1 frames, found 1"),
        "{error}"
    );
}
