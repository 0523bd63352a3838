//! MobileNetV5 as a vision tower.

use serde::{Deserialize, Serialize};

/// Largest extent of a tower. The widest layer of Gemma 3n's has 3840 channels.
const MAX_EXTENT: usize = 1 << 16;

/// Largest height and width of a kernel.
const MAX_KERNEL: usize = 31;

/// Largest number of blocks of a stage.
const MAX_BLOCKS: usize = 256;

/// Largest number of values between two layers of a tower.
const MAX_VALUES: usize = 1 << 26;

/// Convolutions over a picture, the fusion of the last two stages and a connector, as in Gemma 3n (MobileNetV4, Qin et al.
/// 2024, arXiv:2404.10518, describes the blocks). In the decoder, the rows of a picture are followed by the row of the token
/// that ends it, which has an embedding of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MobileNetTower {
    /// Height and width of the input; a multiple of the stride of all stages.
    pub side: usize,
    /// Channels after the stem, which halves height and width.
    pub stem: usize,
    /// Blocks of each stage. The first block of a stage halves height and width.
    pub stages: Vec<Vec<MobileBlock>>,
    /// Inner width of the fusion.
    pub fusion: usize,
    /// Width of the fused rows.
    pub hidden: usize,
    /// Rows of a side after the fusion; divides the side of the last stage but one.
    pub grid: usize,
    /// Epsilon of the connector's norms.
    pub norm_epsilon: f32,
    /// Embedding of the token after the rows of a picture.
    pub end: EndToken,
}

/// A token with a row in the embedding of a connector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndToken {
    /// Its row.
    pub row: usize,
    /// Number of rows of the embedding.
    pub tokens: usize,
}

/// A block of a [`MobileNetTower`]. Its result is added to its input if both have one shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MobileBlock {
    /// An edge residual: a convolution and a linear layer.
    Edge {
        /// Height and width of the convolution's kernel; odd.
        kernel: usize,
        /// Channels after the convolution.
        inner: usize,
        /// Channels of the result.
        channels: usize,
    },
    /// A universal inverted residual: two linear layers, with depthwise convolutions before and between them.
    Inverted {
        /// Height and width of the first convolution's kernel; odd.
        start: Option<usize>,
        /// Height and width of the second convolution's kernel; odd. It has the stride of the block, or else the first one.
        middle: Option<usize>,
        /// Channels between the linear layers.
        inner: usize,
        /// Channels of the result.
        channels: usize,
    },
    /// Attention of several heads of queries to one head of keys and values, which keeps the number of channels.
    Attention {
        /// Number of heads.
        heads: usize,
        /// Elements of a head.
        size: usize,
        /// Height and width of the kernel of depthwise convolutions that halve height and width of keys and values; odd.
        reduction: Option<usize>,
    },
}

/// A block with its place in the tower.
#[derive(Debug, Clone, Copy)]
pub struct PlacedBlock<'a> {
    /// Number of its stage.
    pub stage: usize,
    /// Number in its stage.
    pub index: usize,
    /// Channels of its input.
    pub input: usize,
    /// Height and width of its input.
    pub extent: usize,
    /// The block.
    pub block: &'a MobileBlock,
}

impl PlacedBlock<'_> {
    /// Returns the path of its weights.
    pub fn name(&self) -> String {
        format!("vision.blocks.{}.{}", self.stage, self.index)
    }

    /// Returns the ratio of the height of its input and that of its result.
    pub fn stride(&self) -> usize {
        if self.index == 0 { 2 } else { 1 }
    }

    /// Returns the number of channels of its result.
    pub fn channels(&self) -> usize {
        match *self.block {
            MobileBlock::Edge { channels, .. } | MobileBlock::Inverted { channels, .. } => channels,
            MobileBlock::Attention { .. } => self.input,
        }
    }

    /// Returns whether its result is added to its input.
    pub fn is_residual(&self) -> bool {
        self.stride() == 1 && self.channels() == self.input
    }
}

impl MobileNetTower {
    /// Height and width of the stem's kernel.
    pub const STEM_KERNEL: usize = 3;

    /// Epsilon of every norm but the connector's.
    pub const EPSILON: f32 = 1e-6;

    /// Returns the blocks in order.
    pub fn blocks(&self) -> impl Iterator<Item = PlacedBlock<'_>> {
        let mut input = self.stem;
        let mut extent = self.side / 2;
        let blocks = self.stages.iter().enumerate().flat_map(|(stage, blocks)| {
            blocks.iter().enumerate().map(move |(index, block)| (stage, index, block))
        });
        blocks.map(move |(stage, index, block)| {
            let placed = PlacedBlock { stage, index, input, extent, block };
            input = placed.channels();
            extent /= placed.stride();
            placed
        })
    }

    /// Returns the channels of the results of the last two stages.
    pub fn fused_channels(&self) -> [usize; 2] {
        let mut channels = vec![0; self.stages.len()];
        for block in self.blocks() {
            channels[block.stage] = block.channels();
        }
        match channels[..] {
            [.., first, second] => [first, second],
            _ => [0, 0],
        }
    }

    /// Returns the height and width of the result of the last stage but one.
    pub fn fused_extent(&self) -> usize {
        self.side >> self.stages.len().min(usize::BITS as usize - 1)
    }

    /// Returns the number of rows for an input, with that of the token after them.
    pub fn rows(&self) -> usize {
        self.grid.saturating_mul(self.grid).saturating_add(1)
    }

    /// Returns a description: `84 blocks, width 2048`.
    pub fn describe(&self) -> String {
        format!("{} blocks, width {}", self.stages.iter().map(Vec::len).sum::<usize>(), self.hidden)
    }

    /// Returns what was expected and what was found if the numbers are not those of a tower.
    pub fn contradiction(&self) -> Option<[String; 2]> {
        let disagree = |expected: String, found: String| Some([expected, found]);
        let stages = self.stages.len();
        if !(2..=4).contains(&stages) {
            return disagree("2 to 4 stages of a vision tower".to_owned(), stages.to_string());
        }
        if let Some(stage) = self.stages.iter().find(|stage| !(1..=MAX_BLOCKS).contains(&stage.len())) {
            return disagree(format!("1 to {MAX_BLOCKS} blocks in a stage"), stage.len().to_string());
        }
        let numbers = [self.side, self.stem, self.fusion, self.hidden, self.grid, self.end.tokens];
        let mut numbers = numbers.into_iter().chain(self.blocks().flat_map(|placed| extents(placed.block)));
        if let Some(number) = numbers.find(|number| !(1..=MAX_EXTENT).contains(number)) {
            let expected = format!("numbers of a vision tower from 1 to {MAX_EXTENT}");
            return disagree(expected, number.to_string());
        }

        let stride = 1 << (stages + 1);
        if !self.side.is_multiple_of(stride) {
            return disagree(format!("pictures with a side in multiples of {stride}"), self.side.to_string());
        }
        if !self.fused_extent().is_multiple_of(self.grid) {
            let expected = format!("rows of a picture whose side divides {}", self.fused_extent());
            return disagree(expected, self.grid.to_string());
        }
        if self.end.row >= self.end.tokens {
            let expected = format!("a token after a picture below {}", self.end.tokens);
            return disagree(expected, self.end.row.to_string());
        }
        self.blocks().find_map(|placed| placed.contradiction())
    }
}

impl PlacedBlock<'_> {
    fn contradiction(&self) -> Option<[String; 2]> {
        let name = self.name();
        let kernels = match *self.block {
            MobileBlock::Edge { kernel, .. } => [Some(kernel), None],
            MobileBlock::Inverted { start, middle, .. } => [start, middle],
            MobileBlock::Attention { reduction, .. } => [reduction, None],
        };
        if let Some(kernel) = kernels.into_iter().flatten().find(|&kernel| !is_kernel(kernel)) {
            return Some([format!("odd kernels up to {MAX_KERNEL} in {name}"), kernel.to_string()]);
        }
        let halves = match *self.block {
            MobileBlock::Edge { .. } => true,
            MobileBlock::Inverted { start, middle, .. } => start.or(middle).is_some(),
            MobileBlock::Attention { .. } => false,
        };
        if self.index == 0 && !halves {
            return Some([format!("a convolution in {name}, the first block of a stage"), "none".to_owned()]);
        }

        let area = self.extent.saturating_mul(self.extent);
        let widest = match *self.block {
            MobileBlock::Edge { inner, .. } | MobileBlock::Inverted { inner, .. } => inner,
            MobileBlock::Attention { heads, size, reduction } => {
                let keys = if reduction.is_some() { area / 4 } else { area };
                heads.saturating_mul(size.max(keys))
            }
        };
        let values = area.saturating_mul(widest.max(self.input));
        (values > MAX_VALUES).then(|| [format!("at most {MAX_VALUES} values in {name}"), values.to_string()])
    }
}

fn is_kernel(extent: usize) -> bool {
    extent <= MAX_KERNEL && !extent.is_multiple_of(2)
}

/// Returns the numbers that a block states.
fn extents(block: &MobileBlock) -> Vec<usize> {
    match *block {
        MobileBlock::Edge { kernel, inner, channels } => vec![kernel, inner, channels],
        MobileBlock::Inverted { start, middle, inner, channels } => {
            [Some(inner), Some(channels), start, middle].into_iter().flatten().collect()
        }
        MobileBlock::Attention { heads, size, reduction } => {
            [Some(heads), Some(size), reduction].into_iter().flatten().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tower() -> MobileNetTower {
        let edge = MobileBlock::Edge { kernel: 3, inner: 32, channels: 16 };
        let inverted = MobileBlock::Inverted { start: None, middle: Some(5), inner: 48, channels: 24 };
        let attention = MobileBlock::Attention { heads: 2, size: 8, reduction: Some(3) };
        MobileNetTower {
            side: 32,
            stem: 8,
            stages: vec![vec![edge.clone(), edge], vec![inverted, attention]],
            fusion: 80,
            hidden: 64,
            grid: 4,
            norm_epsilon: 1e-6,
            end: EndToken { row: 1, tokens: 4 },
        }
    }

    #[test]
    fn blocks_know_their_places() {
        let tower = tower();
        let places: Vec<_> = tower.blocks().map(|b| (b.input, b.extent, b.is_residual())).collect();
        assert_eq!(places, [(8, 16, false), (16, 8, true), (16, 8, false), (24, 4, true)]);
        assert_eq!((tower.fused_channels(), tower.fused_extent(), tower.rows()), ([16, 24], 8, 17));
        assert_eq!((tower.describe().as_str(), tower.contradiction()), ("4 blocks, width 64", None));
    }

    #[test]
    fn numbers_that_disagree_are_found() {
        let check = |change: fn(&mut MobileNetTower), expect: &str| {
            let mut tower = tower();
            change(&mut tower);
            let [expected, found] = tower.contradiction().unwrap();
            assert!(format!("{expected}, {found}").contains(expect), "{expected}, found {found}");
        };
        check(|tower| tower.side = 28, "a side in multiples of 8, 28");
        check(|tower| tower.side = usize::MAX, "from 1 to 65536");
        check(|tower| tower.side = 1 << 15, "values in vision.blocks.0.0");
        check(|tower| tower.grid = 3, "whose side divides 8, 3");
        check(|tower| tower.grid = 0, "from 1 to 65536, 0");
        check(|tower| tower.end.row = 4, "a token after a picture below 4, 4");
        check(|tower| tower.stages.truncate(1), "2 to 4 stages");
        check(|tower| tower.stages.resize(65, Vec::new()), "2 to 4 stages");
        check(|tower| tower.stages[0].clear(), "1 to 256 blocks");
        check(|tower| tower.stages[1].reverse(), "the first block of a stage");
        let even = |tower: &mut MobileNetTower| {
            tower.stages[1][1] = MobileBlock::Attention { heads: 2, size: 8, reduction: Some(2) };
        };
        check(even, "odd kernels up to 31 in vision.blocks.1.1, 2");
        let large = |tower: &mut MobileNetTower| {
            tower.stages[0][1] = MobileBlock::Edge { kernel: 33, inner: 32, channels: 16 };
        };
        check(large, "odd kernels up to 31 in vision.blocks.0.1, 33");
        let wide = |tower: &mut MobileNetTower| {
            tower.stages[0][1] = MobileBlock::Edge { kernel: 3, inner: usize::MAX, channels: 16 };
        };
        check(wide, "from 1 to 65536");
    }
}
