//! A counting allocator sees no allocation per token while sequences decode.

#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use narthex_engine::{
    core::Core,
    executor::{KvLimits, Limits},
    request::{Finish, Request, Sampling, TokenEvent, TokenSink, Usage},
    worker::EngineConfig,
};
use narthex_testkit::executor::FakeExecutor;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Silent;

impl TokenSink for Silent {
    fn token(&mut self, _: TokenEvent<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn finish(&mut self, _: Finish, _: Usage) {}
}

/// The fake checks its plan with a set, which allocates: this one only counts.
struct Quiet(FakeExecutor, Vec<f32>);

impl narthex_engine::executor::Executor for Quiet {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }

    fn step(
        &mut self,
        plan: &narthex_engine::executor::StepPlan,
    ) -> Result<narthex_engine::executor::Logits<'_>, narthex_engine::executor::StepError> {
        let vocab = self.0.limits().vocab;
        let values = plan.logits_rows() * vocab;
        Ok(narthex_engine::executor::Logits::new(&self.1[..values], vocab))
    }

    fn truncate(
        &mut self,
        _: narthex_spec::SlotId,
        _: usize,
    ) -> Result<(), narthex_engine::executor::StepError> {
        Ok(())
    }
}

#[test]
fn decoding_allocates_nothing() {
    let kv = KvLimits { bytes_per_token: 1, step: 64, budget: 1 << 30 };
    let limits = Limits { slots: 4, context: 4096, chunk: 64, batch: 4, vocab: 1000, kv };
    let logits = (0..4000).map(|i| (i % 997) as f32 * 0.01).collect();
    let executor = Quiet(FakeExecutor::new(limits.clone()), logits);
    let mut core = Core::new(Box::new(executor), EngineConfig::for_limits(&limits));
    let samplings = [
        Sampling::greedy(),
        Sampling { temperature: 0.7, ..Sampling::greedy() },
        Sampling { temperature: 0.7, top_p: 0.9, top_k: 50, min_p: 0.01, ..Sampling::greedy() },
        Sampling { temperature: 0.7, frequency_penalty: 0.1, repetition_penalty: 1.1, ..Sampling::greedy() },
    ];
    for (number, sampling) in samplings.into_iter().enumerate() {
        let request = Request {
            prompt: vec![number as u32; 10],
            max_tokens: 3000,
            stop: vec![],
            sampling,
            logprobs: None,
            sink: Box::new(Silent),
        };
        core.submit(request, Arc::new(AtomicBool::new(false)));
    }
    for _ in 0..50 {
        core.step();
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..1000 {
        core.step();
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
    assert_eq!(core.stats().running, 4);
}
