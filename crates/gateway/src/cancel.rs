//! A flag by which a long job is told to stop.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::error::Error;

/// Tells a long job to stop; clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the job to stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails where the job was asked to stop.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }
}
