//! The audio of a client's events, as the samples that are recognised.

use base64::{Engine, engine::general_purpose::STANDARD};
use narthex_audio::{Resampler, pcm};

use super::{MAX_APPENDED, SECOND, settings::AudioFormat};
use crate::error::ApiError;

/// Field of an event with audio.
const AUDIO: &str = "audio";

/// Decoder of the audio of a session.
pub(super) struct AudioInput {
    format: AudioFormat,
    resampler: Resampler,
}

impl AudioInput {
    pub(super) fn new(format: AudioFormat) -> Self {
        Self { format, resampler: Resampler::new(format.rate()) }
    }

    /// Returns the samples of the audio of an event.
    pub(super) fn read(&mut self, base64: &str) -> Result<Vec<f32>, ApiError> {
        let bytes = STANDARD.decode(base64).map_err(|error| {
            let message = format!("audio: expected base64 with padding: {error}");
            ApiError::bad_request(AUDIO, message).with_code("invalid_audio")
        })?;
        let samples = match self.format {
            AudioFormat::Pcm { .. } if bytes.len() % 2 == 1 => {
                let message =
                    format!("audio: expected samples of 16 bits, found {} bytes, an odd number", bytes.len());
                return Err(ApiError::bad_request(AUDIO, message).with_code("invalid_audio"));
            }
            AudioFormat::Pcm { .. } => pcm::from_i16_le(&bytes),
            AudioFormat::MuLaw => pcm::from_mu_law(&bytes),
            AudioFormat::ALaw => pcm::from_a_law(&bytes),
        };

        let seconds = samples.len() / self.format.rate() as usize;
        if seconds >= MAX_APPENDED / SECOND {
            let most = MAX_APPENDED / SECOND;
            let message = format!("audio: expected less than {most} seconds in an event, found {seconds}");
            return Err(ApiError::bad_request(AUDIO, message).with_code("audio_too_long"));
        }
        let mut resampled = Vec::with_capacity(samples.len() * SECOND / self.format.rate() as usize + 1);
        self.resampler.push(&samples, &mut resampled);
        Ok(resampled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audio_has_the_rate_of_the_recogniser() {
        let read = |format: AudioFormat, bytes: usize| {
            AudioInput::new(format).read(&STANDARD.encode(vec![0; bytes])).unwrap().len()
        };
        // The filter of the resampler delays the audio by a few milliseconds.
        let nearly =
            |found: usize, expect: usize| assert!((expect - 100..=expect).contains(&found), "{found}");
        nearly(read(AudioFormat::Pcm { rate: 24_000 }, 48_000), 16_000);
        nearly(read(AudioFormat::MuLaw, 8_000), 16_000);
        nearly(read(AudioFormat::ALaw, 4_000), 8_000);
        assert_eq!(read(AudioFormat::Pcm { rate: 16_000 }, 2_000), 1_000);
    }

    #[test]
    fn events_may_divide_the_audio_anywhere() {
        let bytes: Vec<u8> = (0..9_600u32).map(|at| (at * 37 % 251) as u8).collect();
        let read = |piece: usize| {
            let mut input = AudioInput::new(AudioFormat::Pcm { rate: 24_000 });
            let pieces = bytes.chunks(piece);
            pieces.flat_map(|piece| input.read(&STANDARD.encode(piece)).unwrap()).collect::<Vec<f32>>()
        };
        assert_eq!(read(480), read(9_600));
    }

    #[test]
    fn invalid_audio_is_named() {
        let check = |format: AudioFormat, base64: &str, expect: &str| {
            let error = AudioInput::new(format).read(base64).unwrap_err();
            assert!(error.message().contains(expect), "{}", error.message());
            assert_eq!(error.body()["error"]["param"], "audio");
        };
        let pcm = AudioFormat::Pcm { rate: 24_000 };
        check(pcm, "no base64!", "expected base64");
        check(pcm, "AAAA", "found 3 bytes");
        check(
            AudioFormat::ALaw,
            &STANDARD.encode(vec![0; 8_000 * 30]),
            "less than 30 seconds in an event, found 30",
        );
        assert!(AudioInput::new(pcm).read("").unwrap().is_empty());
    }
}
