//! The catalogue of models, the store on disk, and all downloads.
//!
//! This is the only crate that connects to other machines, except to upstreams (`server`), and the only one that creates, renames or removes folders of the
//! store. It does not read the contents of checkpoints and does not compile. Its only knowledge of ONNX is the names of the
//! libraries that it unpacks. Start at [`index::Catalog`] (available models), [`resolve::ModelRef`] (a user's reference),
//! [`fetch::fetch`] (download), [`store::Store`] (files on disk) and [`runtimes`] (libraries that run models).

mod archive;
pub mod error;
pub mod fetch;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod index;
pub mod keys;
mod known_models;
pub mod network;
pub mod outbound;
mod platform;
mod redact;
pub mod remote_file;
pub mod resolve;
mod runtime_kind;
pub mod runtimes;
pub mod source;
pub mod speech_detector;
pub mod store;

pub use error::{Error, ErrorKind};
pub use redact::{redact, redact_reference};

/// A flag that stops a long job. Jobs check it every few hundred milliseconds where possible.
pub type CancelFlag = std::sync::atomic::AtomicBool;

/// Returns [`Error::Cancelled`] if the flag is set.
pub(crate) fn check_cancel(cancel: &CancelFlag) -> Result<(), Error> {
    if cancel.load(std::sync::atomic::Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
}
