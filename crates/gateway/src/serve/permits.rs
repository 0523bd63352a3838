//! Permits for work of a request that takes much memory before its model answers. Grammars come from clients and
//! templates from model files, and both may be hostile: the limits of each, times many requests, would be gigabytes.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::{cancel::Cancel, error::Error};

/// Permits of this process for compiling the grammars of a request, which takes up to seconds and 60 MB. Requests that wait
/// occupy threads.
pub(super) static GRAMMARS: WorkPermits = WorkPermits::new(4, 128);

/// Permits of this process for rendering a template, which takes less than a millisecond, and 200 MB if the template is
/// hostile.
pub(super) static RENDERINGS: WorkPermits = WorkPermits::new(3, usize::MAX);

pub(super) struct WorkPermits {
    /// Maximum number of requests that have a permit.
    most: usize,
    /// Maximum number of requests that wait for one.
    most_waiting: usize,
    counts: Mutex<Counts>,
    returned: Condvar,
}

struct Counts {
    running: usize,
    waiting: usize,
}

/// Permit of one request. It is returned when this value is dropped.
#[must_use = "the permit is returned when this is dropped"]
pub(super) struct WorkPermit(&'static WorkPermits);

impl WorkPermits {
    const fn new(most: usize, most_waiting: usize) -> Self {
        let counts = Mutex::new(Counts { running: 0, waiting: 0 });
        Self { most, most_waiting, counts, returned: Condvar::new() }
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// [`Error::Overloaded`] if too many requests wait, and [`Error::Cancelled`] once the request is cancelled.
    pub(super) fn take(&'static self, cancel: &Cancel) -> Result<WorkPermit, Error> {
        let _wake = cancel.on_cancel(|| {
            // A thread that has not yet begun to wait holds the lock.
            drop(self.counts.lock());
            self.returned.notify_all();
        });
        let mut counts = self.counts.lock();
        if counts.running >= self.most && counts.waiting >= self.most_waiting {
            return Err(Error::Overloaded { queued: counts.waiting, retry_after: Duration::from_secs(1) });
        }
        counts.waiting += 1;
        while counts.running >= self.most {
            if cancel.is_cancelled() {
                counts.waiting -= 1;
                return Err(Error::Cancelled);
            }
            self.returned.wait(&mut counts);
        }
        counts.waiting -= 1;
        counts.running += 1;
        Ok(WorkPermit(self))
    }
}

impl Drop for WorkPermit {
    fn drop(&mut self) {
        self.0.counts.lock().running -= 1;
        self.0.returned.notify_one();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn permits_and_waiting_requests_are_limited_and_a_cancelled_request_stops_waiting() {
        const WAITING: usize = 8;
        static PERMITS: WorkPermits = WorkPermits::new(2, WAITING);
        let wait_for = |count| {
            while PERMITS.counts.lock().waiting < count {
                thread::yield_now();
            }
        };
        let cancel = Cancel::new();
        let mut taken: Vec<_> = (0..2).map(|_| PERMITS.take(&cancel).ok().unwrap()).collect();
        thread::scope(|scope| {
            let (sender, ended) = mpsc::channel();
            let waiting = scope.spawn(|| PERMITS.take(&cancel).err());
            wait_for(1);
            cancel.cancel();
            assert!(matches!(waiting.join().unwrap(), Some(Error::Cancelled)));
            for _ in 0..WAITING {
                let sender = sender.clone();
                scope.spawn(move || sender.send(PERMITS.take(&Cancel::new()).is_ok()).unwrap());
            }
            wait_for(WAITING);
            let refused = PERMITS.take(&Cancel::new()).err().unwrap();
            assert!(matches!(refused, Error::Overloaded { queued: WAITING, .. }), "{refused}");
            assert!(ended.try_recv().is_err());
            taken.pop();
            assert!((0..WAITING).all(|_| ended.recv().unwrap()));
        });
        drop(taken);
        let counts = PERMITS.counts.lock();
        assert_eq!((counts.running, counts.waiting), (0, 0));
    }
}
