//! Models whose device is lost and comes back, over fakes that are told to lose it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_device::{
    lasting::{LastingEncoder, LastingExecutor, is_loss},
    split::{SplitExecutor, SplitOptions},
};
use narthex_engine::{
    config::EngineConfig,
    core::{Core, Work},
    encoder::{Encoder, EncoderLimits, Rows},
    executor::{Executor, KvLimits, Limits, StepError, StepPlan, Wanted},
    request::{Finish, Request, Sampling},
};
use narthex_spec::{SlotId, TokenId};
use narthex_testkit::{
    encoder::FakeEncoder,
    executor::{FakeExecutor, Mishap},
    sink::Recorder,
};

/// As the plugin's library has it, version 2.7.0.
const LOSS: &str = "run the graph: NPU crashed again after SSR recovery.";

fn lost() -> StepError {
    StepError::Device { message: LOSS.to_owned() }
}

fn fake(mishaps: &[Mishap]) -> Box<dyn Executor> {
    let kv = KvLimits { bytes_per_token: 1, step: 8, budget: 1 << 20 };
    let limits = Limits { slots: 2, context: 64, chunk: 8, batch: 2, vocab: 50, kv };
    let mut executor = FakeExecutor::new(limits);
    executor.mishaps = mishaps.iter().cloned().collect();
    Box::new(executor)
}

/// What an engine over an executor answers to two prompts.
fn answers(executor: Box<dyn Executor>) -> Vec<(Finish, Vec<TokenId>)> {
    let config = EngineConfig::for_limits(executor.limits());
    let mut core = Core::new(executor, config);
    let mut ask = |prompt: &[TokenId]| {
        let sink = Recorder::new();
        let request = Request {
            prompt: prompt.to_vec(),
            max_tokens: 9,
            stop: vec![],
            sampling: Sampling::greedy(),
            logprobs: None,
            sink: Box::new(sink.clone()),
        };
        core.submit(request).unwrap();
        sink
    };
    let sinks = [ask(&[1, 2, 3]), ask(&[4; 20])];
    while core.step() == Work::Busy {}
    sinks.map(|sink| (sink.heard().ends[0].0.clone(), sink.heard().tokens)).into()
}

#[test]
fn answers_go_on_where_the_device_was_lost() {
    for step in 0..8 {
        let first: Vec<Mishap> =
            std::iter::repeat_n(Mishap::None, step).chain([Mishap::Error(lost())]).collect();
        let losing = LastingExecutor::new(fake(&first), Box::new(|| Ok(fake(&[]))));
        assert_eq!(answers(Box::new(losing)), answers(fake(&[])), "lost at step {step}");
    }
}

#[test]
fn a_split_forgets_both_sides_with_one() {
    for [prefill, decode] in [[2, 99], [99, 3]] {
        let side = |step| {
            let mishaps: Vec<Mishap> =
                std::iter::repeat_n(Mishap::None, step).chain([Mishap::Error(lost())]).collect();
            Box::new(LastingExecutor::new(fake(&mishaps), Box::new(|| Ok(fake(&[])))))
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
    let mut lasting = LastingExecutor::new(fake(&[Mishap::Error(lost())]), Box::new(open));
    let mut plan = StepPlan::default();
    plan.push(SlotId(0), 0, &[1], Wanted::Last);
    let error = lasting.step(&plan).map(|_| ()).unwrap_err();
    assert!(matches!(&error, StepError::Device { message } if message.contains("again failed: no device")));
    assert_eq!(lasting.truncate(SlotId(0), 0), Ok(()));
    assert!(lasting.read_kv(SlotId(0), 0..1).is_err());
    assert!(matches!(lasting.step(&plan), Err(StepError::Lost { .. })));
    assert!(lasting.step(&plan).is_ok());
}

#[test]
fn other_failures_stay_what_they_are() {
    let refused = StepError::Device { message: "run the graph: out of memory".to_owned() };
    let open = || panic!("it was not lost");
    let mut lasting = LastingExecutor::new(fake(&[Mishap::Error(refused.clone())]), Box::new(open));
    let mut plan = StepPlan::default();
    plan.push(SlotId(0), 0, &[1], Wanted::Last);
    assert_eq!(lasting.step(&plan).map(|_| ()), Err(refused));
    assert!(is_loss("DXGI_ERROR_DEVICE_REMOVED (0x887A0005)") && !is_loss("Error code: 1002"));
}

#[test]
fn a_loss_is_known_by_each_of_its_forms() {
    for told in [
        LOSS,
        "NPU crashed. SSR detected during QNN graph execute.",
        "QNN graph execute error. Error code: 1007",
        "Failed to execute. Error: QNN_COMMON_ERROR_SYSTEM_COMMUNICATION: Communication error., Code: 1007",
        "DXGI_ERROR_DEVICE_HUNG (0x887A0006)",
        "ZE_RESULT_ERROR_DEVICE_LOST",
        "A valid external Instance reference no longer exists: Device is lost.",
    ] {
        assert!(is_loss(told), "{told}");
    }
    for told in ["QNN graph execute error. Error code: 6001", "SSR recovery succeeded.", "out of memory"] {
        assert!(!is_loss(told), "{told}");
    }
}

#[test]
fn a_batch_runs_once_more() {
    let fresh =
        || FakeEncoder::new(EncoderLimits { max_length: 4, max_batch_tokens: 8, rows: Rows::Text, width: 3 });
    let mut failing = fresh();
    failing.failures = [Some(lost())].into();
    let mut lasting = LastingEncoder::new(Box::new(failing), Box::new(move || Ok(Box::new(fresh()))));
    let texts: [&[TokenId]; 2] = [&[1, 2], &[3]];
    assert_eq!(lasting.run_tokens(&texts).unwrap().data, fresh().run_tokens(&texts).unwrap().data);
}
