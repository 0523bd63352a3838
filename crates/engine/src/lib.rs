//! Tokens in, tokens out: sequences, scheduling, KV accounting, sampling.
//!
//! Knows no text, no ONNX Runtime, no async and no clock. Start at [`request`] for what callers hand in, at
//! [`executor`] for the port to a device, at [`core`] for the step between them, and at [`worker`] for the thread.

pub mod config;
pub mod core;
pub mod encoder;
pub mod executor;
mod guarded;
pub mod invariant;
pub mod kv;
pub mod request;
pub mod sample;
mod schedule;
mod sequence;
pub mod worker;
