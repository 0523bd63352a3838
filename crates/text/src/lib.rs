//! Strings to tokens and back: tokenizers, chat templates, stop strings. No I/O, no clock.
//!
//! Start at [`tokenizer::Tokenizer`]. [`template`] renders a conversation as text, and [`prompt`] turns it into tokens.
//! [`grammar`] restricts generated tokens.

pub mod compile_thread;
pub mod detokenize;
pub mod exact_json;
pub mod grammar;
pub mod media;
pub mod prompt;
pub mod stop;
pub mod template;
pub mod token_list;
pub mod tokenizer;
pub mod tools;

mod catch_panic;
