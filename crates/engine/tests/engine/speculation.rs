//! Speculative decoding: fewer steps, the same tokens.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_engine::{
    config::{EngineConfig, EngineStats},
    engine_loop::{EngineLoop, Work},
    executor::{Executor, Limits, StepError},
    position::Position,
    request::{Finish, LogProbs, Request},
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

/// Returns an executor whose logits depend on the last `looks_back` tokens. With few of them its output repeats.
fn fake(looks_back: usize) -> FakeExecutor {
    let mut executor = FakeExecutor::new(limits());
    executor.looks_back = looks_back;
    executor
}

const REPEATING: usize = 2;
const RANDOM: usize = usize::MAX;

struct Bench {
    engine_loop: EngineLoop,
    watch: Watch,
}

impl Bench {
    fn new(executor: FakeExecutor, speculation: Speculation) -> Self {
        let config = EngineConfig { speculation, ..EngineConfig::for_limits(executor.limits()) };
        let watch = executor.watch();
        Self { engine_loop: EngineLoop::new(Box::new(executor), config), watch }
    }

    fn ask(&mut self, max_tokens: usize, change: impl FnOnce(&mut Request)) -> Recorder {
        self.ask_with(Recorder::new(), max_tokens, change)
    }

    fn ask_with(&mut self, sink: Recorder, max_tokens: usize, change: impl FnOnce(&mut Request)) -> Recorder {
        let mut request = Request::greedy((0..20).map(|i| i * i % 50).collect(), max_tokens, sink.clone());
        change(&mut request);
        self.engine_loop.submit(request).unwrap();
        sink
    }

    fn drain(&mut self) -> EngineStats {
        while self.engine_loop.step() == Work::Busy {
            invariant::check_engine(&self.engine_loop, &self.watch).unwrap();
        }
        self.engine_loop.stats()
    }
}

/// Runs a request. Returns its recording and the counters.
fn run(
    looks_back: usize,
    speculation: Speculation,
    max_tokens: usize,
    change: impl FnOnce(&mut Request),
) -> (Recording, EngineStats) {
    let mut bench = Bench::new(fake(looks_back), speculation);
    let sink = bench.ask(max_tokens, change);
    let stats = bench.drain();
    (sink.recording(), stats)
}

#[test]
fn answers_are_the_same_in_fewer_steps() {
    for looks_back in [1, REPEATING, RANDOM] {
        for (temperature, penalty) in [(0.0, 0.0), (0.2, 0.0), (1.0, 0.0), (0.5, 0.4)] {
            for logprobs in [None, Some(LogProbs { top: 2, prompt: true, tokens: Vec::new() })] {
                let change = |request: &mut Request| {
                    request.sampling.temperature = temperature;
                    request.sampling.frequency_penalty = penalty;
                    request.logprobs = logprobs.clone();
                };
                let (plain, slow) = run(looks_back, Speculation::Off, 300, change);
                let (drafted, fast) = run(looks_back, Speculation::Auto, 300, change);
                assert_eq!(
                    (&drafted.tokens, &drafted.logprobs, &drafted.ends[0].0),
                    (&plain.tokens, &plain.logprobs, &plain.ends[0].0),
                    "{looks_back} {temperature} {penalty}"
                );
                assert_eq!(slow.accepted_tokens + slow.rejected_tokens, 0);
                let usage = drafted.ends[0].1;
                let counts = (usage.accepted_tokens as u64, usage.rejected_tokens as u64);
                assert_eq!(counts, (fast.accepted_tokens, fast.rejected_tokens));
                assert_eq!(slow.steps - fast.steps, fast.accepted_tokens);
                if looks_back < RANDOM && temperature == 0.0 {
                    assert!(fast.steps * 2 < slow.steps, "{} of {}", fast.steps, slow.steps);
                }
            }
        }
    }
}

#[test]
fn an_answer_ends_anywhere_in_a_draft_and_its_slot_goes_on() {
    let whole = run(1, Speculation::Off, 90, |_| ()).0.tokens;
    let steps = |recording: &Recording, tokens: usize| {
        assert_eq!(recording.tokens, whole[..tokens], "{tokens} tokens");
        recording.ends[0].0.clone()
    };
    for tokens in 1..90 {
        let mut bench = Bench::new(fake(1), Speculation::Auto);
        let sink = bench.ask(tokens, |_| ());
        bench.drain();
        assert_eq!(steps(&sink.recording(), tokens), Finish::Length);
        let leaver = bench.ask_with(Recorder::leaving_after(tokens), 90, |_| ());
        bench.drain();
        assert_eq!(steps(&leaver.recording(), tokens), Finish::Cancelled);
        // The slot has the reported contents: the next turn of the conversation reuses them.
        let sink = bench.ask(9, |request| request.prompt.extend(Position::of_tokens(&whole[..tokens])));
        bench.drain();
        assert_eq!(
            sink.recording().tokens[..],
            whole.iter().copied().chain(run_on(&whole)).skip(tokens).take(9).collect::<Vec<_>>()
        );
    }
    let stop = whole[60];
    let first = whole.iter().position(|token| *token == stop).unwrap();
    let (recording, _) = run(1, Speculation::Auto, 90, |request| request.stop = vec![stop]);
    assert_eq!((&recording.tokens[..], &recording.ends[0].0), (&whole[..first], &Finish::Stop));
}

/// Returns the tokens after the first 90 of an answer.
fn run_on(whole: &[u32]) -> Vec<u32> {
    let longer = run(1, Speculation::Off, 100, |_| ()).0.tokens;
    assert_eq!(&longer[..90], whole);
    longer[90..].to_vec()
}

#[test]
fn a_device_that_cannot_rewind_runs_again_and_gets_no_more_drafts() {
    let warm = |request: &mut Request| request.sampling.temperature = 0.5;
    let plain = run(1, Speculation::Off, 200, warm).0.tokens;
    for broken in [StepError::CannotRewind, StepError::Device { message: "stuck".into() }] {
        let mut executor = fake(1);
        executor.truncate_faults = [Fault::Error(broken)].into();
        let mut bench = Bench::new(executor, Speculation::Auto);
        let sink = bench.ask(200, warm);
        let stats = bench.drain();
        assert_eq!(sink.recording().tokens, plain);
        assert!(stats.rejected_tokens > 0 && stats.steps > 150, "{stats:?}");
    }
}

#[test]
fn faults_hit_a_draft_as_they_hit_a_token() {
    let plain = run(1, Speculation::Off, 100, |_| ()).0.tokens;
    let full = Fault::Error(StepError::OutOfMemory { rows: 1, capacity: 8, wanted: 1 });
    for (fault, goes_on) in [(Fault::Lost, true), (full, true), (Fault::NotANumber, false)] {
        for at in 1..12 {
            let mut executor = fake(1);
            executor.faults = std::iter::repeat_n(Fault::None, at).chain([fault.clone()]).collect();
            let mut bench = Bench::new(executor, Speculation::Auto);
            let sink = bench.ask(100, |_| ());
            bench.drain();
            let recording = sink.recording();
            assert!(plain.starts_with(&recording.tokens));
            // A step of one token fails as well if memory is full and nothing can be freed.
            let is_whole = recording.ends[0].0 == Finish::Length && recording.tokens.len() == 100;
            let single = fault != Fault::Lost && bench.engine_loop.stats().accepted_tokens == 0;
            assert!(is_whole == goes_on || single, "{fault:?} at step {at}: {:?}", recording.ends);
        }
    }
}

#[test]
fn drafts_take_no_memory_from_others_and_need_a_sequence_alone() {
    let mut full = limits();
    // 48 tokens in each of two rows.
    full.kv.budget = 96;
    let mut executor = FakeExecutor::new(full);
    executor.looks_back = 1;
    let mut bench = Bench::new(executor, Speculation::Auto);
    bench.ask(1, |request| request.prompt = vec![Position::token(7); 40]);
    bench.drain();
    bench.ask(28, |_| ());
    let stats = bench.drain();
    assert_eq!(bench.watch.lengths().iter().filter(|length| **length > 0).count(), 2);
    assert!(stats.accepted_tokens > 0, "{stats:?}");
    let mut bench = Bench::new(fake(1), Speculation::Auto);
    (0..2).for_each(|_| drop(bench.ask(100, |_| ())));
    bench.drain();
    // A request can refuse drafts.
    bench.ask(100, |request| request.speculation = Speculation::Off);
    let stats = bench.drain();
    assert_eq!((stats.accepted_tokens, stats.rejected_tokens), (0, 0));
}

/// Returns the time of an answer of 400 tokens without speculation divided by the time with it.
fn speedup(looks_back: usize, costs: [u64; 2]) -> f64 {
    let [plain, drafted] = [Speculation::Off, Speculation::Auto].map(|speculation| {
        let clock = Clock::default();
        let supervised = TimedExecutor::new(fake(looks_back), clock.clone(), costs).supervised();
        let config = EngineConfig { speculation, ..EngineConfig::for_limits(&limits()) };
        let mut engine_loop = EngineLoop::new(supervised, config);
        let sink = Recorder::new();
        let request = Request::greedy(vec![1, 2, 3], 400, sink.clone());
        engine_loop.submit(request).unwrap();
        while engine_loop.step() == Work::Busy {}
        assert_eq!(sink.recording().tokens.len(), 400);
        clock.now().as_secs_f64()
    });
    plain / drafted
}

#[test]
fn speculation_pays_where_steps_are_cheap_and_costs_next_to_nothing_elsewhere() {
    let check = |looks_back, costs, least: f64| {
        let found = speedup(looks_back, costs);
        assert!(found >= least, "{looks_back} {costs:?}: {found}");
    };
    check(REPEATING, [10_000, 1_000], 2.0);
    check(1, [10_000, 500], 3.0);
    for costs in [[10_000, 500], [10_000, 1_000], [10_000, 3_000], [10_000, 10_000]] {
        check(RANDOM, costs, 0.97);
    }
    // Each draft token costs as much as a step.
    check(1, [10_000, 10_000], 0.97);
}
