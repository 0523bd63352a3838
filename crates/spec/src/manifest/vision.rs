//! Reading of pictures: the values that a vision tower reads, and the tokens that stand for a picture.

use serde::{Deserialize, Serialize};

use super::{Contradiction, GraphEntry, Manifest, Part, Slot};
use crate::{MediaKind, TokenId, arch::VisionArch};

/// Reading of pictures by a decoder with a vision tower.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VisionEntry {
    /// Graphs of the tower, one for each variant.
    pub graphs: Vec<GraphEntry>,
    /// Values that the tower reads.
    pub preprocessing: PicturePreprocessing,
    /// Tokens that stand for a picture.
    pub placeholder: PicturePlaceholder,
}

/// Tokens that stand for a picture in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PicturePlaceholder {
    /// Tokens around the rows of the only input, as in Gemma 3.
    Framed {
        /// Token before the rows. A chat template writes it alone for a picture.
        start: TokenId,
        /// Token in place of a row.
        row: TokenId,
        /// Token after the rows.
        end: TokenId,
    },
    /// A token before the rows of the only input, the last of which is that of the token after them, as in Gemma 3n.
    Opened {
        /// Token before the rows.
        start: TokenId,
        /// Token in place of a row. A chat template writes it once for a picture.
        row: TokenId,
    },
    /// Texts before the rows of each input, which name its place in the picture, as in Idefics3.
    Tiled {
        /// Token in place of a row. A chat template writes it once for a picture.
        row: TokenId,
    },
}

impl PicturePlaceholder {
    /// Returns the token in place of a row.
    pub fn row(self) -> TokenId {
        match self {
            Self::Framed { row, .. } | Self::Opened { row, .. } | Self::Tiled { row } => row,
        }
    }

    fn tokens(self) -> Vec<TokenId> {
        match self {
            Self::Framed { start, row, end } => vec![start, row, end],
            Self::Opened { start, row } => vec![start, row],
            Self::Tiled { row } => vec![row],
        }
    }
}

/// Conversion of a picture into the values that a vision tower reads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PicturePreprocessing {
    /// Height and width of the tower's input.
    pub side: usize,
    /// Division of a picture into inputs of the tower.
    pub fit: PictureFit,
    /// Filter of changes of the size.
    pub filter: ResizeFilter,
    /// Factor on the bytes of a picture.
    pub rescale: f64,
    /// Means of the channels, which are subtracted after the factor.
    pub mean: [f32; 3],
    /// Divisors of the channels.
    pub std: [f32; 3],
}

/// Division of a picture into inputs of a tower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum PictureFit {
    /// A picture is resized to one input, without regard to its aspect ratio.
    Stretch,
    /// A picture is resized to a longest edge and divided into tiles of the input's size. The whole picture follows as
    /// the last input.
    Tiles {
        /// The longest edge in pixels.
        longest_edge: usize,
    },
}

impl PictureFit {
    /// Maximum of the longest edge of a picture in tiles, as in `transformers`.
    pub const MAX_LONGEST_EDGE: usize = 4096;
}

/// Filter of a change of the size. All filters cover more pixels if a picture is reduced, as in Pillow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResizeFilter {
    /// Linear, between neighbours.
    Bilinear,
    /// Cubic, with the parameter -0.5.
    Bicubic,
    /// A sinc function with three lobes.
    Lanczos,
}

impl Manifest {
    /// Returns the kinds of media that the model reads in conversations.
    pub fn reads(&self) -> Vec<MediaKind> {
        let image = self.vision.iter().map(|_| MediaKind::Image);
        image.chain(self.audio.iter().map(|_| MediaKind::Audio)).collect()
    }

    /// Returns the graphs of towers.
    pub fn tower_graphs(&self) -> impl Iterator<Item = &GraphEntry> {
        let vision = self.vision.iter().flat_map(|vision| &vision.graphs);
        vision.chain(self.audio.iter().flat_map(|audio| &audio.graphs))
    }

    /// Returns every graph: those of the core, and those of towers.
    pub fn every_graph(&self) -> impl Iterator<Item = &GraphEntry> {
        self.graphs.iter().chain(self.tower_graphs())
    }
}

impl VisionEntry {
    /// Fails if the entry contradicts the tower, or a token is not in a vocabulary of `vocab` tokens.
    pub(super) fn check(&self, arch: &VisionArch, vocab: usize) -> Result<(), Contradiction> {
        for graph in &self.graphs {
            let has_slots = graph.input(Slot::Pixels).is_some() && graph.output(Slot::PictureRows).is_some();
            if graph.part != Part::Vision || !has_slots {
                let expected = format!("a graph from pixels to rows in {}", graph.file);
                return Err(Contradiction::new(expected, format!("{:?}", graph.part)));
            }
        }

        let PicturePreprocessing { side, fit, rescale, mean, std, .. } = self.preprocessing;
        if side != arch.side() {
            return Err(Contradiction::new(
                format!("pictures with a side of {}", arch.side()),
                side.to_string(),
            ));
        }
        if let PictureFit::Tiles { longest_edge } = fit
            && !(1..=PictureFit::MAX_LONGEST_EDGE).contains(&longest_edge)
        {
            let expected = format!("a longest edge of at most {} pixels", PictureFit::MAX_LONGEST_EDGE);
            return Err(Contradiction::new(expected, longest_edge.to_string()));
        }
        let values = mean.into_iter().chain(std).chain([rescale as f32]);
        if !values.clone().all(f32::is_finite) || std.contains(&0.0) {
            return Err(Contradiction::new(
                "finite means and divisors other than 0",
                format!("{mean:?} and {std:?}"),
            ));
        }
        let is_tiled = matches!(self.placeholder, PicturePlaceholder::Tiled { .. });
        if matches!(fit, PictureFit::Tiles { .. }) && !is_tiled {
            return Err(Contradiction::new("a placeholder for pictures in tiles", "one for a single input"));
        }
        match self.placeholder.tokens().into_iter().find(|&token| token as usize >= vocab) {
            Some(token) => {
                let expected = format!("tokens of pictures below the vocabulary size {vocab}");
                Err(Contradiction::new(expected, token.to_string()))
            }
            None => Ok(()),
        }
    }
}
