//! Pictures: PNG, JPEG, WebP, GIF and BMP files, and the values that vision models read.
//!
//! [`Decoder`] reads files, [`VideoReader`] takes frames of videos, and [`preprocess()`] computes the values of a [`Picture`] as the image processors of the
//! `transformers` library do. Nothing here opens a file, uses the network or starts a thread.

mod contain;
mod decode;
mod encode;
mod error;
mod picture;
mod preprocess;
mod resize;
mod video;

pub use decode::{Decoder, MAX_DECODED_BYTES, MAX_PIXELS, MAX_SIDE};
pub use error::{PictureError, VideoError};
pub use picture::Picture;
pub use preprocess::{PictureInputs, preprocess, tiles};
pub use video::{MAX_FRAME_BYTES, MAX_FRAME_PIXELS, MAX_FRAMES, VideoFrame, VideoReader};
