//! Speech as files, written in pieces while it is computed.
//!
//! Start at [`Encoder`]. `flac` and `opus` have the formats of libraries; WAV and PCM are written here.

mod flac;
mod opus;
mod output;

use crate::{AudioError, Resampler, pcm};

/// Sample rate in Hz of the format without a header, as in the OpenAI API.
const PCM_RATE: u32 = 24_000;

/// Format of a file of speech.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SoundFormat {
    /// WAV with 16-bit samples.
    Wav,
    /// Samples of 24 kHz as 16-bit integers in little-endian order, without a header.
    Pcm,
    /// FLAC with 16-bit samples.
    Flac,
    /// Opus in Ogg.
    Opus,
}

impl SoundFormat {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::Wav, Self::Pcm, Self::Flac, Self::Opus];

    /// Name, which is also the extension of a file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wav => "wav",
            Self::Pcm => "pcm",
            Self::Flac => "flac",
            Self::Opus => "opus",
        }
    }

    /// Returns the format with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name))
    }

    /// Media type of a file.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Wav => "audio/wav",
            Self::Pcm => "audio/pcm",
            Self::Flac => "audio/flac",
            Self::Opus => "audio/ogg",
        }
    }
}

/// Encodes mono samples of one rate. The parts that it returns are a file when they are joined.
pub struct Encoder(Kind);

/// The formats with their states.
enum Kind {
    Wav { header: Option<[u8; 44]> },
    Pcm(Option<Resampler>),
    Flac(Box<flac::FlacStream>),
    Opus(Box<opus::OpusStream>),
}

impl Encoder {
    /// Creates an encoder for samples of a rate in Hz.
    ///
    /// `length` is the number of samples, if it is known. WAV files without it have the largest possible length in their
    /// header, which players accept.
    ///
    /// # Errors
    ///
    /// [`AudioError::Encode`] if the format does not allow the sample rate.
    pub fn new(format: SoundFormat, rate: u32, length: Option<usize>) -> Result<Self, AudioError> {
        Ok(Self(match format {
            SoundFormat::Wav => Kind::Wav { header: Some(pcm::wav_header(rate, length)) },
            SoundFormat::Pcm => Kind::Pcm((rate != PCM_RATE).then(|| Resampler::between(rate, PCM_RATE))),
            SoundFormat::Flac => Kind::Flac(Box::new(flac::FlacStream::new(rate))),
            SoundFormat::Opus => Kind::Opus(Box::new(opus::OpusStream::new(rate)?)),
        }))
    }

    /// Adds samples, and returns the bytes that they complete.
    ///
    /// # Errors
    ///
    /// [`AudioError::Encode`] if the encoder fails.
    pub fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, AudioError> {
        match &mut self.0 {
            Kind::Wav { header } => {
                let mut bytes = header.take().map_or_else(Vec::new, Vec::from);
                bytes.extend(pcm::to_i16_le(samples));
                Ok(bytes)
            }
            Kind::Pcm(None) => Ok(pcm::to_i16_le(samples)),
            Kind::Pcm(Some(resampler)) => {
                let mut resampled = Vec::new();
                resampler.push(samples, &mut resampled);
                Ok(pcm::to_i16_le(&resampled))
            }
            Kind::Flac(flac) => flac.push(samples),
            Kind::Opus(opus) => opus.push(samples),
        }
    }

    /// Returns the last bytes.
    ///
    /// # Errors
    ///
    /// [`AudioError::Encode`] if the encoder fails.
    pub fn finish(self) -> Result<Vec<u8>, AudioError> {
        match self.0 {
            Kind::Wav { header } => Ok(header.map_or_else(Vec::new, Vec::from)),
            Kind::Pcm(None) => Ok(Vec::new()),
            Kind::Pcm(Some(mut resampler)) => {
                let mut resampled = Vec::new();
                resampler.finish(&mut resampled);
                Ok(pcm::to_i16_le(&resampled))
            }
            Kind::Flac(flac) => flac.finish(),
            Kind::Opus(opus) => opus.finish(),
        }
    }
}

/// Encodes speech whose sample rate is known with its first samples.
pub struct StreamEncoder {
    format: SoundFormat,
    encoder: Option<Encoder>,
}

impl StreamEncoder {
    /// Creates an encoder for a file of unknown length.
    pub fn new(format: SoundFormat) -> Self {
        Self { format, encoder: None }
    }

    /// Adds samples of a rate in Hz, which is that of the first call, and returns the bytes that they complete.
    ///
    /// # Errors
    ///
    /// As [`Encoder::new`] and [`Encoder::push`].
    pub fn push(&mut self, rate: u32, samples: &[f32]) -> Result<Vec<u8>, AudioError> {
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            none => none.insert(Encoder::new(self.format, rate, None)?),
        };
        encoder.push(samples)
    }

    /// Returns the last bytes; none if there were no samples.
    ///
    /// # Errors
    ///
    /// As [`Encoder::finish`].
    pub fn finish(self) -> Result<Vec<u8>, AudioError> {
        self.encoder.map_or(Ok(Vec::new()), Encoder::finish)
    }
}

#[cfg(test)]
mod tests {
    use std::{f64::consts::PI, io::Cursor};

    use super::*;
    use crate::{Decoder, SPEECH_RATE};

    fn tone(rate: u32, seconds: f64) -> Vec<f32> {
        let count = (f64::from(rate) * seconds) as usize;
        (0..count).map(|at| 0.5 * (2.0 * PI * 440.0 * at as f64 / f64::from(rate)).sin() as f32).collect()
    }

    fn encode(format: SoundFormat, rate: u32, samples: &[f32]) -> Vec<u8> {
        let mut encoder = Encoder::new(format, rate, None).unwrap();
        let mut bytes = Vec::new();
        for piece in samples.chunks(1_111) {
            bytes.extend(encoder.push(piece).unwrap());
        }
        bytes.extend(encoder.finish().unwrap());
        bytes
    }

    fn decode(bytes: Vec<u8>) -> Vec<f32> {
        Decoder::open(Cursor::new(bytes)).unwrap().flat_map(Result::unwrap).collect()
    }

    #[test]
    fn encoded_files_are_decoded_to_the_same_sound() {
        for (format, bound) in
            [(SoundFormat::Wav, 1e-3), (SoundFormat::Flac, 1e-3), (SoundFormat::Opus, 0.05)]
        {
            for rate in [16_000, 22_050, 24_000, 48_000] {
                let decoded = decode(encode(format, rate, &tone(rate, 1.3)));
                let expect = tone(SPEECH_RATE, 1.3);
                assert_eq!(decoded.len(), expect.len(), "{}, {rate} Hz", format.name());
                let inner = 800..expect.len() - 800;
                let worst = decoded[inner.clone()]
                    .iter()
                    .zip(&expect[inner])
                    .map(|(left, right)| (left - right).abs())
                    .fold(0.0, f32::max);
                assert!(worst < bound, "{}, {rate} Hz: {worst}", format.name());
            }
        }
    }

    #[test]
    fn compressed_files_are_smaller() {
        let samples = tone(24_000, 2.0);
        let sizes = SoundFormat::ALL.map(|format| encode(format, 24_000, &samples).len());
        assert_eq!(sizes[..2], [44 + 2 * samples.len(), 2 * samples.len()]);
        assert!(sizes[2] < sizes[1] * 3 / 4 && sizes[3] < sizes[1] / 6, "{sizes:?}");
    }

    #[test]
    fn samples_without_a_header_have_the_rate_of_the_api() {
        let bytes = encode(SoundFormat::Pcm, 22_050, &tone(22_050, 1.0));
        assert_eq!(bytes.len(), 2 * 24_000);
    }

    #[test]
    fn an_empty_file_is_complete() {
        for format in SoundFormat::ALL {
            let bytes = Encoder::new(format, 24_000, Some(0)).unwrap().finish().unwrap();
            assert_eq!(bytes.is_empty(), format == SoundFormat::Pcm, "{}", format.name());
        }
    }

    #[test]
    fn formats_are_named() {
        assert_eq!(SoundFormat::from_name("FLAC"), Some(SoundFormat::Flac));
        assert_eq!(SoundFormat::from_name("mp3"), None);
    }
}
