//! The engine's thread: refusal of requests, draining at shutdown, survival of panics in callbacks; no call waits
//! forever.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    ops::ControlFlow,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
};

use narthex_engine::{
    executor::{Executor, Limits, Logits, StepError, StepPlan},
    request::{Finish, Request, TokenEvent, TokenSink, Usage},
    worker::{Drain, Engine, EngineConfig, EngineExtensions, SubmitError},
};
use narthex_spec::SlotId;
use narthex_testkit::{
    executor::{FakeExecutor, Fault, KV},
    sink::Recorder,
};

fn limits() -> Limits {
    Limits { slots: 2, context: 64, chunk: 16, batch: 2, vocab: 50, kv: KV }
}

fn engine(max_queue: usize, change: impl FnOnce(&mut FakeExecutor)) -> Engine {
    let limits = limits();
    let config = EngineConfig { max_queue, ..EngineConfig::for_limits(&limits) };
    let mut executor = FakeExecutor::new(limits);
    change(&mut executor);
    Engine::start(Box::new(executor), config).unwrap()
}

fn request(prompt: &[u32], max_tokens: usize, sink: impl TokenSink + 'static) -> Request {
    Request::greedy(prompt.to_vec(), max_tokens, sink)
}

/// A sink that signals its first token and then blocks the engine's thread until it is released.
struct Gate {
    arrived: mpsc::Sender<()>,
    go: mpsc::Receiver<()>,
}

impl TokenSink for Gate {
    fn token(&mut self, _: TokenEvent<'_>) -> ControlFlow<()> {
        let _ = self.arrived.send(());
        // A dropped sender releases it as well.
        let _ = self.go.recv();
        ControlFlow::Continue(())
    }

    fn finish(&mut self, _: Finish, _: Usage) {}
}

/// Submits a request that runs until the returned sender is dropped.
fn occupy(engine: &Engine) -> mpsc::Sender<()> {
    let (arrived, first) = mpsc::channel();
    let (hold, go) = mpsc::channel();
    engine.submit(request(&[7], 20, Gate { arrived, go })).unwrap();
    first.recv().unwrap();
    hold
}

#[test]
fn more_than_may_wait_are_refused_and_the_others_answered() {
    let engine = engine(3, |_| ());
    let hold = occupy(&engine);
    // There is room for one more running and three waiting requests.
    let sinks: Vec<Recorder> = (0..4).map(|_| Recorder::new()).collect();
    for sink in &sinks {
        engine.submit(request(&[1], 2, sink.clone())).unwrap();
    }
    let refused = Recorder::new();
    let error = engine.submit(request(&[1], 2, refused.clone())).map(drop);
    assert_eq!(error, Err(SubmitError::Overloaded { queued: 3, limit: 3 }));
    drop(hold);
    engine.shutdown(Drain::Finish);
    assert!(sinks.iter().all(|sink| sink.recording().tokens.len() == 2));
    assert!(refused.recording().ends.is_empty());
}

#[test]
fn an_engine_without_a_queue_still_answers_one_after_another() {
    let engine = engine(0, |_| ());
    let hold = occupy(&engine);
    engine.submit(request(&[1], 1, Recorder::new())).unwrap();
    let error = engine.submit(request(&[1], 1, Recorder::new())).map(drop);
    assert_eq!(error, Err(SubmitError::Overloaded { queued: 0, limit: 0 }));
    drop(hold);
}

#[test]
fn finishing_answers_everybody_and_then_refuses() {
    let engine = engine(64, |_| ());
    let sinks: Vec<Recorder> = (0..10).map(|_| Recorder::new()).collect();
    for sink in &sinks {
        engine.submit(request(&[1, 2], 12, sink.clone())).unwrap();
    }
    engine.shutdown(Drain::Finish);
    for sink in &sinks {
        assert_eq!((sink.recording().tokens.len(), &sink.recording().ends[0].0), (12, &Finish::Length));
    }
    let stats = engine.stats();
    assert_eq!((stats.generated_tokens, stats.running, stats.waiting), (120, 0, 0));
    let late = engine.submit(request(&[1], 1, Recorder::new())).map(drop);
    assert_eq!(late, Err(SubmitError::ShutDown));
}

#[test]
fn shutting_down_now_ends_everybody_even_those_who_had_not_begun() {
    let engine = engine(64, |_| ());
    let hold = occupy(&engine);
    let sinks: Vec<Recorder> = (0..5).map(|_| Recorder::new()).collect();
    for sink in &sinks {
        engine.submit(request(&[1], 40, sink.clone())).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| engine.shutdown(Drain::Finish));
        scope.spawn(|| engine.shutdown(Drain::Now));
        // The engine's thread is released only after a shutdown call has reached it.
        while engine.submit(request(&[1], 1, Recorder::new())).map(drop) != Err(SubmitError::ShutDown) {
            std::thread::yield_now();
        }
        drop(hold);
    });
    assert!(sinks.iter().all(|sink| sink.recording().ends.len() == 1));
}

#[test]
fn dropping_the_engine_ends_its_sequences() {
    let sink = Recorder::new();
    let engine = engine(64, |_| ());
    let hold = occupy(&engine);
    engine.submit(request(&[1], 40, sink.clone())).unwrap();
    let dropped = std::thread::spawn(move || drop(engine));
    drop(hold);
    dropped.join().unwrap();
    assert_eq!(sink.recording().ends.len(), 1);
}

#[test]
fn an_executor_that_panics_fails_everybody_and_the_engine_refuses() {
    let step: fn(&mut FakeExecutor) = |executor| executor.faults = [Fault::None, Fault::Panic].into();
    // The second request finds one slot held and the other with contents; emptying that one panics.
    let truncate: fn(&mut FakeExecutor) = |executor| executor.truncate_faults = [Fault::Panic].into();
    for (change, answered) in [(step, 0), (truncate, 1)] {
        let engine = engine(64, change);
        let hold = occupy(&engine);
        let sinks: Vec<Recorder> = (0..4).map(|_| Recorder::new()).collect();
        for (n, sink) in sinks.iter().enumerate() {
            engine.submit(request(&[n as u32 + 1], 5, sink.clone())).unwrap();
        }
        drop(hold);
        engine.shutdown(Drain::Finish);
        for (n, sink) in sinks.iter().enumerate() {
            let failed = matches!(&sink.recording().ends[..], [(Finish::Failed(StepError::Panicked), _)]);
            assert_eq!(failed, n >= answered, "{n} of {answered}: {:?}", sink.recording().ends);
        }
        let late = engine.submit(request(&[1], 1, Recorder::new())).map(drop);
        assert_eq!(late, Err(SubmitError::ShutDown));
    }
}

/// An executor that signals its first step and panics in it when it is released.
struct Trap {
    limits: Limits,
    arrived: mpsc::Sender<()>,
    go: mpsc::Receiver<()>,
}

impl Executor for Trap {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn execute(&mut self, _: &StepPlan) -> Result<(), StepError> {
        let _ = self.arrived.send(());
        let _ = self.go.recv();
        panic!("an executor that panics, as this test wants");
    }

    fn logits(&self) -> Logits<'_> {
        Logits::new(&[], self.limits.vocab)
    }

    fn truncate(&mut self, _: SlotId, _: usize) -> Result<(), StepError> {
        Ok(())
    }
}

#[test]
fn those_who_come_while_the_thread_dies_hear_of_it() {
    let ((arrived, first), (hold, go)) = (mpsc::channel(), mpsc::channel::<()>());
    let trap = Trap { limits: limits(), arrived, go };
    let engine = Engine::start(Box::new(trap), EngineConfig::for_limits(&limits())).unwrap();
    let (hit, late) = (Recorder::new(), Recorder::new());
    engine.submit(request(&[1], 5, hit.clone())).unwrap();
    first.recv().unwrap();
    engine.submit(request(&[1], 5, late.clone())).unwrap();
    drop(hold);
    // No shutdown is requested: the thread ends by itself, and then the engine refuses.
    while engine.submit(request(&[1], 5, Recorder::new())).map(drop) != Err(SubmitError::ShutDown) {
        std::thread::yield_now();
    }
    engine.shutdown(Drain::Finish);
    assert!(matches!(&hit.recording().ends[..], [(Finish::Failed(StepError::Panicked), _)]));
    assert!(matches!(&late.recording().ends[..], [(Finish::ShutDown, _)]));
    assert_eq!((engine.stats().running, engine.stats().waiting), (0, 0));
}

/// A sink that panics at its first token and forwards the end.
struct Faulty(Recorder);

impl TokenSink for Faulty {
    fn token(&mut self, _: TokenEvent<'_>) -> ControlFlow<()> {
        panic!("a sink that panics, as this test wants");
    }

    fn finish(&mut self, finish: Finish, usage: Usage) {
        self.0.finish(finish, usage);
    }
}

/// A sink that panics in `finish`.
struct Sullen;

impl TokenSink for Sullen {
    fn token(&mut self, _: TokenEvent<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn finish(&mut self, _: Finish, _: Usage) {
        panic!("a sink that panics at its end, as this test wants");
    }
}

#[test]
fn a_sink_that_panics_fails_alone() {
    let engine = engine(64, |_| ());
    let (faulty, sound) = (Recorder::new(), Recorder::new());
    engine.submit(request(&[1], 5, Faulty(faulty.clone()))).unwrap();
    engine.submit(request(&[2], 5, Sullen)).unwrap();
    engine.submit(request(&[3], 5, sound.clone())).unwrap();
    engine.shutdown(Drain::Finish);
    assert!(matches!(&faulty.recording().ends[..], [(Finish::Failed(StepError::Device { .. }), _)]));
    assert_eq!(sound.recording().tokens.len(), 5);
}

/// A sink that shuts down the engine from the engine's own thread.
struct Quitter {
    engine: Arc<OnceLock<Engine>>,
    ended: mpsc::Sender<Finish>,
}

impl TokenSink for Quitter {
    fn token(&mut self, _: TokenEvent<'_>) -> ControlFlow<()> {
        self.engine.wait().shutdown(Drain::Now);
        ControlFlow::Continue(())
    }

    fn finish(&mut self, finish: Finish, _: Usage) {
        let _ = self.ended.send(finish);
    }
}

#[test]
fn a_sink_may_shut_the_engine_down() {
    let shared = Arc::new(OnceLock::new());
    let (ended, end) = mpsc::channel();
    let _ = shared.set(engine(64, |_| ()));
    let sink = Quitter { engine: shared.clone(), ended };
    shared.wait().submit(request(&[1], 50, sink)).unwrap();
    assert_eq!(end.recv().unwrap(), Finish::ShutDown);
    shared.wait().shutdown(Drain::Now);
}

/// An executor that records its drop.
struct DropRecorder {
    executor: FakeExecutor,
    is_dropped: Arc<AtomicBool>,
}

impl Drop for DropRecorder {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::SeqCst);
    }
}

impl Executor for DropRecorder {
    fn limits(&self) -> &Limits {
        self.executor.limits()
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        self.executor.execute(plan)
    }

    fn logits(&self) -> Logits<'_> {
        self.executor.logits()
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        self.executor.truncate(slot, len)
    }
}

/// A reservation that reports, when it is dropped, whether the executor had been dropped.
struct Reservation {
    is_executor_dropped: Arc<AtomicBool>,
    report: mpsc::Sender<bool>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let _ = self.report.send(self.is_executor_dropped.load(Ordering::SeqCst));
    }
}

/// A sink that drops the engine at its first token.
struct LastOwner(Arc<Mutex<Option<Engine>>>);

impl TokenSink for LastOwner {
    fn token(&mut self, _: TokenEvent<'_>) -> ControlFlow<()> {
        drop(self.0.lock().unwrap().take());
        ControlFlow::Continue(())
    }

    fn finish(&mut self, _: Finish, _: Usage) {}
}

#[test]
fn the_reservation_of_the_memory_ends_after_the_executor() {
    let (report, reported) = mpsc::channel();
    let is_dropped = Arc::new(AtomicBool::new(false));
    let reservation = Reservation { is_executor_dropped: is_dropped.clone(), report };
    let executor = DropRecorder { executor: FakeExecutor::new(limits()), is_dropped };
    let extensions =
        EngineExtensions { reservation: Some(Arc::new(reservation)), ..EngineExtensions::default() };
    let config = EngineConfig::for_limits(&limits());
    let owner = Arc::new(Mutex::new(None));
    let mut place = owner.lock().unwrap();
    let engine = Engine::start_with(Box::new(executor), extensions, config).unwrap();
    engine.submit(request(&[1], 50, LastOwner(owner.clone()))).unwrap();
    *place = Some(engine);
    drop(place);
    assert!(reported.recv().unwrap());
}

#[test]
fn an_engine_without_work_releases_its_prefixes_when_it_is_asked() {
    let engine = engine(4, |_| ());
    for first in 0..4 {
        let sink = Recorder::new();
        engine.submit(request(&[first; 40], 1, sink.clone())).unwrap();
        while sink.recording().ends.is_empty() {
            std::thread::yield_now();
        }
    }
    while engine.stats().running > 0 {
        std::thread::yield_now();
    }
    assert!(engine.stats().prefix_bytes >= 2 * 40);
    engine.release_prefixes();
    while engine.stats().prefix_bytes > 0 {
        std::thread::yield_now();
    }
}
