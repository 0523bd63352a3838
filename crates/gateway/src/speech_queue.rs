//! Turns of the transcriptions on a model for speech, one for each window, in order of arrival.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use narthex_engine::{
    executor::StepError,
    speech::{SpeechLimits, SpeechModel},
    supervise::{DeviceQueue, SupervisedSpeech},
    worker::Drain,
};
use parking_lot::{Condvar, Mutex};

use crate::{cancel::Cancel, encoder_queue::QueueLength, error::Error};

/// Delay before a client should retry when the queue is full.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A model for speech that transcriptions share.
pub(crate) struct SpeechQueue {
    model: Mutex<SupervisedSpeech>,
    limits: SpeechLimits,
    turns: DeviceQueue,
    requests: Mutex<QueueLength>,
    /// Wakes the thread that waits for the end of all requests.
    left: Condvar,
    /// Maximum number of requests in the queue in addition to the first.
    limit: usize,
    /// Set to refuse requests.
    closed: AtomicBool,
    /// Set to end the admitted requests.
    closing: Cancel,
    panicked: AtomicBool,
}

/// A transcription in the queue. Dropping it frees the place.
pub(crate) struct QueuedTranscription<'a> {
    queue: &'a SpeechQueue,
    cancel: &'a Cancel,
    has_started: AtomicBool,
}

impl SpeechQueue {
    pub(crate) fn new(model: SupervisedSpeech, limit: usize) -> Self {
        Self {
            limits: *model.limits(),
            model: Mutex::new(model),
            turns: DeviceQueue::default(),
            requests: Mutex::default(),
            left: Condvar::new(),
            limit,
            closed: AtomicBool::new(false),
            closing: Cancel::new(),
            panicked: AtomicBool::new(false),
        }
    }

    pub(crate) fn limits(&self) -> &SpeechLimits {
        &self.limits
    }

    /// Admits a request, or refuses it if the queue is full. The request ends once `cancel` is set.
    pub(crate) fn enter<'a>(&'a self, cancel: &'a Cancel) -> Result<QueuedTranscription<'a>, Error> {
        let mut requests = self.requests.lock();
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::ShuttingDown);
        }
        let entered = requests.running + requests.waiting;
        if entered > self.limit {
            return Err(Error::Overloaded { queued: entered - 1, retry_after: RETRY_AFTER });
        }
        requests.waiting += 1;
        Ok(QueuedTranscription { queue: self, cancel, has_started: AtomicBool::new(false) })
    }

    /// Returns the number of requests, those with a window that has started as running.
    pub(crate) fn length(&self) -> QueueLength {
        *self.requests.lock()
    }

    /// Returns whether the model has panicked.
    pub(crate) fn has_ended(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }

    /// Admits no more requests, and waits for the admitted ones. With [`Drain::Now`], they end after their next token.
    pub(crate) fn shutdown(&self, drain: Drain) {
        let mut requests = self.requests.lock();
        self.closed.store(true, Ordering::Release);
        if drain == Drain::Now {
            self.closing.cancel();
        }
        self.left.wait_while(&mut requests, |requests| requests.running + requests.waiting > 0);
    }
}

impl QueuedTranscription<'_> {
    /// Calls `transcribe` with the model once the windows that came earlier are done.
    pub(crate) fn window<T>(
        &self,
        transcribe: impl FnOnce(&mut dyn SpeechModel) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let _turn = self.queue.turns.wait();
        self.check()?;
        if !self.has_started.swap(true, Ordering::AcqRel) {
            let mut requests = self.queue.requests.lock();
            requests.waiting -= 1;
            requests.running += 1;
        }
        let outcome = transcribe(&mut *self.queue.model.lock());
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

impl Drop for QueuedTranscription<'_> {
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
