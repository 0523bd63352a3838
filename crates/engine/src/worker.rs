//! The engine's thread, and the handle through which other threads use it.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use narthex_spec::TokenId;

use crate::{
    core::{Core, Work},
    executor::{Executor, Limits},
    request::{Finish, Request, Usage},
};

/// Bounds of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Requests that may wait; further ones are refused.
    pub max_queue: usize,
    /// Sequences that may run at once; at most the executor's slots.
    pub max_running: usize,
    /// Prompt tokens that one step may run beside the decoding sequences.
    pub prefill_chunk: usize,
}

impl EngineConfig {
    /// All slots in use, 64 requests waiting, prompts in chunks of up to 256 tokens.
    pub fn for_limits(limits: &Limits) -> Self {
        Self { max_queue: 64, max_running: limits.slots, prefill_chunk: limits.chunk.min(256) }
    }
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Too many requests wait.
    #[error("{queued} requests are waiting, the limit is {limit}")]
    Overloaded {
        /// Waiting requests.
        queued: usize,
        /// The bound.
        limit: usize,
    },
    /// The prompt leaves no room for an answer.
    #[error("the prompt has {prompt} tokens, but the context is {context} and must hold an answer too")]
    PromptTooLong {
        /// Its tokens.
        prompt: usize,
        /// The context.
        context: usize,
    },
    /// There is no prompt.
    #[error("the prompt is empty; expected at least one token")]
    Empty,
    /// A token is outside the vocabulary.
    #[error("token {token} is not below the vocabulary size {vocab}")]
    BadToken {
        /// The token.
        token: TokenId,
        /// Entries of the vocabulary.
        vocab: usize,
    },
    /// The engine takes no more requests.
    #[error("the engine is shut down")]
    ShutDown,
}

/// Counters of an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Sequences in slots.
    pub running: usize,
    /// Sequences that wait for a slot.
    pub waiting: usize,
    /// Slots.
    pub slots: usize,
    /// KV bytes in use.
    pub kv_used_bytes: usize,
    /// KV bytes that may be in use.
    pub kv_budget_bytes: usize,
    /// Prompt tokens that ran.
    pub prompt_tokens: u64,
    /// Prompt tokens that were in a slot already.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Steps run.
    pub steps: u64,
}

/// What becomes of sequences when the engine is shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// Queued and running ones finish.
    Finish,
    /// They end at the next step.
    Now,
}

/// A submitted sequence. Dropping it does not cancel it.
#[derive(Debug, Clone)]
pub struct SequenceHandle {
    cancelled: Arc<AtomicBool>,
}

impl SequenceHandle {
    /// Ends the sequence at the next step.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// A running engine.
pub struct Engine {
    shared: Arc<Shared>,
    limits: Limits,
    max_queue: usize,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    inbox: Mutex<Inbox>,
    wake: Condvar,
}

#[derive(Default)]
struct Inbox {
    requests: Vec<(Request, Arc<AtomicBool>)>,
    drain: Option<Drain>,
    stats: EngineStats,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // The inbox is plain data that every holder leaves whole.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Starts the thread that owns the executor.
    ///
    /// # Errors
    /// Where the system gives no thread.
    pub fn start(executor: Box<dyn Executor>, config: EngineConfig) -> std::io::Result<Self> {
        let limits = executor.limits().clone();
        let max_queue = config.max_queue;
        let core = Core::new(executor, config);
        let shared = Arc::new(Shared { inbox: Mutex::new(Inbox::default()), wake: Condvar::new() });
        shared.lock().stats = core.stats();
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || run(core, &own))?;
        Ok(Self { shared, limits, max_queue, thread: Mutex::new(Some(thread)) })
    }

    /// What the executor can do.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Queues a request. Its sink hears from it on the engine's thread.
    pub fn submit(&self, request: Request) -> Result<SequenceHandle, SubmitError> {
        Core::check(&self.limits, &request)?;
        let mut inbox = self.shared.lock();
        if inbox.drain.is_some() {
            return Err(SubmitError::ShutDown);
        }
        let queued = inbox.requests.len() + inbox.stats.waiting;
        if queued >= self.max_queue {
            return Err(SubmitError::Overloaded { queued, limit: self.max_queue });
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        inbox.requests.push((request, cancelled.clone()));
        drop(inbox);
        self.shared.wake.notify_one();
        Ok(SequenceHandle { cancelled })
    }

    /// Counters as of the last step.
    pub fn stats(&self) -> EngineStats {
        let inbox = self.shared.lock();
        EngineStats { waiting: inbox.stats.waiting + inbox.requests.len(), ..inbox.stats }
    }

    /// Takes no more requests, and returns when the thread has ended.
    pub fn shutdown(&self, drain: Drain) {
        let mut inbox = self.shared.lock();
        if inbox.drain != Some(Drain::Now) {
            inbox.drain = Some(drain);
        }
        drop(inbox);
        self.shared.wake.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The loop catches panics of sinks and executors; a panic of its own has been printed already.
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown(Drain::Now);
    }
}

/// The thread: takes requests in, steps, sleeps when there is nothing to do.
fn run(mut core: Core, shared: &Shared) {
    let mut idle = true;
    loop {
        let drain = take_requests(&mut core, shared, idle);
        match drain {
            Some(Drain::Now) => break,
            Some(Drain::Finish) if idle && core.waiting() == 0 => break,
            _ => {}
        }
        idle = core.step() == Work::None;
        shared.lock().stats = core.stats();
        if core.is_dead() {
            break;
        }
    }
    let mut inbox = shared.lock();
    inbox.drain = Some(Drain::Now);
    let left = std::mem::take(&mut inbox.requests);
    drop(inbox);
    core.finish_all(&Finish::ShutDown);
    for (mut request, _) in left {
        let usage = Usage { prompt_tokens: request.prompt.len(), ..Usage::default() };
        request.sink.finish(Finish::ShutDown, usage);
    }
    shared.lock().stats = core.stats();
}

/// Moves new requests into the core; sleeps first when there is nothing else to do.
fn take_requests(core: &mut Core, shared: &Shared, idle: bool) -> Option<Drain> {
    let mut inbox = shared.lock();
    while idle && inbox.requests.is_empty() && inbox.drain.is_none() {
        inbox = shared.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner);
    }
    for (request, cancelled) in inbox.requests.drain(..) {
        core.submit(request, cancelled);
    }
    inbox.stats.waiting = core.waiting();
    inbox.drain
}
