//! Requests to loaded models, and their answers.

mod answer;
mod answer_rules;
pub(crate) mod answer_stream;
mod chat;
mod classify;
mod constraint;
mod decide;
mod embed;
mod entities;
mod fill;
pub(crate) mod generation;
mod history;
mod mask_predict;
pub(crate) mod media;
pub(crate) mod options;
mod pairs;
mod permits;
mod probabilities;
mod reading;
mod remote_media;
mod repetition;
pub mod request;
mod rerank;
mod speak;
mod text;
pub(crate) mod tools;
pub(crate) mod transcribe;
