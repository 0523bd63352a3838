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

/// The formats of videos that are read, for messages.
const VIDEO_FORMATS: &str = "an animated gif, png or webp file, or jpeg files one after another";

/// A video that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum VideoError {
    /// The file has no bytes.
    #[error("expected a video ({VIDEO_FORMATS}), found an empty file")]
    Empty,
    /// The file has none of the known formats.
    #[error(
        "expected a video ({VIDEO_FORMATS}), found {found}; convert it, for example with `ffmpeg -i VIDEO -vf fps=1 -q:v 2 \
         video.mjpeg`"
    )]
    UnknownFormat {
        /// Description of the file.
        found: String,
    },
    /// The frames are larger than the bounds.
    #[error(
        "expected a video with frames of at most {pixels} pixels, found {width} × {height}; reduce its size, for example with \
         `ffmpeg -i VIDEO -vf fps=1,scale=1024:-2 -q:v 2 video.mjpeg`"
    )]
    TooLarge {
        /// Maximum number of pixels.
        pixels: u64,
        /// Width of the frames.
        width: u32,
        /// Height of the frames.
        height: u32,
    },
    /// The frames that are taken have too many bytes.
    #[error(
        "expected a video whose frames have at most {limit} bytes as png files, found more; reduce its size"
    )]
    TooManyBytes {
        /// Maximum number of bytes.
        limit: usize,
    },
    /// The frames have too many pixels in total.
    #[error(
        "expected videos of at most {limit} pixels in total, found more; reduce their frames, for example with `-vf fps=1`"
    )]
    TooManyPixels {
        /// Maximum number of pixels.
        limit: u64,
    },
    /// A frame cannot be read.
    #[error(transparent)]
    Frame(#[from] PictureError),
    /// The work was cancelled.
    #[error("the video was not read to its end, because the request was cancelled")]
    Cancelled,
}
