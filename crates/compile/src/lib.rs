//! Checkpoint in, package out. No ONNX Runtime, no network.
//!
//! Start at [`checkpoint`] for what is read and at [`pipeline`] for the stages between.

pub mod checkpoint;
