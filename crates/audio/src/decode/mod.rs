//! Files of sound, read as mono samples of 16 kHz.
//!
//! Start at [`Decoder::open`]. `codec` decodes packets, and `mix` mixes their channels. A [`Decoder`] is an iterator that holds
//! about a second of audio, so that the memory does not depend on the length of the file. A panic of a library becomes
//! an error.

mod codec;
mod mix;
mod opus;
mod source;

use std::io::ErrorKind;

use symphonia::core::{
    errors::Error,
    formats::{FormatId, FormatOptions, FormatReader, TrackType, probe::Hint, well_known as formats},
    io::{MediaSourceStream, MediaSourceStreamOptions},
    meta::MetadataOptions,
    units::TimeBase,
};

use crate::{
    AudioError, Resampler, SPEECH_RATE,
    contain::{LibraryPanic, contain},
    decode::codec::Codec,
};

pub use source::Source;

/// Samples of a chunk, about.
const CHUNK: usize = SPEECH_RATE as usize;

/// Maximum number of consecutive packets that are damaged. Such packets are skipped, as players do.
const MAX_DAMAGED: u32 = 16;

/// Reason of an error after a panic of a library.
const PANIC: &str = "the decoder failed";

/// A file of sound, decoded in chunks of mono samples with [`SPEECH_RATE`].
///
/// The last item is an error if the file is damaged or ends too early.
pub struct Decoder<'s> {
    /// Absent after the end or an error.
    open: Option<Open<'s>>,
    container: &'static str,
    duration: Option<f64>,
    limit: Option<u64>,
    received: u64,
}

/// The parts of a decoder that has not reached its end.
struct Open<'s> {
    reader: Box<dyn FormatReader + 's>,
    track: u32,
    codec: Codec,
    resampling: Option<Resampling>,
    end: End,
    decoded: u64,
    damaged: u32,
}

/// Knowledge of the end of a track.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The track has a number of frames.
    After(u64),
    /// The track ends with the file, possibly inside a packet, because streams are recorded in this way.
    WithFile,
    /// The demuxer knows the end.
    OfContainer,
}

/// A resampler with its input rate.
struct Resampling {
    rate: u32,
    resampler: Resampler,
}

impl<'s> Decoder<'s> {
    /// Opens a file of sound, whose format is recognised by its content.
    ///
    /// # Errors
    ///
    /// [`AudioError`] if the file is empty, has no supported audio, or is damaged at its start.
    pub fn open(source: impl Source + 's) -> Result<Self, AudioError> {
        let (reader, container) = probe(source)?;
        let duration = reader.media_info().duration.zip(reader.media_info().time_base);
        let duration = duration
            .map(|(duration, base): (_, TimeBase)| base.calc_duration_saturating(duration).as_secs_f64());
        let open = Open::new(reader, container)?;
        Ok(Self { open: Some(open), container, duration, limit: None, received: 0 })
    }

    /// Sets the maximum duration in seconds. A longer file ends with an error.
    #[must_use]
    pub fn at_most(self, seconds: u64) -> Self {
        Self { limit: Some(seconds), ..self }
    }

    /// Duration in seconds that the file states. It may be wrong.
    pub fn stated_duration(&self) -> Option<f64> {
        self.duration
    }

    /// Duration in seconds of the chunks so far.
    fn seconds(&self) -> f64 {
        self.received as f64 / f64::from(SPEECH_RATE)
    }

    /// Returns the next chunk, or nothing at the end.
    fn advance(&mut self) -> Result<Option<Vec<f32>>, AudioError> {
        let Some(open) = &mut self.open else {
            return Ok(None);
        };
        let mut chunk = Vec::with_capacity(CHUNK + CHUNK / 4);
        let mut outcome = Ok(true);
        while chunk.len() < CHUNK && matches!(outcome, Ok(true)) {
            outcome = contain(|| open.packet(&mut chunk)).unwrap_or(Err(Failure::Panic));
        }
        let truncated = matches!(outcome, Ok(false)) && open.is_truncated();
        self.received += chunk.len() as u64;

        let (container, seconds) = (self.container, self.seconds());
        match outcome {
            Ok(_) if self.limit.is_some_and(|limit| self.received > limit * u64::from(SPEECH_RATE)) => {
                Err(AudioError::TooLong { seconds: self.limit.unwrap_or_default() })
            }
            Ok(true) => Ok(Some(chunk)),
            Ok(false) if truncated => Err(AudioError::Truncated { container, seconds }),
            Ok(false) if self.received == 0 => Err(AudioError::NoSamples { container }),
            Ok(false) => {
                self.open = None;
                Ok((!chunk.is_empty()).then_some(chunk))
            }
            Err(failure) => Err(failure.at(container, seconds)),
        }
    }
}

impl Iterator for Decoder<'_> {
    type Item = Result<Vec<f32>, AudioError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance();
        if next.is_err() {
            self.open = None;
        }
        next.transpose()
    }
}

/// Recognises the format of a file. Returns the reader of its packets with the format's name.
fn probe<'s>(source: impl Source + 's) -> Result<(Box<dyn FormatReader + 's>, &'static str), AudioError> {
    let mut source = source::SizedSource::new(source).map_err(AudioError::Read)?;
    if source.is_empty() {
        return Err(AudioError::Empty);
    }
    let start = source.start().map_err(AudioError::Read)?;

    let stream = MediaSourceStream::new(Box::new(source), MediaSourceStreamOptions::default());
    let probed = contain(|| {
        symphonia::default::get_probe().probe(
            &Hint::new(),
            stream,
            FormatOptions::default(),
            MetadataOptions::default(),
        )
    });
    let reader = match probed {
        Ok(Ok(reader)) => reader,
        Ok(Err(Error::Unsupported(reason))) if reason.starts_with("core (probe)") => {
            return Err(AudioError::UnknownFormat { start });
        }
        Ok(Err(Error::IoError(error))) if error.kind() != ErrorKind::UnexpectedEof => {
            return Err(AudioError::Read(error));
        }
        Ok(Err(error)) => return Err(AudioError::Unreadable { reason: error.to_string() }),
        Err(LibraryPanic) => return Err(AudioError::Unreadable { reason: PANIC.to_owned() }),
    };
    let container = match reader.format_info().format {
        formats::FORMAT_ID_MKV => "WebM or Matroska",
        formats::FORMAT_ID_ISOMP4 => "MP4",
        formats::FORMAT_ID_OGG => "Ogg",
        formats::FORMAT_ID_WAVE => "WAV",
        formats::FORMAT_ID_FLAC => "FLAC",
        formats::FORMAT_ID_MP3 => "MP3",
        _ => reader.format_info().short_name,
    };
    Ok((reader, container))
}

impl<'s> Open<'s> {
    fn new(reader: Box<dyn FormatReader + 's>, container: &'static str) -> Result<Self, AudioError> {
        let track = reader.default_track(TrackType::Audio).ok_or(AudioError::NoTrack { container })?;
        let parameters = track
            .codec_params
            .as_ref()
            .and_then(|parameters| parameters.audio())
            .ok_or(AudioError::NoTrack { container })?;
        if let Some(rate) = parameters.sample_rate {
            codec::check_rate(rate)?;
        }
        if let Some(channels) = &parameters.channels {
            codec::check_channels(channels.count())?;
        }
        let codec = match contain(|| Codec::new(parameters, reader.format_info().format)) {
            Ok(Ok(codec)) => codec,
            Ok(Err(error)) => {
                return Err(AudioError::UnknownCodec { container, reason: error.to_string() });
            }
            Err(LibraryPanic) => return Err(Failure::Panic.at(container, 0.0)),
        };

        let end = End::of(reader.format_info().format, track.num_frames);
        Ok(Self { track: track.id, codec, resampling: None, end, decoded: 0, damaged: 0, reader })
    }

    /// Decodes a packet and appends its samples to `chunk`. Returns whether there may be another packet.
    fn packet(&mut self, chunk: &mut Vec<f32>) -> Result<bool, Failure> {
        let packet = match self.reader.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => {
                self.finish(chunk);
                return Ok(false);
            }
            Err(Error::IoError(error))
                if error.kind() == ErrorKind::UnexpectedEof && matches!(self.end, End::WithFile) =>
            {
                self.finish(chunk);
                return Ok(false);
            }
            Err(Error::ResetRequired) => {
                self.restart()?;
                return Ok(true);
            }
            Err(error) => return Err(error.into()),
        };
        if packet.track_id != self.track {
            return Ok(true);
        }
        let mono = match self.codec.decode(&packet) {
            Ok(mono) => mono,
            Err(Failure::Library(Error::DecodeError(_) | Error::IoError(_)))
                if self.damaged < MAX_DAMAGED =>
            {
                self.damaged += 1;
                return Ok(true);
            }
            Err(failure) => return Err(failure),
        };
        self.damaged = 0;
        self.decoded += mono.samples.len() as u64;

        match &mut self.resampling {
            Some(resampling) if resampling.rate == mono.rate => {}
            resampling => {
                if let Some(last) = resampling {
                    last.resampler.finish(chunk);
                }
                *resampling = Some(Resampling { rate: mono.rate, resampler: Resampler::new(mono.rate) });
            }
        }
        if let Some(resampling) = &mut self.resampling {
            resampling.resampler.push(mono.samples, chunk);
        }
        Ok(true)
    }

    /// Appends the last samples.
    fn finish(&mut self, chunk: &mut Vec<f32>) {
        if let Some(mut resampling) = self.resampling.take() {
            resampling.resampler.finish(chunk);
        }
    }

    /// Continues with the tracks of the next of several files in one stream.
    fn restart(&mut self) -> Result<(), Failure> {
        let Some(track) = self.reader.default_track(TrackType::Audio) else {
            return Err(Failure::Library(Error::Unsupported("a part of the file has no audio")));
        };
        if let Some(parameters) = track.codec_params.as_ref().and_then(|parameters| parameters.audio()) {
            self.codec =
                Codec::new(parameters, self.reader.format_info().format).map_err(Failure::Library)?;
        }
        self.track = track.id;
        Ok(())
    }

    /// Returns whether audio that the header states is missing.
    fn is_truncated(&self) -> bool {
        matches!(self.end, End::After(frames) if self.decoded < frames)
    }
}

impl End {
    /// Returns the knowledge from a file's format and its number of frames, which some formats estimate.
    fn of(format: FormatId, frames: Option<u64>) -> Self {
        match format {
            formats::FORMAT_ID_WAVE | formats::FORMAT_ID_FLAC | formats::FORMAT_ID_AIFF => match frames {
                // Headers of streams state the largest possible size, or half of it.
                Some(frames) if frames < u64::from(u32::MAX) / 64 => Self::After(frames),
                _ => Self::WithFile,
            },
            formats::FORMAT_ID_MKV | formats::FORMAT_ID_ADTS | formats::FORMAT_ID_MP3 => Self::WithFile,
            _ => Self::OfContainer,
        }
    }
}

/// A failure of a packet.
#[derive(Debug)]
enum Failure {
    Library(Error),
    Audio(AudioError),
    Panic,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl Failure {
    /// Returns the error of a file of a format, at a time.
    fn at(self, container: &'static str, seconds: f64) -> AudioError {
        match self {
            Self::Library(Error::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                AudioError::Truncated { container, seconds }
            }
            Self::Library(Error::IoError(error)) if error.get_ref().is_none() => AudioError::Read(error),
            Self::Library(error) => AudioError::Damaged { container, seconds, reason: error.to_string() },
            Self::Audio(error) => error,
            Self::Panic => AudioError::Damaged { container, seconds, reason: PANIC.to_owned() },
        }
    }
}

#[cfg(test)]
mod tests;
