//! The catalogue of models, the store on disk, and everything that is fetched from elsewhere.
//!
//! The only crate with outbound network, and the only writer of the store. It never reads a checkpoint's contents,
//! never compiles, and knows nothing of ONNX beyond the names of the libraries it unpacks.
//! Start at [`index::Catalog`] (what can be had), [`resolve::ModelRef`] (what a user typed), [`fetch::fetch`] (make it
//! local), [`store::Store`] (where things lie) and [`runtimes`] (the libraries that run models).

pub mod error;
pub mod fetch;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod index;
mod platform;
pub mod resolve;
pub mod runtimes;
pub mod source;
pub mod store;

pub use error::{Error, ErrorKind};

/// Tells a long job to stop, once set; looked at between steps of at most a few hundred milliseconds where possible.
pub type Cancel = std::sync::atomic::AtomicBool;

/// Fails with [`Error::Cancelled`] once the flag is set.
pub(crate) fn check_cancel(cancel: &Cancel) -> Result<(), Error> {
    if cancel.load(std::sync::atomic::Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
}
