//! Sounds of tests, the same as those of `tests/goldens/sounds.py`.

use std::f64::consts::PI;

/// Returns samples with 16,000 Hz: a chirp, a tone of 6,500 Hz with the amplitude `tone`, and noise of the width `noise`.
pub(crate) fn chirp(count: usize, tone: f64, noise: f64) -> Vec<f32> {
    let mut state = 1_u32;
    let values = (0..count).map(|at| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let seconds = at as f64 / 16_000.0;
        let chirp = 0.5 * (2.0 * PI * (100.0 + 1_800.0 * (seconds % 2.0)) * (seconds % 2.0)).sin();
        let tone = tone * (2.0 * PI * 6_500.0 * seconds).sin();
        let noise = (f64::from(state) / 2.0_f64.powi(32) - 0.5) * noise;
        (chirp + tone + noise) as f32
    });
    values.collect()
}
