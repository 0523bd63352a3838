//! Prefixes shared between conversations: no prefix runs twice while a slot holds it, and answers do not change.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::ops::Range;

use narthex_engine::{
    config::EngineConfig,
    engine_loop::{EngineLoop, Work},
    executor::{Executor, KvLimits, Limits, StepError},
    request::{Request, Usage},
};
use narthex_testkit::{
    executor::{ClosedExecutor, FakeExecutor, Fault, KV},
    invariant,
    sink::Recorder,
};

const SYSTEM: usize = 60;

fn limits(slots: usize) -> Limits {
    Limits { slots, context: 1024, chunk: 16, batch: slots, vocab: 50, kv: KV }
}

fn engine(executor: impl Executor + 'static) -> EngineLoop {
    let config = EngineConfig::for_limits(executor.limits());
    EngineLoop::new(Box::new(executor), config)
}

fn submit(engine_loop: &mut EngineLoop, prompt: &[u32], max_tokens: usize) -> Recorder {
    let sink = Recorder::new();
    let request = Request::greedy(prompt.to_vec(), max_tokens, sink.clone());
    engine_loop.submit(request).unwrap();
    sink
}

fn drain(engine_loop: &mut EngineLoop) {
    while engine_loop.step() == Work::Busy {
        invariant::check(&engine_loop.snapshot()).unwrap();
    }
}

fn usage(sink: &Recorder) -> Usage {
    sink.recording().ends[0].1
}

fn alone(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let mut engine_loop = engine(FakeExecutor::new(limits(1)));
    let sink = submit(&mut engine_loop, prompt, max_tokens);
    drain(&mut engine_loop);
    sink.recording().tokens
}

/// Returns tokens in an order that is distinct for each number.
fn words(number: usize, range: Range<usize>) -> impl Iterator<Item = u32> {
    range.map(move |i| ((number * 17 + i * i * 7 + i) % 50) as u32)
}

/// Returns a system prompt that all conversations share, followed by `own` tokens of one conversation.
fn conversation(number: usize, own: usize) -> Vec<u32> {
    words(0, 0..SYSTEM).chain(words(number + 1, 0..own)).collect()
}

#[test]
fn an_agent_s_turns_read_hardly_more_than_their_new_tokens() {
    let mut engine_loop = engine(FakeExecutor::new(limits(2)));
    let mut history = conversation(0, 0);
    let mut new = history.len();
    for turn in 0..20 {
        let user: Vec<u32> = words(turn + 2, 0..12).collect();
        new += user.len();
        history.extend(user);
        let sink = submit(&mut engine_loop, &history, 9);
        drain(&mut engine_loop);
        assert_eq!(sink.recording().tokens, alone(&history, 9));
        history.extend(sink.recording().tokens);
    }
    let read = engine_loop.stats().prompt_tokens as usize;
    assert!(read * 10 <= new * 11, "{read} tokens were read for {new} new ones");
}

#[test]
fn interleaved_conversations_each_keep_their_own_tail() {
    for slots in [4, 6] {
        let mut engine_loop = engine(FakeExecutor::new(limits(slots)));
        let mut histories: Vec<Vec<u32>> = (0..4).map(|number| conversation(number, 20)).collect();
        for turn in 0..6 {
            for (number, history) in histories.iter_mut().enumerate() {
                let sink = submit(&mut engine_loop, history, 7);
                drain(&mut engine_loop);
                let usage = usage(&sink);
                let expected = match (turn, number) {
                    (0, 0) => 0,
                    (0, _) => SYSTEM,
                    // All but the last token of the previous answer and the 10 new tokens of the user.
                    _ => history.len() - 1 - 10,
                };
                assert_eq!(usage.cached_tokens, expected, "turn {turn} of {number} in {slots} slots");
                assert_eq!(sink.recording().tokens, alone(history, 7));
                history.extend(sink.recording().tokens);
                history.extend(words(number + 9 * turn, 3..13));
            }
        }
    }
}

#[test]
fn prompts_that_arrive_together_run_their_prefix_once() {
    let mut engine_loop = engine(FakeExecutor::new(limits(4)));
    let prompts: Vec<Vec<u32>> = (0..4).map(|number| conversation(number, 10)).collect();
    let sinks: Vec<Recorder> = prompts.iter().map(|prompt| submit(&mut engine_loop, prompt, 5)).collect();
    let whole = submit(&mut engine_loop, &prompts[0], 5);
    drain(&mut engine_loop);
    for (prompt, sink) in prompts.iter().zip(&sinks) {
        assert_eq!(sink.recording().tokens, alone(prompt, 5));
    }
    assert_eq!(engine_loop.stats().prompt_tokens, (SYSTEM + 4 * 10) as u64);
    // Nothing of the repeated prompt runs.
    assert_eq!((usage(&whole).cached_tokens, whole.recording().tokens), (70, alone(&prompts[0], 5)));
}

#[test]
fn a_prefix_is_taken_over_where_memory_has_no_room_for_a_copy() {
    let kv = KvLimits { budget: 160, ..limits(4).kv };
    let mut engine_loop = engine(FakeExecutor::new(Limits { kv, ..limits(4) }));
    for number in 0..6 {
        let prompt = conversation(number, 30);
        let sink = submit(&mut engine_loop, &prompt, 5);
        drain(&mut engine_loop);
        assert_eq!(usage(&sink).cached_tokens, if number == 0 { 0 } else { SYSTEM });
        assert_eq!(sink.recording().tokens, alone(&prompt, 5));
    }
}

#[test]
fn a_copy_that_fails_costs_time_and_no_answer() {
    let stuck = Fault::Error(StepError::Device { message: "stuck".into() });
    for (fault, truncated) in [
        (Fault::Error(StepError::bad_plan("no")), Fault::None),
        (Fault::Error(StepError::OutOfMemory { rows: 1, capacity: 8, wanted: 9 }), Fault::None),
        (Fault::Lost, Fault::None),
        (stuck.clone(), stuck),
    ] {
        let mut executor = FakeExecutor::new(limits(3));
        executor.copy_faults = [fault.clone()].into();
        executor.truncate_faults = [truncated].into();
        let mut engine_loop = engine(executor);
        let sinks: Vec<Recorder> =
            (0..3).map(|number| submit(&mut engine_loop, &conversation(number, 10), 5)).collect();
        drain(&mut engine_loop);
        for (number, sink) in sinks.iter().enumerate() {
            assert_eq!(sink.recording().tokens, alone(&conversation(number, 10), 5), "{fault:?}");
        }
    }
}

#[test]
fn an_executor_that_copies_nothing_runs_the_prefix_again() {
    let mut engine_loop = engine(ClosedExecutor(FakeExecutor::new(limits(3))));
    for number in 0..3 {
        let prompt = conversation(number, 10);
        let sink = submit(&mut engine_loop, &prompt, 5);
        drain(&mut engine_loop);
        assert_eq!(sink.recording().tokens, alone(&prompt, 5));
    }
}
