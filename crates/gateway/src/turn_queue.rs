//! Queue of a model that the threads of its requests run. Requests take turns, in order of arrival.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use narthex_engine::{executor::StepError, supervise::DeviceQueue, worker::Drain};
use parking_lot::{Condvar, Mutex};

use crate::{cancel::Cancel, encoder_queue::QueueLength, error::Error};

/// A model, and the requests that use it.
pub(crate) struct TurnQueue<M> {
    model: Mutex<M>,
    turns: DeviceQueue,
    requests: Mutex<QueueLength>,
    /// Wakes the thread that waits for the end of all requests.
    left: Condvar,
    limits: QueueLimits,
    /// Set to refuse requests.
    closed: AtomicBool,
    /// Set to end the admitted requests.
    closing: Cancel,
    /// Set if the model has panicked, so that its state is unknown.
    panicked: AtomicBool,
}

/// Bounds of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueLimits {
    /// Maximum number of requests in addition to the first.
    pub(crate) waiting: usize,
    /// Delay before a client should retry when the queue is full.
    pub(crate) retry_after: Duration,
}

/// Place of a request in the queue. Dropping it frees the place.
pub(crate) struct QueuePlace<'a, M> {
    queue: &'a TurnQueue<M>,
    cancel: &'a Cancel,
    has_started: AtomicBool,
}

impl<M> TurnQueue<M> {
    pub(crate) fn new(model: M, limits: QueueLimits) -> Self {
        Self {
            model: Mutex::new(model),
            turns: DeviceQueue::default(),
            requests: Mutex::default(),
            left: Condvar::new(),
            limits,
            closed: AtomicBool::new(false),
            closing: Cancel::new(),
            panicked: AtomicBool::new(false),
        }
    }

    /// Admits a request, or refuses it if the queue is full. The request ends once `cancel` is set.
    pub(crate) fn enter<'a>(&'a self, cancel: &'a Cancel) -> Result<QueuePlace<'a, M>, Error> {
        let mut requests = self.requests.lock();
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::ShuttingDown);
        }
        let entered = requests.running + requests.waiting;
        if entered > self.limits.waiting {
            return Err(Error::Overloaded { queued: entered - 1, retry_after: self.limits.retry_after });
        }
        requests.waiting += 1;
        Ok(QueuePlace { queue: self, cancel, has_started: AtomicBool::new(false) })
    }

    /// Returns the number of requests. Those that have had a turn count as running.
    pub(crate) fn length(&self) -> QueueLength {
        *self.requests.lock()
    }

    /// Returns whether the model has panicked.
    pub(crate) fn has_ended(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }

    /// Admits no more requests, and waits for the admitted ones. With [`Drain::Now`], they end at their next check.
    pub(crate) fn shutdown(&self, drain: Drain) {
        let mut requests = self.requests.lock();
        self.closed.store(true, Ordering::Release);
        if drain == Drain::Now {
            self.closing.cancel();
        }
        self.left.wait_while(&mut requests, |requests| requests.running + requests.waiting > 0);
    }
}

impl<M> QueuePlace<'_, M> {
    /// Calls `run` with the model once the turns that came earlier have ended.
    pub(crate) fn turn<T>(&self, run: impl FnOnce(&mut M) -> Result<T, Error>) -> Result<T, Error> {
        let _turn = self.queue.turns.wait();
        self.check()?;
        if self.queue.has_ended() {
            return Err(StepError::Panicked.into());
        }
        if !self.has_started.swap(true, Ordering::AcqRel) {
            let mut requests = self.queue.requests.lock();
            requests.waiting -= 1;
            requests.running += 1;
        }
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| run(&mut self.queue.model.lock())))
            .unwrap_or_else(|_| Err(StepError::Panicked.into()));
        if let Err(Error::Step(StepError::Panicked)) = outcome {
            self.queue.panicked.store(true, Ordering::Release);
        }
        outcome
    }

    /// Fails if the request was cancelled or the queue is closed at once.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.cancel.check()?;
        if self.queue.closing.is_cancelled() { Err(Error::ShuttingDown) } else { Ok(()) }
    }
}

impl<M> Drop for QueuePlace<'_, M> {
    fn drop(&mut self) {
        let mut requests = self.queue.requests.lock();
        if *self.has_started.get_mut() {
            requests.running -= 1;
        } else {
            requests.waiting -= 1;
        }
        self.queue.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LIMITS: QueueLimits = QueueLimits { waiting: 1, retry_after: Duration::from_secs(1) };

    #[test]
    fn as_many_wait_as_the_limit_says() {
        let queue = TurnQueue::new(0, LIMITS);
        let cancel = Cancel::new();
        let first = queue.enter(&cancel).unwrap();
        let second = queue.enter(&cancel).unwrap();
        assert!(matches!(queue.enter(&cancel), Err(Error::Overloaded { queued: 1, .. })));
        assert_eq!(first.turn(|model| Ok(std::mem::replace(model, 7))).unwrap(), 0);
        assert_eq!(queue.length(), QueueLength { running: 1, waiting: 1 });
        drop(first);
        assert_eq!(second.turn(|model| Ok(*model)).unwrap(), 7);
        drop(second);
        assert_eq!(queue.length(), QueueLength::default());
    }

    #[test]
    fn a_model_that_panicked_is_not_called_again() {
        let queue = TurnQueue::new((), LIMITS);
        let cancel = Cancel::new();
        let request = queue.enter(&cancel).unwrap();
        let panicked: Result<(), Error> =
            request.turn(|()| panic!("a model that panics, as this test wants"));
        assert!(matches!(panicked, Err(Error::Step(StepError::Panicked))) && queue.has_ended());
        assert!(matches!(request.turn(|()| Ok(())), Err(Error::Step(StepError::Panicked))));
    }

    #[test]
    fn a_closed_queue_waits_for_its_requests() {
        let queue = TurnQueue::new((), LIMITS);
        let cancel = Cancel::new();
        let request = queue.enter(&cancel).unwrap();
        thread::scope(|scope| {
            let closing = scope.spawn(|| queue.shutdown(Drain::Now));
            while !queue.closing.is_cancelled() {
                thread::yield_now();
            }
            assert!(!closing.is_finished());
            assert!(matches!(request.turn(|()| Ok(())), Err(Error::ShuttingDown)));
            assert!(matches!(queue.enter(&cancel), Err(Error::ShuttingDown)));
            drop(request);
            closing.join().unwrap();
        });
    }

    #[test]
    fn a_cancelled_request_has_no_turn() {
        let queue = TurnQueue::new((), LIMITS);
        let cancel = Cancel::new();
        let request = queue.enter(&cancel).unwrap();
        cancel.cancel();
        assert!(matches!(request.turn(|()| Ok(())), Err(Error::Cancelled)));
    }
}
