//! Conversations for the tests of shared prefixes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::ops::Range;

use narthex_engine::{
    config::EngineConfig,
    engine_loop::{EngineLoop, Work},
    executor::Executor,
    request::{Request, Usage},
};
use narthex_testkit::{invariant, sink::Recorder};

/// Length of the system prompt that conversations share. No chunk ends there.
pub(crate) const SYSTEM: usize = 60;

pub(crate) fn engine(executor: impl Executor + 'static) -> EngineLoop {
    let config = EngineConfig::for_limits(executor.limits());
    EngineLoop::new(Box::new(executor), config)
}

pub(crate) fn submit(engine_loop: &mut EngineLoop, prompt: &[u32], max_tokens: usize) -> Recorder {
    let sink = Recorder::new();
    engine_loop.submit(Request::greedy(prompt.to_vec(), max_tokens, sink.clone())).unwrap();
    sink
}

pub(crate) fn drain(engine_loop: &mut EngineLoop) {
    while engine_loop.step() == Work::Busy {
        invariant::check(&engine_loop.snapshot()).unwrap();
    }
}

pub(crate) fn usage(sink: &Recorder) -> Usage {
    sink.recording().ends[0].1
}

/// Returns tokens in an order that is distinct for each number.
pub(crate) fn words(number: usize, range: Range<usize>) -> impl Iterator<Item = u32> {
    range.map(move |i| ((number * 17 + i * i * 7 + i) % 50) as u32)
}

/// Returns a system prompt that all conversations share, followed by `own` tokens of one conversation.
pub(crate) fn conversation(number: usize, own: usize) -> Vec<u32> {
    words(0, 0..SYSTEM).chain(words(number + 1, 0..own)).collect()
}
