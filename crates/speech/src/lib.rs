//! Text to phonemes, for voices: Markdown, sentences, normalisation and pronunciation. No I/O, no clock.
//!
//! Start at [`utterance::utterances`], which turns a text into normalised sentences. [`english::English`] pronounces them.
//! [`phonemes`] maps phonemes to the ids of a model.

pub mod english;
pub mod markdown;
pub mod normalize;
pub mod phonemes;
pub mod sentences;
pub mod utterance;

mod error;

pub use error::SpeechError;
