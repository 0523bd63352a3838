//! Requests to loaded models, and their answers.

pub(crate) mod answer;
mod answer_rules;
pub(crate) mod chat;
mod constraint;
pub(crate) mod date;
pub(crate) mod embed;
pub(crate) mod fill;
pub(crate) mod generation;
pub(crate) mod mask_predict;
mod options;
pub mod request;
pub(crate) mod rerank;
mod text;
pub(crate) mod tools;
