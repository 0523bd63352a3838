//! Queue of a voice. The threads of the requests run the voice, one sentence at a time, so that requests take turns.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use narthex_engine::{executor::StepError, worker::Drain};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    cancel::Cancel,
    encoder_queue::QueueLength,
    error::Error,
    load::voice::{SpeechSettings, Voice},
};

/// Delay before a client should retry when the queue is full.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A voice, and the requests that use it.
pub(crate) struct VoiceQueue {
    voice: Mutex<Voice>,
    sample_rate: u32,
    /// Number of requests that have entered and not left.
    entered: AtomicUsize,
    /// Maximum number of requests in addition to the first.
    limit: usize,
    /// Set if the voice panicked, so that its state is unknown.
    is_broken: AtomicBool,
    /// Set once no more requests are admitted.
    is_closed: AtomicBool,
    /// Set to abandon the running requests.
    closing: Cancel,
}

/// Place of a request in the queue. Dropping it frees the place.
pub(crate) struct QueuedSpeech<'a> {
    queue: &'a VoiceQueue,
}

impl VoiceQueue {
    pub(crate) fn new(voice: Voice, limit: usize) -> Self {
        Self {
            sample_rate: voice.sample_rate(),
            voice: Mutex::new(voice),
            entered: AtomicUsize::new(0),
            limit,
            is_broken: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            closing: Cancel::new(),
        }
    }

    /// Admits a request, or refuses it if the queue is full.
    pub(crate) fn enter(&self) -> Result<QueuedSpeech<'_>, Error> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::ShuttingDown);
        }
        let before = self.entered.fetch_add(1, Ordering::AcqRel);
        let queued = QueuedSpeech { queue: self };
        if before > self.limit {
            return Err(Error::Overloaded { queued: before - 1, retry_after: RETRY_AFTER });
        }
        Ok(queued)
    }

    pub(crate) fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    pub(crate) fn length(&self) -> QueueLength {
        let entered = self.entered.load(Ordering::Acquire);
        QueueLength { running: entered.min(1), waiting: entered.saturating_sub(1) }
    }

    /// Returns whether the voice cannot be used any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    /// Admits no more requests. With [`Drain::Now`], the admitted ones end after their current sentence.
    pub(crate) fn shutdown(&self, drain: Drain) {
        self.is_closed.store(true, Ordering::Release);
        if drain == Drain::Now {
            self.closing.cancel();
        }
    }
}

impl QueuedSpeech<'_> {
    /// Returns the samples of a sentence.
    pub(crate) fn speak(&self, sentence: &str, settings: SpeechSettings<'_>) -> Result<Vec<f32>, Error> {
        let queue = self.queue;
        let mut voice = queue.voice.lock();
        if queue.closing.is_cancelled() {
            return Err(Error::ShuttingDown);
        }
        if queue.has_ended() {
            return Err(StepError::Panicked.into());
        }
        let samples = panic::catch_unwind(AssertUnwindSafe(|| voice.speak(sentence, settings)));
        if samples.is_err() {
            queue.is_broken.store(true, Ordering::Release);
        }
        // A request that waits gets the next turn.
        MutexGuard::unlock_fair(voice);
        samples.unwrap_or_else(|_| Err(StepError::Panicked.into()))
    }
}

impl Drop for QueuedSpeech<'_> {
    fn drop(&mut self) {
        self.queue.entered.fetch_sub(1, Ordering::AcqRel);
    }
}
