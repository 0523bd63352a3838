//! A decoded picture.

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

    /// Returns the bytes of a row of pixels.
    pub(crate) fn row(&self, y: usize) -> &[u8] {
        let bytes = self.width * 3;
        &self.rgb[y * bytes..][..bytes]
    }
}
