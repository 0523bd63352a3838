//! The signal that wakes the engine's thread.

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};

/// Wakes the engine's thread. Clones wake the same thread.
///
/// A call before the wait is not lost: the next wait returns at once. Callers change the state that the thread reads
/// before they wake it.
#[derive(Debug, Clone, Default)]
pub(crate) struct WakeSignal(Arc<Latch>);

#[derive(Debug, Default)]
struct Latch {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl WakeSignal {
    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        *self.0.is_set.lock() = true;
        self.0.changed.notify_one();
    }

    /// Waits until [`Self::wake`] has been called since the last wait.
    pub(crate) fn wait(&self) {
        let mut is_set = self.0.is_set.lock();
        self.0.changed.wait_while(&mut is_set, |is_set| !*is_set);
        *is_set = false;
    }

    /// Waits as [`Self::wait`] does, for at most `limit`. Returns false on a timeout.
    pub(crate) fn wait_for(&self, limit: Duration) -> bool {
        let mut is_set = self.0.is_set.lock();
        self.0.changed.wait_while_for(&mut is_set, |is_set| !*is_set, limit);
        std::mem::take(&mut *is_set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::SequenceHandle;

    #[test]
    fn a_call_before_the_wait_is_not_lost_and_counts_once() {
        let signal = WakeSignal::default();
        assert!(!signal.wait_for(Duration::ZERO));
        signal.clone().wake();
        signal.wake();
        assert!(signal.wait_for(Duration::ZERO));
        assert!(!signal.wait_for(Duration::ZERO));
        signal.wake();
        signal.wait();
    }

    #[test]
    fn a_cancelled_sequence_wakes_the_thread() {
        let signal = WakeSignal::default();
        let handle = SequenceHandle::new(signal.clone());
        assert!(!signal.wait_for(Duration::ZERO));
        handle.clone().cancel();
        assert!(handle.is_cancelled() && signal.wait_for(Duration::ZERO));
    }
}
