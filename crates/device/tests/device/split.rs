//! Two joined executors compute the same as one, whichever of them ran which tokens.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::VecDeque;

use narthex_device::{
    DeviceError,
    ep::Device,
    split::{SplitExecutor, SplitOptions},
    static_shapes::{Form, StaticExecutor},
};
use narthex_engine::{
    config::EngineConfig,
    engine_loop::{EngineLoop, Work},
    executor::{Executor, KvBlock, KvCopy, KvLimits, KvRows, Limits, LogitRows, StepError, StepPlan},
    request::{Request, Sampling},
};
use narthex_spec::{KvPrecision, Scheme, SlotId, TokenId, recipe::FixedShapes};
use narthex_testkit::{
    executor::{FakeExecutor, Fault, Watch},
    invariant,
    sink::Recorder,
};

use crate::support::{Package, fixed::open, prompt, relative};

/// Maximum relative L2 distances: between half and single precision, between a cache of integers and single precision,
/// and within single precision for another division into steps.
const HALF: f32 = 0.01;
const INTEGERS: f32 = 0.05;
const SINGLE: f32 = 1e-5;

fn limits() -> Limits {
    let kv = KvLimits { bytes_per_token: 3, bytes_per_slot: 0, step: 8, budget: 3 * 8 * 40 };
    Limits { slots: 4, context: 64, chunk: 10, batch: 3, vocab: 30, kv }
}

fn split(prefill: impl Executor + 'static, decode: impl Executor + 'static, short: usize) -> SplitExecutor {
    SplitExecutor::new(Box::new(prefill), Box::new(decode), SplitOptions { break_even: short }).unwrap()
}

/// Returns two fakes joined, and a view of the slots of each.
fn fakes(short: usize) -> (SplitExecutor, [Watch; 2]) {
    let (a, b) = (FakeExecutor::new(limits()), FakeExecutor::new(limits()));
    let watches = [a.watch(), b.watch()];
    (split(a, b, short), watches)
}

fn run(executor: &mut dyn Executor, spans: &[(u32, usize, &[TokenId], LogitRows)]) -> Vec<Vec<f32>> {
    let mut plan = StepPlan::default();
    spans.iter().for_each(|&(slot, at, tokens, wanted)| plan.push(SlotId(slot), at, tokens, wanted));
    let logits = executor.step(&plan).unwrap_or_else(|error| panic!("{error}"));
    (0..logits.rows()).map(|row| logits.row(row).to_vec()).collect()
}

#[test]
fn mixed_plans_give_what_one_executor_gives_and_hand_over_once() {
    let mut alone = FakeExecutor::new(limits());
    let (mut both, watches) = fakes(4);
    let mut check = |spans: &[(u32, usize, &[TokenId], LogitRows)], lengths: [[usize; 4]; 2]| {
        assert_eq!(run(&mut both, spans), run(&mut alone, spans), "{spans:?}");
        assert_eq!(watches.each_ref().map(Watch::lengths), lengths, "{spans:?}");
    };
    check(&[(0, 0, &[1, 2, 3, 4, 5], LogitRows::Nothing)], [[5, 0, 0, 0], [0; 4]]);
    // A single token moves the prompt to decode; a short prompt goes there at once.
    check(
        &[(1, 0, &[7, 8, 9], LogitRows::All), (2, 0, &[1; 6], LogitRows::All), (0, 5, &[6], LogitRows::Last)],
        [[5, 0, 6, 0], [6, 3, 0, 0]],
    );
    check(
        &[
            (2, 6, &[4], LogitRows::Last),
            (0, 6, &[1, 2, 3, 4], LogitRows::Last),
            (3, 0, &[2], LogitRows::Last),
        ],
        [[10, 0, 6, 0], [6, 3, 7, 1]],
    );
    check(
        &[(0, 10, &[3], LogitRows::Last), (2, 7, &[3], LogitRows::Nothing)],
        [[10, 0, 6, 0], [11, 3, 8, 1]],
    );
}

#[test]
fn both_sides_are_cut_back_and_go_on() {
    let (mut both, watches) = fakes(0);
    run(&mut both, &[(0, 0, &[1, 2, 3, 4, 5, 6], LogitRows::Last)]);
    run(&mut both, &[(0, 6, &[7], LogitRows::Last)]);
    both.truncate(SlotId(0), 4).unwrap();
    assert_eq!(watches.each_ref().map(|watch| watch.lengths()[0]), [4, 4]);
    let mut alone = FakeExecutor::new(limits());
    run(&mut alone, &[(0, 0, &[1, 2, 3, 4], LogitRows::Last)]);
    for spans in [(0, 4, &[9, 8, 7][..], LogitRows::All), (0, 7, &[5][..], LogitRows::Last)] {
        assert_eq!(run(&mut both, &[spans]), run(&mut alone, &[spans]));
    }
    both.truncate(SlotId(0), 0).unwrap();
    assert_eq!(watches.each_ref().map(|watch| watch.lengths()[0]), [0, 0]);
    assert!(both.truncate(SlotId(0), 1).is_err() && both.truncate(SlotId(4), 0).is_err());
}

#[test]
fn blocks_written_take_the_place_of_what_was_there() {
    let (mut both, _) = fakes(0);
    let mut other = FakeExecutor::new(limits());
    run(&mut other, &[(0, 0, &[1, 2, 9, 9], LogitRows::Last)]);
    run(&mut both, &[(1, 0, &[1, 2, 3, 4, 5], LogitRows::Last)]);
    both.write_kv(SlotId(1), 2, &other.read_kv(SlotId(0), 2..4).unwrap()).unwrap();
    assert_eq!(both.read_kv(SlotId(1), 0..4).unwrap(), other.read_kv(SlotId(0), 0..4).unwrap());
    assert!(both.read_kv(SlotId(1), 0..5).is_err());
    assert_eq!(
        run(&mut both, &[(1, 4, &[6, 7], LogitRows::All)]),
        run(&mut other, &[(0, 4, &[6, 7], LogitRows::All)])
    );
}

#[test]
fn a_copy_moves_on_each_side_what_it_holds() {
    let (mut both, watches) = fakes(0);
    run(&mut both, &[(0, 0, &[1, 2, 3, 4, 5, 6], LogitRows::Last), (1, 0, &[1, 2, 9, 9], LogitRows::Last)]);
    run(&mut both, &[(0, 6, &[7], LogitRows::Last)]);
    let copy = |to, tokens| KvCopy { from: SlotId(0), to: SlotId(to), tokens };
    both.copy_kv(&copy(1, 2..7)).unwrap();
    both.copy_kv(&copy(2, 0..5)).unwrap();
    assert_eq!(watches.each_ref().map(Watch::lengths), [[6, 6, 5, 0], [7, 7, 5, 0]]);
    let mut alone = FakeExecutor::new(limits());
    run(
        &mut alone,
        &[(1, 0, &[1, 2, 3, 4, 5, 6, 7], LogitRows::Last), (2, 0, &[1, 2, 3, 4, 5], LogitRows::Last)],
    );
    for spans in [[(1, 7, &[3][..], LogitRows::Last)], [(2, 5, &[8, 9][..], LogitRows::All)]] {
        assert_eq!(run(&mut both, &spans), run(&mut alone, &spans));
    }
    assert!(both.copy_kv(&copy(3, 1..3)).is_err() && both.copy_kv(&copy(0, 0..3)).is_err());
    assert!(both.copy_kv(&copy(4, 0..3)).is_err() && both.copy_kv(&copy(3, 0..8)).is_err());
}

#[test]
fn what_an_answer_goes_on_with_is_verified_where_it_runs() {
    let mut alone = FakeExecutor::new(limits());
    let (mut both, watches) = fakes(0);
    let mut check = |at: usize, tokens: &[TokenId], wanted, lengths: [usize; 2]| {
        let spans = [(0, at, tokens, wanted)];
        assert_eq!(run(&mut both, &spans), run(&mut alone, &spans), "{spans:?}");
        assert_eq!(watches.each_ref().map(|watch| watch.lengths()[0]), lengths, "{spans:?}");
    };
    check(0, &[1, 2, 3], LogitRows::All, [3, 0]);
    // A prompt whose rows are all requested stays with prefill.
    check(3, &[4, 5], LogitRows::All, [5, 0]);
    check(5, &[6], LogitRows::Last, [5, 6]);
    check(6, &[7, 8, 9], LogitRows::All, [5, 9]);
    check(9, &[1, 2], LogitRows::Last, [11, 9]);
}

#[test]
fn a_side_that_cannot_rewind_forgets_where_the_other_knows() {
    let stuck = Fault::Error(StepError::CannotRewind);
    let (mut a, b) = (FakeExecutor::new(limits()), FakeExecutor::new(limits()));
    a.truncate_faults = [stuck.clone(), Fault::None, stuck].into();
    let watch = a.watch();
    let mut both = split(a, b, 0);
    run(&mut both, &[(0, 0, &[1, 2, 3, 4], LogitRows::Last)]);
    run(&mut both, &[(0, 4, &[5], LogitRows::Last)]);
    both.truncate(SlotId(0), 3).unwrap();
    assert_eq!(watch.lengths()[0], 0);
    let mut alone = FakeExecutor::new(limits());
    run(&mut alone, &[(0, 0, &[1, 2, 3], LogitRows::Last)]);
    let next = [(0, 3, &[8, 9][..], LogitRows::Last)];
    assert_eq!(run(&mut both, &next), run(&mut alone, &next));
    // Now prefill has the most tokens, and no other executor has those that must be kept.
    assert_eq!(both.truncate(SlotId(0), 4), Err(StepError::CannotRewind));
    assert_eq!(watch.lengths()[0], 5);
}

/// Many requests over two fakes that fail at times, each compared with its answer from a single fake.
#[test]
fn an_engine_over_a_split_answers_as_over_one_executor() {
    let request = |n: u32, sink: &Recorder| {
        // Prompts share prefixes, so that slots are truncated and reused.
        let prompt = (0..1 + n * 7 % 40).map(|i| (n % 3 * 5 + i) % 30).collect();
        let sampling = Sampling { temperature: 1.0, seed: u64::from(n), ..Sampling::greedy() };
        Request { sampling, ..Request::greedy(prompt, 1 + n as usize % 13, sink.clone()) }
    };
    let answer = |executor: Box<dyn Executor>, numbers: std::ops::Range<u32>| {
        let config = EngineConfig { max_queue: 0, ..EngineConfig::for_limits(executor.limits()) };
        let mut core = EngineLoop::new(executor, config);
        let mut sinks = Vec::new();
        for n in numbers {
            sinks.push(Recorder::new());
            core.submit(request(n, sinks.last().unwrap())).unwrap();
            for _ in 0..n % 4 {
                core.step();
                invariant::check(&core.snapshot()).unwrap();
            }
        }
        while core.step() == Work::Busy {
            invariant::check(&core.snapshot()).unwrap();
        }
        let tokens: Vec<_> = sinks.iter().map(|sink| sink.recording().tokens).collect();
        (tokens, core.stats())
    };
    let full = || Fault::Error(StepError::OutOfMemory { rows: 1, capacity: 8, wanted: 1 });
    // After the first of two faults, the prefix tree and idle slots are emptied; after the second, a sequence is
    // preempted, while several run.
    let faults = |every: usize| -> VecDeque<Fault> {
        let is_fault = |n: usize| n >= every && n % every <= usize::from(n < 200);
        (1..4000).map(|n| if is_fault(n) { full() } else { Fault::None }).collect()
    };
    for short in [0, 5, 100] {
        let (mut a, mut b) = (FakeExecutor::new(limits()), FakeExecutor::new(limits()));
        (a.faults, b.faults) = (faults(13), faults(17));
        let (found, stats) = answer(Box::new(split(a, b, short)), 0..200);
        assert!(stats.cached_tokens > 0 && stats.preemptions > 0, "{stats:?}");
        for (n, found) in (0..).zip(&found) {
            let alone = answer(Box::new(FakeExecutor::new(limits())), n..n + 1).0;
            assert_eq!(*found, alone[0], "request {n}, short {short}");
        }
    }
}

#[test]
fn limits_are_what_both_can_do() {
    let mut other = limits();
    (other.slots, other.context, other.kv) =
        (2, 100, KvLimits { bytes_per_token: 10, bytes_per_slot: 0, step: 12, budget: 10 * 12 * 9 });
    let both = split(FakeExecutor::new(limits()), FakeExecutor::new(other.clone()), 0);
    let found = both.limits();
    assert_eq!((found.slots, found.context, found.chunk, found.batch), (2, 64, 10, 2));
    for rows in 1..=found.slots {
        for tokens in 1..=found.context {
            let fits = |limits: &Limits| {
                limits.kv.bytes(rows, limits.kv.capacity_for(tokens, limits.context)) <= limits.kv.budget
            };
            assert!(!fits(found) || (fits(&limits()) && fits(&other)), "{rows} rows of {tokens}");
        }
    }
    assert!(found.longest() > 40, "{}", found.longest());
    let wide = Limits { vocab: 31, ..limits() };
    let (a, b) = (Box::new(FakeExecutor::new(limits())), Box::new(FakeExecutor::new(wide)));
    let refused = SplitExecutor::new(a, b, SplitOptions { break_even: 0 }).err().unwrap();
    assert!(matches!(refused, DeviceError::Package { .. }), "{refused}");
}

fn fixed(package: &Package) -> StaticExecutor {
    open(package, &Device::Cpu, Form::Graph).unwrap_or_else(|error| panic!("{error}"))
}

fn tiny() -> Package {
    let shapes = FixedShapes { context: 48, shorter: vec![], prefill: vec![4, 16], buckets: vec![8] };
    Package::fixed_llama(Scheme::W8, shapes)
}

#[test]
fn a_model_on_two_executors_agrees_with_one_teacher_forced() {
    let package = tiny();
    let tokens = prompt(3, 40);
    let expected = run(&mut package.executor(), &[(0, 0, &tokens, LogitRows::All)]);
    let check = |mut both: SplitExecutor, bound: f32, pair: &str| {
        // A prompt, an answer, another long span, and a slot that is truncated in between.
        let mut at = 0;
        for length in [13, 1, 1, 9, 1, 3, 10, 1, 1] {
            if at == 15 {
                run(&mut both, &[(1, at, &tokens[at..at + 2], LogitRows::Last)]);
                both.truncate(SlotId(1), at).unwrap();
            }
            // A long span in the middle goes back to prefill, which returns its last row.
            let wanted = if length > 8 && at > 0 { LogitRows::Last } else { LogitRows::All };
            let rows = run(&mut both, &[(1, at, &tokens[at..at + length], wanted)]);
            // A slot with a copy continues like the original.
            both.copy_kv(&KvCopy { from: SlotId(1), to: SlotId(0), tokens: at..at + length }).unwrap();
            let copied = run(&mut both, &[(0, at + length, &tokens[..2], LogitRows::Last)]);
            let original = run(&mut both, &[(1, at + length, &tokens[..2], LogitRows::Last)]);
            assert_eq!(copied, original, "{pair}, {} tokens", at + length);
            [0, 1].into_iter().for_each(|slot| both.truncate(SlotId(slot), at + length).unwrap());
            let first = at + length - rows.len();
            for (index, row) in rows.iter().enumerate() {
                let found = relative(row, &expected[first + index]);
                assert!(found <= bound, "{pair}, token {}: {found}", first + index);
            }
            at += length;
        }
        assert_eq!(at, tokens.len());
    };
    check(split(package.executor(), package.executor(), 0), SINGLE, "dynamic to dynamic");
    check(split(package.executor(), fixed(&package), 0), HALF, "dynamic to fixed");
    check(split(fixed(&package), package.executor(), 0), HALF, "fixed to dynamic");
    check(split(fixed(&package), fixed(&package), 0), HALF, "fixed to fixed");
    let half = tiny().with_cache(KvPrecision::F16);
    check(split(half.executor(), half.executor(), 0), HALF, "half to half");
    check(split(half.executor(), package.executor(), 0), HALF, "half to single");
    check(split(package.executor(), half.executor(), 0), HALF, "single to half");
    check(split(fixed(&package), half.executor(), 0), HALF, "fixed to half");
    let integers = tiny().with_cache(KvPrecision::I8);
    check(split(integers.executor(), integers.executor(), 0), INTEGERS, "integers to integers");
    check(split(integers.executor(), package.executor(), 0), INTEGERS, "integers to single");
    check(split(package.executor(), integers.executor(), 0), INTEGERS, "single to integers");
    check(split(fixed(&package), integers.executor(), 0), INTEGERS, "fixed to integers");
    check(split(integers.executor(), fixed(&package), 0), INTEGERS, "integers to fixed");
}

#[test]
fn blocks_that_do_not_fit_are_refused_by_both_kinds() {
    let package = tiny();
    let mut from = package.executor();
    run(&mut from, &[(0, 0, &prompt(1, 10), LogitRows::Nothing)]);
    let block = from.read_kv(SlotId(0), 0..10).unwrap();
    let check = |executor: &mut dyn Executor| {
        let fewer = KvBlock::new(10, block.layers()[1..].to_vec()).unwrap();
        let mut refused = |slot, at, block: &KvBlock, expect: &str| {
            let error = executor.write_kv(SlotId(slot), at, block).unwrap_err();
            let words = error.to_string();
            assert!(matches!(error, StepError::BadPlan { .. }) && words.contains(expect), "{words}");
        };
        refused(0, 0, &fewer, "layers of keys and values");
        refused(0, 1, &block, "found 10 at 1");
        refused(9, 0, &block, "slot 9 is unknown");
        assert!(executor.read_kv(SlotId(0), 0..1).is_err() && executor.read_kv(SlotId(9), 0..1).is_err());
        executor.write_kv(SlotId(2), 0, &block).unwrap();
        let read = executor.read_kv(SlotId(2), 3..10).unwrap();
        let expected = from.read_kv(SlotId(0), 3..10).unwrap();
        for (found, expected) in read.layers().iter().zip(expected.layers()) {
            for (found, expected) in [(&found.keys, &expected.keys), (&found.values, &expected.values)] {
                let limit = match found {
                    KvRows::F32(_) => 0.0,
                    KvRows::F16(_) => 1e-3,
                    KvRows::I8 { .. } => 1e-2,
                };
                assert!(relative(&found.to_f32(), &expected.to_f32()) <= limit);
            }
        }
    };
    check(&mut package.executor());
    check(&mut fixed(&package));
    let package = package.with_cache(KvPrecision::F16);
    check(&mut package.executor());
    check(&mut package.with_cache(KvPrecision::I8).executor());
}
