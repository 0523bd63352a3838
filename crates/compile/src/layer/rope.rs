//! Rotary tables: the cosine and sine of every position and frequency, computed in double precision.

use std::f64::consts::TAU;

use narthex_spec::arch::{DecoderArch, Rope, RopeScaling, Rotation};

use crate::{emit::Emitter, error::CompileError};

/// The kinds of rotation that have tables, with the names of their cosines and sines.
pub(crate) const TABLES: [(Rotation, [&str; 2]); 2] =
    [(Rotation::Global, ["rope/cos", "rope/sin"]), (Rotation::Local, ["local_rope/cos", "local_rope/sin"])];

/// A graph's cosines and sines by kind of rotation.
#[derive(Default)]
pub(crate) struct Angles {
    known: Vec<(Rotation, [String; 2])>,
}

impl Angles {
    /// Writes the tables of every rotation that a decoder's layers use.
    pub(crate) fn write(e: &mut Emitter<'_>, arch: &DecoderArch) -> Result<Self, CompileError> {
        let mut angles = Self::default();
        for (rotation, names) in TABLES {
            if let Some((rope, pairs)) = used(arch, rotation) {
                let tables = tables(rope, arch.context, pairs);
                let shape = [arch.context, pairs];
                let cos = e.tensor(names[0], &shape, |_| Ok(tables.cos))?;
                let sin = e.tensor(names[1], &shape, |_| Ok(tables.sin))?;
                angles.insert(rotation, [cos, sin]);
            }
        }
        Ok(angles)
    }

    /// Enters a rotation's cosines and sines.
    pub(crate) fn insert(&mut self, rotation: Rotation, names: [String; 2]) {
        self.known.push((rotation, names));
    }

    /// A rotation's cosines and sines; none for layers that are not rotated.
    pub(crate) fn of(&self, rotation: Rotation) -> Option<&[String; 2]> {
        self.known.iter().find(|(known, _)| *known == rotation).map(|(_, names)| names)
    }
}

/// A rotation and its pairs per head, where a layer uses it.
pub(crate) fn used(arch: &DecoderArch, rotation: Rotation) -> Option<(&Rope, usize)> {
    let layer = arch.layers.iter().find(|layer| layer.attention.rotation == rotation)?;
    Some((arch.rope_of(rotation)?, layer.attention.head_size / 2))
}

/// Cosines and sines, each `[positions, pairs]`.
struct RopeTables {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// The tables for positions `0..positions` and heads of as many pairs.
fn tables(rope: &Rope, positions: usize, pairs: usize) -> RopeTables {
    let mut frequencies = frequencies(rope);
    // Pairs beyond the rotated ones stay where they are.
    frequencies.resize(pairs, 0.0);
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
    fn pairs_beyond_the_rotated_ones_stay() {
        let tables = tables(&Rope { theta: 1e4, dims: 2, scaling: RopeScaling::None }, 2, 4);
        assert_eq!(tables.cos[4..], [1.0f32.cos(), 1.0, 1.0, 1.0]);
        assert_eq!(tables.sin[4..], [1.0f32.sin(), 0.0, 0.0, 0.0]);
    }

    #[test]
    fn position_zero_is_not_rotated() {
        let tables =
            tables(&Rope { theta: 1e4, dims: 8, scaling: RopeScaling::Linear { factor: 2.0 } }, 3, 4);
        assert_eq!(tables.cos[..4], [1.0; 4]);
        assert_eq!(tables.sin[..4], [0.0; 4]);
        assert_eq!(tables.sin[4], 0.5f32.sin());
    }
}
