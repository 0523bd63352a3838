//! Vision towers.

use serde::{Deserialize, Serialize};

use super::{Activation, MobileNetTower};

/// A tower that turns a picture into embedding rows of a decoder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum VisionArch {
    /// A transformer over patches.
    Patches(PatchTower),
    /// Convolutions.
    MobileNet(MobileNetTower),
}

/// A transformer over patches (SigLIP, Zhai et al. 2023, arXiv:2303.15343) and a connector to the decoder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PatchTower {
    /// Height and width of the input.
    pub side: usize,
    /// Height and width of a patch; divides the side.
    pub patch: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of attention heads; divides the width.
    pub heads: usize,
    /// Inner width of the feed-forward parts.
    pub inner: usize,
    /// Activation of the feed-forward parts.
    pub activation: Activation,
    /// Epsilon of every layer norm.
    pub norm_epsilon: f32,
    /// Connector to the decoder.
    pub connector: Connector,
}

/// Connector of a transformer over patches to the decoder.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Connector {
    /// Means of squares of patches, an RMS norm and a linear layer, as in Gemma 3. In the decoder, the rows of a picture
    /// attend to each other in both directions.
    Pooled {
        /// Height and width of a square in patches; divides the patches of a side.
        pool: usize,
        /// Epsilon of the norm.
        norm_epsilon: f32,
    },
    /// Squares of patches, whose elements become one row, and a linear layer, as in Idefics3.
    PixelShuffle {
        /// Height and width of a square in patches; divides the patches of a side.
        factor: usize,
    },
}

impl Connector {
    /// Returns whether the rows of a picture attend to each other in both directions.
    pub fn is_bidirectional(self) -> bool {
        match self {
            Self::Pooled { .. } => true,
            Self::PixelShuffle { .. } => false,
        }
    }

    /// Returns the height and width in patches of the square that becomes a row.
    pub fn square(self) -> usize {
        match self {
            Self::Pooled { pool, .. } => pool,
            Self::PixelShuffle { factor } => factor,
        }
    }
}

impl VisionArch {
    /// Number of channels of the input.
    pub const CHANNELS: usize = 3;

    /// Returns the height and width of the input.
    pub fn side(&self) -> usize {
        match self {
            Self::Patches(tower) => tower.side,
            Self::MobileNet(tower) => tower.side,
        }
    }

    /// Returns the number of rows for an input.
    pub fn rows(&self) -> usize {
        match self {
            Self::Patches(tower) => tower.rows(),
            Self::MobileNet(tower) => tower.rows(),
        }
    }

    /// Returns whether the rows of a picture attend to each other in both directions.
    pub fn is_bidirectional(&self) -> bool {
        match self {
            Self::Patches(tower) => tower.connector.is_bidirectional(),
            Self::MobileNet(_) => false,
        }
    }

    /// Returns the canonical name of the first weight.
    pub fn first_weight(&self) -> &'static str {
        match self {
            Self::Patches(_) => "vision.patch.weight",
            Self::MobileNet(_) => "vision.stem.weight",
        }
    }

    /// Returns the tower in words.
    pub fn describe(&self) -> String {
        let structure = match self {
            Self::Patches(PatchTower { layers, hidden, .. }) => format!("{layers} layers, width {hidden}"),
            Self::MobileNet(tower) => tower.describe(),
        };
        format!("{structure}, {0} × {0} pixels, {1} rows", self.side(), self.rows())
    }

    /// Returns the shape of the input, `[1, channels, height, width]`.
    pub fn pixels(&self) -> [usize; 4] {
        [1, Self::CHANNELS, self.side(), self.side()]
    }
}

impl PatchTower {
    /// Returns the number of patches of a side.
    pub fn patches(&self) -> usize {
        self.side / self.patch.max(1)
    }

    /// Returns the number of rows for an input.
    pub fn rows(&self) -> usize {
        let side = self.patches() / self.connector.square().max(1);
        side.saturating_mul(side)
    }

    /// Returns the number of elements that the connector's linear layer reads for a row.
    pub fn connector_width(&self) -> usize {
        match self.connector {
            Connector::Pooled { .. } => self.hidden,
            Connector::PixelShuffle { factor } => self.hidden.saturating_mul(factor).saturating_mul(factor),
        }
    }
}
