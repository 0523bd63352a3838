//! Checks with a counting allocator that decoding allocates no memory per token.

use std::ops::ControlFlow;

use narthex_engine::{
    config::EngineConfig,
    draft_model::DraftModel,
    engine_loop::EngineLoop,
    executor::{KvLimits, Limits},
    request::{Finish, LogProbs, Request, Sampling, TokenEvent, TokenSink, Usage},
};
use narthex_testkit::{allocator::CountingAllocator, executor::FakeExecutor};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

struct Silent;

impl TokenSink for Silent {
    fn token(&mut self, _: TokenEvent<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn finish(&mut self, _: Finish, _: Usage) {}
}

fn request(number: usize, sampling: Sampling, logprobs: Option<LogProbs>) -> Request {
    Request {
        stop: vec![999],
        sampling: Sampling { logit_bias: vec![(999, f32::NEG_INFINITY)], ..sampling },
        logprobs,
        ..Request::greedy(vec![number as u32; 10], 1500, Silent)
    }
}

#[test]
fn decoding_allocates_nothing() {
    let kv = KvLimits { bytes_per_token: 1, bytes_per_slot: 0, step: 64, budget: 1 << 30 };
    let limits = Limits { slots: 6, context: 4096, chunk: 64, batch: 6, vocab: 1000, kv };
    let executor = Box::new(FakeExecutor::new(limits.clone()));
    let mut engine_loop = EngineLoop::new(executor, EngineConfig::for_limits(&limits));
    let warm = Sampling { temperature: 0.7, ..Sampling::greedy() };
    let samplings = [
        Sampling::greedy(),
        warm.clone(),
        Sampling { top_p: 0.9, ..warm.clone() },
        Sampling { top_p: 0.9, top_k: 50, min_p: 0.01, ..warm.clone() },
        Sampling { frequency_penalty: 0.1, repetition_penalty: 1.1, ..warm },
    ];
    for (number, sampling) in samplings.into_iter().enumerate() {
        engine_loop.submit(request(number, sampling, None)).unwrap();
    }
    let logprobs = Some(LogProbs { top: 20, prompt: false, tokens: Vec::new() });
    engine_loop.submit(request(5, Sampling::greedy(), logprobs)).unwrap();
    for _ in 0..50 {
        engine_loop.step();
    }
    let generated = engine_loop.stats().generated_tokens;
    let before = ALLOCATOR.allocations();
    for _ in 0..1000 {
        engine_loop.step();
    }
    assert_eq!(ALLOCATOR.allocations() - before, 0);
    assert_eq!(engine_loop.stats().generated_tokens - generated, 6000);
    // A single sequence with drafts from its own text, and with those of a draft model.
    for looks_back in [1, usize::MAX] {
        let fake = || {
            let mut executor = FakeExecutor::new(limits.clone());
            executor.looks_back = looks_back;
            Box::new(executor)
        };
        let draft_model = DraftModel::new(fake(), |_| ());
        let mut engine_loop =
            EngineLoop::new(fake(), EngineConfig::for_limits(&limits)).with_draft_model(draft_model);
        engine_loop.submit(request(0, Sampling::greedy(), None)).unwrap();
        for _ in 0..40 {
            engine_loop.step();
        }
        let accepted = engine_loop.stats().accepted_tokens;
        let before = ALLOCATOR.allocations();
        for _ in 0..40 {
            engine_loop.step();
        }
        assert_eq!(ALLOCATOR.allocations() - before, 0);
        assert!(engine_loop.stats().accepted_tokens - accepted > 100, "{:?}", engine_loop.stats());
    }
}
