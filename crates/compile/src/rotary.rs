//! Rotary angles: the cosines and sines of all positions and frequencies, computed in double precision.

use std::{f64::consts::TAU, ops::Range};

use narthex_spec::arch::{DecoderArch, Rope, RopeScaling, Rotation};

/// One set of rotary frequencies of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RotarySet {
    /// Layers that use it.
    pub(crate) rotation: Rotation,
    /// Sequence lengths that use it.
    pub(crate) reach: LengthRange,
}

/// Range of sequence lengths for a set of frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LengthRange {
    /// Up to the original training context; all lengths if a decoder has only one set.
    Short,
    /// Longer sequences.
    Long,
}

/// A function of an angle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trigonometric {
    Cos,
    Sin,
}

impl RotarySet {
    /// All sets that a decoder may have.
    pub(crate) const ALL: [Self; 3] = [
        Self { rotation: Rotation::Global, reach: LengthRange::Short },
        Self { rotation: Rotation::Global, reach: LengthRange::Long },
        Self { rotation: Rotation::Local, reach: LengthRange::Short },
    ];

    /// Returns `[positions, pairs]` of the set, if the decoder has it.
    pub(crate) fn extents(self, arch: &DecoderArch) -> Option<[usize; 2]> {
        let switch = arch.switch().filter(|_| self.rotation == Rotation::Global);
        let positions = match (self.reach, switch) {
            (LengthRange::Short, Some(at)) => at,
            (LengthRange::Long, None) => return None,
            _ => arch.context,
        };
        Some([positions, pairs(arch, self.rotation)?])
    }

    /// Returns cosines or sines of some positions, `[positions, pairs]`; empty if the decoder does not have this
    /// rotation.
    pub(crate) fn values(self, arch: &DecoderArch, wave: Trigonometric, positions: Range<usize>) -> Vec<f32> {
        match (arch.rope_of(self.rotation), pairs(arch, self.rotation)) {
            (Some(rope), Some(pairs)) => table(rope, self.reach, wave, positions, pairs),
            _ => Vec::new(),
        }
    }
}

/// Returns the number of pairs per head in the tables of a rotation, if a layer uses it.
pub(crate) fn pairs(arch: &DecoderArch, rotation: Rotation) -> Option<usize> {
    let attention = arch.attentions().find(|attention| attention.rotation == rotation)?;
    arch.rope_of(rotation).map(|rope| rope.pairs(attention.head_size))
}

/// Returns cosines or sines `[positions, pairs]`.
pub(crate) fn table(
    rope: &Rope,
    reach: LengthRange,
    wave: Trigonometric,
    positions: Range<usize>,
    pairs: usize,
) -> Vec<f32> {
    let mut frequencies = frequencies(rope, reach);
    frequencies.truncate(rope.rotating_pairs());
    // Pairs after the rotating ones have the angle 0.
    frequencies.resize(pairs, 0.0);
    let factor = match &rope.scaling {
        RopeScaling::LongRope { attention_factor, .. } | RopeScaling::Yarn { attention_factor, .. } => {
            *attention_factor
        }
        _ => 1.0,
    };

    let mut table = Vec::with_capacity(positions.len() * pairs);
    for position in positions {
        for (pair, frequency) in frequencies.iter().enumerate() {
            let angle = position as f64 * frequency;
            let value = match wave {
                Trigonometric::Cos => angle.cos(),
                Trigonometric::Sin => angle.sin(),
            };
            table.push(if pair < rope.rotating_pairs() { value * factor } else { value } as f32);
        }
    }
    table
}

/// Returns the frequency of each rotated pair, in radians per position.
fn frequencies(rope: &Rope, reach: LengthRange) -> Vec<f64> {
    let pairs = 0..rope.dims / 2;
    let plain = pairs.map(|pair| rope.theta.powf(-2.0 * pair as f64 / rope.dims as f64)).enumerate();
    match &rope.scaling {
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, truncate, .. } => {
            let blend = YarnBlend::new(rope, *original_context, [*beta_fast, *beta_slow]);
            let blend = if *truncate { blend.truncated() } else { blend };
            let blend = blend.within(rope.dims);
            plain.map(|(pair, frequency)| blend.of(pair, frequency, *factor)).collect()
        }
        scaling => plain.map(|(pair, frequency)| scaled(scaling, reach, pair, frequency)).collect(),
    }
}

/// Transition of YaRN from kept to divided frequencies, between two pairs.
struct YarnBlend {
    first: f64,
    last: f64,
}

impl YarnBlend {
    /// Finds the pairs that rotate `rotations` times in the original context; the first more often than the last.
    fn new(rope: &Rope, original_context: usize, rotations: [f64; 2]) -> Self {
        let dims = rope.dims as f64;
        let [first, last] = rotations.map(|rotations| {
            dims * (original_context as f64 / (rotations * TAU)).ln() / (2.0 * rope.theta.ln())
        });
        Self { first, last }
    }

    /// Returns the transition between the whole pairs around it.
    fn truncated(self) -> Self {
        Self { first: self.first.floor(), last: self.last.ceil() }
    }

    fn within(self, dims: usize) -> Self {
        Self { first: self.first.max(0.0), last: self.last.min(dims as f64 - 1.0) }
    }

    fn of(&self, pair: usize, frequency: f64, factor: f64) -> f64 {
        // The reference avoids a division by zero in the same way.
        let width = if self.first == self.last { 0.001 } else { self.last - self.first };
        let divided = ((pair as f64 - self.first) / width).clamp(0.0, 1.0);
        frequency / factor * divided + frequency * (1.0 - divided)
    }
}

fn factor_of(factors: &[f32], pair: usize) -> f64 {
    factors.get(pair).copied().map_or(1.0, f64::from)
}

fn scaled(scaling: &RopeScaling, reach: LengthRange, pair: usize, frequency: f64) -> f64 {
    match scaling {
        // YaRN needs all pairs together, see `frequencies`.
        RopeScaling::None | RopeScaling::Yarn { .. } => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Factors { factors } => frequency / factor_of(factors, pair),
        RopeScaling::LongRope { short, long, .. } => match reach {
            LengthRange::Short => frequency / factor_of(short, pair),
            LengthRange::Long => frequency / factor_of(long, pair),
        },
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
        let plain = frequencies(
            &Rope { theta: 500_000.0, dims: 128, scaling: RopeScaling::None },
            LengthRange::Short,
        );
        let stretched = frequencies(&Rope { theta: 500_000.0, dims: 128, scaling }, LengthRange::Short);
        assert_eq!(plain[0], stretched[0]);
        assert!((plain[63] / stretched[63] - 8.0).abs() < 1e-12);
        assert!(stretched.iter().zip(&plain).all(|(s, p)| s <= p && *s >= p / 8.0));
    }

    /// Frequencies of `_compute_yarn_parameters` in transformers, for a base of 10000, 16 elements, an original context
    /// of 2048, and a factor of 4.
    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let rope = |scaling| Rope { theta: 10_000.0, dims: 16, scaling };
        let found = frequencies(&rope(RopeScaling::yarn(4.0, 2048)), LengthRange::Short);
        let expect = [
            1.0,
            0.316227766017,
            0.1,
            0.025693505989,
            0.00625,
            0.001383496476,
            2.5000000000e-04,
            7.9056941504e-05,
        ];
        assert!(
            found.iter().zip(expect).all(|(found, expect)| (found / expect - 1.0).abs() < 1e-6),
            "{found:?}"
        );
        // The factor on queries and keys is 0.1 ln 4 + 1.
        let cosines =
            table(&rope(RopeScaling::yarn(4.0, 2048)), LengthRange::Short, Trigonometric::Cos, 0..1, 8);
        assert!((f64::from(cosines[0]) - 1.138_629_436_111_989).abs() < 1e-6, "{cosines:?}");
        assert_eq!(frequencies(&rope(RopeScaling::yarn(1.0, 2048)), LengthRange::Short).len(), 8);
    }

    #[test]
    fn pairs_beyond_the_rotated_ones_stay() {
        let rope = Rope { theta: 1e4, dims: 2, scaling: RopeScaling::None };
        let at_one = |wave| table(&rope, LengthRange::Short, wave, 1..2, 4);
        assert_eq!(at_one(Trigonometric::Cos), [1.0f32.cos(), 1.0, 1.0, 1.0]);
        assert_eq!(at_one(Trigonometric::Sin), [1.0f32.sin(), 0.0, 0.0, 0.0]);
    }

    #[test]
    fn tables_have_no_more_pairs_than_the_operators_need() {
        let pairs = |dims, scaling, head_size| Rope { theta: 1e4, dims, scaling }.pairs(head_size);
        assert_eq!(pairs(64, RopeScaling::None, 256), 32);
        assert_eq!(pairs(20, RopeScaling::None, 80), 16);
        assert_eq!(pairs(4, RopeScaling::None, 12), 6);
        let factors: Vec<f32> =
            (0..256).map(|pair| if pair < 64 { 1.0 } else { RopeScaling::STILL }).collect();
        assert_eq!(pairs(512, RopeScaling::Factors { factors }, 512), 64);
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
        assert_eq!(frequencies(&rope, LengthRange::Short), [1.0, 0.5]);
        assert_eq!(frequencies(&rope, LengthRange::Long), [0.25, 0.125]);
        // Elements that are not rotated are not scaled.
        assert_eq!(table(&rope, LengthRange::Long, Trigonometric::Cos, 0..1, 3), [1.5, 1.5, 1.0]);
    }

    #[test]
    fn position_zero_is_not_rotated() {
        let rope = Rope { theta: 1e4, dims: 8, scaling: RopeScaling::Linear { factor: 2.0 } };
        let of = |wave| table(&rope, LengthRange::Short, wave, 0..3, 4);
        assert_eq!(of(Trigonometric::Cos)[..4], [1.0; 4]);
        assert_eq!(of(Trigonometric::Sin)[..4], [0.0; 4]);
        assert_eq!(of(Trigonometric::Sin)[4], 0.5f32.sin());
    }
}
