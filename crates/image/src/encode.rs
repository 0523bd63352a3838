//! PNG files of pictures.

use image::{
    ExtendedColorType, ImageEncoder, ImageResult,
    codecs::png::{CompressionType, FilterType, PngEncoder},
};

/// Returns the PNG file of samples of 8 bits.
pub(crate) fn png(
    samples: &[u8],
    [width, height]: [u32; 2],
    colour: ExtendedColorType,
) -> ImageResult<Vec<u8>> {
    let mut file = Vec::new();
    let encoder = PngEncoder::new_with_quality(&mut file, CompressionType::Fast, FilterType::Adaptive);
    encoder.write_image(samples, width, height, colour)?;
    Ok(file)
}
