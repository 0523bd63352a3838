//! Distributions of the activations around linear layers, and the integers that represent them in graphs with fixed
//! shapes. [`crate::calibration`] does the measuring.

use std::collections::BTreeMap;

use half::f16;
use narthex_graph::typed::{Rounding, Scope};
use narthex_spec::{ActivationBits, IntegerActivations, RangeMethod};
use serde::Serialize;

/// Bins of a histogram per power of two. The values of a bin differ by 4 %.
const BINS_PER_OCTAVE: usize = 16;

/// Exponent of the smallest magnitude of a histogram. Smaller ones are in the first bin.
const LEAST_EXPONENT: i32 = -24;

/// Powers of two of a histogram. Larger magnitudes, which half precision does not have, are in the last bin.
const OCTAVES: usize = 41;

/// Bins of a histogram for the magnitudes of one sign.
const BINS: usize = OCTAVES * BINS_PER_OCTAVE;

/// Factor of the range that 16 bits represent. Other texts have larger activations, and 16 bits are enough for both.
const HEADROOM: f32 = 1.25;

/// Smallest scale, far above the smallest number in half precision, so that its rounding error is small.
const LEAST_SCALE: f32 = 1e-6;

/// Share of the values that [`RangeMethod::Percentile`] leaves out at each end.
const TAIL: f64 = 1e-4;

/// Share of the values with the largest magnitudes that hide the error of the others.
const OUTLIERS: f64 = 1e-2;

/// Largest mean squared error of activations in 8 bits, relative to their mean square.
const LARGEST_ERROR: f64 = 1e-3;

/// Number of ranges that [`RangeMethod::Mse`] compares, and the ratio of one to the next.
const CANDIDATES: i32 = 40;
const SHRINKAGE: f32 = 0.9;

/// Settings of the head, and of layers that lose much in 8 bits.
pub(crate) const WIDE: IntegerActivations =
    IntegerActivations { bits: ActivationBits::Sixteen, ranges: RangeMethod::MinMax };

/// Distribution of the elements of a tensor, over all tokens and channels.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Histogram {
    /// Smallest element.
    pub low: f32,
    /// Largest element.
    pub high: f32,
    /// Number of elements in each bin: magnitudes of positive elements in ascending order, then of negative ones.
    #[serde(skip)]
    pub counts: Vec<f32>,
}

/// Parameters by which a graph computes the bin of an element: `⌊log(magnitude) · factor⌋ + offset`, within `0..bins`,
/// and `bins` more for a negative element.
pub(crate) struct Binning {
    /// Bins per unit of the natural logarithm.
    pub(crate) factor: f32,
    /// Bin of the magnitude 1.
    pub(crate) offset: f32,
    /// Number of bins of one sign.
    pub(crate) bins: usize,
}

impl Binning {
    /// Parameters of [`Histogram`].
    pub(crate) const STANDARD: Self = Self {
        factor: BINS_PER_OCTAVE as f32 * std::f32::consts::LOG2_E,
        offset: (-LEAST_EXPONENT) as f32 * BINS_PER_OCTAVE as f32,
        bins: BINS,
    };
}

impl Histogram {
    /// Returns the middle of each bin that has elements, in no order, with their number.
    fn values(&self) -> impl Iterator<Item = (f32, f64)> {
        let bins = self.counts.iter().enumerate().filter(|(_, count)| **count > 0.0);
        bins.map(|(bin, count)| {
            let exponent = ((bin % BINS) as f32 + 0.5) / BINS_PER_OCTAVE as f32 + LEAST_EXPONENT as f32;
            let sign = if bin < BINS { 1.0 } else { -1.0 };
            ((sign * exponent.exp2()).clamp(self.low.min(0.0), self.high.max(0.0)), f64::from(*count))
        })
    }

    /// Adds the elements of another tensor.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.low = self.low.min(other.low);
        self.high = self.high.max(other.high);
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
    }

    /// Returns the integers for the elements.
    fn rounding(&self, IntegerActivations { bits, ranges }: IntegerActivations) -> Rounding {
        let whole = [self.low.min(0.0), self.high.max(0.0)];
        match ranges {
            RangeMethod::MinMax => rounding(whole, bits),
            RangeMethod::Percentile => rounding(self.without_tails(), bits),
            RangeMethod::Mse => {
                let candidates = (0..CANDIDATES).map(|exponent| {
                    let found = rounding(whole.map(|end| end * SHRINKAGE.powi(exponent)), bits);
                    (self.error(found, f32::INFINITY), found)
                });
                // The first of equal candidates is the widest.
                let best = candidates.min_by(|(a, _), (b, _)| a.total_cmp(b));
                best.map_or_else(|| rounding(whole, bits), |(_, found)| found)
            }
        }
    }

    /// Returns the range without the most extreme elements of each end.
    fn without_tails(&self) -> [f32; 2] {
        let mut values: Vec<(f32, f64)> = self.values().collect();
        values.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let left_out = self.elements() * TAIL;
        let low = after(left_out, values.iter().copied());
        let high = after(left_out, values.iter().rev().copied());
        [low.min(0.0), high.max(0.0)]
    }

    /// Returns the number of elements.
    fn elements(&self) -> f64 {
        self.counts.iter().copied().map(f64::from).sum()
    }

    /// Returns the mean squared error of the rounded elements whose magnitude is at most `largest`, relative to their mean
    /// square.
    fn error(&self, rounding: Rounding, largest: f32) -> f64 {
        let scale = f16::from_bits(rounding.scale).to_f32();
        let zero = f32::from(rounding.zero);
        let mut error = 0.0;
        let mut energy = f64::MIN_POSITIVE;
        for (value, count) in self.values().filter(|(value, _)| value.abs() <= largest) {
            let integer = ((value / scale).round() + zero).clamp(0.0, top(rounding.bits));
            error += count * f64::from((integer - zero) * scale - value).powi(2);
            energy += count * f64::from(value).powi(2);
        }
        error / energy
    }

    /// Returns the magnitude that all elements but the outliers have at most.
    fn usual_magnitude(&self) -> f32 {
        let magnitudes = self.values().map(|(value, count)| (value.abs(), count));
        let mut magnitudes: Vec<(f32, f64)> = magnitudes.collect();
        magnitudes.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        after(self.elements() * OUTLIERS, magnitudes.into_iter())
    }

    /// Returns `true` if the integers represent the elements well: all of them together, and those that are no outliers.
    fn is_represented(&self, rounding: Rounding) -> bool {
        [f32::INFINITY, self.usual_magnitude()]
            .into_iter()
            .all(|largest| self.error(rounding, largest) <= LARGEST_ERROR)
    }
}

/// Returns the first value, in their order, that comes after this number of elements.
fn after(left_out: f64, values: impl Iterator<Item = (f32, f64)>) -> f32 {
    let mut elements = 0.0;
    let mut inside = values.skip_while(|(_, count)| {
        elements += count;
        elements <= left_out
    });
    inside.next().map_or(0.0, |(value, _)| value)
}

/// Returns the largest integer.
fn top(bits: ActivationBits) -> f32 {
    match bits {
        ActivationBits::Eight => 255.0,
        ActivationBits::Sixteen => 65_535.0,
    }
}

/// Returns the integers for a range of values that includes 0.
fn rounding([low, high]: [f32; 2], bits: ActivationBits) -> Rounding {
    let headroom = if bits == ActivationBits::Sixteen { HEADROOM } else { 1.0 };
    let top = top(bits);
    let scale = f16::from_f32(((high - low) * headroom / top).max(LEAST_SCALE));
    let middle = (low + high) / 2.0;
    let zero = (top / 2.0 - middle / scale.to_f32()).round().clamp(0.0, top);
    Rounding { bits, scale: scale.to_bits(), zero: zero as u16 }
}

/// Distributions of the input and of the output of a linear layer, whose output is without bias.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LinearActivations {
    /// Elements of the input.
    pub input: Histogram,
    /// Elements of the output.
    pub output: Histogram,
}

/// Integers that represent the input of a linear layer, and its output without bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinearRounding {
    pub(crate) input: Rounding,
    pub(crate) output: Rounding,
}

impl LinearRounding {
    /// Returns the rounding of a dry run, which has no measurements.
    pub(crate) fn unmeasured(settings: IntegerActivations) -> Self {
        let [input, output] = [rounding([-1.0, 1.0], settings.bits); 2];
        Self { input, output }
    }
}

impl LinearActivations {
    /// Returns the integers for both sides. Compilers compute a product whose sides have the same width: 16 bits if the
    /// settings ask for 8 and either side loses much in 8 bits.
    fn rounding(&self, settings: IntegerActivations) -> LinearRounding {
        let [input, output] = [&self.input, &self.output].map(|side| (side, side.rounding(settings)));
        let is_represented = settings.bits == ActivationBits::Sixteen
            || [input, output].into_iter().all(|(side, rounding)| side.is_represented(rounding));
        if is_represented {
            return LinearRounding { input: input.1, output: output.1 };
        }
        LinearRounding { input: self.input.rounding(WIDE), output: self.output.rounding(WIDE) }
    }
}

/// Distributions around a model's linear layers, by path: `/layers.3/mlp/up_proj`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ActivationRanges {
    layers: BTreeMap<String, LinearActivations>,
}

impl ActivationRanges {
    /// Adds a layer.
    pub fn insert(&mut self, path: String, activations: LinearActivations) {
        self.layers.insert(path, activations);
    }

    /// Returns the integers for a layer, or for several layers over the same rows whose outputs are concatenated; `None`
    /// if they were not measured.
    pub(crate) fn rounding(
        &self,
        scope: &Scope,
        parts: &[Scope],
        settings: IntegerActivations,
    ) -> Option<LinearRounding> {
        if let Some(layer) = self.layers.get(&scope.to_string()) {
            return Some(layer.rounding(settings));
        }
        let mut parts = parts.iter().map(|part| self.layers.get(&part.to_string()));
        let mut stacked = parts.next()??.clone();
        for part in parts {
            stacked.output.extend(&part?.output);
        }
        Some(stacked.rounding(settings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EIGHT: IntegerActivations =
        IntegerActivations { bits: ActivationBits::Eight, ranges: RangeMethod::MinMax };
    const SIXTEEN: IntegerActivations = IntegerActivations { bits: ActivationBits::Sixteen, ..EIGHT };

    /// Returns the histogram that a graph computes.
    fn histogram(values: &[f32]) -> Histogram {
        let Binning { factor, offset, bins } = Binning::STANDARD;
        let mut counts = vec![0.0; 2 * bins];
        for value in values {
            let bin = ((value.abs().ln() * factor).floor() + offset).clamp(0.0, bins as f32 - 1.0) as usize;
            counts[bin + if *value < 0.0 { bins } else { 0 }] += 1.0;
        }
        Histogram {
            low: values.iter().copied().fold(f32::INFINITY, f32::min),
            high: values.iter().copied().fold(f32::NEG_INFINITY, f32::max),
            counts,
        }
    }

    /// Returns values between -1 and 1, most of them small.
    fn bell(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i as f32 + 0.5) / count as f32 * 2.0 - 1.0).powi(3)).collect()
    }

    fn decoded(rounding: Rounding) -> [f32; 2] {
        let scale = f16::from_bits(rounding.scale).to_f32();
        [0.0, top(rounding.bits)].map(|integer| (integer - f32::from(rounding.zero)) * scale)
    }

    #[test]
    fn integers_cover_the_range() {
        let check = |low: f32, high: f32| {
            for (bits, widest) in [(ActivationBits::Eight, 1.01), (ActivationBits::Sixteen, 1.3)] {
                let [least, most] = decoded(rounding([low, high], bits));
                let step = f16::from_bits(rounding([low, high], bits).scale).to_f32();
                assert!(least <= low + step && high - step <= most, "{low} to {high}: {least} to {most}");
                assert!(most - least <= widest * (high - low).max(0.1), "{low} to {high}: {least} to {most}");
            }
        };
        check(-1.0, 1.0);
        check(0.0, 1.0);
        check(-3000.0, 12.0);
        check(-0.2, 0.1);
        check(0.0, 0.0);
        check(-65_504.0, 65_504.0);
    }

    #[test]
    fn bins_have_the_values_of_their_elements() {
        for value in [1.0, -1.0, 3e-7, -700.25, 65_504.0] {
            let all: Vec<_> = Histogram { low: -1e9, high: 1e9, ..histogram(&[value]) }.values().collect();
            let [(found, 1.0)] = all[..] else { panic!("{all:?}") };
            assert!((found / value - 1.0).abs() < 0.03, "{value}: {found}");
        }
        assert!(histogram(&[0.0]).values().all(|(value, count)| (value, count) == (0.0, 1.0)));
    }

    #[test]
    fn each_method_has_its_range() {
        let mut values = bell(100_000);
        values.extend([-40.0, 80.0, 81.0]);
        let outlying = histogram(&values);
        let range = |ranges| decoded(outlying.rounding(IntegerActivations { ranges, ..EIGHT }));
        let [low, high] = range(RangeMethod::MinMax);
        assert!((low + 40.0).abs() < 0.5 && (high - 81.0).abs() < 0.5, "{low} {high}");
        let [low, high] = range(RangeMethod::Percentile);
        assert!((low + 1.0).abs() < 0.05 && (high - 1.0).abs() < 0.05, "{low} {high}");
        let [low, high] = range(RangeMethod::Mse);
        assert!(low < -5.0 && high > 10.0, "the outliers are most of the energy: {low} {high}");

        // Rare values that are a little larger than the others are cut.
        values.truncate(100_000);
        values.extend([-3.0, 3.0]);
        let rare = histogram(&values);
        let [low, high] = decoded(rare.rounding(IntegerActivations { ranges: RangeMethod::Mse, ..EIGHT }));
        assert!((-2.8..-2.0).contains(&low) && (2.0..2.8).contains(&high), "{low} {high}");
    }

    #[test]
    fn layers_that_lose_much_in_eight_bits_have_sixteen() {
        let usual = histogram(&bell(10_000));
        let mut values = bell(10_000);
        values.push(500.0);
        let outlier = histogram(&values);
        let check = |input: &Histogram, output: &Histogram, settings, expected| {
            let layer = LinearActivations { input: input.clone(), output: output.clone() };
            let LinearRounding { input, output } = layer.rounding(settings);
            assert_eq!((input.bits, output.bits), (expected, expected));
        };
        check(&usual, &usual, EIGHT, ActivationBits::Eight);
        check(&usual, &outlier, EIGHT, ActivationBits::Sixteen);
        check(&outlier, &usual, EIGHT, ActivationBits::Sixteen);
        check(&usual, &usual, SIXTEEN, ActivationBits::Sixteen);
        // Without the outlier, the others would have 8 bits, but the outlier would be lost.
        let cut = IntegerActivations { ranges: RangeMethod::Percentile, ..EIGHT };
        check(&outlier, &usual, cut, ActivationBits::Sixteen);
    }

    #[test]
    fn layers_over_the_same_rows_are_stacked() {
        let layer = |value: f32| LinearActivations {
            input: histogram(&[-1.0, 1.0]),
            output: histogram(&[-value, value]),
        };
        let [up, gate, both] = ["up", "gate", "both"].map(|name| Scope::root().child(name));
        let mut all = ActivationRanges::default();
        all.insert(up.to_string(), layer(2.0));
        let parts = [up.clone(), gate.clone()];
        assert_eq!(all.rounding(&both, &parts, SIXTEEN), None);
        all.insert(gate.to_string(), layer(3.0));
        let stacked = all.rounding(&both, &parts, SIXTEEN).unwrap();
        assert_eq!(stacked.output, rounding([-3.0, 3.0], ActivationBits::Sixteen));
        assert_eq!(
            all.rounding(&up, &[], SIXTEEN).unwrap().output,
            rounding([-2.0, 2.0], ActivationBits::Sixteen)
        );
    }
}
