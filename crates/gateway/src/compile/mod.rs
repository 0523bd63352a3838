//! Checkpoints to packages of the store: calibration, NPU compilers and the measured cost of passes and reductions.

mod calibration;
pub(crate) mod job;
pub(crate) mod precompile;
pub(crate) mod request;
