//! Rotary tables: the cosine and sine of every position and frequency, computed in double precision.

use std::{f64::consts::TAU, ops::Range};

use narthex_graph::onnx::external::Place;
use narthex_spec::{
    DType,
    arch::{DecoderArch, Rope, RopeScaling, Rotation},
    manifest::{HostTable, TableEncoding, TableRole},
};

use crate::{
    emit::{Emitter, pieces},
    error::CompileError,
};

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
            let set = (rotation, reach);
            let places = [
                write(e, names[0], (arch, set, Wave::Cos), (rows, pairs))?,
                write(e, names[1], (arch, set, Wave::Sin), (rows, pairs))?,
            ];
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

/// What is taken of an angle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wave {
    Cos,
    Sin,
}

/// Writes a decoder's cosines or sines `[positions, pairs]`, a piece of the positions at a time.
fn write(
    e: &mut Emitter<'_>,
    name: &str,
    (arch, set, wave): (&DecoderArch, (Rotation, Reach), Wave),
    (positions, pairs): (usize, usize),
) -> Result<Place, CompileError> {
    let length = (positions as u64) * (pairs * DType::F32.size()) as u64;
    e.once(name, DType::F32, |e| {
        e.stream(length, |append| {
            pieces(0..positions, pairs)
                .try_for_each(|piece| append(bytemuck::cast_slice(&of(arch, (set, wave), piece))))
        })
    })
}

/// A decoder's cosines or sines for some positions, `[positions, pairs]`; empty for a rotation that it has not.
pub(crate) fn of(
    arch: &DecoderArch,
    ((rotation, reach), wave): ((Rotation, Reach), Wave),
    positions: Range<usize>,
) -> Vec<f32> {
    match (arch.rope_of(rotation), pairs(arch, rotation)) {
        (Some(rope), Some(pairs)) => table((rope, reach, wave), positions, pairs),
        _ => Vec::new(),
    }
}

/// The table for heads of as many pairs.
fn table((rope, reach, wave): (&Rope, Reach, Wave), positions: Range<usize>, pairs: usize) -> Vec<f32> {
    let mut frequencies = frequencies(rope, reach);
    // Pairs beyond the rotated ones stay where they are.
    frequencies.resize(pairs, 0.0);
    let factor = match &rope.scaling {
        RopeScaling::LongRope { attention_factor, .. } => *attention_factor,
        _ => 1.0,
    };
    let turned = rope.dims / 2;
    let of = |angle: f64| if wave == Wave::Cos { angle.cos() } else { angle.sin() };
    let element = |position: usize, pair: usize, frequency: f64| {
        let value = of(position as f64 * frequency);
        (if pair < turned { value * factor } else { value }) as f32
    };
    positions
        .flat_map(|position| {
            frequencies.iter().enumerate().map(move |(pair, frequency)| element(position, pair, *frequency))
        })
        .collect()
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
        let at_one = |wave| table((&rope, Reach::Short, wave), 1..2, 4);
        assert_eq!(at_one(Wave::Cos), [1.0f32.cos(), 1.0, 1.0, 1.0]);
        assert_eq!(at_one(Wave::Sin), [1.0f32.sin(), 0.0, 0.0, 0.0]);
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
        assert_eq!(table((&rope, Reach::Long, Wave::Cos), 0..1, 3), [1.5, 1.5, 1.0]);
    }

    #[test]
    fn position_zero_is_not_rotated() {
        let rope = Rope { theta: 1e4, dims: 8, scaling: RopeScaling::Linear { factor: 2.0 } };
        let of = |wave| table((&rope, Reach::Short, wave), 0..3, 4);
        assert_eq!(of(Wave::Cos)[..4], [1.0; 4]);
        assert_eq!(of(Wave::Sin)[..4], [0.0; 4]);
        assert_eq!(of(Wave::Sin)[4], 0.5f32.sin());
    }
}
