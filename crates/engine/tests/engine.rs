//! The engine over a fake executor: answers do not depend on company, chunks, prefixes, preemption or threads.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{collections::VecDeque, sync::Arc, sync::atomic::AtomicBool, time::Duration};

use narthex_engine::{
    core::{Core, Work},
    executor::{KvLimits, Limits, StepError},
    request::{Finish, LogProbs, Request, Sampling},
    worker::{Drain, Engine, EngineConfig, SubmitError},
};
use narthex_testkit::{
    executor::{FakeExecutor, Mishap},
    sink::{Heard, Recorder},
};

fn limits(slots: usize, budget: usize) -> Limits {
    let kv = KvLimits { bytes_per_token: 1, step: 8, budget };
    Limits { slots, context: 128, chunk: 16, batch: slots, vocab: 50, kv }
}

fn request(prompt: &[u32], max_tokens: usize, sink: &Recorder) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens,
        stop: vec![],
        sampling: Sampling::greedy(),
        logprobs: None,
        sink: Box::new(sink.clone()),
    }
}

fn core(limits: Limits, mishaps: impl IntoIterator<Item = Mishap>) -> Core {
    let config = EngineConfig::for_limits(&limits);
    let mut executor = FakeExecutor::new(limits);
    executor.mishaps = VecDeque::from_iter(mishaps);
    Core::new(Box::new(executor), config)
}

fn submit(core: &mut Core, request: Request) -> Arc<AtomicBool> {
    let cancelled = Arc::new(AtomicBool::new(false));
    core.submit(request, cancelled.clone());
    cancelled
}

fn drain(core: &mut Core) {
    for _ in 0..10_000 {
        core.snapshot().check().unwrap();
        if core.step() == Work::None {
            return;
        }
    }
    panic!("the engine does not come to rest");
}

/// The answer that a prompt gets alone on a fresh engine.
fn alone(prompt: &[u32], max_tokens: usize, sampling: Sampling) -> Vec<u32> {
    let mut core = core(limits(1, 1 << 20), []);
    let sink = Recorder::new();
    submit(&mut core, Request { sampling, ..request(prompt, max_tokens, &sink) });
    drain(&mut core);
    sink.heard().tokens
}

fn only_end(heard: &Heard) -> &Finish {
    assert_eq!(heard.ends.len(), 1, "{:?}", heard.ends);
    &heard.ends[0].0
}

fn prompt(number: u32, length: u32) -> Vec<u32> {
    (0..length).map(|i| (number * 31 + i * i * 7) % 50).collect()
}

#[test]
fn company_changes_no_answer() {
    // The second budget forces sequences to make way for each other.
    for budget in [1 << 20, 8 * 40] {
        let mut core = core(limits(8, budget), []);
        let prompts: Vec<Vec<u32>> = (0..12).map(|n| prompt(n, 1 + n * 5)).collect();
        let sampling = |n: usize| Sampling { temperature: 0.8, seed: n as u64, ..Sampling::greedy() };
        let sinks: Vec<Recorder> = prompts.iter().map(|_| Recorder::new()).collect();
        for (n, (prompt, sink)) in prompts.iter().zip(&sinks).enumerate() {
            submit(&mut core, Request { sampling: sampling(n), ..request(prompt, 20, sink) });
            core.step();
        }
        drain(&mut core);
        for (n, (prompt, sink)) in prompts.iter().zip(&sinks).enumerate() {
            let heard = sink.heard();
            assert_eq!(heard.tokens, alone(prompt, 20, sampling(n)), "sequence {n} under {budget}");
            assert_eq!(*only_end(&heard), Finish::Length);
            assert_eq!(heard.ends[0].1.completion_tokens, 20);
        }
    }
}

#[test]
fn a_prefix_in_a_slot_is_not_run_again() {
    let mut core = core(limits(2, 1 << 20), []);
    let (first, second) = (Recorder::new(), Recorder::new());
    submit(&mut core, request(&prompt(1, 40), 4, &first));
    drain(&mut core);
    let mut longer = prompt(1, 40);
    longer.extend([3, 4, 5]);
    submit(&mut core, request(&longer, 6, &second));
    drain(&mut core);
    assert_eq!(second.heard().tokens, alone(&longer, 6, Sampling::greedy()));
    assert_eq!(second.heard().ends[0].1.cached_tokens, 40);
    assert_eq!(core.stats().cached_tokens, 40);
}

#[test]
fn the_same_prompt_again_needs_no_step_for_its_first_token() {
    let mut core = core(limits(2, 1 << 20), []);
    let run = |core: &mut Core| {
        let sink = Recorder::new();
        submit(core, request(&prompt(3, 30), 5, &sink));
        let before = core.stats().steps;
        drain(core);
        (sink.heard(), core.stats().steps - before)
    };
    let (first, first_steps) = run(&mut core);
    let (again, again_steps) = run(&mut core);
    assert_eq!(again.tokens, first.tokens);
    assert_eq!((again.ends[0].1.cached_tokens, again_steps), (30, 4));
    assert!(first_steps > again_steps);
    let (third, _) = run(&mut core);
    assert_eq!((third.tokens, third.ends[0].1.cached_tokens), (first.tokens, 30));
}

#[test]
fn stop_tokens_end_and_are_not_reported() {
    let answer = alone(&[1, 2], 10, Sampling::greedy());
    let mut core = core(limits(1, 1 << 20), []);
    let sink = Recorder::new();
    submit(&mut core, Request { stop: vec![answer[4]], ..request(&[1, 2], 10, &sink) });
    drain(&mut core);
    let at = answer.iter().position(|token| *token == answer[4]).unwrap();
    assert_eq!(sink.heard().tokens, answer[..at]);
    assert_eq!(sink.heard().ends[0].1.completion_tokens, at + 1);
    assert_eq!(*only_end(&sink.heard()), Finish::Stop);
}

#[test]
fn prompt_log_probabilities_cover_every_token_once() {
    let mut core = core(limits(2, 1 << 20), []);
    let (warm, sink) = (Recorder::new(), Recorder::new());
    submit(&mut core, request(&prompt(2, 50), 2, &warm));
    drain(&mut core);
    let logprobs = Some(LogProbs { top: 3, prompt: true });
    submit(&mut core, Request { logprobs, ..request(&prompt(2, 50), 3, &sink) });
    drain(&mut core);
    let heard = sink.heard();
    assert_eq!(heard.prompt.iter().map(|(token, _)| *token).collect::<Vec<_>>(), prompt(2, 50));
    assert!(heard.prompt[0].1.is_none() && heard.prompt[1..].iter().all(|(_, p)| p.is_some_and(|p| p < 0.0)));
    assert_eq!(heard.tokens, alone(&prompt(2, 50), 3, Sampling::greedy()));
    assert!(heard.logprobs.iter().all(Option::is_some));
}

#[test]
fn the_one_who_leaves_frees_the_slot() {
    let mut core = core(limits(1, 1 << 20), []);
    let (leaver, next, waiting) = (Recorder::leaving_after(2), Recorder::new(), Recorder::new());
    submit(&mut core, request(&[1], 100, &leaver));
    let cancelled = submit(&mut core, request(&[2], 100, &waiting));
    submit(&mut core, request(&[3], 3, &next));
    cancelled.store(true, std::sync::atomic::Ordering::Relaxed);
    drain(&mut core);
    assert_eq!(*only_end(&leaver.heard()), Finish::Cancelled);
    assert_eq!(*only_end(&waiting.heard()), Finish::Cancelled);
    assert_eq!(next.heard().tokens, alone(&[3], 3, Sampling::greedy()));
}

#[test]
fn failures_end_those_who_took_part_and_no_others() {
    let device = StepError::Device { message: "lost".into() };
    for mishap in [Mishap::Error(device.clone()), Mishap::NotANumber] {
        let mut core = core(limits(1, 1 << 20), [Mishap::None, mishap]);
        let (hit, spared) = (Recorder::new(), Recorder::new());
        submit(&mut core, request(&[1, 2], 9, &hit));
        submit(&mut core, request(&[5], 4, &spared));
        drain(&mut core);
        assert!(matches!(only_end(&hit.heard()), Finish::Failed(StepError::Device { .. })));
        assert_eq!(spared.heard().tokens, alone(&[5], 4, Sampling::greedy()));
    }
}

#[test]
fn memory_that_runs_out_is_made() {
    let full = Mishap::Error(StepError::OutOfMemory { rows: 2, capacity: 8, wanted: 99 });
    let mut core = core(limits(2, 1 << 20), [Mishap::None, Mishap::None, full]);
    let sinks = [Recorder::new(), Recorder::new()];
    sinks.iter().enumerate().for_each(|(n, sink)| drop(submit(&mut core, request(&[n as u32], 6, sink))));
    drain(&mut core);
    for (n, sink) in sinks.iter().enumerate() {
        assert_eq!(sink.heard().tokens, alone(&[n as u32], 6, Sampling::greedy()));
    }
    // A sequence that cannot fit even alone ends where it is; one whose prompt cannot is refused.
    let mut tight = self::core(limits(1, 24), []);
    let (long, huge) = (Recorder::new(), Recorder::new());
    submit(&mut tight, request(&[1], 100, &long));
    submit(&mut tight, request(&prompt(1, 30), 1, &huge));
    drain(&mut tight);
    assert_eq!((only_end(&long.heard()), long.heard().tokens.len()), (&Finish::Length, 24));
    assert!(matches!(only_end(&huge.heard()), Finish::Failed(StepError::OutOfMemory { .. })));
}

#[test]
fn threads_refuse_drain_and_survive_panics() {
    let limits = limits(2, 1 << 20);
    let config = EngineConfig { max_queue: 0, ..EngineConfig::for_limits(&limits) };
    let refusing = Engine::start(Box::new(FakeExecutor::new(limits.clone())), config).unwrap();
    let sink = Recorder::new();
    let check = |result: Result<_, SubmitError>, expected: &str| {
        let error = result.map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(refusing.submit(request(&[1], 1, &sink)), "waiting");
    check(refusing.submit(request(&[], 1, &sink)), "empty");
    check(refusing.submit(request(&[50], 1, &sink)), "vocabulary size 50");
    check(refusing.submit(request(&[1; 128], 1, &sink)), "context is 128");
    refusing.shutdown(Drain::Now);
    check(refusing.submit(request(&[1], 1, &sink)), "shut down");

    let engine =
        Engine::start(Box::new(FakeExecutor::new(limits.clone())), EngineConfig::for_limits(&limits))
            .unwrap();
    let sinks: Vec<Recorder> = (0..10).map(|_| Recorder::new()).collect();
    for (n, sink) in sinks.iter().enumerate() {
        engine.submit(request(&[n as u32], 12, sink)).unwrap();
    }
    engine.shutdown(Drain::Finish);
    for (n, sink) in sinks.iter().enumerate() {
        assert_eq!(sink.heard().tokens, alone(&[n as u32], 12, Sampling::greedy()));
    }

    let mut panicking = FakeExecutor::new(limits.clone());
    panicking.mishaps.push_back(Mishap::Panic);
    let engine = Engine::start(Box::new(panicking), EngineConfig::for_limits(&limits)).unwrap();
    let sink = Recorder::new();
    engine.submit(request(&[1], 5, &sink)).unwrap();
    for _ in 0..1000 {
        if !sink.heard().ends.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(matches!(only_end(&sink.heard()), Finish::Failed(_)));
    engine.shutdown(Drain::Finish);
}
