//! Cancellation of a long job.

use std::{
    collections::BTreeMap,
    fmt, mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

use crate::error::Error;

/// Signal that requests a job to stop. Clones share the signal.
///
/// ```
/// use narthex_gateway::Cancel;
///
/// let cancel = Cancel::new();
/// let (sender, receiver) = std::sync::mpsc::channel();
/// let _callback = cancel.on_cancel(move || sender.send(()).unwrap());
/// cancel.cancel();
/// assert!(cancel.is_cancelled() && receiver.recv().is_ok());
/// ```
#[derive(Clone, Default)]
pub struct Cancel(Arc<Signal>);

#[derive(Default)]
struct Signal {
    flag: AtomicBool,
    callbacks: Mutex<Callbacks>,
}

#[derive(Default)]
struct Callbacks {
    next: u64,
    registered: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
}

/// A registered callback; dropping it removes the callback.
#[must_use = "the callback is removed when this is dropped"]
pub struct CancelCallback<'a> {
    signal: &'a Signal,
    id: Option<u64>,
}

impl Cancel {
    /// Creates a signal that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests the job to stop, and wakes it if it waits.
    pub fn cancel(&self) {
        self.0.flag.store(true, Ordering::Release);
        let callbacks = mem::take(&mut self.0.callbacks.lock().registered);
        callbacks.into_values().for_each(|callback| callback());
    }

    /// Returns whether a stop was requested.
    pub fn is_cancelled(&self) -> bool {
        self.0.flag.load(Ordering::Acquire)
    }

    /// Fails if a stop was requested.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Registers a function that [`Self::cancel`] calls, such as one that wakes a waiting thread. Calls it at once if
    /// the signal is already set.
    pub fn on_cancel(&self, callback: impl FnOnce() + Send + 'static) -> CancelCallback<'_> {
        let mut callbacks = self.0.callbacks.lock();
        // `cancel` sets the flag before it takes the callbacks, so that one of the two calls this one.
        if self.is_cancelled() {
            drop(callbacks);
            callback();
            return CancelCallback { signal: &self.0, id: None };
        }
        let id = callbacks.next;
        callbacks.next += 1;
        callbacks.registered.insert(id, Box::new(callback));
        CancelCallback { signal: &self.0, id: Some(id) }
    }

    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0.flag
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}

impl Drop for CancelCallback<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let callback = self.signal.callbacks.lock().registered.remove(&id);
            drop(callback);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_callback_is_called_once_whether_it_comes_before_or_after() {
        let (sender, receiver) = mpsc::channel();
        let callback = || {
            let sender = sender.clone();
            move || sender.send(()).unwrap()
        };
        let cancel = Cancel::new();
        let before = cancel.on_cancel(callback());
        drop(cancel.on_cancel(callback()));
        cancel.cancel();
        cancel.cancel();
        assert_eq!(receiver.try_iter().count(), 1);
        let after = cancel.on_cancel(callback());
        assert_eq!(receiver.try_iter().count(), 1);
        drop((before, after));
        assert_eq!(receiver.try_iter().count(), 0);
    }
}
