//! From checkpoints to packages of the store: calibration, NPU compilers, and the measured cost of passes and
//! reductions.

mod calibration;
pub(crate) mod package_build;
pub(crate) mod precompile;
mod quality;
pub(crate) mod request;
