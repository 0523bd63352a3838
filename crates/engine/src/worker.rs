//! The engine's thread, and the handle through which other threads use it.
//!
//! The thread is a thin loop around [`Core`]; nothing is decided here but who is let in and when the thread ends.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{JoinHandle, ThreadId},
};

use crate::{
    core::{Core, Work},
    executor::{Executor, Limits},
    request::{Finish, Request},
    sequence::Sequence,
    supervise::SupervisedExecutor,
};

pub use crate::{
    config::{EngineConfig, EngineStats},
    request::{SequenceHandle, SubmitError},
};

/// What becomes of sequences when the engine is shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drain {
    /// Queued and running ones finish.
    Finish,
    /// They end at the next step.
    Now,
}

/// A running engine. Dropping it is [`Engine::shutdown`] with [`Drain::Now`].
pub struct Engine {
    shared: Arc<Shared>,
    limits: Limits,
    config: EngineConfig,
    thread_id: ThreadId,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    inbox: Mutex<Inbox>,
    wake: Condvar,
}

#[derive(Default)]
struct Inbox {
    arrivals: Vec<Sequence>,
    drain: Option<Drain>,
    /// As of the last step.
    stats: EngineStats,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the mutexes here guard is plain data that every holder leaves whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Starts the thread that owns the executor.
    ///
    /// # Errors
    /// Where the system gives no thread.
    pub fn start(executor: impl Into<SupervisedExecutor>, config: EngineConfig) -> std::io::Result<Self> {
        let executor = executor.into();
        let limits = executor.limits().clone();
        let core = Core::new(executor, config);
        let config = core.config().clone();
        let inbox = Inbox { stats: core.stats(), ..Inbox::default() };
        let shared = Arc::new(Shared { inbox: Mutex::new(inbox), wake: Condvar::new() });
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || run(core, &own))?;
        let thread_id = thread.thread().id();
        Ok(Self { shared, limits, config, thread_id, thread: Mutex::new(Some(thread)) })
    }

    /// What the executor can do.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Queues a request. Its sink hears from it on the engine's thread.
    ///
    /// # Errors
    /// [`SubmitError`]; the request is dropped then, and its sink hears nothing.
    pub fn submit(&self, request: Request) -> Result<SequenceHandle, SubmitError> {
        Core::check(&self.limits, &request)?;
        let mut inbox = lock(&self.shared.inbox);
        if inbox.drain.is_some() {
            return Err(SubmitError::ShutDown);
        }
        // The counters are as old as the last step, but nobody is in two of them or in none.
        let present = inbox.arrivals.len() + inbox.stats.waiting + inbox.stats.running;
        let EngineConfig { max_queue, max_running, .. } = self.config;
        if present >= max_queue.saturating_add(max_running) {
            return Err(SubmitError::Overloaded { queued: present - max_running, limit: max_queue });
        }
        let (sequence, handle) = Sequence::new(0, request, self.limits.longest());
        inbox.arrivals.push(sequence);
        drop(inbox);
        self.shared.wake.notify_one();
        Ok(handle)
    }

    /// Counters as of the last step.
    pub fn stats(&self) -> EngineStats {
        let inbox = lock(&self.shared.inbox);
        EngineStats { waiting: inbox.stats.waiting + inbox.arrivals.len(), ..inbox.stats }
    }

    /// Takes no more requests, and returns when the thread has ended; called from a sink, and so on that thread, it
    /// returns at once. A second call may turn [`Drain::Finish`] into [`Drain::Now`].
    pub fn shutdown(&self, drain: Drain) {
        let mut inbox = lock(&self.shared.inbox);
        // The more urgent one counts, whichever came first.
        inbox.drain = inbox.drain.max(Some(drain));
        drop(inbox);
        self.shared.wake.notify_one();
        if std::thread::current().id() == self.thread_id {
            return;
        }
        // Whoever comes second waits here for the first, so that the thread has ended for both.
        let mut thread = lock(&self.thread);
        if let Some(thread) = thread.take() {
            // The loop catches panics of sinks and executors; one of its own has been printed already.
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown(Drain::Now);
    }
}

/// Closes the inbox when the thread ends, even by a panic: sequences that were not taken in hear of it, and further
/// requests are refused.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut inbox = lock(&self.0.inbox);
        inbox.drain = Some(Drain::Now);
        (inbox.stats.running, inbox.stats.waiting) = (0, 0);
        let left = std::mem::take(&mut inbox.arrivals);
        // Sinks run when sequences are dropped, and may ask the engine for its counters.
        drop(inbox);
        drop(left);
    }
}

/// The thread: takes requests in, steps, sleeps when there is nothing to do.
fn run(mut core: Core, shared: &Shared) {
    let _closing = Closing(shared);
    let mut work = Work::Idle;
    loop {
        match take_arrivals(&mut core, shared, work) {
            Some(Drain::Now) => break core.finish_all(&Finish::ShutDown),
            Some(Drain::Finish) if work == Work::Idle && core.waiting() == 0 => break,
            _ => {}
        }
        work = core.step();
        lock(&shared.inbox).stats = core.stats();
        if core.is_dead() {
            break;
        }
    }
    lock(&shared.inbox).stats = core.stats();
}

/// Moves arrivals into the core; sleeps first when there is nothing else to do.
fn take_arrivals(core: &mut Core, shared: &Shared, work: Work) -> Option<Drain> {
    let mut inbox = lock(&shared.inbox);
    while work == Work::Idle && inbox.arrivals.is_empty() && inbox.drain.is_none() {
        inbox = shared.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner);
    }
    for sequence in inbox.arrivals.drain(..) {
        core.enqueue(sequence);
    }
    inbox.stats.waiting = core.waiting();
    inbox.drain
}
