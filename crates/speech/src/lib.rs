//! Text to phonemes, and spectra to samples, for voices. No I/O, no clock.
//!
//! Start at [`utterance::utterances`], which turns a text into normalised sentences. [`english::English`] pronounces them.
//! [`espeak`] reads the phonemes of other languages from the output of a program.
//! [`phonemes`] maps phonemes to the ids of a model, and [`vocoder`] computes samples from its spectrum.

pub mod english;
pub mod espeak;
pub mod markdown;
pub mod normalize;
pub mod phonemes;
pub mod sentences;
pub mod utterance;
pub mod vocoder;

mod error;

pub use error::SpeechError;
