//! Values that a vision tower reads from pictures.

use serde::{Deserialize, Serialize};

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
