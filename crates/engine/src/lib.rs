//! Tokens in, tokens out: sequences, scheduling, KV accounting, sampling.
//!
//! Knows no text, no ONNX Runtime, no async and no clock. Start at [`executor`] for the port to a device and at
//! [`request`] for what callers hand in.

pub mod encoder;
pub mod executor;
pub mod request;
