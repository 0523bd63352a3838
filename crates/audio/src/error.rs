//! The errors of this crate.

use std::{io, ops::RangeInclusive};

/// Sample rates in Hz that are read.
pub(crate) const SAMPLE_RATES: RangeInclusive<u32> = 8_000..=192_000;

/// Numbers of channels that are read.
pub(crate) const CHANNELS: RangeInclusive<usize> = 1..=8;

/// The formats that are read, for messages.
const FORMATS: &str = "wav, aiff, flac, mp3, ogg, opus, m4a, mp4, aac, webm or mkv";

/// Advice to convert a file, for messages.
const CONVERT: &str = "convert it, for example with `ffmpeg -i INPUT output.wav`";

/// Audio that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum AudioError {
    /// The reader failed.
    #[error("reading the audio failed: {0}")]
    Read(#[source] io::Error),
    /// The file has no bytes.
    #[error("expected audio ({FORMATS}), found an empty file")]
    Empty,
    /// The file has none of the known formats.
    #[error("expected audio ({FORMATS}), found a file that starts with {start:?}; {CONVERT}")]
    UnknownFormat {
        /// First bytes of the file, with escapes.
        start: String,
    },
    /// The start of the file cannot be read.
    #[error(
        "expected audio ({FORMATS}), found a file that cannot be read ({reason}); it is damaged, incomplete or \
         encoded in another way: copy it again, or {CONVERT}"
    )]
    Unreadable {
        /// Reason of the demuxer.
        reason: String,
    },
    /// A file of a known format has no audio.
    #[error("expected a track of audio in the {container} file, found none")]
    NoTrack {
        /// Name of the file's format.
        container: &'static str,
    },
    /// The audio has an unknown encoding.
    #[error(
        "expected a {container} file with PCM, ADPCM, FLAC, ALAC, MP3, Vorbis, Opus or AAC-LC, found another encoding \
         ({reason}); {CONVERT}"
    )]
    UnknownCodec {
        /// Name of the file's format.
        container: &'static str,
        /// Reason of the decoder.
        reason: String,
    },
    /// The sample rate is not supported.
    #[error("expected a sample rate of 8,000 to 192,000 Hz, found {rate} Hz; {CONVERT}")]
    SampleRate {
        /// The rate in Hz.
        rate: u32,
    },
    /// The number of channels is not supported.
    #[error("expected 1 to 8 channels, found {channels}; {CONVERT}")]
    Channels {
        /// The number of channels.
        channels: usize,
    },
    /// The file has no samples.
    #[error("expected sound, found a {container} file without samples")]
    NoSamples {
        /// Name of the file's format.
        container: &'static str,
    },
    /// The file is damaged.
    #[error(
        "expected a valid {container} file, found damaged data after {seconds:.1} s ({reason}); record or encode it again"
    )]
    Damaged {
        /// Name of the file's format.
        container: &'static str,
        /// Time in the audio.
        seconds: f64,
        /// Reason of the decoder.
        reason: String,
    },
    /// The file ends before its audio.
    #[error(
        "expected a complete {container} file, found its end after {seconds:.1} s of audio; copy or upload it again"
    )]
    Truncated {
        /// Name of the file's format.
        container: &'static str,
        /// Time in the audio.
        seconds: f64,
    },
    /// An encoder failed.
    #[error("the sound cannot be written as {format} ({reason}); choose another format")]
    Encode {
        /// Name of the format.
        format: &'static str,
        /// Reason of the encoder.
        reason: String,
    },
    /// The audio is longer than the caller allows.
    #[error("expected at most {seconds} s of audio, found more; divide the file into parts")]
    TooLong {
        /// The limit in seconds.
        seconds: u64,
    },
}
