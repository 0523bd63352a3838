//! Checkpoint in, package out. No ONNX Runtime, no network.
//!
//! Start at [`pipeline`] for the stages, at [`checkpoint`] for what is read, and at [`lower`] for the graphs made; at
//! [`import`] for graphs that somebody else made.

pub mod check;
pub mod checkpoint;
mod emit;
mod error;
#[cfg(test)]
mod example;
pub mod export;
pub mod import;
mod layer;
pub mod lower;
pub mod outlook;
pub mod package;
pub mod paper;
pub mod pass;
pub mod pipeline;
pub mod quant;
pub mod vocabulary;

pub use error::CompileError;
