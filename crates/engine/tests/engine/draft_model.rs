//! A draft model: the same tokens in fewer steps, and no harm where it does not help.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use narthex_engine::{
    config::{EngineConfig, EngineStats},
    draft_model::DraftModel,
    engine_loop::{EngineLoop, Work},
    executor::{KvLimits, Limits, StepError},
    position::Position,
    request::{Finish, LogProbs, Request, Sampling},
    supervise::SupervisedExecutor,
};
use narthex_spec::Speculation;
use narthex_testkit::{
    executor::{Clock, FakeExecutor, Fault, KV, TimedExecutor, Watch},
    invariant,
    sink::{Recorder, Recording},
};

fn limits() -> Limits {
    Limits { slots: 3, context: 512, chunk: 32, batch: 3, vocab: 50, kv: KV }
}

/// Returns a draft model that computes the same as [`FakeExecutor`] with [`limits`].
fn draft() -> FakeExecutor {
    FakeExecutor::new(Limits { slots: 1, batch: 1, ..limits() })
}

/// Returns a draft model that computes something else.
fn wrong_draft() -> FakeExecutor {
    let mut executor = draft();
    executor.looks_back = 3;
    executor
}

fn prompt(length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| i * i % 50).collect()
}

/// An engine with a draft model, or without speculation.
struct Bench {
    engine_loop: EngineLoop,
    watch: Watch,
    failures: Arc<AtomicUsize>,
}

impl Bench {
    fn new(draft: Option<FakeExecutor>) -> Self {
        let executor = FakeExecutor::new(limits());
        let watch = executor.watch();
        let failures = Arc::new(AtomicUsize::new(0));
        let speculation = if draft.is_some() { Speculation::Auto } else { Speculation::Off };
        let config = EngineConfig { speculation, ..EngineConfig::for_limits(&limits()) };
        let mut engine_loop = EngineLoop::new(Box::new(executor), config);
        if let Some(draft) = draft {
            let failures = failures.clone();
            let count = move |_: &StepError| {
                failures.fetch_add(1, Ordering::Relaxed);
            };
            engine_loop = engine_loop.with_draft_model(DraftModel::new(Box::new(draft), count));
        }
        Self { engine_loop, watch, failures }
    }

    /// Runs a request, and checks the engine's invariants after each step.
    fn run(&mut self, length: usize, max_tokens: usize, change: impl FnOnce(&mut Request)) -> Recording {
        let sink = Recorder::new();
        let mut request = Request::greedy(prompt(length), max_tokens, sink.clone());
        change(&mut request);
        self.engine_loop.submit(request).unwrap();
        self.drain();
        sink.recording()
    }

    fn drain(&mut self) {
        while self.engine_loop.step() == Work::Busy {
            invariant::check_engine(&self.engine_loop, &self.watch).unwrap();
        }
    }

    fn stats(&self) -> EngineStats {
        self.engine_loop.stats()
    }

    fn failures(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }
}

#[test]
fn answers_are_the_same_in_fewer_steps() {
    let drafts: [(fn() -> FakeExecutor, bool); 2] = [(draft, true), (wrong_draft, false)];
    for (draft, is_right) in drafts {
        for (temperature, penalty) in [(0.0, 0.0), (0.1, 0.0), (1.0, 0.0), (0.5, 0.4)] {
            for logprobs in [None, Some(LogProbs { top: 2, prompt: true, tokens: Vec::new() })] {
                let change = |request: &mut Request| {
                    request.sampling = Sampling { temperature, seed: 7, ..Sampling::greedy() };
                    request.sampling.frequency_penalty = penalty;
                    request.logprobs = logprobs.clone();
                };
                let (mut slow, mut fast) = (Bench::new(None), Bench::new(Some(draft())));
                let (plain, drafted) = (slow.run(20, 300, change), fast.run(20, 300, change));
                assert_eq!(
                    (&drafted.tokens, &drafted.logprobs, &drafted.ends[0].0),
                    (&plain.tokens, &plain.logprobs, &plain.ends[0].0),
                    "{is_right} {temperature} {penalty}"
                );
                let (slow, stats) = (slow.stats(), fast.stats());
                let usage = drafted.ends[0].1;
                let counts = (usage.accepted_tokens as u64, usage.rejected_tokens as u64);
                assert_eq!(counts, (stats.accepted_tokens, stats.rejected_tokens));
                assert_eq!(300 - stats.steps, stats.accepted_tokens, "{is_right} {temperature} {penalty}");
                assert_eq!((slow.steps, fast.failures()), (300, 0));
                if is_right && temperature == 0.0 {
                    assert!(stats.steps * 3 < slow.steps && stats.rejected_tokens == 0, "{stats:?}");
                } else if !is_right {
                    assert!(stats.rejected_tokens < 20, "{stats:?}");
                }
            }
        }
    }
}

#[test]
fn the_draft_model_follows_the_sequence_that_runs_alone() {
    let draft = draft();
    let watch = draft.watch();
    let mut bench = Bench::new(Some(draft));
    // A greedy draft of the same model is never rejected as long as its slot has the tokens of the sequence.
    let first = bench.run(20, 40, |_| ());
    bench.run(70, 40, |_| ());
    let turn = |request: &mut Request| request.prompt.extend(Position::of_tokens(&first.tokens));
    bench.run(20, 40, turn);
    let alone = bench.stats();
    assert!(alone.accepted_tokens > 80 && alone.rejected_tokens == 0, "{alone:?}");
    let held = watch.lengths()[0];
    assert!((95..=100).contains(&held), "{held}");
    // Sequences that run together have no drafts.
    let sinks = [Recorder::new(), Recorder::new()];
    for sink in &sinks {
        bench.engine_loop.submit(Request::greedy(prompt(9), 40, sink.clone())).unwrap();
    }
    bench.drain();
    assert_eq!((bench.stats().accepted_tokens, watch.lengths()[0]), (alone.accepted_tokens, held));
}

#[test]
fn a_failure_ends_the_drafts_and_not_the_answer() {
    let plain = Bench::new(None).run(20, 100, |_| ()).tokens;
    let stuck = StepError::Device { message: "stuck".into() };
    for fault in [Fault::Error(stuck), Fault::Lost, Fault::Panic, Fault::NotANumber] {
        for at in [0, 1, 7] {
            let mut draft = draft();
            draft.faults = std::iter::repeat_n(Fault::None, at).chain([fault.clone()]).collect();
            let watch = draft.watch();
            let mut bench = Bench::new(Some(draft));
            let first = bench.run(20, 100, |_| ());
            assert_eq!((&first.tokens, &first.ends[0].0), (&plain, &Finish::Length), "{fault:?} {at}");
            let (held, stats) = (watch.lengths(), bench.stats());
            assert_eq!(bench.run(20, 100, |_| ()).tokens, plain);
            assert_eq!((bench.failures(), watch.lengths()), (1, held), "{fault:?} {at}");
            assert_eq!(bench.stats().accepted_tokens, stats.accepted_tokens);
        }
    }
    // Another prompt needs a truncation.
    let mut draft = draft();
    draft.truncate_faults = [Fault::Error(StepError::CannotRewind)].into();
    let mut bench = Bench::new(Some(draft));
    bench.run(30, 40, |_| ());
    assert_eq!(bench.failures(), 0);
    assert_eq!(bench.run(20, 100, |_| ()).tokens, plain);
    assert_eq!(bench.failures(), 1);
}

#[test]
fn a_smaller_draft_model_drafts_as_far_as_it_can() {
    let plain = Bench::new(None).run(20, 200, |_| ()).tokens;
    let kv = KvLimits { budget: 100, ..limits().kv };
    for small in [Limits { context: 100, ..limits() }, Limits { kv, ..limits() }] {
        let draft = FakeExecutor::new(Limits { slots: 1, ..small });
        let watch = draft.watch();
        let mut bench = Bench::new(Some(draft));
        assert_eq!(bench.run(20, 200, |_| ()).tokens, plain);
        let stats = bench.stats();
        assert!(stats.accepted_tokens > 40 && stats.rejected_tokens == 0, "{stats:?}");
        assert!((80..=100).contains(&watch.lengths()[0]), "{:?}", watch.lengths());
        assert_eq!((bench.failures(), stats.kv_budget_bytes), (0, (1 << 20) + small.kv.budget));
    }
    // Tokens that the draft model does not have are not given to it; those that only it has are not proposed.
    for vocab in [45, 60] {
        let draft = FakeExecutor::new(Limits { slots: 1, vocab, ..limits() });
        let mut bench = Bench::new(Some(draft));
        assert_eq!(bench.run(20, 200, |_| ()).tokens, plain);
        assert_eq!(bench.failures(), 0);
    }
}

#[test]
fn a_draft_model_with_states_goes_back_to_its_checkpoints() {
    let plain = Bench::new(None).run(20, 200, |_| ()).tokens;
    let kv = KvLimits { bytes_per_slot: 100, ..KV };
    let mut wrong = FakeExecutor::new(Limits { slots: 1, batch: 1, kv, ..limits() });
    // Some of its steps predict something else.
    wrong.faults =
        (0..400).map(|step| if step % 11 == 10 { Fault::Distorted } else { Fault::None }).collect();
    let mut bench = Bench::new(Some(wrong));
    assert_eq!(bench.run(20, 200, |_| ()).tokens, plain);
    let stats = bench.stats();
    assert!(stats.accepted_tokens > 20 && stats.rejected_tokens > 5, "{stats:?}");
    assert_eq!(bench.failures(), 0);
}

/// Returns the time of two answers of 200 tokens to a prompt without a draft model divided by the time with it. `costs` are
/// the microseconds of a step's first token and of each further one, first those of the model that answers.
fn speedup(draft: fn() -> FakeExecutor, costs: [[u64; 2]; 2], prompt_length: usize) -> f64 {
    let [plain, drafted] = [false, true].map(|with_draft| {
        let clock = Clock::default();
        let timed = |executor, costs| -> SupervisedExecutor {
            TimedExecutor::new(executor, clock.clone(), costs).supervised()
        };
        let config = EngineConfig::for_limits(&limits());
        let mut engine_loop = EngineLoop::new(timed(FakeExecutor::new(limits()), costs[0]), config);
        if with_draft {
            engine_loop = engine_loop.with_draft_model(DraftModel::new(timed(draft(), costs[1]), |_| ()));
        }
        for turn in 0..2 {
            let sink = Recorder::new();
            engine_loop.submit(Request::greedy(prompt(prompt_length + turn), 200, sink.clone())).unwrap();
            while engine_loop.step() == Work::Busy {}
            assert_eq!(sink.recording().tokens.len(), 200);
        }
        clock.now().as_secs_f64()
    });
    plain / drafted
}

#[test]
fn a_draft_model_is_used_where_it_saves_time() {
    let check = |draft, costs, prompt_length, least: f64| {
        let found = speedup(draft, costs, prompt_length);
        assert!(found >= least, "{costs:?} {prompt_length}: {found}");
    };
    check(draft, [[10_000, 500], [1_000, 50]], 20, 2.0);
    check(draft, [[10_000, 500], [1_000, 50]], 300, 1.8);
    check(draft, [[10_000, 1_000], [2_000, 100]], 20, 1.5);
    // It predicts nothing.
    for costs in [[[10_000, 500], [1_000, 50]], [[10_000, 500], [10_000, 500]]] {
        check(wrong_draft, costs, 20, 0.97);
        check(wrong_draft, costs, 300, 0.9);
    }
    // It predicts everything, but it is slow, or verification is, or it reads the prompt slowly.
    check(draft, [[10_000, 500], [10_000, 500]], 20, 0.97);
    check(draft, [[10_000, 10_000], [1_000, 100]], 20, 0.95);
    check(draft, [[1_000, 10], [900, 600]], 300, 0.9);
}
