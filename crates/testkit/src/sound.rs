//! Sounds that recognisers take for speech.

/// Returns a voice with syllables and some noise, mono with 16 kHz. It is the sound of
/// `crates/gateway/tests/goldens/nemo/nemo.py`.
pub fn voice(samples: usize) -> Vec<f32> {
    let circle = std::f64::consts::TAU;
    let mut phase = 0.0;
    let mut state = 1u32;
    let values = (0..samples).map(|at| {
        let seconds = at as f64 / 16_000.0;
        phase += circle * (150.0 + 60.0 * (circle * 0.7 * seconds).sin()) / 16_000.0;
        let voice: f64 =
            (1..=20).map(|overtone| (phase * f64::from(overtone)).sin() / f64::from(overtone)).sum();
        let syllable = (circle * 2.3 * seconds).sin().max(0.0);
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (0.2 * voice * syllable + (f64::from(state) / 2.0f64.powi(32) - 0.5) * 0.02) as f32
    });
    values.collect()
}
