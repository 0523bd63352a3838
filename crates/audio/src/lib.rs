//! Audio: features of sounds, files of sound, and transcripts with their formats.
//!
//! [`Decoder`] reads files, [`Encoder`] writes them, [`mel`] computes the features that Whisper's encoder reads,
//! [`normalized_log_mel`] those of NeMo's encoders, [`log_mel_frames`] those that audio towers of chat models read, [`pcm`] writes WAV files, and
//! [`transcript`] has the result of speech recognition with the formats of the OpenAI API. Samples are `f32` in -1 to 1.
//! Nothing here opens a file, uses the network or starts a thread.

pub mod activity;
mod contain;
mod decode;
mod encode;
mod error;
mod filter_bank;
mod frames;
pub mod language;
pub mod mel;
mod nemo;
pub mod pcm;
mod resample;
mod spectrum;
#[cfg(test)]
mod test_sounds;
pub mod transcript;

pub use decode::{Decoder, Source};
pub use encode::{Encoder, SoundFormat, StreamEncoder};
pub use error::AudioError;
pub use frames::log_mel_frames;
pub use nemo::normalized_log_mel;
pub use pcm::Pcm;
pub use resample::Resampler;

/// Sample rate of the models that read speech, in Hz.
pub const SPEECH_RATE: u32 = 16_000;
