//! Requests to loaded models, and their answers.

mod answer;
mod answer_rules;
pub(crate) mod answer_stream;
mod chat;
mod constraint;
mod decide;
mod embed;
mod fill;
pub(crate) mod generation;
mod history;
mod mask_predict;
pub(crate) mod media;
pub(crate) mod options;
mod permits;
mod remote_media;
mod repetition;
pub mod request;
mod rerank;
mod speak;
mod text;
pub(crate) mod tools;
pub(crate) mod transcribe;
