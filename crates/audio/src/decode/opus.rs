//! Decoding of Opus packets. Ogg, WebM and MP4 files all state the header of RFC 7845.

use ropus::OpusMSDecoder;
use symphonia::core::{
    codecs::audio::AudioCodecParameters,
    errors::{Error, decode_error, unsupported_error},
    formats::{FormatId, well_known::FORMAT_ID_ISOMP4},
    packet::Packet,
};

use crate::{SPEECH_RATE, decode::mix::equal_weights, error::CHANNELS};

/// Sample rate of the headers and timestamps of Opus streams, in Hz.
const STREAM_RATE: usize = 48_000;

/// Frames of the longest packet, 120 ms.
const MAX_FRAMES: usize = SPEECH_RATE as usize * 120 / 1_000;

/// Magic bytes of the header.
const MAGIC: &[u8] = b"OpusHead";

/// Decoder of Opus packets with [`SPEECH_RATE`], which the codec resamples to by itself.
pub(super) struct OpusPackets {
    decoder: OpusMSDecoder,
    channels: usize,
    weights: Vec<f32>,
    samples: Vec<i16>,
    /// Frames at the start that are not part of the audio.
    skip: usize,
}

impl OpusPackets {
    pub(super) fn new(parameters: &AudioCodecParameters, format: FormatId) -> Result<Self, Error> {
        let header = Header::read(parameters, format)?;
        let channels = header.table.len();
        if !CHANNELS.contains(&channels) {
            return unsupported_error("an Opus stream with other than 1 to 8 channels");
        }
        // RFC 7845 allows more streams than channels, but no encoder writes them.
        if usize::from(header.streams) > channels {
            return decode_error("the Opus stream has more streams than channels");
        }
        let decoder = OpusMSDecoder::new(
            SPEECH_RATE as i32,
            channels as i32,
            i32::from(header.streams),
            i32::from(header.coupled),
            &header.table,
        );
        Ok(Self {
            decoder: decoder.map_err(|_| Error::DecodeError("the header of the Opus stream is invalid"))?,
            channels,
            // With six or more channels, the last one has the low-frequency effects.
            weights: equal_weights((0..channels).map(|at| channels < 6 || at + 1 < channels).collect()),
            samples: vec![0; MAX_FRAMES * channels],
            skip: header.skip * SPEECH_RATE as usize / STREAM_RATE,
        })
    }

    /// Share of each channel in the mix.
    pub(super) fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Decodes a packet, and writes its interleaved samples to `interleaved`.
    pub(super) fn decode(&mut self, packet: &Packet, interleaved: &mut Vec<f32>) -> Result<(), Error> {
        interleaved.clear();
        // An empty packet would be concealed as a lost one.
        let length = match i32::try_from(packet.data.len()) {
            Ok(length) if length > 0 => length,
            _ => return decode_error("an Opus packet has an invalid length"),
        };
        let frames = self
            .decoder
            .decode(Some(&packet.data), length, &mut self.samples, MAX_FRAMES as i32, false)
            .map_err(|_| Error::DecodeError("an Opus packet is invalid"))?;
        let frames = usize::try_from(frames).unwrap_or_default().min(MAX_FRAMES);

        let skipped = self.skip.min(frames);
        self.skip -= skipped;
        let trimmed = packet.trim_end.get() / (STREAM_RATE / SPEECH_RATE as usize) as u64;
        let end = frames.saturating_sub(usize::try_from(trimmed).unwrap_or(usize::MAX)).max(skipped);
        let samples = &self.samples[skipped * self.channels..end * self.channels];
        interleaved.extend(samples.iter().map(|sample| f32::from(*sample) / 32_768.0));
        Ok(())
    }
}

/// The header of an Opus stream.
struct Header {
    /// Frames with [`STREAM_RATE`] at the start that are not part of the audio.
    skip: usize,
    streams: u8,
    /// Streams of two channels, which come first.
    coupled: u8,
    /// Decoded channel of each output channel.
    table: Vec<u8>,
}

impl Header {
    /// Reads the header. Without one, the stream has one or two channels.
    fn read(parameters: &AudioCodecParameters, format: FormatId) -> Result<Self, Error> {
        let Some(header) = parameters.extra_data.as_deref().and_then(|data| data.strip_prefix(MAGIC)) else {
            let channels = parameters.channels.as_ref().map_or(1, |channels| channels.count());
            return Self::without_mapping(channels, 0);
        };
        let [_version, channels, skip_low, skip_high, _, _, _, _, _, _, family, mapping @ ..] = header else {
            return decode_error("the header of the Opus stream is too short");
        };
        let channels = usize::from(*channels);
        let skip = [*skip_low, *skip_high];
        // The demuxer copies the fields of MP4, whose bytes have the other order.
        let skip = match format {
            FORMAT_ID_ISOMP4 => u16::from_be_bytes(skip),
            _ => u16::from_le_bytes(skip),
        };
        let skip = usize::from(skip);
        match mapping {
            _ if *family == 0 => Self::without_mapping(channels, skip),
            [streams, coupled, table @ ..] if table.len() >= channels => {
                Ok(Self { skip, streams: *streams, coupled: *coupled, table: table[..channels].to_vec() })
            }
            _ => decode_error("the channel mapping of the Opus stream is too short"),
        }
    }

    fn without_mapping(channels: usize, skip: usize) -> Result<Self, Error> {
        match channels {
            1 => Ok(Self { skip, streams: 1, coupled: 0, table: vec![0] }),
            2 => Ok(Self { skip, streams: 1, coupled: 1, table: vec![0, 1] }),
            _ => unsupported_error("an Opus stream of several channels without a mapping"),
        }
    }
}
