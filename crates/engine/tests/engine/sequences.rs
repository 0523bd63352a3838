//! The engine over a fake executor: an answer does not depend on other sequences, chunk sizes, reused prefixes or
//! preemption, and a failure affects only the sequences of the failed step.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_engine::{
    config::EngineConfig,
    constraint::{AllowedTokens, Constraint, Progress},
    engine_loop::{EngineLoop, Work},
    executor::{Executor, KvLimits, Limits, Logits, StepError, StepPlan},
    request::{Finish, LogProbs, Request, Sampling, SubmitError, Usage},
};
use narthex_spec::SlotId;
use narthex_testkit::{
    executor::{FakeExecutor, Fault, Watch},
    invariant,
    sink::{Recorder, Recording},
};

fn limits(slots: usize, budget: usize) -> Limits {
    let kv = KvLimits { bytes_per_token: 1, bytes_per_slot: 0, step: 8, budget };
    Limits { slots, context: 128, chunk: 16, batch: slots, vocab: 50, kv }
}

fn request(prompt: &[u32], max_tokens: usize, sink: &Recorder) -> Request {
    Request::greedy(prompt.to_vec(), max_tokens, sink.clone())
}

/// An engine whose invariants are checked after every step.
struct Bench {
    engine_loop: EngineLoop,
    watch: Watch,
}

impl Bench {
    fn new(limits: Limits) -> Self {
        Self::with(limits, |_| ())
    }

    fn with(limits: Limits, change: impl FnOnce(&mut FakeExecutor)) -> Self {
        let config = EngineConfig::for_limits(&limits);
        let mut executor = FakeExecutor::new(limits);
        change(&mut executor);
        let watch = executor.watch();
        Self { engine_loop: EngineLoop::new(Box::new(executor), config), watch }
    }

    fn ask(&mut self, prompt: &[u32], max_tokens: usize) -> Recorder {
        let sink = Recorder::new();
        self.engine_loop.submit(request(prompt, max_tokens, &sink)).unwrap();
        sink
    }

    fn step(&mut self) -> Work {
        let work = self.engine_loop.step();
        invariant::check_engine(&self.engine_loop, &self.watch).unwrap();
        work
    }

    fn drain(&mut self) {
        let steps = (0..10_000).take_while(|_| self.step() == Work::Busy).count();
        assert!(steps < 10_000, "the engine does not come to rest");
    }
}

/// Returns the answer to a prompt that runs alone on a fresh engine.
fn alone(prompt: &[u32], max_tokens: usize, sampling: Sampling) -> Vec<u32> {
    let mut bench = Bench::new(limits(1, 1 << 20));
    let sink = Recorder::new();
    bench.engine_loop.submit(Request { sampling, ..request(prompt, max_tokens, &sink) }).unwrap();
    bench.drain();
    sink.recording().tokens
}

fn greedy(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    alone(prompt, max_tokens, Sampling::greedy())
}

fn end(recording: &Recording) -> (&Finish, Usage) {
    assert_eq!(recording.ends.len(), 1, "{:?}", recording.ends);
    (&recording.ends[0].0, recording.ends[0].1)
}

fn finish(sink: &Recorder) -> Finish {
    end(&sink.recording()).0.clone()
}

fn prompt(number: u32, length: u32) -> Vec<u32> {
    (0..length).map(|i| (number * 31 + i * i * 7) % 50).collect()
}

#[test]
fn company_changes_no_answer() {
    // The third engine has a batch smaller than its number of slots; in the last, sequences preempt each other.
    let crowded = Limits { batch: 3, ..limits(8, 1 << 20) };
    for limits in [limits(8, 1 << 20), limits(3, 1 << 20), crowded, limits(8, 8 * 40)] {
        let budget = limits.kv.budget;
        let mut bench = Bench::new(limits);
        let prompts: Vec<Vec<u32>> = (0..12).map(|n| prompt(n, 1 + n * 5)).collect();
        let sampling = |n: usize| Sampling { temperature: 0.8, seed: n as u64, ..Sampling::greedy() };
        let sinks: Vec<Recorder> = prompts.iter().map(|_| Recorder::new()).collect();
        for (n, (prompt, sink)) in prompts.iter().zip(&sinks).enumerate() {
            let request = Request { sampling: sampling(n), ..request(prompt, 20, sink) };
            bench.engine_loop.submit(request).unwrap();
            bench.step();
        }
        bench.drain();
        for (n, (prompt, sink)) in prompts.iter().zip(&sinks).enumerate() {
            let recording = sink.recording();
            assert_eq!(recording.tokens, alone(prompt, 20, sampling(n)), "sequence {n} under {budget}");
            assert_eq!(recording.starts, 1, "a preempted sequence starts once");
            assert_eq!((end(&recording).0, end(&recording).1.completion_tokens), (&Finish::Length, 20));
        }
        assert_eq!(bench.engine_loop.stats().preemptions > 0, budget == 320);
    }
}

#[test]
fn seeds_repeat_and_differ() {
    let warm = |seed| Sampling { temperature: 1.0, seed, ..Sampling::greedy() };
    assert_eq!(alone(&[1, 2], 30, warm(5)), alone(&[1, 2], 30, warm(5)));
    assert_ne!(alone(&[1, 2], 30, warm(5)), alone(&[1, 2], 30, warm(6)));
}

#[test]
fn answers_go_on_while_a_prompt_runs_and_newcomers_join_them() {
    let mut bench = Bench::new(limits(3, 1 << 20));
    let first = bench.ask(&[1], 60);
    bench.step();
    let long = bench.ask(&prompt(2, 100), 2);
    for step in 0..7 {
        assert_eq!(first.recording().tokens.len(), 1 + step);
        assert!(long.recording().tokens.is_empty());
        bench.step();
    }
    // The prompt of 100 tokens, in chunks of 16, ends with the seventh step; seven tokens of the other answer were
    // generated meanwhile.
    assert_eq!((first.recording().tokens.len(), long.recording().tokens.len()), (8, 1));
}

#[test]
fn a_prefix_in_a_slot_is_not_run_again() {
    let mut bench = Bench::new(limits(2, 1 << 20));
    bench.ask(&prompt(1, 40), 4);
    bench.drain();
    let mut longer = prompt(1, 40);
    longer.extend([3, 4, 5]);
    let second = bench.ask(&longer, 6);
    bench.drain();
    assert_eq!(second.recording().tokens, greedy(&longer, 6));
    assert_eq!(
        end(&second.recording()).1,
        Usage { prompt_tokens: 43, cached_tokens: 40, completion_tokens: 6, ..Usage::default() }
    );
    // The same prompt again: nothing of it runs, because the logits after it were stored.
    let third = bench.ask(&longer, 6);
    bench.drain();
    assert_eq!(third.recording().tokens, second.recording().tokens);
    assert_eq!(end(&third.recording()).1.cached_tokens, 43);
    let stats = bench.engine_loop.stats();
    assert_eq!((stats.cached_tokens, stats.prompt_tokens), (83, 40 + 3));
}

#[test]
fn a_prompt_that_is_kept_whole_is_answered_within_the_same_bounds() {
    let mut bench = Bench::new(limits(1, 1 << 20));
    for max_tokens in [2, 1, 0, 3] {
        let sink = bench.ask(&prompt(1, 20), max_tokens);
        bench.drain();
        assert_eq!(sink.recording().tokens, greedy(&prompt(1, 20), max_tokens), "{max_tokens}");
        assert_eq!(finish(&sink), Finish::Length);
    }
    // All sequences but the first reuse the whole prompt.
    assert_eq!((bench.engine_loop.stats().cached_tokens, bench.engine_loop.stats().prompt_tokens), (60, 20));
}

#[test]
fn a_device_that_cannot_rewind_runs_the_prompt_again() {
    let mut bench = Bench::with(limits(1, 1 << 20), |executor| {
        executor.truncate_faults.push_back(Fault::Error(StepError::CannotRewind));
    });
    bench.ask(&prompt(1, 40), 4);
    bench.drain();
    let second = bench.ask(&prompt(1, 40), 4);
    bench.drain();
    assert_eq!(second.recording().tokens, greedy(&prompt(1, 40), 4));
    assert_eq!(end(&second.recording()).1.cached_tokens, 0);
}

#[test]
fn stop_tokens_end_and_are_not_reported() {
    let answer = greedy(&[1, 2], 10);
    let mut bench = Bench::new(limits(1, 1 << 20));
    let sink = Recorder::new();
    bench.engine_loop.submit(Request { stop: vec![answer[4]], ..request(&[1, 2], 10, &sink) }).unwrap();
    bench.drain();
    let at = answer.iter().position(|token| *token == answer[4]).unwrap();
    assert_eq!(sink.recording().tokens, answer[..at]);
    assert_eq!(end(&sink.recording()).1.completion_tokens, at + 1);
    assert_eq!(finish(&sink), Finish::Stop);
}

#[test]
fn prompt_log_probabilities_cover_every_token_once() {
    let mut bench = Bench::new(limits(2, 1 << 20));
    bench.ask(&prompt(2, 50), 2);
    bench.drain();
    for max_tokens in [3, 0] {
        let sink = Recorder::new();
        let logprobs = Some(LogProbs { top: 3, prompt: true, tokens: Vec::new() });
        bench.engine_loop.submit(Request { logprobs, ..request(&prompt(2, 50), max_tokens, &sink) }).unwrap();
        bench.drain();
        let recording = sink.recording();
        assert_eq!(recording.prompt.iter().map(|(token, _)| *token).collect::<Vec<_>>(), prompt(2, 50));
        let likely = recording.prompt[1..].iter().all(|(_, logprob)| logprob.is_some_and(|p| p < 0.0));
        assert!(recording.prompt[0].1.is_none() && likely);
        assert_eq!(recording.tokens, greedy(&prompt(2, 50), 3)[..max_tokens]);
        assert!(recording.logprobs.iter().all(Option::is_some));
        let usage = Usage { prompt_tokens: 50, completion_tokens: max_tokens, ..Usage::default() };
        assert_eq!(end(&recording), (&Finish::Length, usage));
    }
}

#[test]
fn a_cancelled_sequence_frees_its_slot_at_the_next_plan() {
    let mut bench = Bench::new(limits(1, 1 << 20));
    let (first, sink) = (Recorder::new(), Recorder::new());
    let handle = bench.engine_loop.submit(request(&[1], 100, &first)).unwrap();
    let waiting = bench.engine_loop.submit(request(&[2], 100, &sink)).unwrap();
    let last = bench.ask(&[3], 3);
    for _ in 0..4 {
        bench.step();
    }
    handle.cancel();
    waiting.cancel();
    bench.step();
    assert_eq!((finish(&first), finish(&sink)), (Finish::Cancelled, Finish::Cancelled));
    assert_eq!((first.recording().tokens.len(), last.recording().tokens.len()), (4, 1));
    bench.drain();
    assert_eq!(last.recording().tokens, greedy(&[3], 3));
}

#[test]
fn a_sink_that_leaves_frees_the_slot_and_its_tokens_are_kept() {
    let mut bench = Bench::new(limits(1, 1 << 20));
    let leaver = Recorder::leaving_after(2);
    bench.engine_loop.submit(request(&[1, 5], 100, &leaver)).unwrap();
    let next = bench.ask(&[1, 5, 7], 3);
    bench.drain();
    assert_eq!((finish(&leaver), leaver.recording().tokens), (Finish::Cancelled, greedy(&[1, 5], 2)));
    assert_eq!(next.recording().tokens, greedy(&[1, 5, 7], 3));
    assert_eq!(end(&next.recording()).1.cached_tokens, 2);
}

#[test]
fn failures_end_those_who_took_part_and_no_others() {
    let lost = StepError::Device { message: "lost".into() };
    let not_finite = StepError::Device { message: "the logits are not finite".into() };
    for (fault, expected) in [(Fault::Error(lost.clone()), lost), (Fault::NotANumber, not_finite)] {
        for logprobs in [None, Some(LogProbs { top: 1, prompt: true, tokens: Vec::new() })] {
            let mut bench = Bench::with(limits(1, 1 << 20), |executor| {
                executor.faults = [Fault::None, fault.clone()].into();
            });
            let hit = Recorder::new();
            bench.engine_loop.submit(Request { logprobs, ..request(&prompt(4, 20), 9, &hit) }).unwrap();
            let spared = bench.ask(&[5], 4);
            bench.drain();
            assert_eq!(finish(&hit), Finish::Failed(expected.clone()));
            assert_eq!(spared.recording().tokens, greedy(&[5], 4));
        }
    }
}

#[test]
fn a_lost_device_costs_time_and_no_answer() {
    let mut bench = Bench::with(limits(2, 1 << 20), |executor| {
        // Two losses in a row, and one more after a step that succeeded.
        let ok = || Fault::None;
        executor.faults = [ok(), ok(), Fault::Lost, Fault::Lost, ok(), Fault::Lost].into();
    });
    let sinks: Vec<Recorder> = (1..4).map(|n| bench.ask(&prompt(n, 20), 9)).collect();
    bench.drain();
    for (n, sink) in (1..4).zip(&sinks) {
        assert_eq!(sink.recording().tokens, greedy(&prompt(n, 20), 9));
    }
    // After repeated losses, only the sequences in the lost step fail.
    let mut bench = Bench::with(limits(1, 1 << 20), |executor| {
        executor.faults = vec![Fault::Lost; 3].into();
    });
    let (hit, spared) = (bench.ask(&[1, 2], 9), bench.ask(&[5], 4));
    bench.drain();
    assert!(matches!(finish(&hit), Finish::Failed(StepError::Lost { .. })));
    assert_eq!(spared.recording().tokens, greedy(&[5], 4));
}

#[test]
fn a_slot_that_cannot_be_emptied_is_given_up() {
    let lost = StepError::Device { message: "lost".into() };
    let spoil = |slots: usize| {
        let lost = lost.clone();
        Bench::with(limits(slots, 1 << 20), move |executor| {
            executor.faults = [Fault::Error(lost.clone())].into();
            executor.truncate_faults = [Fault::Error(lost)].into();
        })
    };
    let mut bench = spoil(2);
    let hit = bench.ask(&[1, 2], 9);
    bench.drain();
    assert_eq!(finish(&hit), Finish::Failed(lost.clone()));
    let later: Vec<Recorder> = (0..3).map(|n| bench.ask(&[n], 4)).collect();
    bench.drain();
    for (n, sink) in (0..).zip(&later) {
        assert_eq!(sink.recording().tokens, greedy(&[n], 4));
    }
    assert_eq!(bench.watch.lengths()[0], 1, "the slot given up is as the failure left it");
    // Without any slot left, waiting sequences end with an error.
    let mut bench = spoil(1);
    let (hit, waiting) = (bench.ask(&[1], 9), bench.ask(&[5], 4));
    bench.drain();
    assert_eq!(finish(&hit), Finish::Failed(lost));
    assert!(matches!(finish(&waiting), Finish::Failed(StepError::OutOfMemory { .. })));
}

#[test]
fn idle_slots_are_emptied_when_the_device_runs_out_of_memory() {
    let full = Fault::Error(StepError::OutOfMemory { rows: 2, capacity: 8, wanted: 99 });
    let mut bench = Bench::with(limits(3, 1 << 20), |executor| {
        executor.faults = [Fault::None, Fault::None, full].into();
    });
    bench.ask(&[1, 3, 5], 1);
    bench.ask(&[4, 6], 1);
    bench.step();
    assert_eq!(bench.watch.lengths(), [3, 2, 0]);
    let sink = bench.ask(&[2], 6);
    bench.drain();
    assert_eq!(sink.recording().tokens, greedy(&[2], 6));
    assert_eq!(bench.watch.lengths(), [0, 0, 6]);
    assert_eq!(bench.engine_loop.stats().preemptions, 0);
}

/// A device whose memory holds one sequence, contrary to its limits.
struct Narrow(FakeExecutor);

impl Executor for Narrow {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        let held = self.0.watch().lengths();
        let named = |slot: usize| plan.spans.iter().any(|span| span.slot.index() == slot);
        let rows = (0..held.len()).filter(|&slot| held[slot] > 0 || named(slot)).count();
        if rows > 1 {
            return Err(StepError::OutOfMemory { rows, capacity: 8, wanted: 99 });
        }
        self.0.execute(plan)
    }

    fn logits(&self) -> Logits<'_> {
        self.0.logits()
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        self.0.truncate(slot, len)
    }
}

#[test]
fn a_device_with_less_memory_than_it_says_still_answers_everybody() {
    let limits = limits(4, 1 << 20);
    let executor = FakeExecutor::new(limits.clone());
    let watch = executor.watch();
    let engine_loop = EngineLoop::new(Box::new(Narrow(executor)), EngineConfig::for_limits(&limits));
    let mut bench = Bench { engine_loop, watch };
    let sinks: Vec<Recorder> = (0..6).map(|n| bench.ask(&prompt(n, 20), 10)).collect();
    bench.drain();
    for (n, sink) in (0..).zip(&sinks) {
        assert_eq!(sink.recording().tokens, greedy(&prompt(n, 20), 10));
    }
    assert!(bench.engine_loop.stats().preemptions > 0);
}

#[test]
fn the_budget_bounds_a_sequence_alone_and_in_company_alike() {
    // 24 tokens fit, and the last generated token takes no memory.
    let mut bench = Bench::new(limits(3, 24));
    let sinks: Vec<Recorder> = (0..3).map(|n| bench.ask(&[n], 100)).collect();
    let last = bench.ask(&prompt(1, 24), 100);
    bench.drain();
    for (n, sink) in (0..).zip(&sinks) {
        assert_eq!((finish(sink), sink.recording().tokens), (Finish::Length, greedy(&[n], 24)));
    }
    assert_eq!(last.recording().tokens, greedy(&prompt(1, 24), 1));
    let too_long = bench.engine_loop.submit(request(&prompt(1, 25), 1, &last)).map(drop);
    assert_eq!(too_long, Err(SubmitError::PromptTooLong { prompt: 25, context: 25 }));
}

#[test]
fn bad_requests_are_refused() {
    let mut bench = Bench::new(limits(1, 1 << 20));
    let sink = Recorder::new();
    let mut check = |prompt: &[u32], expect| {
        assert_eq!(bench.engine_loop.submit(request(prompt, 1, &sink)).map(drop), Err(expect));
    };
    check(&[], SubmitError::Empty);
    check(&[50], SubmitError::BadToken { token: 50, vocab: 50 });
    check(&[1; 128], SubmitError::PromptTooLong { prompt: 128, context: 128 });
    assert!(sink.recording().ends.is_empty());
}

/// A constraint that allows the tokens of a list in their order. Those in the range `forced` are forced.
struct Script {
    tokens: Vec<u32>,
    forced: std::ops::Range<usize>,
    at: usize,
    allowed: [u32; 2],
    outcome: ScriptEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScriptEnd {
    Complete,
    Failure,
    Panic,
}

impl Constraint for Script {
    fn prepare(&mut self) {
        assert!(self.at < self.tokens.len() || self.outcome != ScriptEnd::Panic, "the script panics");
        self.allowed = [0; 2];
        if let Some(&token) = self.tokens.get(self.at) {
            self.allowed[token as usize / 32] |= 1 << (token % 32);
        }
    }

    fn allowed(&self) -> AllowedTokens<'_> {
        match self.at == self.tokens.len() && self.outcome == ScriptEnd::Failure {
            true => AllowedTokens::Failed("the script failed"),
            false => AllowedTokens::Only(&self.allowed),
        }
    }

    fn accept(&mut self, token: u32) -> Progress {
        assert_eq!(self.tokens[self.at], token);
        self.at += 1;
        let complete = self.at == self.tokens.len() && self.outcome == ScriptEnd::Complete;
        if complete { Progress::Complete } else { Progress::Open }
    }

    fn forced(&mut self, tokens: &mut Vec<u32>) {
        if self.forced.contains(&self.at) {
            tokens.extend(&self.tokens[self.at..self.forced.end]);
        }
    }
}

const SCRIPT: [u32; 8] = [4, 40, 33, 2, 49, 0, 7, 7];

/// Runs a request with a script. Returns the recording and the number of steps.
fn scripted(
    change: impl FnOnce(&mut Request),
    forced: std::ops::Range<usize>,
    end: ScriptEnd,
) -> (Recording, u64) {
    let mut bench = Bench::new(limits(2, 1 << 20));
    let sink = Recorder::new();
    let script = Script { tokens: SCRIPT.to_vec(), forced, at: 0, allowed: [0; 2], outcome: end };
    let mut request = Request { constraint: Some(Box::new(script)), ..request(&[1, 2, 3], 20, &sink) };
    change(&mut request);
    bench.engine_loop.submit(request).unwrap();
    bench.drain();
    (sink.recording(), bench.engine_loop.stats().steps)
}

#[test]
fn a_constraint_decides_tokens_and_the_end() {
    let check =
        |change: fn(&mut Request), forced: std::ops::Range<usize>, tokens: &[u32], finish: Finish, steps| {
            let (recording, found) = scripted(change, forced.clone(), ScriptEnd::Complete);
            assert_eq!(
                (&recording.tokens[..], &recording.ends[0].0, found),
                (tokens, &finish, steps),
                "{forced:?}"
            );
        };
    check(|_| (), 0..0, &SCRIPT, Finish::Stop, 8);
    check(|r| r.sampling.temperature = 3.0, 0..0, &SCRIPT, Finish::Stop, 8);
    // Forced tokens run in one step with the token before them.
    check(|_| (), 1..5, &SCRIPT, Finish::Stop, 4);
    check(|_| (), 0..3, &SCRIPT, Finish::Stop, 6);
    check(|_| (), 2..8, &SCRIPT, Finish::Stop, 2);
    check(|r| r.max_tokens = 4, 1..7, &SCRIPT[..4], Finish::Length, 1);
    check(|r| r.max_tokens = 8, 1..8, &SCRIPT, Finish::Stop, 1);
    check(|r| r.stop = vec![2], 1..7, &SCRIPT[..3], Finish::Stop, 1);
    // Each log-probability comes from the token's own row, so forced tokens run one by one.
    check(
        |r| r.logprobs = Some(LogProbs { top: 1, prompt: false, tokens: Vec::new() }),
        1..8,
        &SCRIPT,
        Finish::Stop,
        8,
    );
}

#[test]
fn log_probs_of_forced_tokens_are_those_of_the_model() {
    let wanted = Some(LogProbs { top: 0, prompt: false, tokens: Vec::new() });
    let (forced, _) = scripted(|r| r.logprobs.clone_from(&wanted), 0..8, ScriptEnd::Complete);
    let (chosen, _) = scripted(|r| r.logprobs.clone_from(&wanted), 0..0, ScriptEnd::Complete);
    assert_eq!((forced.logprobs.len(), &forced.logprobs), (8, &chosen.logprobs));
    assert!(forced.logprobs.iter().all(|logprob| logprob.unwrap() < 0.0));
}

#[test]
fn a_constraint_that_fails_ends_its_sequence_alone() {
    let unsatisfied = |reason: &str| Finish::Unsatisfied { reason: reason.to_owned() };
    let check = |end, finish| {
        let (recording, _) = scripted(|_| (), 0..0, end);
        assert_eq!((&recording.tokens[..], &recording.ends[0].0), (&SCRIPT[..], &finish));
    };
    check(ScriptEnd::Failure, unsatisfied("the script failed"));
    check(ScriptEnd::Panic, unsatisfied("its code panicked; please report this"));
    let (recording, _) =
        scripted(|r| r.sampling.logit_bias = vec![(33, f32::NEG_INFINITY)], 0..0, ScriptEnd::Complete);
    assert_eq!(recording.ends[0].0, unsatisfied("it allows no token of the model"));
}
