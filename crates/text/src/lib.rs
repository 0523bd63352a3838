//! Strings to tokens and back: tokenizers, chat templates, stop strings. No I/O, no clock.
//!
//! Start at [`tokenizer::Tokenizer`]. [`template`] renders a conversation as text, and [`prompt`] turns it into tokens.

pub mod detokenize;
pub mod prompt;
pub mod stop;
pub mod template;
pub mod tokenizer;

mod barrier;
