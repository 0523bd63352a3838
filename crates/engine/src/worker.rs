//! The engine's thread, and the handle through which other threads use it.
//!
//! The thread runs [`EngineLoop`]. This module makes only two decisions: which requests are accepted, and when the
//! thread ends.

use std::{
    sync::Arc,
    thread::{JoinHandle, ThreadId},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};

use crate::{
    draft_model::DraftModel,
    engine_loop::{EngineLoop, Work},
    executor::{Executor, Limits},
    prefix_storage::PrefixStorage,
    request::{Finish, Request},
    sequence::Sequence,
    supervise::SupervisedExecutor,
    wake::WakeSignal,
};

pub use crate::{
    config::{EngineConfig, EngineStats},
    request::{SequenceHandle, SubmitError},
};

/// Time after which a storage of prefixes that reports no progress is given up. Reads must end by then.
const STORAGE_WAIT: Duration = Duration::from_secs(5);

/// Treatment of sequences at shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drain {
    /// Queued and running sequences finish.
    Finish,
    /// Sequences end at the next step.
    Now,
}

/// Optional parts of an engine in addition to its executor.
#[derive(Default)]
pub struct EngineExtensions {
    /// Draft model.
    pub draft_model: Option<DraftModel>,
    /// Storage of prefixes.
    pub prefix_storage: Option<Box<dyn PrefixStorage>>,
    /// Reports of that storage.
    pub storage_progress: StorageProgress,
    /// Reservation of the engine's memory. The engine's thread drops it after the executor. If a sink drops the
    /// [`Engine`] on that thread, this happens after that drop has returned.
    pub reservation: Option<Arc<dyn Send + Sync>>,
}

/// Wakes an engine that waits for its storage of prefixes. Clones wake the same engine.
#[derive(Clone, Default)]
pub struct StorageProgress(WakeSignal);

impl StorageProgress {
    /// Reports that a block was written or that a read has ended.
    pub fn report(&self) {
        self.0.wake();
    }
}

/// A running engine. Dropping it is equivalent to [`Engine::shutdown`] with [`Drain::Now`].
pub struct Engine {
    shared: Arc<EngineState>,
    limits: Limits,
    /// Number of elements of a medium's row, if the model takes media.
    media_width: Option<usize>,
    config: EngineConfig,
    thread_id: ThreadId,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct EngineState {
    inbox: Mutex<Inbox>,
    wake: WakeSignal,
}

#[derive(Default)]
struct Inbox {
    arrivals: Vec<Sequence>,
    drain: Option<Drain>,
    /// True if the prefix tree is to be emptied.
    releases_prefixes: bool,
    /// Counters as of the last step.
    stats: EngineStats,
}

impl Inbox {
    /// Returns true if the thread has nothing to take.
    fn is_quiet(&self) -> bool {
        self.arrivals.is_empty() && self.drain.is_none() && !self.releases_prefixes
    }
}

impl Engine {
    /// Starts the thread that owns the executor.
    ///
    /// # Errors
    /// Returns an error if the system cannot create a thread.
    pub fn start(executor: impl Into<SupervisedExecutor>, config: EngineConfig) -> std::io::Result<Self> {
        Self::start_with(executor, EngineExtensions::default(), config)
    }

    /// Starts the thread that owns the executor and its extensions.
    ///
    /// # Errors
    /// Returns an error if the system cannot create a thread.
    pub fn start_with(
        executor: impl Into<SupervisedExecutor>,
        extensions: EngineExtensions,
        config: EngineConfig,
    ) -> std::io::Result<Self> {
        let executor = executor.into();
        let media_width = executor.media_width();
        let mut limits = executor.limits().clone();
        limits.context = limits.context.min(config.context);
        let mut engine_loop = EngineLoop::new(executor, config);
        if let Some(draft_model) = extensions.draft_model {
            engine_loop = engine_loop.with_draft_model(draft_model);
        }
        if let Some(storage) = extensions.prefix_storage {
            engine_loop = engine_loop.with_prefix_storage(storage);
        }

        let config = engine_loop.config().clone();
        let inbox = Mutex::new(Inbox { stats: engine_loop.stats(), ..Inbox::default() });
        let shared = Arc::new(EngineState { inbox, wake: extensions.storage_progress.0 });
        let own = shared.clone();
        let reservation = extensions.reservation;
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            let _reservation = reservation;
            run(engine_loop, &own);
        })?;
        let thread_id = thread.thread().id();
        Ok(Self { shared, limits, media_width, config, thread_id, thread: Mutex::new(Some(thread)) })
    }

    /// Returns the limits of requests: those of the executor, and the configured context.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the number of elements of a medium's row, or `None` if the model takes only tokens.
    pub fn media_width(&self) -> Option<usize> {
        self.media_width
    }

    /// Queues a request. Its sink is called on the engine's thread.
    ///
    /// # Errors
    /// [`SubmitError`]. The request is dropped and its sink is never called.
    pub fn submit(&self, request: Request) -> Result<SequenceHandle, SubmitError> {
        EngineLoop::check(&self.limits, self.media_width, &request)?;
        let mut inbox = self.shared.inbox.lock();
        if inbox.drain.is_some() {
            return Err(SubmitError::ShutDown);
        }
        // The counters are those of the last step, but each sequence is counted exactly once: as an arrival, waiting or
        // running.
        let present = inbox.arrivals.len() + inbox.stats.waiting + inbox.stats.running;
        let EngineConfig { max_queue, max_running, .. } = self.config;
        if present >= max_queue.saturating_add(max_running) {
            return Err(SubmitError::Overloaded { queued: present - max_running, limit: max_queue });
        }
        let handle = SequenceHandle::new(self.shared.wake.clone());
        inbox.arrivals.push(Sequence::new(0, request, self.limits.longest(), handle.clone()));
        drop(inbox);
        self.shared.wake.wake();
        Ok(handle)
    }

    /// Releases the memory of the prefix tree before the next step. Slots keep their contents.
    pub fn release_prefixes(&self) {
        self.shared.inbox.lock().releases_prefixes = true;
        self.shared.wake.wake();
    }

    /// Returns the counters as of the last step.
    pub fn stats(&self) -> EngineStats {
        let inbox = self.shared.inbox.lock();
        EngineStats { waiting: inbox.stats.waiting + inbox.arrivals.len(), ..inbox.stats }
    }

    /// Returns whether the engine accepts no more requests, because it was shut down or its thread has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.inbox.lock().drain.is_some()
    }

    /// Refuses new requests and waits for the end of the thread. Returns at once if called on the thread itself, by
    /// a sink. A second call can turn [`Drain::Finish`] into [`Drain::Now`].
    pub fn shutdown(&self, drain: Drain) {
        let mut inbox = self.shared.inbox.lock();
        // The more urgent call wins, regardless of their order.
        inbox.drain = inbox.drain.max(Some(drain));
        drop(inbox);
        self.shared.wake.wake();
        if std::thread::current().id() == self.thread_id {
            return;
        }
        // A concurrent call waits here, so that the thread has ended for both.
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            // The loop catches panics of sinks and executors. A panic of the loop itself has been printed already.
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown(Drain::Now);
    }
}

/// Closes the inbox when the thread ends, even by a panic: queued sequences end and new requests are refused.
struct CloseOnExit<'a>(&'a EngineState);

impl Drop for CloseOnExit<'_> {
    fn drop(&mut self) {
        let mut inbox = self.0.inbox.lock();
        inbox.drain = Some(Drain::Now);
        (inbox.stats.running, inbox.stats.waiting) = (0, 0);
        let left = std::mem::take(&mut inbox.arrivals);
        // Dropping sequences calls sinks, which may lock the inbox for counters.
        drop(inbox);
        drop(left);
    }
}

/// Body of the thread. It accepts requests, runs steps, and sleeps when there is no work.
fn run(mut engine_loop: EngineLoop, shared: &EngineState) {
    let _close = CloseOnExit(shared);
    let mut work = Work::Idle;
    loop {
        if work == Work::Waiting && !shared.wake.wait_for(STORAGE_WAIT) {
            engine_loop.give_up_storage();
        }
        match take_arrivals(&mut engine_loop, shared, work) {
            Some(Drain::Now) => break engine_loop.finish_all(&Finish::ShutDown),
            Some(Drain::Finish) if work == Work::Idle && engine_loop.waiting() == 0 => break,
            _ => {}
        }
        work = engine_loop.step();
        shared.inbox.lock().stats = engine_loop.stats();
        if engine_loop.is_dead() {
            break;
        }
    }
    // The slots of ended sequences are stored, as far as the queue of the storage has room.
    engine_loop.offer_all();
    shared.inbox.lock().stats = engine_loop.stats();
}

/// Moves arrivals into the loop. Waits first if there is no work.
fn take_arrivals(engine_loop: &mut EngineLoop, shared: &EngineState, work: Work) -> Option<Drain> {
    let mut inbox = shared.inbox.lock();
    while work == Work::Idle && inbox.is_quiet() {
        MutexGuard::unlocked(&mut inbox, || shared.wake.wait());
    }
    for sequence in inbox.arrivals.drain(..) {
        engine_loop.enqueue(sequence);
    }
    inbox.stats.waiting = engine_loop.waiting();
    let drain = inbox.drain;
    let releases_prefixes = std::mem::take(&mut inbox.releases_prefixes);
    drop(inbox);
    if releases_prefixes {
        engine_loop.release_prefixes();
    }
    drain
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::{
        executor::KvLimits,
        request::{TokenEvent, TokenSink, Usage},
    };

    struct IgnoringSink;

    impl TokenSink for IgnoringSink {
        fn token(&mut self, _: TokenEvent<'_>) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }

        fn finish(&mut self, _: Finish, _: Usage) {}
    }

    #[test]
    fn requests_their_end_and_the_storage_wake_the_thread() {
        let kv = KvLimits { bytes_per_token: 1, bytes_per_slot: 0, step: 1, budget: 9 };
        let limits = Limits { slots: 1, context: 9, chunk: 9, batch: 1, vocab: 4, kv };
        let progress = StorageProgress::default();
        let engine = Engine {
            shared: Arc::new(EngineState { inbox: Mutex::default(), wake: progress.0.clone() }),
            config: EngineConfig::for_limits(&limits),
            limits,
            media_width: None,
            thread_id: std::thread::current().id(),
            thread: Mutex::new(None),
        };
        let is_woken = || engine.shared.wake.wait_for(Duration::ZERO);
        assert!(!is_woken());
        let handle = engine.submit(Request::greedy(vec![1], 1, IgnoringSink)).unwrap();
        assert!(is_woken());
        handle.cancel();
        assert!(is_woken());
        progress.report();
        assert!(is_woken());
        engine.shutdown(Drain::Now);
        assert!(is_woken() && !is_woken());
    }
}
