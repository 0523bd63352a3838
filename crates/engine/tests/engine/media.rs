//! Prompts with media: rows of two media are never taken for one another, and answers do not depend on what else ran.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_engine::{
    config::EngineConfig,
    draft_model::DraftModel,
    engine_loop::{EngineLoop, Work},
    executor::{KvLimits, Limits},
    position::{MediaRows, Position},
    request::{Finish, LogProbs, Request, Sampling, SubmitError, Usage},
};
use narthex_spec::Speculation;
use narthex_testkit::{
    executor::{ClosedExecutor, FakeExecutor, Fault, KV},
    invariant,
    sink::Recorder,
};

use crate::conversations::usage;

/// Number of elements in a row of a medium.
const WIDTH: usize = 4;

/// Number of rows of a medium.
const ROWS: usize = 20;

fn limits(slots: usize) -> Limits {
    Limits { slots, context: 512, chunk: 16, batch: slots, vocab: 50, kv: KV }
}

fn fake(limits: Limits) -> FakeExecutor {
    let mut executor = FakeExecutor::new(limits);
    executor.media_width = Some(WIDTH);
    executor
}

fn engine(executor: FakeExecutor) -> EngineLoop {
    let config = EngineConfig::for_limits(&limits(executor.watch().lengths().len()));
    EngineLoop::new(Box::new(executor), config)
}

/// Returns a medium whose rows differ from those of every other number.
fn picture(number: u8) -> MediaRows {
    let values = (0..ROWS * WIDTH).map(|i| (i * (usize::from(number) + 3)) as f32).collect();
    MediaRows::new([number; 32], WIDTH, values).unwrap()
}

/// Returns a request with a text, a medium, and another text.
fn request(picture: &MediaRows, question: u32, max_tokens: usize, sink: &Recorder) -> Request {
    let before = Position::of_tokens(&[1, 2, 3, 4, 5]);
    let after = Position::of_tokens(&[6, 7, question, 8]);
    Request {
        prompt: before.into_iter().chain(picture.positions()).chain(after).collect(),
        media: vec![picture.clone()],
        ..Request::greedy(Vec::new(), max_tokens, sink.clone())
    }
}

fn submit(engine_loop: &mut EngineLoop, picture: &MediaRows, question: u32) -> Recorder {
    let sink = Recorder::new();
    engine_loop.submit(request(picture, question, 9, &sink)).unwrap();
    sink
}

fn drain(engine_loop: &mut EngineLoop) {
    for _ in 0..10_000 {
        if engine_loop.step() != Work::Busy {
            return;
        }
        invariant::check(&engine_loop.snapshot()).unwrap();
    }
    panic!("the engine does not come to rest");
}

/// Returns the answer of an engine of its own, without drafts.
fn alone(picture: &MediaRows, question: u32) -> Vec<u32> {
    let config = EngineConfig { speculation: Speculation::Off, ..EngineConfig::for_limits(&limits(1)) };
    let mut engine_loop = EngineLoop::new(Box::new(fake(limits(1))), config);
    let sink = submit(&mut engine_loop, picture, question);
    drain(&mut engine_loop);
    sink.recording().tokens
}

#[test]
fn two_pictures_of_one_size_and_one_question_have_two_answers() {
    let (first, second) = (picture(1), picture(2));
    assert_ne!(alone(&first, 9), alone(&second, 9));
    for slots in [1, 2, 3] {
        let mut engine_loop = engine(fake(limits(slots)));
        // Others take the slots, so that the prefixes come from slots, from copies and from the tree.
        for picture in [&first, &second, &first, &picture(3), &second, &picture(4), &first, &second] {
            let sink = submit(&mut engine_loop, picture, 9);
            drain(&mut engine_loop);
            assert_eq!(sink.recording().tokens, alone(picture, 9), "{slots} slots");
        }
    }
}

#[test]
fn a_second_question_about_a_picture_reads_it_no_second_time() {
    let mut engine_loop = engine(fake(limits(1)));
    for (number, question, cached) in [(1, 9, 0), (1, 10, 27), (2, 10, 5), (1, 11, 27), (2, 11, 27)] {
        let sink = submit(&mut engine_loop, &picture(number), question);
        drain(&mut engine_loop);
        let Usage { prompt_tokens, cached_tokens, .. } = usage(&sink);
        // A prefix of five tokens outside the slot is not copied.
        let cached = if number == 2 && question == 10 { 0..=cached } else { cached..=cached };
        assert!(cached.contains(&cached_tokens) && prompt_tokens == 9 + ROWS, "{:?}", usage(&sink));
        assert_eq!(sink.recording().tokens, alone(&picture(number), question));
    }
}

#[test]
fn answers_are_the_same_in_company_after_losses_and_without_memory() {
    let kv = KvLimits { budget: 120, ..KV };
    let tight = Limits { kv, ..limits(3) };
    for (limits, faults) in [
        (limits(2), vec![]),
        (tight, vec![]),
        (limits(2), vec![Fault::None, Fault::Lost, Fault::None, Fault::None, Fault::Lost]),
    ] {
        let mut executor = fake(limits);
        executor.faults = faults.into();
        let mut engine_loop = engine(executor);
        let all: Vec<(MediaRows, u32)> =
            (0..8).map(|i| (picture(1 + i % 3), 10 + u32::from(i / 4))).collect();
        let sinks: Vec<Recorder> =
            all.iter().map(|(picture, question)| submit(&mut engine_loop, picture, *question)).collect();
        drain(&mut engine_loop);
        for ((picture, question), sink) in all.iter().zip(&sinks) {
            assert_eq!(sink.recording().tokens, alone(picture, *question));
        }
    }
}

#[test]
fn drafts_follow_text_and_end_before_a_picture() {
    for with_model in [false, true] {
        let repetitive = || {
            let mut executor = fake(limits(1));
            executor.looks_back = 1;
            executor
        };
        let mut engine_loop = engine(repetitive());
        if with_model {
            let mut text_only = FakeExecutor::new(limits(1));
            text_only.looks_back = 1;
            let failed = |error: &_| panic!("the draft model failed: {error}");
            engine_loop = engine_loop.with_draft_model(DraftModel::new(Box::new(text_only), failed));
        }
        // The answer repeats the token before the picture.
        let sink = Recorder::new();
        engine_loop.submit(request(&picture(1), 9, 200, &sink)).unwrap();
        drain(&mut engine_loop);
        let plain = Recorder::new();
        let config = EngineConfig { speculation: Speculation::Off, ..EngineConfig::for_limits(&limits(1)) };
        let mut without = EngineLoop::new(Box::new(repetitive()), config);
        without.submit(request(&picture(1), 9, 200, &plain)).unwrap();
        drain(&mut without);
        assert_eq!(sink.recording().tokens, plain.recording().tokens);
        assert!(usage(&sink).accepted_tokens > 50, "{:?}", usage(&sink));
    }
}

/// Answers a prompt of one medium with one token.
fn answer_media(picture: &MediaRows, repetition_penalty: f32) -> Recorder {
    let sink = Recorder::new();
    let request = Request {
        prompt: picture.positions().collect(),
        media: vec![picture.clone()],
        sampling: Sampling { repetition_penalty, ..Sampling::greedy() },
        logprobs: Some(LogProbs { top: 0, prompt: true, tokens: Vec::new() }),
        ..Request::greedy(Vec::new(), 1, sink.clone())
    };
    let mut engine_loop = engine(fake(limits(1)));
    engine_loop.submit(request).unwrap();
    drain(&mut engine_loop);
    sink
}

#[test]
fn penalties_and_reports_are_of_tokens_alone() {
    let is_row = |picture: &MediaRows| (answer_media(picture, 1.0).recording().tokens[0] as usize) < ROWS;
    // The token of the answer has the number of a row, which a penalty of repetitions must not take for a token.
    let picture = (1..100).map(picture).find(is_row).unwrap();
    let plain = answer_media(&picture, 1.0).recording();
    let penalized = answer_media(&picture, 1000.0).recording();
    assert_eq!(penalized.tokens, plain.tokens);
    assert_eq!((plain.prompt.len(), plain.tokens.len()), (0, 1));
}

#[test]
fn media_that_a_model_does_not_take_are_refused() {
    let sink = Recorder::new();
    let refused =
        |executor: FakeExecutor, request: Request| match engine(executor).submit(request).unwrap_err() {
            SubmitError::Media { reason } => reason,
            other => panic!("{other}"),
        };
    let text_only = refused(FakeExecutor::new(limits(1)), request(&picture(1), 9, 1, &sink));
    assert!(text_only.contains("takes only tokens"), "{text_only}");
    let wide = MediaRows::new([9; 32], 2 * WIDTH, vec![0.0; 4 * WIDTH].into()).unwrap();
    let other_width = refused(fake(limits(1)), request(&wide, 9, 1, &sink));
    assert!(other_width.contains("rows of 4 elements, found rows of 8"), "{other_width}");
    let missing = Request { media: Vec::new(), ..request(&picture(1), 9, 1, &sink) };
    assert!(refused(fake(limits(1)), missing).contains("some are missing"));
    // Another medium does not replace it, and neither does a part.
    let other = Request { media: vec![picture(2)], ..request(&picture(1), 9, 1, &sink) };
    assert!(refused(fake(limits(1)), other).contains("some are missing"));
    assert!(sink.recording().ends.is_empty());
}

#[test]
fn an_executor_that_hands_nothing_over_takes_media() {
    let mut executor = fake(limits(2));
    executor.faults = [Fault::None, Fault::Lost].into();
    let config = EngineConfig::for_limits(&limits(2));
    let mut engine_loop = EngineLoop::new(Box::new(ClosedExecutor(executor)), config);
    for number in [1, 2, 1, 3] {
        let sink = submit(&mut engine_loop, &picture(number), 9);
        drain(&mut engine_loop);
        assert_eq!(sink.recording().tokens, alone(&picture(number), 9));
        assert_eq!(sink.recording().ends[0].0, Finish::Length);
    }
}
