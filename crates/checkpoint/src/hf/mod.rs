//! Folders in the layout of the `transformers` library: `config.json` and tokenizer files.
//!
//! `config` has the keys of `config.json`; `decoder` and `encoder` interpret those that most families share, and
//! `classifier` those about labels. `pooling` and `prompts` read the files of sentence-transformers, `tokenizer` the
//! tokenizer and its special tokens, `generation` the sampling that the publisher recommends, `speech` the control tokens of
//! models for speech, `vision` the settings of vision towers, and `conformer` those of audio towers.

pub mod classifier;
pub mod config;
pub(crate) mod conformer;
pub(crate) mod decoder;
pub(crate) mod encoder;
pub mod folder;
mod generation;
pub(crate) mod mobilenet;
pub mod pooling;
pub mod prompts;
mod sentencepiece;
pub(crate) mod speech;
pub mod tokenizer;
pub(crate) mod vision;

/// Configuration file; a folder with it is a checkpoint of this layout.
pub const CONFIG: &str = "config.json";
