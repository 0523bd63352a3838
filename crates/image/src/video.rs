//! Files of videos: their frames, each as the file of a picture.
//!
//! Animated GIF, PNG and WebP files are read, and Motion JPEG: JPEG files one after another, with any bytes between them. One
//! frame is taken for each second, and a frame of Motion JPEG, which has no times, counts as a second. Of a video with more
//! than [`MAX_FRAMES`] seconds, a frame is taken every 2, 4, 8, … seconds, so that the frames cover all of it.

use std::io::Cursor;

use image::{
    AnimationDecoder, ExtendedColorType, Frame, Frames, ImageDecoder, ImageFormat, Limits,
    codecs::{gif::GifDecoder, png::PngDecoder, webp::WebPDecoder},
};

use crate::{
    contain::{contained, name},
    decode::{SMALL, jpeg_length},
    encode::png,
    error::{PictureError, VideoError},
};

/// Maximum number of frames that are taken of a video.
pub const MAX_FRAMES: usize = 32;

/// Maximum number of pixels of a frame of an animation.
pub const MAX_FRAME_PIXELS: u64 = 1 << 22;

/// Maximum bytes of the files of a video's frames.
pub const MAX_FRAME_BYTES: usize = 64 << 20;

/// Maximum number of pixels that one reader decodes, among them those of frames that are not taken.
const MAX_DECODED_PIXELS: u64 = 1 << 30;

/// Cost of a frame in addition to its pixels, as a number of pixels.
const FRAME_COST: u64 = 1 << 10;

/// Milliseconds between two frames that are taken, unless there are too many.
const INTERVAL: u64 = 1000;

/// Delay up to which a frame is shown for [`USUAL_DELAY`], as in browsers, in milliseconds.
const NO_DELAY: u64 = 10;
const USUAL_DELAY: u64 = 100;

/// A frame of a video.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VideoFrame {
    /// File of the picture.
    pub bytes: Vec<u8>,
    /// Its media type, such as `image/png`.
    pub media_type: &'static str,
}

/// Reads videos, with a bound of the work for all of them together.
#[derive(Debug)]
pub struct VideoReader {
    /// Pixels that may still be decoded.
    pixels: u64,
}

impl Default for VideoReader {
    fn default() -> Self {
        Self { pixels: MAX_DECODED_PIXELS }
    }
}

impl VideoReader {
    /// Returns the frames of a video in the order of their times, at least one and at most [`MAX_FRAMES`]. The file of a
    /// picture is a video of one frame.
    ///
    /// # Errors
    /// [`VideoError`] if the file has an unknown format, is damaged, or has frames that are too large or too many, and
    /// [`VideoError::Cancelled`] once `is_cancelled` returns true.
    pub fn frames(
        &mut self,
        bytes: &[u8],
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<VideoFrame>, VideoError> {
        if bytes.is_empty() {
            return Err(VideoError::Empty);
        }
        let format = image::guess_format(bytes).ok();
        let animation = match format {
            Some(ImageFormat::Jpeg) => return jpegs(bytes),
            Some(format) if ANIMATED.contains(&format) => Animation::open(bytes, format)?,
            _ => return Err(VideoError::UnknownFormat { found: container(bytes) }),
        };
        match animation {
            Some(animation) => self.sample(animation, is_cancelled),
            None => {
                let media_type = format.map_or("image/png", |format| format.to_mime_type());
                Ok(vec![VideoFrame { bytes: bytes.to_vec(), media_type }])
            }
        }
    }

    /// Takes the frames of an animation.
    fn sample(
        &mut self,
        animation: Animation<'_>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<VideoFrame>, VideoError> {
        let Animation { format, pixels, mut frames } = animation;
        let mut samples = Samples::new("image/png");
        let mut end = 0;
        loop {
            if is_cancelled() {
                return Err(VideoError::Cancelled);
            }
            let left = self.pixels.checked_sub(pixels + FRAME_COST);
            self.pixels = left.ok_or(VideoError::TooManyPixels { limit: MAX_DECODED_PIXELS })?;
            let Some(frame) = contained(format, || frames.next().transpose())? else { break };
            end += delay(&frame);
            if samples.next() < end {
                let size = [frame.buffer().width(), frame.buffer().height()];
                let file = contained(format, || png(frame.buffer(), size, ExtendedColorType::Rgba8))?;
                samples.fill(end, &file)?;
            }
        }
        samples.finish(format)
    }
}

/// Formats of animations.
const ANIMATED: [ImageFormat; 3] = [ImageFormat::Gif, ImageFormat::Png, ImageFormat::WebP];

/// A file with several frames.
struct Animation<'a> {
    format: ImageFormat,
    /// Number of pixels of a frame.
    pixels: u64,
    frames: Frames<'a>,
}

impl<'a> Animation<'a> {
    /// Opens a file; returns `None` for one that has only a picture.
    fn open(bytes: &'a [u8], format: ImageFormat) -> Result<Option<Self>, VideoError> {
        let file = Cursor::new(bytes);
        let opened = match format {
            ImageFormat::Gif => {
                let mut decoder = contained(format, || GifDecoder::new(file))?;
                let (pixels, limits) = bounds(&decoder)?;
                contained(format, || decoder.set_limits(limits))?;
                Some((pixels, decoder.into_frames()))
            }
            ImageFormat::WebP => {
                let mut decoder = contained(format, || WebPDecoder::new(file))?;
                let (pixels, limits) = bounds(&decoder)?;
                contained(format, || decoder.set_limits(limits))?;
                decoder.has_animation().then(|| (pixels, decoder.into_frames()))
            }
            _ => {
                let mut decoder = contained(format, || PngDecoder::new(file))?;
                let (pixels, limits) = bounds(&decoder)?;
                contained(format, || decoder.set_limits(limits))?;
                match contained(format, || decoder.is_apng())? {
                    true => Some((pixels, contained(format, || decoder.apng())?.into_frames())),
                    false => None,
                }
            }
        };

        Ok(opened.map(|(pixels, frames)| Self { format, pixels, frames }))
    }
}

/// Returns the number of pixels of a frame, and the limits of its decoder: a canvas, the one before it, a frame and its
/// file.
fn bounds(decoder: &impl ImageDecoder) -> Result<(u64, Limits), VideoError> {
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels > MAX_FRAME_PIXELS {
        return Err(VideoError::TooLarge { pixels: MAX_FRAME_PIXELS, width, height });
    }
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(16 * pixels + SMALL);
    Ok((pixels, limits))
}

/// Returns the time for which a frame is shown, in milliseconds.
fn delay(frame: &Frame) -> u64 {
    let (numerator, denominator) = frame.delay().numer_denom_ms();
    match u64::from(numerator) / u64::from(denominator.max(1)) {
        ..=NO_DELAY => USUAL_DELAY,
        delay => delay,
    }
}

/// Takes the frames of Motion JPEG.
fn jpegs(mut bytes: &[u8]) -> Result<Vec<VideoFrame>, VideoError> {
    const START: &[u8] = &[0xff, 0xd8, 0xff];
    let mut samples = Samples::new("image/jpeg");
    let mut end = 0;
    while let Some(start) = bytes.windows(START.len()).position(|window| window == START) {
        bytes = &bytes[start..];
        let length = jpeg_length(bytes).ok_or(PictureError::Truncated { format: "jpeg" })?;
        let (file, rest) = bytes.split_at(length);
        end += INTERVAL;
        samples.fill(end, file)?;
        bytes = rest;
    }
    samples.finish(ImageFormat::Jpeg)
}

/// Frames that were taken.
struct Samples {
    files: Vec<Vec<u8>>,
    media_type: &'static str,
    /// Milliseconds between two of them.
    interval: u64,
}

impl Samples {
    fn new(media_type: &'static str) -> Self {
        Self { files: Vec::new(), media_type, interval: INTERVAL }
    }

    /// Returns the time of the next frame in milliseconds.
    fn next(&self) -> u64 {
        self.files.len() as u64 * self.interval
    }

    /// Takes a frame for every time before `end`, at which the next one is shown.
    fn fill(&mut self, end: u64, file: &[u8]) -> Result<(), VideoError> {
        while self.next() < end {
            self.files.push(file.to_vec());
            if self.files.len() > MAX_FRAMES {
                let mut index = 0;
                self.files.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.interval *= 2;
            }
            let bytes = self.files.iter().map(Vec::len).sum::<usize>();
            if bytes > MAX_FRAME_BYTES {
                return Err(VideoError::TooManyBytes { limit: MAX_FRAME_BYTES });
            }
        }
        Ok(())
    }

    fn finish(self, format: ImageFormat) -> Result<Vec<VideoFrame>, VideoError> {
        if self.files.is_empty() {
            let format = name(format).unwrap_or("video");
            return Err(PictureError::Unreadable { format, reason: "it has no frames".to_owned() }.into());
        }
        let media_type = self.media_type;
        Ok(self.files.into_iter().map(|bytes| VideoFrame { bytes, media_type }).collect())
    }
}

/// Describes a file that is not read.
fn container(bytes: &[u8]) -> String {
    let known = match bytes {
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => "an MP4 or QuickTime file",
        [0x1a, 0x45, 0xdf, 0xa3, ..] => "a WebM or Matroska file",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'A', b'V', b'I', ..] => "an AVI file",
        [0, 0, 1, 0xb3 | 0xba, ..] => "an MPEG file",
        [0x47, ..] if bytes.get(188) == Some(&0x47) => "an MPEG transport stream",
        [b'O', b'g', b'g', b'S', ..] => "an Ogg file",
        [b'F', b'L', b'V', ..] => "a Flash file",
        [0x30, 0x26, 0xb2, 0x75, ..] => "a Windows Media file",
        _ => return format!("a file that starts with \"{}\"", bytes[..bytes.len().min(12)].escape_ascii()),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(bytes: &[u8]) -> Result<Vec<VideoFrame>, VideoError> {
        VideoReader::default().frames(bytes, &|| false)
    }

    fn refused(bytes: &[u8], expect: &str) {
        let error = frames(bytes).unwrap_err().to_string();
        assert!(error.contains(expect), "{error} lacks {expect}");
    }

    /// Returns JPEG files one after another, each with its number as a comment.
    fn motion_jpeg(count: u8) -> Vec<u8> {
        let picture = include_bytes!("../tests/fixtures/grey.jpg");
        let numbered = |number| {
            [&picture[..2], &[0xff, 0xfe, 0, 3, number], &picture[2..], b"\r\n--boundary\r\n\r\n"].concat()
        };
        (0..count).flat_map(numbered).collect()
    }

    #[test]
    fn a_frame_of_motion_jpeg_is_a_second_and_longer_videos_have_longer_intervals() {
        for (count, numbers) in [
            (1, vec![0]),
            (32, (0..32).collect()),
            (33, (0..=32).step_by(2).collect::<Vec<u8>>()),
            (64, (0..=62).step_by(2).collect()),
            (65, (0..=64).step_by(4).collect()),
        ] {
            let found = frames(&motion_jpeg(count)).unwrap();
            assert!(found.iter().all(|frame| frame.media_type == "image/jpeg"));
            assert_eq!(found.iter().map(|frame| frame.bytes[6]).collect::<Vec<_>>(), numbers, "{count}");
            assert!(found.iter().all(|frame| crate::Decoder::open(&frame.bytes).is_ok()));
        }
        let cut = motion_jpeg(2);
        refused(&cut[..cut.len() - 40], "expected a complete jpeg file");
    }

    #[test]
    fn what_is_no_video_is_refused_with_the_next_step() {
        refused(b"", "found an empty file");
        refused(
            b"\0\0\0\x20ftypisom",
            "found an MP4 or QuickTime file; convert it, for example with `ffmpeg -i",
        );
        refused(b"\x1a\x45\xdf\xa3\x9f", "found a WebM or Matroska file");
        refused(b"RIFF\x24\0\0\0AVI LIST", "found an AVI file");
        refused(b"RIFF\x24\0\0\0WAVEfmt ", "found a file that starts with \"RIFF$");
        refused(b"text", "found a file that starts with \"text\"");
        refused(b"GIF89a", "expected a valid gif file");
        refused(b"BM", "found a file that starts with \"BM\"");
    }

    #[test]
    fn a_picture_is_a_video_of_one_frame() {
        for (file, media_type) in [
            (&include_bytes!("../tests/fixtures/rgb.png")[..], "image/png"),
            (include_bytes!("../tests/fixtures/lossy.webp"), "image/webp"),
            (include_bytes!("../tests/fixtures/full.jpg"), "image/jpeg"),
        ] {
            assert_eq!(frames(file).unwrap(), [VideoFrame { bytes: file.to_vec(), media_type }]);
        }
    }

    #[test]
    fn the_work_for_a_video_is_bounded() {
        let animation = include_bytes!("../tests/videos/parts.gif");
        assert!(matches!(VideoReader::default().frames(animation, &|| true), Err(VideoError::Cancelled)));
        let mut reader = VideoReader { pixels: 4000 };
        assert!(matches!(reader.frames(animation, &|| false), Err(VideoError::TooManyPixels { .. })));
        let mut large = animation.to_vec();
        large[6..10].fill(0xff);
        refused(&large, "frames of at most 4194304 pixels, found 65535 × 65535");
    }
}
