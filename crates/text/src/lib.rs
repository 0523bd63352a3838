//! Strings to tokens and back: tokenizers, chat templates, stop strings. No I/O, no clock.
//!
//! Start at [`tokenizer::Tokenizer`]; [`template`] makes a conversation into text and [`prompt`] into tokens.

pub mod detokenize;
pub mod prompt;
pub mod stop;
pub mod template;
pub mod tokenizer;

mod barrier;
