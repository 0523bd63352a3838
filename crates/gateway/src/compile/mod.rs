//! From checkpoints to packages of the store: calibration, NPU compilers, the measured cost of passes and reductions,
//! and the limit on builds of requests.

pub(crate) mod adapter;
pub(crate) mod build_permits;
mod calibration;
mod certificate;
mod context_files;
mod intel_blobs;
pub(crate) mod package_build;
pub(crate) mod precompile;
mod quality;
pub(crate) mod request;
mod voice_build;
