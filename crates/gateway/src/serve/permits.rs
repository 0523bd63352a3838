//! Permits for work of a request that takes much memory before its model answers. Grammars and texts come from clients,
//! and templates from model files, and each may be hostile: the limits of each, times many requests, would be gigabytes.

use std::{collections::VecDeque, time::Duration};

use parking_lot::{Condvar, Mutex};

use crate::{cancel::Cancel, error::Error};

/// Permits of this process for compiling the grammars of a request, which takes up to seconds and 60 MB. Requests that wait
/// occupy threads.
pub(super) static GRAMMARS: WorkPermits = WorkPermits::new(4, 128);

/// Permits of this process for rendering a template, which takes less than a millisecond, and 200 MB if the template is
/// hostile.
pub(super) static RENDERINGS: WorkPermits = WorkPermits::new(3, usize::MAX);

/// Permits of this process for reading the media at the addresses of a conversation.
pub(super) static DOWNLOADS: WorkPermits = WorkPermits::new(8, 64);

/// Permits of this process for taking the frames of videos, which takes up to seconds and 200 MB. Requests that wait occupy
/// threads.
pub(super) static VIDEOS: WorkPermits = WorkPermits::new(2, 64);

/// Maximum number of bytes of a short text.
const SHORT_TEXT: usize = 16 << 10;

/// Permits of this process for tokenizing short texts, one for each byte. A byte takes up to 430 bytes of memory, as for
/// digits between spaces with a byte-level BPE.
static SHORT_TEXTS: WorkPermits = WorkPermits::new(512 << 10, usize::MAX);

/// Permits of this process for tokenizing longer texts, which takes up to seconds. Requests that wait occupy threads.
static LONG_TEXTS: WorkPermits = WorkPermits::new(1 << 20, 64);

/// Waits for a permit to tokenize so many bytes of text. Short texts do not wait for long ones.
///
/// # Errors
/// As [`WorkPermits::take`].
pub(super) fn tokenizing(bytes: usize, cancel: &Cancel) -> Result<WorkPermit, Error> {
    let permits = if bytes <= SHORT_TEXT { &SHORT_TEXTS } else { &LONG_TEXTS };
    permits.take(bytes, cancel)
}

/// Returns the number of requests that wait for a permit to tokenize a long text.
#[cfg(test)]
pub(super) fn waiting_long_texts() -> usize {
    LONG_TEXTS.queue.lock().waiting.len()
}

/// Permits for concurrent work, given in the order of the requests.
pub(super) struct WorkPermits {
    /// Number of permits in total.
    most: usize,
    /// Maximum number of requests that wait for permits.
    most_waiting: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Queue {
    /// Number of permits taken.
    taken: usize,
    /// Number of the next request.
    next: u64,
    /// Requests that wait.
    waiting: VecDeque<u64>,
}

/// Permits of one request. They are returned when this value is dropped.
#[must_use = "the permits are returned when this is dropped"]
pub(super) struct WorkPermit {
    of: &'static WorkPermits,
    permits: usize,
}

impl WorkPermits {
    const fn new(most: usize, most_waiting: usize) -> Self {
        let queue = Mutex::new(Queue { taken: 0, next: 0, waiting: VecDeque::new() });
        Self { most, most_waiting, queue, changed: Condvar::new() }
    }

    /// Waits for this many permits, or for all if there are fewer.
    ///
    /// # Errors
    /// [`Error::Overloaded`] if too many requests wait, and [`Error::Cancelled`] once the request is cancelled.
    pub(super) fn take(&'static self, permits: usize, cancel: &Cancel) -> Result<WorkPermit, Error> {
        let _wake = cancel.on_cancel(|| {
            // A thread that has not yet begun to wait holds the lock.
            drop(self.queue.lock());
            self.changed.notify_all();
        });
        let permits = permits.min(self.most);
        let mut queue = self.queue.lock();
        let must_wait = !queue.waiting.is_empty() || queue.taken + permits > self.most;
        if must_wait && queue.waiting.len() >= self.most_waiting {
            let queued = queue.waiting.len();
            return Err(Error::Overloaded { queued, retry_after: Duration::from_secs(1) });
        }

        let number = queue.next;
        queue.next += 1;
        queue.waiting.push_back(number);

        while queue.waiting.front() != Some(&number) || queue.taken + permits > self.most {
            if cancel.is_cancelled() {
                queue.waiting.retain(|waiting| *waiting != number);
                // The next request may need fewer permits.
                self.changed.notify_all();
                return Err(Error::Cancelled);
            }
            self.changed.wait(&mut queue);
        }

        queue.waiting.pop_front();
        queue.taken += permits;
        self.changed.notify_all();
        Ok(WorkPermit { of: self, permits })
    }
}

impl Drop for WorkPermit {
    fn drop(&mut self) {
        self.of.queue.lock().taken -= self.permits;
        self.of.changed.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    fn wait_for(permits: &WorkPermits, waiting: usize) {
        while permits.queue.lock().waiting.len() < waiting {
            thread::yield_now();
        }
    }

    fn check_empty(permits: &WorkPermits) {
        let queue = permits.queue.lock();
        assert_eq!((queue.taken, queue.waiting.len()), (0, 0));
    }

    #[test]
    fn permits_and_waiting_requests_are_limited_and_a_cancelled_request_stops_waiting() {
        const WAITING: usize = 8;
        static PERMITS: WorkPermits = WorkPermits::new(2, WAITING);
        let cancel = Cancel::new();
        let mut taken: Vec<_> = (0..2).map(|_| PERMITS.take(1, &cancel).ok().unwrap()).collect();
        thread::scope(|scope| {
            let (sender, ended) = mpsc::channel();
            let waiting = scope.spawn(|| PERMITS.take(1, &cancel).err());
            wait_for(&PERMITS, 1);
            cancel.cancel();
            assert!(matches!(waiting.join().unwrap(), Some(Error::Cancelled)));
            for _ in 0..WAITING {
                let sender = sender.clone();
                scope.spawn(move || sender.send(PERMITS.take(1, &Cancel::new()).is_ok()).unwrap());
            }
            wait_for(&PERMITS, WAITING);
            let refused = PERMITS.take(1, &Cancel::new()).err().unwrap();
            assert!(matches!(refused, Error::Overloaded { queued: WAITING, .. }), "{refused}");
            assert!(ended.try_recv().is_err());
            taken.pop();
            assert!((0..WAITING).all(|_| ended.recv().unwrap()));
        });
        drop(taken);
        check_empty(&PERMITS);
    }

    #[test]
    fn a_large_request_is_not_overtaken_and_takes_at_most_all_permits() {
        static PERMITS: WorkPermits = WorkPermits::new(10, usize::MAX);
        let cancel = Cancel::new();
        let small = PERMITS.take(1, &cancel).ok().unwrap();
        thread::scope(|scope| {
            let (sender, order) = mpsc::channel();
            for (waiting, (name, permits)) in [("large", 100), ("small", 1)].into_iter().enumerate() {
                let sender = sender.clone();
                scope.spawn(move || {
                    let _permit = PERMITS.take(permits, &Cancel::new()).ok().unwrap();
                    sender.send(name).unwrap();
                });
                wait_for(&PERMITS, waiting + 1);
            }
            assert!(order.try_recv().is_err());
            drop(small);
            assert_eq!([order.recv().unwrap(), order.recv().unwrap()], ["large", "small"]);
        });
        check_empty(&PERMITS);
    }

    #[test]
    fn short_texts_do_not_wait_for_long_ones() {
        let cancel = Cancel::new();
        let long = tokenizing(usize::MAX, &cancel).ok().unwrap();
        let short = tokenizing(SHORT_TEXT, &cancel).ok().unwrap();
        drop((short, long));
    }
}
