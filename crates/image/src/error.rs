//! The errors of this crate.

/// The formats that are read, for messages.
const FORMATS: &str = "png, jpeg, webp, gif or bmp";

/// A picture that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// The file has no bytes.
    #[error("expected a picture ({FORMATS}), found an empty file")]
    Empty,
    /// The file has none of the known formats.
    #[error(
        "expected a picture ({FORMATS}), found a file that starts with {start:?}; convert it, for example to png"
    )]
    UnknownFormat {
        /// First bytes of the file, with escapes.
        start: String,
    },
    /// The file is damaged, or encoded in an unusual way.
    #[error(
        "expected a valid {format} file, found one that cannot be read ({reason}); save the picture again, for example as png"
    )]
    Unreadable {
        /// Name of the format.
        format: &'static str,
        /// Reason of the decoder.
        reason: String,
    },
    /// The file ends before its picture.
    #[error("expected a complete {format} file, found its end within the picture; copy or upload it again")]
    Truncated {
        /// Name of the format.
        format: &'static str,
    },
    /// The picture is larger than the bounds.
    #[error(
        "expected a picture of at most {pixels} pixels and {side} pixels a side, found {width} × {height}; reduce its size"
    )]
    TooLarge {
        /// Maximum number of pixels.
        pixels: u64,
        /// Maximum width and height.
        side: u32,
        /// Width of the picture.
        width: u32,
        /// Height of the picture.
        height: u32,
    },
    /// The picture would take too much memory while it is decoded.
    #[error(
        "expected a picture of at most {limit} bytes when decoded, found {bytes}; reduce its size or its depth of colour"
    )]
    TooManyBytes {
        /// Maximum number of bytes.
        limit: u64,
        /// Number of bytes of the picture.
        bytes: u64,
    },
}
