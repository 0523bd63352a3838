//! Rotary tables: the cosine and sine of every position and frequency, computed in double precision.

use std::f64::consts::TAU;

use narthex_spec::arch::{Rope, RopeScaling};

/// Cosines and sines, each `[positions, dims / 2]`.
pub(crate) struct RopeTables {
    pub(crate) cos: Vec<f32>,
    pub(crate) sin: Vec<f32>,
}

/// The tables for positions `0..positions`.
pub(crate) fn tables(rope: &Rope, positions: usize) -> RopeTables {
    let frequencies = frequencies(rope);
    let angles = || (0..positions).flat_map(|p| frequencies.iter().map(move |f| p as f64 * f));
    RopeTables {
        cos: angles().map(|angle| angle.cos() as f32).collect(),
        sin: angles().map(|angle| angle.sin() as f32).collect(),
    }
}

/// Radians per position of each rotated pair.
fn frequencies(rope: &Rope) -> Vec<f64> {
    let pairs = rope.dims / 2;
    let plain = |pair: usize| rope.theta.powf(-2.0 * pair as f64 / rope.dims as f64);
    (0..pairs).map(|pair| scaled(&rope.scaling, pair, plain(pair))).collect()
}

fn scaled(scaling: &RopeScaling, pair: usize, frequency: f64) -> f64 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Factors { factors } => frequency / factors.get(pair).copied().map_or(1.0, f64::from),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            let wavelength = TAU / frequency;
            let context = *original_context as f64;
            if wavelength > context / low_freq_factor {
                frequency / factor
            } else if wavelength < context / high_freq_factor {
                frequency
            } else {
                let smooth = (context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - smooth) * frequency / factor + smooth * frequency
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_divides_only_long_wavelengths() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        };
        let plain = frequencies(&Rope { theta: 500_000.0, dims: 128, scaling: RopeScaling::None });
        let stretched = frequencies(&Rope { theta: 500_000.0, dims: 128, scaling });
        assert_eq!(plain[0], stretched[0]);
        assert!((plain[63] / stretched[63] - 8.0).abs() < 1e-12);
        assert!(stretched.iter().zip(&plain).all(|(s, p)| s <= p && *s >= p / 8.0));
    }

    #[test]
    fn position_zero_is_not_rotated() {
        let tables = tables(&Rope { theta: 1e4, dims: 8, scaling: RopeScaling::Linear { factor: 2.0 } }, 3);
        assert_eq!(tables.cos[..4], [1.0; 4]);
        assert_eq!(tables.sin[..4], [0.0; 4]);
        assert_eq!(tables.sin[4], 0.5f32.sin());
    }
}
