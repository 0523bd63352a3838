//! Slots with states, which can be cut only to their checkpoints. Every answer is compared with that of an executor
//! without states, so that an answer from the state of other tokens would differ.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::iter;

use narthex_engine::{
    engine_loop::EngineLoop,
    executor::{KvLimits, Limits, StepError},
};
use narthex_testkit::{
    executor::{ClosedExecutor, FakeExecutor, Fault, KV},
    sink::Recorder,
};

use crate::conversations::{SYSTEM, conversation, drain, engine, submit, usage, words};

/// Number of last tokens of a prompt that run in a span of their own.
const TAIL: usize = 16;

const STATES: KvLimits = KvLimits { bytes_per_slot: 100, ..KV };

fn limits(slots: usize) -> Limits {
    Limits { slots, context: 8192, chunk: 64, batch: slots, vocab: 50, kv: STATES }
}

/// Returns the answer of an executor without states.
fn alone(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let mut engine_loop = engine(FakeExecutor::new(Limits { kv: KV, ..limits(1) }));
    let sink = submit(&mut engine_loop, prompt, max_tokens);
    drain(&mut engine_loop);
    sink.recording().tokens
}

/// Answers a prompt. Returns the answer, and the number of the prompt's tokens that did not run.
fn answer(engine_loop: &mut EngineLoop, prompt: &[u32], max_tokens: usize) -> (Vec<u32>, usize) {
    let sink = submit(engine_loop, prompt, max_tokens);
    drain(engine_loop);
    let tokens = sink.recording().tokens;
    assert_eq!(tokens, alone(prompt, max_tokens));
    (tokens, usage(&sink).cached_tokens)
}

#[test]
fn an_agent_whose_template_drops_reasoning_reads_hardly_more_than_its_new_tokens() {
    // The mark that requests an answer, and what it becomes once there is an answer: the last token differs.
    let mark = [7, 7, 7, 8];
    let past = [7, 7, 7, 9];
    let mut engine_loop = engine(FakeExecutor::new(limits(2)));
    let mut history = conversation(0, 200);
    let mut new = history.len();
    let mut before = 0;
    for turn in 0..20 {
        let user: Vec<u32> = words(turn + 2, 0..150).collect();
        history.extend(&user);
        let prompt = [&history[..], &mark].concat();
        // 40 tokens of reasoning come before the last ten.
        let (answer, cached) = answer(&mut engine_loop, &prompt, 50);
        assert!(turn == 0 || cached == before - TAIL, "turn {turn}: {cached} of {before} tokens");
        before = prompt.len();
        new += user.len() + mark.len();
        history.extend(past);
        history.extend(&answer[40..]);
        new += 10;
    }
    let read = engine_loop.stats().prompt_tokens as usize;
    assert!(read * 10 <= new * 11, "{read} tokens were read for {new} new ones");
}

#[test]
fn a_conversation_that_continues_reads_only_its_new_tokens() {
    let mut engine_loop = engine(FakeExecutor::new(limits(2)));
    let mut history = conversation(0, 0);
    for turn in 0..20 {
        let before = history.len();
        history.extend(words(turn + 2, 0..12));
        let (answer, cached) = answer(&mut engine_loop, &history, 9);
        // The last token of an answer has not run.
        assert_eq!(cached, if turn == 0 { 0 } else { before - 1 });
        history.extend(answer);
    }
}

#[test]
fn an_earlier_message_that_changes_is_read_from_a_checkpoint_before_it() {
    let mut engine_loop = engine(FakeExecutor::new(limits(1)));
    let whole: Vec<u32> = words(3, 0..2000).collect();
    answer(&mut engine_loop, &whole, 3);
    for place in [1990, 1500, 1100] {
        let mut changed = whole.clone();
        changed[place] = 49 - changed[place];
        let (_, cached) = answer(&mut engine_loop, &changed, 3);
        assert!(cached <= place && cached * 3 >= place, "{cached} of {place}");
    }
}

#[test]
fn the_same_prompt_does_not_run_again() {
    let mut engine_loop = engine(FakeExecutor::new(limits(4)));
    let prompt = conversation(1, 90);
    // Several answers to one prompt, and later another one.
    let sinks: Vec<Recorder> = (0..3).map(|_| submit(&mut engine_loop, &prompt, 5)).collect();
    drain(&mut engine_loop);
    for sink in &sinks {
        assert_eq!(sink.recording().tokens, alone(&prompt, 5));
    }
    assert_eq!(answer(&mut engine_loop, &prompt, 9).1, prompt.len());
    assert_eq!(engine_loop.stats().prompt_tokens, prompt.len() as u64);
}

#[test]
fn prompts_that_arrive_together_run_their_prefix_once() {
    let mut engine_loop = engine(FakeExecutor::new(limits(4)));
    let prompts: Vec<Vec<u32>> = (0..4).map(|number| conversation(number, 30)).collect();
    let sinks: Vec<Recorder> = prompts.iter().map(|prompt| submit(&mut engine_loop, prompt, 5)).collect();
    drain(&mut engine_loop);
    for (prompt, sink) in prompts.iter().zip(&sinks) {
        assert_eq!(sink.recording().tokens, alone(prompt, 5));
    }
    assert_eq!(engine_loop.stats().prompt_tokens, (SYSTEM + 4 * 30) as u64);
}

#[test]
fn a_prefix_that_a_second_prompt_needs_is_there_for_the_third() {
    let mut engine_loop = engine(FakeExecutor::new(limits(4)));
    let found: Vec<usize> =
        (0..4).map(|number| answer(&mut engine_loop, &conversation(number, 200), 5).1).collect();
    assert_eq!(found, [0, 0, SYSTEM, SYSTEM]);
}

#[test]
fn a_failed_step_is_rolled_back_to_the_state_before_it() {
    let memory = StepError::OutOfMemory { rows: 1, capacity: 8, wanted: 9 };
    for at in 0..8 {
        let mut executor = FakeExecutor::new(limits(3));
        executor.faults = iter::repeat_n(Fault::None, at).chain([Fault::Error(memory.clone())]).collect();
        let mut engine_loop = engine(executor);
        let prompts: Vec<Vec<u32>> = (0..3).map(|number| words(number + 1, 0..90).collect()).collect();
        let sinks: Vec<Recorder> = prompts.iter().map(|prompt| submit(&mut engine_loop, prompt, 5)).collect();
        drain(&mut engine_loop);
        for (prompt, sink) in prompts.iter().zip(&sinks) {
            assert_eq!(sink.recording().tokens, alone(prompt, 5), "fault in step {at}");
        }
    }
}

#[test]
fn sequences_without_memory_are_preempted_and_answered() {
    // Room for two rows of 72 tokens with their states.
    let kv = KvLimits { budget: 2 * (72 + 100), ..STATES };
    let mut engine_loop = engine(FakeExecutor::new(Limits { kv, ..limits(3) }));
    let prompts: Vec<Vec<u32>> = (0..3).map(|number| words(number + 1, 0..50).collect()).collect();
    let sinks: Vec<Recorder> = prompts.iter().map(|prompt| submit(&mut engine_loop, prompt, 40)).collect();
    drain(&mut engine_loop);
    for (prompt, sink) in prompts.iter().zip(&sinks) {
        assert_eq!(sink.recording().tokens, alone(prompt, 40));
    }
    let stats = engine_loop.stats();
    assert!(stats.preemptions > 0 && stats.kv_used_bytes <= kv.budget, "{stats:?}");
    assert_eq!(stats.kv_slot_bytes, 100);
}

#[test]
fn states_take_their_part_of_the_budget() {
    // Without states, the budget has room for all four conversations.
    let kv = KvLimits { budget: 4 * 120 + 100, ..STATES };
    let mut engine_loop = engine(FakeExecutor::new(Limits { kv, ..limits(4) }));
    for number in 0..4 {
        answer(&mut engine_loop, &words(number + 1, 0..100).collect::<Vec<u32>>(), 5);
        assert!(engine_loop.stats().kv_used_bytes <= kv.budget, "{:?}", engine_loop.stats());
    }
    assert_eq!(answer(&mut engine_loop, &words(4, 0..100).collect::<Vec<u32>>(), 5).1, 100);
    assert_eq!(answer(&mut engine_loop, &words(1, 0..100).collect::<Vec<u32>>(), 5).1, 0);
}

#[test]
fn an_executor_that_copies_nothing_runs_the_prefix_again() {
    let mut engine_loop = engine(ClosedExecutor(FakeExecutor::new(limits(3))));
    for number in 0..3 {
        answer(&mut engine_loop, &conversation(number, 100), 5);
    }
}

#[test]
fn there_are_no_drafts_and_no_prefixes_outside_the_slots() {
    let mut engine_loop = engine(FakeExecutor::new(limits(1)));
    // With an executor without states, this prompt has drafts from earlier text.
    let repeated: Vec<u32> = [1, 2, 3, 4].repeat(20);
    answer(&mut engine_loop, &repeated, 30);
    answer(&mut engine_loop, &conversation(1, 100), 5);
    assert_eq!(answer(&mut engine_loop, &repeated, 30).1, 0);
    let stats = engine_loop.stats();
    assert_eq!((stats.accepted_tokens, stats.rejected_tokens), (0, 0));
    assert_eq!((stats.prefix_bytes, stats.restored_tokens), (0, 0));
}
