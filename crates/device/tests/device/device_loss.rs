//! Models whose device is lost and reopened, with fakes that lose it on demand.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_device::split::{SplitExecutor, SplitOptions};
use narthex_engine::{
    config::EngineConfig,
    encoder::{Batching, Encoder, EncoderLimits, Rows},
    engine_loop::{EngineLoop, Work},
    executor::{Executor, KvLimits, Limits, LogitRows, StepError, StepPlan},
    request::{Finish, Request},
    supervise::{SupervisedEncoder, SupervisedExecutor},
};
use narthex_spec::{SlotId, TokenId};
use narthex_testkit::{
    encoder::FakeEncoder,
    executor::{FakeExecutor, Fault},
    sink::Recorder,
};

fn lost() -> StepError {
    StepError::Lost { message: "run the graph: NPU crashed again after SSR recovery.".to_owned() }
}

fn supervised(
    executor: Box<dyn Executor>,
    open: impl FnMut() -> Result<Box<dyn Executor>, String> + Send + 'static,
) -> SupervisedExecutor {
    let mut open = open;
    SupervisedExecutor::new(executor).reopened_by(move || Ok(open()?.into()))
}

fn fake(faults: &[Fault]) -> Box<dyn Executor> {
    let kv = KvLimits { bytes_per_token: 1, bytes_per_slot: 0, step: 8, budget: 1 << 20 };
    let limits = Limits { slots: 2, context: 64, chunk: 8, batch: 2, vocab: 50, kv };
    let mut executor = FakeExecutor::new(limits);
    executor.faults = faults.iter().cloned().collect();
    Box::new(executor)
}

/// Returns the answers of an engine with an executor to two prompts.
fn answers(executor: impl Into<SupervisedExecutor>) -> Vec<(Finish, Vec<TokenId>)> {
    let executor = executor.into();
    let config = EngineConfig::for_limits(executor.limits());
    let mut core = EngineLoop::new(executor, config);
    let mut ask = |prompt: &[TokenId]| {
        let sink = Recorder::new();
        let request = Request::greedy(prompt.to_vec(), 9, sink.clone());
        core.submit(request).unwrap();
        sink
    };
    let sinks = [ask(&[1, 2, 3]), ask(&[4; 20])];
    while core.step() == Work::Busy {}
    sinks.map(|sink| (sink.recording().ends[0].0.clone(), sink.recording().tokens)).into()
}

#[test]
fn answers_go_on_where_the_device_was_lost() {
    for step in 0..8 {
        let first: Vec<Fault> =
            std::iter::repeat_n(Fault::None, step).chain([Fault::Error(lost())]).collect();
        let losing = supervised(fake(&first), || Ok(fake(&[])));
        assert_eq!(answers(losing), answers(fake(&[])), "lost at step {step}");
    }
}

#[test]
fn a_split_forgets_both_sides_with_one() {
    for [prefill, decode] in [[2, 99], [99, 3]] {
        let side = |step| {
            let faults: Vec<Fault> =
                std::iter::repeat_n(Fault::None, step).chain([Fault::Error(lost())]).collect();
            Box::new(supervised(fake(&faults), || Ok(fake(&[]))))
        };
        let split = SplitExecutor::new(side(prefill), side(decode), SplitOptions { break_even: 0 }).unwrap();
        assert_eq!(answers(Box::new(split)), answers(fake(&[])));
    }
}

#[test]
fn a_device_that_stays_away_is_an_error_until_it_is_back() {
    let mut tries = 0;
    let open = move || {
        tries += 1;
        if tries < 2 { Err("no device".to_owned()) } else { Ok(fake(&[])) }
    };
    let mut supervised = supervised(fake(&[Fault::Error(lost())]), open);
    let mut plan = StepPlan::default();
    plan.push(SlotId(0), 0, &[1], LogitRows::Last);
    let error = supervised.step(&plan).map(|_| ()).unwrap_err();
    assert!(matches!(&error, StepError::Device { message } if message.contains("again failed: no device")));
    assert_eq!(supervised.truncate(SlotId(0), 0), Ok(()));
    assert!(supervised.read_kv(SlotId(0), 0..1).is_err());
    assert!(matches!(supervised.step(&plan), Err(StepError::Lost { .. })));
    assert!(supervised.step(&plan).is_ok());
}

#[test]
fn other_failures_stay_what_they_are() {
    let refused = StepError::Device { message: "run the graph: out of memory".to_owned() };
    let open = || panic!("it was not lost");
    let mut supervised = supervised(fake(&[Fault::Error(refused.clone())]), open);
    let mut plan = StepPlan::default();
    plan.push(SlotId(0), 0, &[1], LogitRows::Last);
    assert_eq!(supervised.step(&plan).map(|_| ()), Err(refused));
}

#[test]
fn a_batch_runs_once_more() {
    let fresh = || {
        FakeEncoder::new(EncoderLimits {
            max_length: 4,
            max_batch_tokens: 8,
            batching: Batching::Padded,
            rows: Rows::Text,
            width: 3,
        })
    };
    let mut failing = fresh();
    failing.failures = [Some(lost())].into();
    let reopened = move || Ok(SupervisedEncoder::new(Box::new(fresh())));
    let mut supervised = SupervisedEncoder::new(Box::new(failing)).reopened_by(reopened);
    let texts: [&[TokenId]; 2] = [&[1, 2], &[3]];
    assert_eq!(supervised.run_tokens(&texts).unwrap().data, fresh().run_tokens(&texts).unwrap().data);
}
