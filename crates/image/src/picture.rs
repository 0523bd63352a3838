//! A decoded picture.

use image::{ExtendedColorType, ImageFormat};

use crate::{contain::contained, encode::png, error::PictureError};

/// A picture with three bytes for each pixel: red, green, blue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Picture {
    /// Creates a picture of rows of pixels. Returns `None` if a side is 0, or if the number of bytes is not that of the
    /// pixels.
    pub fn new(width: usize, height: usize, rgb: Vec<u8>) -> Option<Self> {
        let bytes = width.checked_mul(height)?.checked_mul(3)?;
        (bytes > 0 && rgb.len() == bytes).then_some(Self { width, height, rgb })
    }

    /// Returns the width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Returns the pixels, row by row.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// Returns the picture as a PNG file.
    ///
    /// # Errors
    /// [`PictureError::Unreadable`] for a side of 2³² pixels or more.
    pub fn to_png(&self) -> Result<Vec<u8>, PictureError> {
        let size = [self.width, self.height].map(|side| u32::try_from(side).unwrap_or(u32::MAX));
        contained(ImageFormat::Png, || png(&self.rgb, size, ExtendedColorType::Rgb8))
    }

    /// Returns the bytes of a row of pixels.
    pub(crate) fn row(&self, y: usize) -> &[u8] {
        let bytes = self.width * 3;
        &self.rgb[y * bytes..][..bytes]
    }
}
