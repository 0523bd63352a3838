//! Time between two tokens of an answer while a long prompt is processed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use narthex_engine::{
    config::EngineConfig,
    engine_loop::{EngineLoop, Work},
    executor::Limits,
    request::Request,
};
use narthex_testkit::{
    executor::{Clock, FakeExecutor, KV, TimedExecutor},
    sink::Recorder,
};

/// A step of one token takes 10 ms, and each further token 1 ms.
const COSTS: [u64; 2] = [10_000, 1_000];

/// Tokens of the long prompt.
const PROMPT: usize = 3000;

fn request(prompt: usize, max_tokens: usize, sink: &Recorder) -> Request {
    Request::greedy((0..prompt as u32).map(|i| i * i % 47).collect(), max_tokens, sink.clone())
}

/// Times of the steps that read a long prompt beside a running answer.
struct Steps {
    longest: Duration,
    total: Duration,
}

fn read_prompt_beside_answer(token_latency: Option<Duration>) -> Steps {
    let limits = Limits { slots: 2, context: 4096, chunk: 256, batch: 2, vocab: 50, kv: KV };
    let config = EngineConfig { token_latency, ..EngineConfig::for_limits(&limits) };
    let clock = Clock::default();
    let executor = TimedExecutor::new(FakeExecutor::new(limits), clock.clone(), COSTS);
    let mut engine_loop = EngineLoop::new(executor.supervised(), config);
    let (answer, prompt) = (Recorder::new(), Recorder::new());
    engine_loop.submit(request(100, 2000, &answer)).unwrap();
    while answer.recording().tokens.len() < 20 {
        engine_loop.step();
    }
    engine_loop.submit(request(PROMPT, 1, &prompt)).unwrap();
    let start = clock.now();
    let mut longest = Duration::ZERO;
    while prompt.recording().ends.is_empty() {
        let (time, tokens) = (clock.now(), answer.recording().tokens.len());
        assert_eq!(engine_loop.step(), Work::Busy);
        assert!(answer.recording().tokens.len() > tokens, "the answer advances in every step");
        longest = longest.max(clock.now() - time);
    }
    Steps { longest, total: clock.now() - start }
}

#[test]
fn prompts_are_read_in_chunks_that_keep_the_latency_of_running_answers() {
    let unbounded = read_prompt_beside_answer(None);
    assert!(unbounded.longest > Duration::from_millis(250), "{:?}", unbounded.longest);
    for bound in [50, 100, 200].map(Duration::from_millis) {
        let Steps { longest, total } = read_prompt_beside_answer(Some(bound));
        assert!(longest <= bound + Duration::from_millis(2), "{longest:?} for {bound:?}");
        assert!(longest >= bound / 2, "{longest:?} for {bound:?}");
        assert!(total < unbounded.total * 2, "{total:?} for {bound:?}, {:?} without", unbounded.total);
    }
    // The prompt advances even under a limit that no step can meet.
    let Steps { longest, .. } = read_prompt_beside_answer(Some(Duration::from_millis(1)));
    assert!(longest < Duration::from_millis(40), "{longest:?}");
}
