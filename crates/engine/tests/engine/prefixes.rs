//! Prefixes shared between conversations: no prefix runs twice while a slot or the prefix tree has it, and answers do
//! not change.

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

/// Minimum length of a prefix that is copied to another slot.
const MIN_COPY: usize = 16;

fn limits(slots: usize) -> Limits {
    Limits { slots, context: 1024, chunk: 16, batch: slots, vocab: 50, kv: KV }
}

fn alone(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let mut engine_loop = engine(FakeExecutor::new(limits(1)));
    let sink = submit(&mut engine_loop, prompt, max_tokens);
    drain(&mut engine_loop);
    sink.recording().tokens
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

/// Answers each conversation in turn, and returns the number of tokens that were found for each.
fn found_in_turn(engine_loop: &mut EngineLoop, conversations: &[Vec<u32>]) -> Vec<usize> {
    let answer = |conversation: &Vec<u32>| {
        let sink = submit(engine_loop, conversation, 3);
        drain(engine_loop);
        assert_eq!(sink.recording().tokens, alone(conversation, 3));
        usage(&sink).cached_tokens
    };
    conversations.iter().map(answer).collect()
}

#[test]
fn many_more_conversations_than_slots_are_remembered() {
    let limits = Limits { context: 4096, chunk: 512, vocab: 64, ..limits(8) };
    let mut engine_loop = engine(FakeExecutor::new(limits));
    // No two conversations begin with the same token.
    let conversations: Vec<Vec<u32>> =
        (0..64).map(|number| iter::once(number).chain(words(number as usize, 0..1999)).collect()).collect();
    let sinks: Vec<Recorder> =
        conversations.iter().map(|conversation| submit(&mut engine_loop, conversation, 3)).collect();
    drain(&mut engine_loop);
    for sink in &sinks {
        assert_eq!(usage(sink).cached_tokens, 0);
    }
    let read = engine_loop.stats().prompt_tokens;
    for (conversation, first) in conversations.iter().zip(&sinks) {
        let sink = submit(&mut engine_loop, &[&conversation[..], &[9, 8, 7]].concat(), 3);
        drain(&mut engine_loop);
        assert!(usage(&sink).cached_tokens >= 2000, "{:?}", usage(&sink));
        assert_eq!(first.recording().tokens.len(), 3);
    }
    assert!(engine_loop.stats().prompt_tokens - read <= 3 * 64);
    assert!(engine_loop.stats().prefix_bytes >= 56 * 2000, "{:?}", engine_loop.stats());
}

#[test]
fn agents_share_the_memory_of_their_system_prompt() {
    let mut engine_loop = engine(FakeExecutor::new(limits(2)));
    let agents: Vec<Vec<u32>> = (0..40).map(|number| conversation(number, 20)).collect();
    found_in_turn(&mut engine_loop, &agents);
    // Two agents are in slots. Each has its own prompt and all tokens of its answer but the last.
    assert_eq!(engine_loop.stats().prefix_bytes, SYSTEM + 38 * (20 + 2));
    assert_eq!(found_in_turn(&mut engine_loop, &agents), [SYSTEM + 20 - 1; 40]);
}

#[test]
fn the_budget_bounds_what_is_remembered_and_the_latest_stays() {
    let kv = KvLimits { budget: 1000, ..limits(2).kv };
    let mut engine_loop = engine(FakeExecutor::new(Limits { kv, ..limits(2) }));
    let conversations: Vec<Vec<u32>> =
        (0..20).map(|number| iter::once(number).chain(words(number as usize, 0..99)).collect()).collect();
    found_in_turn(&mut engine_loop, &conversations);
    let stats = engine_loop.stats();
    assert!((900..=1000).contains(&stats.kv_used_bytes), "{stats:?}");
    let latest: Vec<Vec<u32>> = conversations[13..].to_vec();
    assert!(found_in_turn(&mut engine_loop, &latest).iter().all(|&found| found >= 99));
    // Conversations of longer ago were forgotten.
    assert_eq!(found_in_turn(&mut engine_loop, &conversations[..4]), [0; 4]);
    // A long conversation takes the memory of all others.
    let long: Vec<u32> = words(3, 0..900).collect();
    found_in_turn(&mut engine_loop, std::slice::from_ref(&long));
    assert!(engine_loop.stats().prefix_bytes <= 100, "{:?}", engine_loop.stats());
}

#[test]
fn a_conversation_is_found_by_all_of_its_tokens() {
    let mut engine_loop = engine(FakeExecutor::new(limits(2)));
    let secret: Vec<u32> = words(5, 0..200).collect();
    found_in_turn(&mut engine_loop, std::slice::from_ref(&secret));
    // Other conversations take both slots.
    found_in_turn(&mut engine_loop, &[vec![1; 50], vec![2; 50], vec![3; 50]]);
    for place in (0..200).rev().step_by(9) {
        let mut guess = secret.clone();
        guess[place] = (guess[place] + 1) % 50;
        let found = found_in_turn(&mut engine_loop, std::slice::from_ref(&guess))[0];
        let expected = if place < MIN_COPY { 0..=place } else { place..=place };
        assert!(expected.contains(&found), "{found} of {place}");
    }
}

#[test]
fn an_engine_without_work_releases_its_prefixes() {
    let mut engine_loop = engine(FakeExecutor::new(limits(1)));
    let conversations: Vec<Vec<u32>> =
        (0..4).map(|number| iter::once(number).chain(words(number as usize, 0..99)).collect()).collect();
    found_in_turn(&mut engine_loop, &conversations);
    assert!(engine_loop.stats().prefix_bytes >= 300);
    engine_loop.release_prefixes();
    assert_eq!(engine_loop.stats().prefix_bytes, 0);
    assert_eq!(found_in_turn(&mut engine_loop, &conversations[..2]), [0; 2]);
}

/// Returns faults of copies of keys and values, each with the fault of the truncation that follows.
fn failures_of_copies() -> [(Fault, Fault); 4] {
    let stuck = Fault::Error(StepError::Device { message: "stuck".into() });
    [
        (Fault::Error(StepError::bad_plan("no")), Fault::None),
        (Fault::Error(StepError::OutOfMemory { rows: 1, capacity: 8, wanted: 9 }), Fault::None),
        (Fault::Lost, Fault::None),
        (stuck.clone(), stuck),
    ]
}

#[test]
fn a_restored_prefix_that_fails_costs_time_and_no_answer() {
    for (fault, truncated) in failures_of_copies() {
        let mut executor = FakeExecutor::new(limits(2));
        executor.write_faults = [fault.clone()].into();
        executor.truncate_faults = std::iter::repeat_n(Fault::None, 3).chain([truncated]).collect();
        let mut engine_loop = engine(executor);
        let conversations: Vec<Vec<u32>> =
            (0..4).map(|number| iter::once(number).chain(words(number as usize, 0..99)).collect()).collect();
        found_in_turn(&mut engine_loop, &conversations);
        found_in_turn(&mut engine_loop, &conversations);
        if fault == Fault::Lost {
            // The tree is not in the memory of the device.
            assert!(engine_loop.stats().restored_tokens > 0);
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
    for (fault, truncated) in failures_of_copies() {
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
