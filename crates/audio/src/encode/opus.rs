//! Opus streams in Ogg (RFC 7845).

use ogg::{PacketWriteEndInfo, PacketWriter};
use ropus::{Application, Bitrate, Channels, Encoder};

use crate::{AudioError, Resampler, encode::output::Output};

/// Sample rate of the encoder in Hz.
const RATE: u32 = 48_000;

/// Samples of a packet, which are 20 ms.
const FRAME: usize = 960;

/// Bits per second, for speech in full quality.
const BITRATE: u32 = 32_000;

/// Effort of the encoder, from 0 to 10.
const COMPLEXITY: u8 = 5;

/// Packets of a page, which are half a second. A player begins with the first page.
const PAGE: u64 = 25;

/// Maximum bytes of a packet.
const MAX_PACKET: usize = 1_275;

/// Number of the stream in the file.
const SERIAL: u32 = 1;

pub(super) struct OpusStream {
    resampler: Option<Resampler>,
    encoder: Encoder,
    writer: PacketWriter<'static, Output>,
    output: Output,
    /// Samples of the next packet.
    pending: Vec<f32>,
    /// Samples that were added, and samples that the encoder delays them by.
    added: u64,
    delay: u64,
    packets: u64,
}

impl OpusStream {
    pub(super) fn new(rate: u32) -> Result<Self, AudioError> {
        let encoder = Encoder::builder(RATE, Channels::Mono, Application::Audio)
            .bitrate(Bitrate::Bits(BITRATE))
            .complexity(COMPLEXITY)
            .build()
            .map_err(failed)?;
        let output = Output::default();
        let delay = u64::from(encoder.lookahead());
        let mut opus = Self {
            resampler: (rate != RATE).then(|| Resampler::between(rate, RATE)),
            encoder,
            writer: PacketWriter::new(output.clone()),
            output,
            pending: Vec::new(),
            added: 0,
            delay,
            packets: 0,
        };

        let skip = u16::try_from(delay).unwrap_or(u16::MAX).to_le_bytes();
        let head = [b"OpusHead\x01\x01".as_slice(), &skip, &rate.to_le_bytes(), &[0, 0, 0]].concat();
        let vendor = b"narthex";
        let tags = [b"OpusTags".as_slice(), &[vendor.len() as u8, 0, 0, 0], vendor, &[0; 4]].concat();
        for packet in [head, tags] {
            opus.writer.write_packet(packet, SERIAL, PacketWriteEndInfo::EndPage, 0).map_err(failed)?;
        }
        Ok(opus)
    }

    pub(super) fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, AudioError> {
        let before = self.pending.len();
        match &mut self.resampler {
            None => self.pending.extend_from_slice(samples),
            Some(resampler) => resampler.push(samples, &mut self.pending),
        }
        self.added += (self.pending.len() - before) as u64;
        // The last packet ends the stream, so one packet is kept.
        while self.pending.len() > FRAME {
            self.write(PacketWriteEndInfo::NormalPacket)?;
        }
        Ok(self.output.take())
    }

    pub(super) fn finish(mut self) -> Result<Vec<u8>, AudioError> {
        let before = self.pending.len();
        if let Some(resampler) = &mut self.resampler {
            resampler.finish(&mut self.pending);
        }
        self.added += (self.pending.len() - before) as u64;
        // The delay is filled with silence.
        let missing = usize::try_from(self.delay).unwrap_or_default();
        self.pending.resize((self.pending.len() + missing).max(1).next_multiple_of(FRAME), 0.0);
        while self.pending.len() > FRAME {
            self.write(PacketWriteEndInfo::NormalPacket)?;
        }
        self.write(PacketWriteEndInfo::EndStream)?;
        Ok(self.output.take())
    }

    /// Writes the next packet.
    fn write(&mut self, end: PacketWriteEndInfo) -> Result<(), AudioError> {
        let mut packet = vec![0; MAX_PACKET];
        let frame: Vec<f32> = self.pending.drain(..FRAME).collect();
        let length = self.encoder.encode_float(&frame, &mut packet).map_err(failed)?;
        packet.truncate(length);
        self.packets += 1;

        let end = match end {
            PacketWriteEndInfo::NormalPacket if self.packets.is_multiple_of(PAGE) => {
                PacketWriteEndInfo::EndPage
            }
            end => end,
        };
        // The position at the end of the stream cuts the silence off.
        let position = (self.packets * FRAME as u64).min(self.added + self.delay);
        self.writer.write_packet(packet, SERIAL, end, position).map_err(failed)
    }
}

fn failed(error: impl std::fmt::Display) -> AudioError {
    AudioError::Encode { format: "opus", reason: error.to_string() }
}
