//! Conformers as audio towers.

use serde::{Deserialize, Serialize};

use super::EndToken;
use crate::divisor::greatest_common_divisor;

/// Largest extent of a tower. The widest layer of Gemma 3n's has 6144 channels.
const MAX_EXTENT: usize = 1 << 16;

/// Largest extent of a kernel, a stride, or a chunk with its context.
const MAX_WINDOW: usize = 512;

/// Largest number of values between two layers of a tower, and inside a layer.
const MAX_VALUES: usize = 1 << 26;

/// Convolutions over the frames of a sound, a conformer (Gulati et al. 2020, arXiv:2005.08100) whose positions attend to
/// those around them, and a connector, as in Gemma 3n (Zhang et al. 2023, arXiv:2303.01037). In the decoder, a sound has a
/// fixed number of rows, and the row of the token that ends it, which has an embedding of its own, follows them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConformerTower {
    /// Mel bins of a frame.
    pub bins: usize,
    /// Convolutions that reduce the number of frames.
    pub convolutions: [FrameConvolution; 2],
    /// Epsilon of the norms after the convolutions, whose means are those of the frames so far.
    pub group_norm_epsilon: f32,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of attention heads; divides the width.
    pub heads: usize,
    /// Positions whose queries attend to the same keys.
    pub chunk: usize,
    /// Number of earlier positions that a position attends to.
    pub left: usize,
    /// Number of later positions that a position attends to.
    pub right: usize,
    /// Soft cap of attention scores.
    pub score_cap: f32,
    /// Length of the depthwise kernels.
    pub kernel: usize,
    /// Factor of the feed-forward parts.
    pub residual_weight: f32,
    /// Bound of the values between some layers.
    pub bound: f32,
    /// Number of positions of which one becomes a row.
    pub reduction: usize,
    /// Rows of a sound in the decoder. The row of a token replaces those that a short sound does not have.
    pub rows: usize,
    /// Epsilon of the norms in convolutions of layers and in the connector.
    pub norm_epsilon: f32,
    /// Row of the connector's embedding that replaces missing rows.
    pub padding: usize,
    /// Embedding of the token after the rows of a sound.
    pub end: EndToken,
}

/// A convolution over frames and their bins. The bins are padded by one at both ends, the frames at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameConvolution {
    /// Channels of the result.
    pub channels: usize,
    /// Extents of the kernel in frames and bins.
    pub kernel: [usize; 2],
    /// Distances of two windows in frames and bins.
    pub stride: [usize; 2],
}

impl ConformerTower {
    /// Ratio of the inner width of a feed-forward part and the width.
    pub const INNER: usize = 4;

    /// Epsilon of the norms that do not have [`Self::norm_epsilon`].
    pub const EPSILON: f32 = 1e-6;

    /// Zeros before and after the bins of a frame.
    pub const BIN_PADDING: usize = 1;

    /// Returns the number of frames of which one becomes a position.
    pub fn frames_of_position(&self) -> usize {
        self.convolutions.iter().map(|convolution| convolution.stride[0]).product()
    }

    /// Returns the number of rows for a number of frames.
    pub fn rows_of(&self, frames: usize) -> usize {
        frames.div_ceil(self.frames_of_position()).div_ceil(self.reduction)
    }

    /// Returns the maximum number of frames of a sound.
    pub fn max_frames(&self) -> usize {
        self.rows * self.reduction * self.frames_of_position()
    }

    /// Returns the least number of positions that are whole chunks and whole rows.
    pub fn unit(&self) -> usize {
        self.chunk / greatest_common_divisor(self.chunk, self.reduction) * self.reduction
    }

    /// Returns the number of frames of a unit. Inputs of the tower are whole units.
    pub fn unit_frames(&self) -> usize {
        self.unit() * self.frames_of_position()
    }

    /// Returns the number of frames of an input that contains `frames`.
    pub fn padded_frames(&self, frames: usize) -> usize {
        frames.max(1).next_multiple_of(self.unit_frames())
    }

    /// Returns the number of keys that the queries of a chunk attend to.
    pub fn context(&self) -> usize {
        self.left + self.chunk + self.right
    }

    /// Returns the number of bins after each convolution.
    pub fn reduced_bins(&self) -> [usize; 2] {
        let mut bins = self.bins;
        self.convolutions.map(|FrameConvolution { kernel, stride, .. }| {
            bins = (bins + 2 * Self::BIN_PADDING).saturating_sub(kernel[1]) / stride[1].max(1) + 1;
            bins
        })
    }

    /// Returns the number of elements of a position after the convolutions.
    pub fn input_width(&self) -> usize {
        self.convolutions[1].channels * self.reduced_bins()[1]
    }

    /// Returns a description: `12 conformer layers, width 1536, 188 rows`.
    pub fn describe(&self) -> String {
        format!("{} conformer layers, width {}, {} rows", self.layers, self.hidden, self.rows)
    }

    /// Returns what was expected and what was found if the numbers are not those of a tower.
    pub fn contradiction(&self) -> Option<[String; 2]> {
        let disagree = |expected: String, found: String| Some([expected, found]);
        let Self { bins, hidden, layers, heads, reduction, rows, .. } = *self;
        let channels = self.convolutions.map(|convolution| convolution.channels);
        let extents = [bins, hidden, layers, heads, reduction, rows, self.end.tokens];
        let mut extents = extents.into_iter().chain(channels);
        if let Some(extent) = extents.find(|extent| !(1..=MAX_EXTENT).contains(extent)) {
            return disagree(format!("numbers of an audio tower from 1 to {MAX_EXTENT}"), extent.to_string());
        }
        let windows = self.convolutions.iter().flat_map(|it| [it.kernel, it.stride].concat());
        let mut windows = windows.chain([
            self.kernel,
            self.chunk,
            self.reduction,
            self.left.saturating_add(1),
            self.right.saturating_add(1),
        ]);
        if let Some(extent) = windows.find(|extent| !(1..=MAX_WINDOW).contains(extent)) {
            let expected = format!("windows of an audio tower from 1 to {MAX_WINDOW}");
            return disagree(expected, extent.to_string());
        }

        if !hidden.is_multiple_of(heads) || !hidden.is_multiple_of(2) {
            return disagree(format!("an even width that {heads} heads divide"), hidden.to_string());
        }
        let kernels = self.convolutions.map(|convolution| convolution.kernel[1]);
        let padded = [bins, self.reduced_bins()[0]].map(|bins| bins + 2 * Self::BIN_PADDING);
        if kernels[0] > padded[0] || kernels[1] > padded[1] {
            return disagree(format!("kernels of at most {padded:?} bins"), format!("{kernels:?}"));
        }
        let rows = [self.padding, self.end.row];
        if let Some(row) = rows.iter().find(|&&row| row >= self.end.tokens) {
            return disagree(format!("tokens below {}", self.end.tokens), row.to_string());
        }
        let factors = [self.score_cap, self.bound, self.norm_epsilon, self.group_norm_epsilon];
        if let Some(factor) = factors.iter().find(|factor| !factor.is_finite() || **factor <= 0.0) {
            return disagree("bounds and epsilons of an audio tower above 0".to_owned(), factor.to_string());
        }
        if !self.residual_weight.is_finite() {
            let expected = "a finite factor of feed-forward parts".to_owned();
            return disagree(expected, self.residual_weight.to_string());
        }

        let frames = self.max_frames().saturating_add(self.unit_frames());
        let first = self.convolutions[0].channels.saturating_mul(self.reduced_bins()[0]);
        let widest = first.max(self.input_width()).max(Self::INNER.saturating_mul(hidden)).max(bins);
        let values = frames.saturating_mul(widest);
        if values > MAX_VALUES {
            let expected = format!("an audio tower with at most {MAX_VALUES} values between layers");
            return disagree(expected, values.to_string());
        }
        let inner = self.inner_values(frames);
        if inner > MAX_VALUES {
            let expected = format!("an audio tower with at most {MAX_VALUES} values inside a layer");
            return disagree(expected, inner.to_string());
        }
        None
    }

    /// Returns the largest number of values inside a layer for a number of frames: weights of the running means, which have
    /// one for each pair of frames, scores of attention, or keys around each chunk.
    fn inner_values(&self, frames: usize) -> usize {
        let reduced = frames.div_ceil(self.convolutions[0].stride[0]);
        let positions = frames.div_ceil(self.frames_of_position());
        let scores = positions.saturating_mul(self.heads).saturating_mul(self.context() + 1);
        let keys = positions.div_ceil(self.chunk).saturating_mul(self.context()).saturating_mul(self.hidden);
        reduced.saturating_mul(reduced).max(scores).max(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published() -> ConformerTower {
        let convolution = |channels| FrameConvolution { channels, kernel: [3, 3], stride: [2, 2] };
        ConformerTower {
            bins: 128,
            convolutions: [convolution(128), convolution(32)],
            group_norm_epsilon: 1e-3,
            hidden: 1536,
            layers: 12,
            heads: 8,
            chunk: 12,
            left: 12,
            right: 0,
            score_cap: 50.0,
            kernel: 5,
            residual_weight: 0.5,
            bound: 1e10,
            reduction: 4,
            rows: 188,
            norm_epsilon: 1e-6,
            padding: 127,
            end: EndToken { row: 0, tokens: 128 },
        }
    }

    #[test]
    fn the_published_tower_reads_thirty_seconds() {
        let tower = published();
        assert_eq!(tower.contradiction(), None);
        assert_eq!((tower.unit(), tower.unit_frames(), tower.max_frames()), (12, 48, 3008));
        assert_eq!((tower.rows_of(2997), tower.rows_of(1), tower.padded_frames(2997)), (188, 1, 3024));
        assert_eq!((tower.reduced_bins(), tower.input_width(), tower.context()), ([64, 32], 1024, 24));
        assert_eq!(ConformerTower { reduction: 5, ..tower }.unit(), 60);
    }

    #[test]
    fn other_numbers_are_refused() {
        let check = |change: fn(&mut ConformerTower), expect: &str| {
            let mut tower = published();
            change(&mut tower);
            let [expected, found] = tower.contradiction().unwrap();
            assert!(format!("{expected}, found {found}").contains(expect), "{expected}, found {found}");
        };
        check(|tower| tower.heads = 0, "from 1 to 65536, found 0");
        check(|tower| tower.heads = 7, "7 heads divide, found 1536");
        check(|tower| tower.chunk = 0, "windows of an audio tower from 1 to 512, found 0");
        check(|tower| tower.left = usize::MAX, "windows of an audio tower");
        check(|tower| tower.convolutions[1].kernel[1] = 67, "at most [130, 66] bins, found [3, 67]");
        check(|tower| tower.padding = 128, "tokens below 128, found 128");
        check(|tower| tower.score_cap = 0.0, "above 0, found 0");
        check(|tower| tower.residual_weight = f32::NAN, "a finite factor");
        check(|tower| tower.rows = 60_000, "values between layers");
    }

    #[test]
    fn values_inside_layers_are_bounded() {
        let narrow = || ConformerTower { bins: 16, hidden: 64, rows: 500, ..published() };
        assert_eq!(narrow().contradiction(), None);
        let check = |tower: ConformerTower, expect: &str| {
            let [expected, found] = tower.contradiction().unwrap();
            assert!(
                expected.ends_with("values inside a layer") && found == expect,
                "{expected}, found {found}"
            );
        };
        // Weights of the means of frames.
        check(ConformerTower { rows: 2000, ..narrow() }, "256768576");
        let wide = ConformerTower { chunk: 512, left: 511, right: 511, ..narrow() };
        check(ConformerTower { heads: 64, ..wide.clone() }, "246778880");
        // Keys of chunks.
        check(ConformerTower { chunk: 1, hidden: 128, heads: 1, ..wide }, "262411776");
    }
}
