//! Errors and panics of the library of decoders.

use std::panic::{AssertUnwindSafe, catch_unwind};

use image::ImageFormat;

use crate::error::PictureError;

/// Returns the name of a format that is read.
pub(crate) fn name(format: ImageFormat) -> Option<&'static str> {
    match format {
        ImageFormat::Png => Some("png"),
        ImageFormat::Jpeg => Some("jpeg"),
        ImageFormat::WebP => Some("webp"),
        ImageFormat::Gif => Some("gif"),
        ImageFormat::Bmp => Some("bmp"),
        _ => None,
    }
}

/// Runs a decoder, and converts its errors and panics.
pub(crate) fn contained<T>(
    format: ImageFormat,
    work: impl FnOnce() -> image::ImageResult<T>,
) -> Result<T, PictureError> {
    let reason = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the decoder panicked".to_owned(),
    };
    Err(PictureError::Unreadable { format: name(format).unwrap_or("picture"), reason })
}
