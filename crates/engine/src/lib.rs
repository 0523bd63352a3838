//! Tokens in, tokens out: sequences, scheduling, KV accounting, sampling.
//!
//! This crate contains no text, ONNX Runtime, async code or clock. Start at [`request`] for the input of callers, at
//! [`executor`] for the port to a device, at [`supervise`] for the layer between engine and device, at [`engine_loop`]
//! for the step, and at [`worker`] for the thread.

pub mod config;
pub mod constraint;
pub mod draft_model;
pub mod encoder;
pub mod engine_loop;
pub mod executor;
pub mod kv;
pub mod position;
pub mod prefix_storage;
pub mod request;
pub mod sample;
mod schedule;
mod sequence;
#[cfg(feature = "testing")]
pub mod snapshot;
mod speculate;
pub mod speech;
pub mod supervise;
mod wake;
pub mod worker;
