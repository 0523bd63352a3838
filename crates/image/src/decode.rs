//! Files of pictures: PNG, JPEG, WebP, GIF (the first frame) and BMP.
//!
//! The size comes from the header of the file and is checked before anything is decoded. Transparent pixels are blended
//! with white, and samples of 16 bits keep their upper 8 bits, as the `transformers` library and Pillow do.

use std::io::Cursor;

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, metadata::Orientation};

use crate::{
    contain::{contained, name},
    error::PictureError,
    picture::Picture,
};

/// Maximum number of pixels of a picture. Photos of phones have up to 50 million.
pub const MAX_PIXELS: u64 = 50_500_000;

/// Maximum width and height of a picture.
pub const MAX_SIDE: u32 = 65_535;

/// Maximum size of a picture in bytes, in the form in which its file has it.
pub const MAX_DECODED_BYTES: u64 = 256 << 20;

/// Bytes that a decoder needs for pictures of any size.
pub(crate) const SMALL: u64 = 1 << 20;

/// A file whose header has been read.
pub struct Decoder<'a> {
    bytes: &'a [u8],
    format: ImageFormat,
    decoder: Box<dyn ImageDecoder + 'a>,
}

impl<'a> Decoder<'a> {
    /// Reads the header of a file. The picture is within the bounds of this crate, so that it can be decoded.
    ///
    /// # Errors
    /// [`PictureError`] if the file has an unknown format, is damaged, or has a picture that is too large.
    pub fn open(bytes: &'a [u8]) -> Result<Self, PictureError> {
        if bytes.is_empty() {
            return Err(PictureError::Empty);
        }
        let format = image::guess_format(bytes).ok().filter(|format| name(*format).is_some());
        let Some(format) = format else {
            let start = bytes[..bytes.len().min(12)].escape_ascii().to_string();
            return Err(PictureError::UnknownFormat { start });
        };
        let mut limits = Limits::default();
        limits.max_alloc = Some(MAX_DECODED_BYTES);
        let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
        reader.limits(limits);
        let decoder = contained(format, || reader.into_decoder())?;
        let mut decoder: Box<dyn ImageDecoder + 'a> = Box::new(decoder);

        let (width, height) = decoder.dimensions();
        let pixels = u64::from(width) * u64::from(height);
        if pixels > MAX_PIXELS || width.max(height) > MAX_SIDE {
            return Err(PictureError::TooLarge { pixels: MAX_PIXELS, side: MAX_SIDE, width, height });
        }
        let total = decoder.total_bytes();
        if total > MAX_DECODED_BYTES {
            return Err(PictureError::TooManyBytes { limit: MAX_DECODED_BYTES, bytes: total });
        }
        // A frame of a GIF file may be larger than its picture.
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(total + SMALL);
        contained(format, || decoder.set_limits(limits))?;
        if format == ImageFormat::Jpeg && jpeg_length(bytes).is_none() {
            return Err(PictureError::Truncated { format: "jpeg" });
        }
        Ok(Self { bytes, format, decoder })
    }

    /// Returns the width and the height that the file states, in pixels and without regard to its orientation.
    pub fn size(&self) -> [u32; 2] {
        let (width, height) = self.decoder.dimensions();
        [width, height]
    }

    /// Returns the width and the height of the decoded picture, turned as the file's EXIF orientation states.
    pub fn turned_size(&mut self) -> [u32; 2] {
        let orientation = contained(self.format, || self.decoder.orientation());
        let [width, height] = self.size();
        match orientation.unwrap_or(Orientation::NoTransforms) {
            Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH => [height, width],
            _ => [width, height],
        }
    }

    /// Returns the media type, such as `image/png`.
    pub fn media_type(&self) -> &'static str {
        self.format.to_mime_type()
    }

    /// Returns an upper bound of the bytes that [`Self::decode`] allocates: the file, its samples, coefficients of a
    /// progressive file, and two pictures if one is rotated.
    pub fn memory(&self) -> u64 {
        let [width, height] = self.size().map(u64::from);
        self.bytes.len() as u64 + 2 * self.decoder.total_bytes() + 6 * width * height + SMALL
    }

    /// Decodes the picture, turned as the file's EXIF orientation states.
    ///
    /// # Errors
    /// [`PictureError`] if the file is damaged.
    pub fn decode(self) -> Result<Picture, PictureError> {
        let Self { format, mut decoder, .. } = self;
        let decoded = contained(format, || {
            let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
            Ok((DynamicImage::from_decoder(decoder)?, orientation))
        })?;
        let (decoded, orientation) = decoded;
        let mut turned = DynamicImage::ImageRgb8(flattened(decoded));
        turned.apply_orientation(orientation);
        let rgb = turned.into_rgb8();
        let (width, height) = rgb.dimensions();
        Picture::new(width as usize, height as usize, rgb.into_raw()).ok_or_else(|| {
            PictureError::Unreadable {
                format: name(format).unwrap_or("picture"),
                reason: format!("{width} × {height} pixels"),
            }
        })
    }
}

/// Returns the length of a JPEG file up to the mark of its end; `None` if it has no such mark. The decoder reads files without
/// it, and fills the rest of the picture with grey.
pub(crate) fn jpeg_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 2;
    loop {
        match bytes.get(at..)? {
            [0xff, 0xd9, ..] => return Some(at + 2),
            // A segment. It may contain a smaller picture with an end of its own.
            [0xff, 0xc0..=0xcf | 0xda..=0xef | 0xfe, high, low, ..] => {
                at += 2 + usize::from(u16::from_be_bytes([*high, *low]));
            }
            // Samples, marks without a length, and bytes between segments, which are left to the decoder.
            [_, rest @ ..] => at += 1 + rest.iter().position(|byte| *byte == 0xff)?,
            [] => return None,
        }
    }
}

/// Returns a picture without transparency, with 8 bits a sample.
fn flattened(decoded: DynamicImage) -> image::RgbImage {
    let (width, height) = (decoded.width(), decoded.height());
    let rgb: Vec<u8> = match decoded {
        DynamicImage::ImageRgb8(rgb) => return rgb,
        DynamicImage::ImageLuma8(grey) => grey.into_raw().into_iter().flat_map(|value| [value; 3]).collect(),
        DynamicImage::ImageLumaA8(grey) => {
            grey.pixels().flat_map(|pixel| over_white([pixel[0]; 3], pixel[1])).collect()
        }
        DynamicImage::ImageLuma16(grey) => grey.pixels().flat_map(|pixel| [upper(pixel[0]); 3]).collect(),
        DynamicImage::ImageLumaA16(grey) => {
            grey.pixels().flat_map(|pixel| over_white([upper(pixel[0]); 3], upper(pixel[1]))).collect()
        }
        DynamicImage::ImageRgb16(rgb) => rgb.into_raw().into_iter().map(upper).collect(),
        DynamicImage::ImageRgba16(rgba) => {
            let pixels = rgba.pixels().map(|pixel| pixel.0.map(upper));
            pixels.flat_map(|[red, green, blue, alpha]| over_white([red, green, blue], alpha)).collect()
        }
        other => {
            let rgba = other.into_rgba8();
            let pixels = rgba.pixels().map(|pixel| pixel.0);
            pixels.flat_map(|[red, green, blue, alpha]| over_white([red, green, blue], alpha)).collect()
        }
    };
    image::RgbImage::from_raw(width, height, rgb).unwrap_or_default()
}

/// Returns the upper bits of a sample.
fn upper(sample: u16) -> u8 {
    (sample >> 8) as u8
}

/// Returns a colour blended with white, with the arithmetic of Pillow's `alpha_composite`.
fn over_white(colour: [u8; 3], alpha: u8) -> [u8; 3] {
    const BITS: u32 = 7;
    let source = u32::from(alpha) * (1 << BITS);
    let white = 255 * (1 << BITS) - source;
    colour.map(|value| {
        let sum = u32::from(value) * source + 255 * white + (0x80 << BITS);
        ((((sum >> 8) + sum) >> 8) >> BITS) as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the header of a BMP file with run lengths of 8 bits, and the mark of the end of its picture.
    fn bmp(width: u32, height: u32, length: usize) -> Vec<u8> {
        let mut file = b"BM".to_vec();
        let words = |values: &[u32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        file.extend(words(&[length as u32, 0, 14 + 40 + 1024, 40, width, height]));
        file.extend([1, 0, 8, 0]);
        file.extend(words(&[1, 2, 0, 0, 256, 0]));
        file.resize(14 + 40 + 1024, 0);
        file.extend([0, 1]);
        file.resize(length, 0);
        file
    }

    fn gif(width: u16, height: u16) -> Vec<u8> {
        let mut file = b"GIF89a".to_vec();
        file.extend([width, height].into_iter().flat_map(u16::to_le_bytes));
        file.extend([0, 0, 0, b',', 0, 0, 0, 0]);
        file.extend([width, height].into_iter().flat_map(u16::to_le_bytes));
        file.extend([0, 2, 1, 0x4c, 0, b';']);
        file
    }

    fn refused(file: &[u8], expect: &str) {
        let error = Decoder::open(file).and_then(Decoder::decode).unwrap_err().to_string();
        assert!(error.contains(expect), "{error} lacks {expect}");
    }

    #[test]
    fn a_picture_with_a_billion_pixels_is_refused_by_its_header() {
        let expect =
            "expected a picture of at most 50500000 pixels and 65535 pixels a side, found 32768 × 32768; ";
        refused(&bmp(32_768, 32_768, 40_000), expect);
        refused(&gif(65_535, 65_535), "found 65535 × 65535");
        let small = bmp(32, 2, 2000);
        let decoder = Decoder::open(&small).unwrap();
        assert_eq!((decoder.size(), decoder.media_type()), ([32, 2], "image/bmp"));
    }

    #[test]
    fn what_is_no_picture_is_refused() {
        refused(b"", "found an empty file");
        refused(b"%PDF-1.7 text", "found a file that starts with \"%PDF-1.7 tex\"; convert it");
        refused(b"<svg xmlns=", "expected a picture (png, jpeg, webp, gif or bmp)");
        refused(b"\x89PNG\r\n\x1a\n", "expected a valid png file");
        // TIFF is a format of the library that is not read.
        refused(b"II*\0\x08\0\0\0\0\0", "found a file that starts with");
    }

    #[test]
    fn a_jpeg_file_without_its_end_is_refused() {
        let file = include_bytes!("../tests/fixtures/turned.jpg");
        assert!(Decoder::open(file).and_then(Decoder::decode).is_ok());
        for length in [file.len() - 2, file.len() * 3 / 4] {
            refused(&file[..length], "expected a complete jpeg file");
        }
        // The end of a preview within a segment is not the end of the file.
        let mut preview = file[..2].to_vec();
        preview.extend([0xff, 0xe1, 0, 8, 0xff, 0xd8, 0xff, 0xda, 0xff, 0xd9]);
        preview.extend(&file[2..]);
        assert!(Decoder::open(&preview).is_ok());
        refused(&preview[..file.len()], "expected a complete jpeg file");
    }

    #[test]
    fn the_size_of_a_turned_picture_is_known_before_it_is_decoded() {
        for file in
            [&include_bytes!("../tests/fixtures/turned.jpg")[..], include_bytes!("../tests/fixtures/rgb.png")]
        {
            let mut decoder = Decoder::open(file).unwrap();
            let [width, height] = decoder.turned_size().map(|side| side as usize);
            let picture = decoder.decode().unwrap();
            assert_eq!([width, height], [picture.width(), picture.height()]);
            assert_ne!(width, height, "the test needs a picture whose sides differ");
        }
    }

    #[test]
    fn transparency_becomes_white() {
        assert_eq!(over_white([10, 20, 30], 255), [10, 20, 30]);
        assert_eq!(over_white([10, 20, 30], 0), [255; 3]);
        assert_eq!(over_white([0, 255, 100], 128), [127, 255, 177]);
    }
}
