//! Divisors for the channels of a linear layer's input, which reduce the rounding error of a block (SmoothQuant, Xiao
//! et al. 2022, arXiv:2211.10438), and channels of the head's input that are not rounded.
//!
//! The divisor is folded into the producer of the input: the gain of the norm or the rows of the projection before it.
//! The layer's own columns are multiplied by it, so the model computes the same function. By default, divisors are powers
//! of two, so they change no mantissa, and weights on a checkpoint's coarser grid stay on it. Those of other methods come
//! from [`super::channel_scales`]. [`crate::calibration`] does the measuring.

use std::collections::BTreeMap;

use narthex_spec::arch::{DecoderArch, KvSource, Mixer};
use serde::Serialize;

use super::{
    Plan, Storage,
    channel_groups::{ChannelGroup, feed_forward_inputs, gated_products, mixer_inputs},
};

/// Exponent with which a channel's size enters its divisor: 1 would equalise all channels of the input, 0 leaves them
/// unchanged. The weight receives the inverse.
const MIGRATION_STRENGTH: f64 = 0.5;

/// Maximum magnitude of an exponent. It keeps the f16 scales of blocks in the range of full precision.
const LARGEST: f64 = 6.0;

/// Name of the head's input.
const HEAD: &str = "head";

/// Maximum number of channels of a head's input that are not rounded; each costs the head a column in f32. More do not
/// help: without any rounding in SmolLM2-135M, 629 of 640 positions prefer the reference's token, the same as with
/// these.
const OUTLIERS: usize = 8;

/// Minimum size of such a channel, as a multiple of the median.
const OUTLIER_THRESHOLD: f32 = 3.0;

/// The input of one or more linear layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Input {
    /// `layers.3.attn`, `layers.3.conv`, `layers.3.mlp`, `layers.3.down` or `head`.
    pub name: String,
    /// Path of a node whose first input it is.
    pub node: String,
    /// Number of channels.
    pub channels: usize,
    /// Treatment of its large channels.
    pub remedy: Remedy,
}

/// Treatment of an input's large channels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Remedy {
    /// Scaling, which has no runtime cost.
    Scale {
        /// The weight whose elements, or rows, produce the channels.
        divided: String,
        /// The weights that read the channels.
        multiplied: Vec<String>,
    },
    /// Separate columns in f32 without rounding. They serve heads that share their weight with the token table, whose
    /// columns cannot be scaled because the host reads its rows unchanged.
    Split,
}

/// Returns the inputs of a decoder's linear layers that can be treated: those that only 8-bit weights read.
pub fn inputs(arch: &DecoderArch, plan: &Plan) -> Vec<Input> {
    let mut all = Vec::new();
    for (index, layer) in arch.layers.iter().enumerate() {
        let mixer = match &layer.mixer {
            Mixer::Attention(attention) if attention.kv == KvSource::Own => "attn/qkv_proj",
            Mixer::Attention(_) => "attn/q_proj",
            Mixer::Convolution(_) => "conv/in_proj",
            Mixer::DeltaRule(_) => "delta/qkv_proj",
            Mixer::Mamba2(_) => "mamba/in_proj",
        };
        let groups = [
            (mixer_inputs(arch, index, layer), mixer, arch.hidden),
            (feed_forward_inputs(index, layer), "mlp/up_proj", arch.hidden),
            (gated_products(index, layer), "mlp/down_proj", layer.mlp().map_or(0, |mlp| mlp.inner)),
        ];
        for (group, path, channels) in groups {
            all.extend(group.map(|ChannelGroup { name, producer, readers, .. }| Input {
                name,
                node: format!("/layers.{index}/{path}/MatMulNBits"),
                channels,
                remedy: Remedy::Scale { divided: producer, multiplied: readers },
            }));
        }
    }

    all.push(Input {
        name: HEAD.to_owned(),
        node: "/head/MatMulNBits".to_owned(),
        channels: arch.hidden,
        remedy: match arch.tied_head {
            true => Remedy::Split,
            false => Remedy::Scale {
                divided: "norm.weight".to_owned(),
                multiplied: vec!["head.weight".to_owned()],
            },
        },
    });

    all.retain(|input| match &input.remedy {
        Remedy::Scale { divided, multiplied } => {
            // Gains of norms are not in the plan.
            let is_rounded = |storage| matches!(storage, Storage::W8Zeros | Storage::W8);
            plan.storage(divided).is_none_or(is_rounded)
                && multiplied.iter().all(|name| plan.storage(name).is_some_and(is_rounded))
        }
        Remedy::Split => plan.storage(arch.head_weight()) == Some(Storage::W8),
    });
    all
}

/// Measured treatment of one input.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InputRemedy {
    /// The input.
    #[serde(flatten)]
    pub input: Input,
    /// One exponent of two for each scaled channel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exponents: Vec<i8>,
    /// Channels that are not rounded, in ascending order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outliers: Vec<usize>,
}

/// A group of channels with its scales.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScaledGroup {
    /// The group.
    #[serde(flatten)]
    pub group: ChannelGroup,
    /// The strength of AWQ with the least loss; `None` if it was not searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strength: Option<f32>,
    /// One scale for each channel.
    pub scales: Vec<f32>,
}

/// Treatment of all inputs.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Scaling {
    /// One entry for each input.
    pub inputs: Vec<InputRemedy>,
    /// Groups of channels whose scales were measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<ScaledGroup>,
    #[serde(skip)]
    divisors: BTreeMap<String, usize>,
    #[serde(skip)]
    factors: BTreeMap<String, usize>,
    /// Scales to which the indices of divisors and factors refer.
    #[serde(skip)]
    scales: Vec<Vec<f32>>,
}

impl Scaling {
    /// Adds the treatment of an input, decided by the mean squares of its channels.
    pub fn add(&mut self, input: Input, mean_squares: &[f32]) {
        let mut found = Vec::new();
        let mut outlying = Vec::new();
        match &input.remedy {
            Remedy::Scale { divided, multiplied } => {
                found = exponents(mean_squares);
                let at = self.scales.len();
                self.divisors.insert(divided.clone(), at);
                self.factors.extend(multiplied.iter().map(|name| (name.clone(), at)));
                self.scales.push(found.iter().map(|&exponent| f32::from(exponent).exp2()).collect());
            }
            Remedy::Split => outlying = outliers(mean_squares),
        }
        self.inputs.push(InputRemedy { input, exponents: found, outliers: outlying });
    }

    /// Adds the scales of a group.
    pub(crate) fn add_group(&mut self, scaled: ScaledGroup) {
        let ScaledGroup { group, scales, .. } = &scaled;
        let at = self.scales.len();
        self.divisors.insert(group.producer.clone(), at);
        self.factors.extend(group.readers.iter().map(|name| (name.clone(), at + 1)));
        self.scales.extend([scales.clone(), group.of_columns(scales)]);
        self.groups.push(scaled);
    }

    /// Adds divisors for the elements of a gain, or for the rows of a weight, that no other input divides.
    pub(super) fn add_divisors(&mut self, weight: String, divisors: Vec<f32>) {
        self.divisors.insert(weight, self.scales.len());
        self.scales.push(divisors);
    }

    /// Returns the factors for the columns of a weight.
    pub fn factors(&self, weight: &str) -> Option<&[f32]> {
        self.factors.get(weight).map(|&at| self.scales[at].as_slice())
    }

    /// Returns the divisors for the elements of a gain, or for the rows of a weight.
    pub fn divisors(&self, weight: &str) -> Option<&[f32]> {
        self.divisors.get(weight).map(|&at| self.scales[at].as_slice())
    }

    /// Returns the treatment without channels that are not rounded, so that the head reads its whole input as it does in
    /// graphs with fixed shapes.
    pub(crate) fn with_whole_head(&self) -> Self {
        let mut scaling = self.clone();
        scaling.inputs.iter_mut().for_each(|entry| entry.outliers.clear());
        scaling
    }

    /// Divides the elements of a gain, or of the bias of a weight's rows, if there are divisors.
    pub fn divide(&self, weight: &str, values: &mut [f32]) {
        if let Some(divisors) = self.divisors(weight) {
            values.iter_mut().zip(divisors).for_each(|(x, divisor)| *x /= divisor);
        }
    }

    /// Returns the channels of the head's input that are not rounded, in ascending order.
    pub fn head_outliers(&self) -> &[usize] {
        self.inputs.iter().find(|entry| entry.input.name == HEAD).map_or(&[], |entry| &entry.outliers)
    }
}

fn median(mean_squares: &[f32]) -> f32 {
    let mut sorted = mean_squares.to_vec();
    sorted.sort_by(f32::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the largest channels if they are much larger than the median channel.
fn outliers(mean_squares: &[f32]) -> Vec<usize> {
    let least = median(mean_squares) * OUTLIER_THRESHOLD * OUTLIER_THRESHOLD;
    let mut channels: Vec<usize> =
        (0..mean_squares.len()).filter(|&channel| mean_squares[channel] >= least && least > 0.0).collect();
    channels.sort_by(|&a, &b| mean_squares[b].total_cmp(&mean_squares[a]));
    channels.truncate(OUTLIERS);
    channels.sort_unstable();
    channels
}

/// Returns each channel's divisor as an exponent of two: the ratio of its size to the median size, to the power of
/// [`MIGRATION_STRENGTH`].
fn exponents(mean_squares: &[f32]) -> Vec<i8> {
    let median = median(mean_squares);
    mean_squares
        .iter()
        .map(|&square| {
            let sizes = f64::from(square) / f64::from(median);
            // The size of a channel that is always or mostly 0 is unknown.
            if sizes > 0.0 && sizes.is_finite() {
                (sizes.sqrt().log2() * MIGRATION_STRENGTH).round().clamp(-LARGEST, LARGEST) as i8
            } else {
                0
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_channels_are_divided_by_the_root_of_their_size() {
        let check = |sizes: &[f32], expect: &[i8]| {
            let squares: Vec<f32> = sizes.iter().map(|size| size * size).collect();
            assert_eq!(exponents(&squares), expect, "{sizes:?}");
        };
        check(&[1.0, 1.0, 1.0, 4.0, 16.0], &[0, 0, 0, 1, 2]);
        check(&[3.0, 3.0, 3.0, 0.75], &[0, 0, 0, -1]);
        // Channels near the median are not scaled.
        check(&[1.0, 1.3, 0.8, 1.0, 1.9], &[0, 0, 0, 0, 0]);
        check(&[1.0, 1.0, 1.0, 0.0, f32::NAN, f32::INFINITY], &[0, 0, 0, 0, 0, 0]);
        check(&[1.0, 1.0, 1e30, 1e-12, 1.0], &[0, 0, 0, -6, 0]);
        check(&[0.0, 0.0, 0.0, 1.0], &[0, 0, 0, 0]);
        check(&[], &[]);
    }

    #[test]
    fn weights_find_their_input() {
        let input = Input {
            name: "layers.0.down".to_owned(),
            node: "/n".to_owned(),
            channels: 3,
            remedy: Remedy::Scale { divided: "up".to_owned(), multiplied: vec!["down".to_owned()] },
        };
        let mut scaling = Scaling::default();
        scaling.add(input, &[1.0, 1.0, 256.0]);
        assert_eq!(scaling.factors("down"), Some([1.0, 1.0, 4.0].as_slice()));
        assert_eq!(scaling.divisors("up"), Some([1.0, 1.0, 4.0].as_slice()));
        assert_eq!((scaling.factors("up"), scaling.divisors("down")), (None, None));
        assert!(serde_json::to_string(&scaling).unwrap().contains("\"exponents\":[0,0,2]"));
    }

    #[test]
    fn the_largest_channels_of_a_split_head_are_not_rounded() {
        let check = |sizes: &[f32], expect: &[usize]| {
            let squares: Vec<f32> = sizes.iter().map(|size| size * size).collect();
            assert_eq!(outliers(&squares), expect, "{sizes:?}");
        };
        check(&[1.0, 9.0, 1.0, 2.9, 3.1, 1.0, 1.0, 1.0], &[1, 4]);
        check(&[1.0; 20], &[]);
        check(&[0.0; 4], &[]);
        let mut many = [1.0; 30];
        many.iter_mut().take(12).enumerate().for_each(|(i, size)| *size = 20.0 + i as f32);
        check(&many, &[4, 5, 6, 7, 8, 9, 10, 11]);
    }
}
