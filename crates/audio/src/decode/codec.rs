//! Decoding of packets to mono samples.

use symphonia::core::{
    codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions, well_known::CODEC_ID_OPUS},
    errors::Error,
    formats::FormatId,
    packet::Packet,
};

use crate::{
    AudioError, SPEECH_RATE,
    decode::{Failure, mix, opus::OpusPackets},
    error::{CHANNELS, SAMPLE_RATES},
};

/// Decoder of the packets of a track.
pub(super) struct Codec {
    decoder: PacketDecoder,
    interleaved: Vec<f32>,
    mono: Vec<f32>,
}

/// The libraries that decode.
enum PacketDecoder {
    Symphonia(Box<dyn AudioDecoder>),
    Opus(Box<OpusPackets>),
}

/// Samples of a packet.
pub(super) struct Mono<'a> {
    pub(super) rate: u32,
    pub(super) samples: &'a [f32],
}

impl Codec {
    /// Creates the decoder of a track in a file of a format.
    pub(super) fn new(parameters: &AudioCodecParameters, format: FormatId) -> Result<Self, Error> {
        let decoder = if parameters.codec == CODEC_ID_OPUS {
            PacketDecoder::Opus(Box::new(OpusPackets::new(parameters, format)?))
        } else {
            let decoder = symphonia::default::get_codecs()
                .make_audio_decoder(parameters, &AudioDecoderOptions::default())?;
            PacketDecoder::Symphonia(decoder)
        };
        Ok(Self { decoder, interleaved: Vec::new(), mono: Vec::new() })
    }

    /// Decodes a packet.
    pub(super) fn decode(&mut self, packet: &Packet) -> Result<Mono<'_>, Failure> {
        self.mono.clear();
        match &mut self.decoder {
            PacketDecoder::Symphonia(decoder) => {
                let buffer = decoder.decode(packet)?;
                let rate = buffer.spec().rate();
                let channels = buffer.spec().channels();
                check_rate(rate).map_err(Failure::Audio)?;
                check_channels(channels.count()).map_err(Failure::Audio)?;
                let weights = mix::weights(channels);
                buffer.copy_to_vec_interleaved(&mut self.interleaved);
                mix::append(&self.interleaved, &weights, &mut self.mono);
                Ok(Mono { rate, samples: &self.mono })
            }
            PacketDecoder::Opus(decoder) => {
                decoder.decode(packet, &mut self.interleaved)?;
                mix::append(&self.interleaved, decoder.weights(), &mut self.mono);
                Ok(Mono { rate: SPEECH_RATE, samples: &self.mono })
            }
        }
    }
}

pub(super) fn check_rate(rate: u32) -> Result<(), AudioError> {
    if SAMPLE_RATES.contains(&rate) { Ok(()) } else { Err(AudioError::SampleRate { rate }) }
}

pub(super) fn check_channels(channels: usize) -> Result<(), AudioError> {
    if CHANNELS.contains(&channels) { Ok(()) } else { Err(AudioError::Channels { channels }) }
}
