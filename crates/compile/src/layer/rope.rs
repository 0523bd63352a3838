//! Rotary tables: the cosine and sine of every position and frequency, computed in double precision.

use std::f64::consts::TAU;

use narthex_spec::{
    DType,
    arch::{DecoderArch, Rope, RopeScaling, Rotation},
    manifest::{HostTable, TableEncoding, TableRole},
};

use crate::{emit::Emitter, error::CompileError};

/// One set of rotary angles: its kind, the names of its cosines and sines in the data file, and their roles.
type Set = (Rotation, Reach, [&'static str; 2], [TableRole; 2]);

/// Every set that a decoder may have.
const SETS: [Set; 3] = [
    (Rotation::Global, Reach::Short, ["rope/cos", "rope/sin"], [TableRole::Cos, TableRole::Sin]),
    (
        Rotation::Global,
        Reach::Long,
        ["long_rope/cos", "long_rope/sin"],
        [TableRole::LongCos, TableRole::LongSin],
    ),
    (
        Rotation::Local,
        Reach::Short,
        ["local_rope/cos", "local_rope/sin"],
        [TableRole::LocalCos, TableRole::LocalSin],
    ),
];

/// Which sequences a set of angles is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those up to the context that the model was first trained on; all of them, where there is one set.
    Short,
    /// Longer ones.
    Long,
}

/// A graph's cosines and sines by kind of rotation.
#[derive(Default)]
pub(crate) struct Angles {
    known: Vec<(Rotation, [String; 2])>,
}

impl Angles {
    /// Writes every set that a decoder's layers use, and gives the constants of those that have no other beside them.
    pub(crate) fn write(e: &mut Emitter<'_>, arch: &DecoderArch) -> Result<Self, CompileError> {
        let mut angles = Self::default();
        for (rotation, reach, names, _) in SETS {
            let Some((rows, pairs)) = extents(arch, rotation, reach) else { continue };
            let tables = of(arch, (rotation, reach), rows);
            let places = [e.place(names[0], || tables.cos)?, e.place(names[1], || tables.sin)?];
            if rotation != Rotation::Global || arch.switch().is_none() {
                let declared = |e: &mut Emitter<'_>, i: usize| {
                    e.external(names[i], DType::F32, &[rows, pairs], places[i])
                };
                angles.insert(rotation, [declared(e, 0), declared(e, 1)]);
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

/// Pairs per head of a rotation, where a layer uses it.
pub(crate) fn pairs(arch: &DecoderArch, rotation: Rotation) -> Option<usize> {
    let layer = arch.layers.iter().find(|layer| layer.attention.rotation == rotation)?;
    arch.rope_of(rotation).map(|_| layer.attention.head_size / 2)
}

/// Positions and pairs of a set, where the decoder has it.
fn extents(arch: &DecoderArch, rotation: Rotation, reach: Reach) -> Option<(usize, usize)> {
    let switch = arch.switch().filter(|_| rotation == Rotation::Global);
    let rows = match (reach, switch) {
        (Reach::Short, Some(at)) => at,
        (Reach::Long, None) => return None,
        _ => arch.context,
    };
    Some((rows, pairs(arch, rotation)?))
}

/// The sets that [`Angles::write`] wrote, as tables that the host reads rows of.
pub(crate) fn host_tables(e: &Emitter<'_>, arch: &DecoderArch) -> Vec<HostTable> {
    let mut tables = Vec::new();
    for (rotation, reach, names, roles) in SETS {
        let Some((rows, cols)) = extents(arch, rotation, reach) else { continue };
        for (role, name) in roles.into_iter().zip(names) {
            tables.extend(e.place_of(name, DType::F32).map(|place| {
                let encoding = TableEncoding::Plain { dtype: DType::F32, data: e.range(place) };
                HostTable { role, rows, cols, encoding }
            }));
        }
    }
    tables
}

/// Cosines and sines, each `[positions, pairs]`.
pub(crate) struct RopeTables {
    pub(crate) cos: Vec<f32>,
    pub(crate) sin: Vec<f32>,
}

/// A decoder's angles for positions `0..positions`; empty for a rotation that it has not.
pub(crate) fn of(arch: &DecoderArch, (rotation, reach): (Rotation, Reach), positions: usize) -> RopeTables {
    match (arch.rope_of(rotation), pairs(arch, rotation)) {
        (Some(rope), Some(pairs)) => tables((rope, reach), positions, pairs),
        _ => RopeTables { cos: Vec::new(), sin: Vec::new() },
    }
}

/// The tables for positions `0..positions` and heads of as many pairs.
fn tables((rope, reach): (&Rope, Reach), positions: usize, pairs: usize) -> RopeTables {
    let mut frequencies = frequencies(rope, reach);
    // Pairs beyond the rotated ones stay where they are.
    frequencies.resize(pairs, 0.0);
    let factor = match &rope.scaling {
        RopeScaling::LongRope { attention_factor, .. } => *attention_factor,
        _ => 1.0,
    };
    let turned = rope.dims / 2;
    let angles = || {
        let of = |p: usize| frequencies.iter().enumerate().map(move |(i, f)| (i < turned, p as f64 * f));
        (0..positions).flat_map(of)
    };
    let scaled = |(turned, value): (bool, f64)| (if turned { value * factor } else { value }) as f32;
    RopeTables {
        cos: angles().map(|(turned, angle)| scaled((turned, angle.cos()))).collect(),
        sin: angles().map(|(turned, angle)| scaled((turned, angle.sin()))).collect(),
    }
}

/// Radians per position of each rotated pair.
fn frequencies(rope: &Rope, reach: Reach) -> Vec<f64> {
    let plain = |pair: usize| rope.theta.powf(-2.0 * pair as f64 / rope.dims as f64);
    (0..rope.dims / 2).map(|pair| scaled((&rope.scaling, reach), pair, plain(pair))).collect()
}

fn scaled((scaling, reach): (&RopeScaling, Reach), pair: usize, frequency: f64) -> f64 {
    let divided = |factors: &[f32]| frequency / factors.get(pair).copied().map_or(1.0, f64::from);
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Factors { factors } => divided(factors),
        RopeScaling::LongRope { short, long, .. } => {
            divided(if reach == Reach::Short { short } else { long })
        }
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
        let plain =
            frequencies(&Rope { theta: 500_000.0, dims: 128, scaling: RopeScaling::None }, Reach::Short);
        let stretched = frequencies(&Rope { theta: 500_000.0, dims: 128, scaling }, Reach::Short);
        assert_eq!(plain[0], stretched[0]);
        assert!((plain[63] / stretched[63] - 8.0).abs() < 1e-12);
        assert!(stretched.iter().zip(&plain).all(|(s, p)| s <= p && *s >= p / 8.0));
    }

    #[test]
    fn pairs_beyond_the_rotated_ones_stay() {
        let rope = Rope { theta: 1e4, dims: 2, scaling: RopeScaling::None };
        let tables = tables((&rope, Reach::Short), 2, 4);
        assert_eq!(tables.cos[4..], [1.0f32.cos(), 1.0, 1.0, 1.0]);
        assert_eq!(tables.sin[4..], [1.0f32.sin(), 0.0, 0.0, 0.0]);
    }

    #[test]
    fn longer_sequences_have_factors_of_their_own() {
        let scaling = RopeScaling::LongRope {
            short: vec![1.0, 2.0],
            long: vec![4.0, 8.0],
            original_context: 16,
            attention_factor: 1.5,
        };
        let rope = Rope { theta: 1.0, dims: 4, scaling };
        assert_eq!(frequencies(&rope, Reach::Short), [1.0, 0.5]);
        assert_eq!(frequencies(&rope, Reach::Long), [0.25, 0.125]);
        // What is not rotated is not multiplied.
        assert_eq!(tables((&rope, Reach::Long), 1, 3).cos, [1.5, 1.5, 1.0]);
    }

    #[test]
    fn position_zero_is_not_rotated() {
        let rope = Rope { theta: 1e4, dims: 8, scaling: RopeScaling::Linear { factor: 2.0 } };
        let tables = tables((&rope, Reach::Short), 3, 4);
        assert_eq!(tables.cos[..4], [1.0; 4]);
        assert_eq!(tables.sin[..4], [0.0; 4]);
        assert_eq!(tables.sin[4], 0.5f32.sin());
    }
}
