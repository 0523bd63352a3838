//! Slots with states, on the graphs of Qwen3.5 and Granite 4: their logits are those of the reference in any division into
//! steps, after a cut to a checkpoint, in copies and in batches, and an engine reuses prefixes up to checkpoints.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::LazyLock;

use narthex_device::{
    DeviceError, bytes_per_slot,
    dynamic::{DynamicExecutor, ExecutorOptions},
    ep::{Device, WebGpuOptions},
    split::{SplitExecutor, SplitOptions},
};
use narthex_engine::{
    config::EngineConfig,
    engine_loop::{EngineLoop, Work},
    executor::{Executor, KvCopy, LogitRows, StepError, StepPlan},
    request::Request,
};
use narthex_spec::{Recipe, Scheme, SlotId, TokenId};
use narthex_testkit::sink::Recorder;

use crate::support::{
    OPTIONS, Package, alone,
    families::{Format, TOKENS, logits, package, tokens},
    farthest, runtime, step,
};

/// Maximum relative L2 distance to the reference.
const SINGLE: f32 = 1e-3;

/// The package of a family.
struct Model {
    family: &'static str,
    package: Package,
}

static MODELS: LazyLock<[Model; 3]> = LazyLock::new(|| {
    ["qwen3.5", "granite-4-h", "granite-4-h-moe"].map(|family| Model {
        family,
        package: package(family, Format::Safetensors, Recipe::new(Scheme::F32), None),
    })
});

/// Returns the package of Qwen3.5.
fn qwen() -> &'static Package {
    &MODELS[0].package
}

/// Runs tokens of slot 0 in spans of at most `chunk`, each of which ends with a checkpoint. Returns the logits after each.
fn run(executor: &mut DynamicExecutor, at: usize, tokens: &[TokenId], chunk: usize) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    for (index, part) in tokens.chunks(chunk).enumerate() {
        let mut plan = StepPlan::default();
        plan.push(SlotId(0), at + index * chunk, part, LogitRows::All);
        plan.spans[0].keeps_state = true;
        let logits = executor.step(&plan).unwrap();
        rows.extend((0..logits.rows()).map(|row| logits.row(row).to_vec()));
    }
    rows
}

impl Model {
    fn agree(&self, found: &[Vec<f32>], first: usize, how: &str) {
        let distance = farthest(found, &logits(self.family)[first..first + found.len()]);
        assert!(distance <= SINGLE, "{} {how}: {distance}", self.family);
    }
}

#[test]
fn every_division_into_steps_gives_the_reference_s_logits() {
    for model in MODELS.iter() {
        for chunk in [TOKENS, 17, 4, 2, 1] {
            model.agree(
                &run(&mut model.package.executor(), 0, &tokens(), chunk),
                0,
                &format!("in chunks of {chunk}"),
            );
        }
    }
}

#[test]
fn a_row_of_a_batch_does_not_depend_on_the_rows_beside_it() {
    for model in MODELS.iter() {
        let tokens = tokens();
        let starts = [28, 9, 17];
        let single = |slot: u32, start: usize, ahead: usize| {
            (slot, start + ahead, &tokens[start + ahead..][..1], LogitRows::Last)
        };
        let mut apart = model.package.executor();
        let mut together = model.package.executor();
        for executor in [&mut apart, &mut together] {
            for (slot, start) in (0..).zip(starts) {
                step(executor, &[(slot, 0, &tokens[..start], LogitRows::Nothing)]).unwrap();
            }
        }
        for ahead in 0..TOKENS - starts[0] {
            let parts: Vec<_> = (0..).zip(starts).map(|(slot, start)| single(slot, start, ahead)).collect();
            let rows = step(&mut together, &parts).unwrap();
            for ((part, row), start) in parts.iter().zip(&rows).zip(starts) {
                model.agree(std::slice::from_ref(row), start + ahead, "in a batch");
                // ONNX Runtime's experts compute the rows of a batch that use the same expert together.
                if model.family != "granite-4-h-moe" {
                    assert_eq!(step(&mut apart, &[*part]).unwrap()[0], *row, "{start} + {ahead}");
                }
            }
        }
    }
}

#[test]
fn a_slot_that_was_cut_to_a_checkpoint_continues_from_its_state() {
    for model in MODELS.iter() {
        let tokens = tokens();
        let mut executor = model.package.executor();
        let whole = run(&mut executor, 0, &tokens[..36], 12);
        let last = step(&mut executor, &[(0, 36, &tokens[36..37], LogitRows::Last)]).unwrap();
        assert_eq!([11, 12, 35, 36, 37].map(|at| executor.rewind_length(SlotId(0), at)), [0, 12, 24, 36, 37]);
        assert_eq!(executor.truncate(SlotId(0), 30), Err(StepError::CannotRewind));
        for length in [36, 24, 12] {
            executor.truncate(SlotId(0), length).unwrap();
            // Other tokens change the state, and are removed again.
            step(&mut executor, &[(0, length, &[3, 1, 4], LogitRows::Last)]).unwrap();
            executor.truncate(SlotId(0), length).unwrap();
            let again = run(&mut executor, length, &tokens[length..36.max(length + 1)], 12);
            let expected = [&whole[..], &last].concat();
            assert_eq!(again, expected[length..36.max(length + 1)], "from {length}");
        }
        executor.truncate(SlotId(0), 0).unwrap();
        assert_eq!(run(&mut executor, 0, &tokens[..36], 12), whole);
    }
}

#[test]
fn a_copy_up_to_a_checkpoint_continues_on_its_own() {
    for model in MODELS.iter() {
        let tokens = tokens();
        let mut executor = model.package.executor();
        run(&mut executor, 0, &tokens[..30], 10);
        let copy = |from, end| KvCopy { from: SlotId(from), to: SlotId(3), tokens: 0..end };
        let refused = executor.copy_kv(&copy(0, 15)).unwrap_err().to_string();
        assert!(refused.contains("up to a checkpoint"), "{refused}");
        executor.copy_kv(&copy(0, 20)).unwrap();
        let rows = step(&mut executor, &[(3, 20, &tokens[20..], LogitRows::All)]).unwrap();
        model.agree(&rows, 20, "a copy");
        let rows = step(&mut executor, &[(0, 30, &tokens[30..], LogitRows::All)]).unwrap();
        model.agree(&rows, 30, "the source");
        // The copy has the checkpoints before its end.
        executor.truncate(SlotId(3), 10).unwrap();
        model.agree(
            &step(&mut executor, &[(3, 10, &tokens[10..], LogitRows::All)]).unwrap(),
            10,
            "a copy, cut",
        );
    }
}

#[test]
fn a_refused_step_leaves_the_states() {
    let tokens = tokens();
    let state = bytes_per_slot(&qwen().manifest.graphs[0].kv);
    let token: usize = qwen().manifest.graphs[0].kv.iter().map(|layer| layer.bytes_per_token()).sum();
    // Room for one row of 32 tokens with its states.
    let options = ExecutorOptions { kv_budget: state + 32 * token, ..OPTIONS };
    let mut executor = qwen().executor_with(&options);
    let kv = executor.limits().kv;
    assert_eq!((kv.bytes_per_slot, kv.bytes_per_token, kv.tokens_alone(1000)), (state, token, 32));
    run(&mut executor, 0, &tokens[..20], 20);
    let refused = step(
        &mut executor,
        &[(0, 20, &tokens[20..21], LogitRows::Last), (1, 0, &tokens[..4], LogitRows::Last)],
    );
    assert!(matches!(refused, Err(StepError::OutOfMemory { .. })), "{refused:?}");
    executor.truncate(SlotId(0), 20).unwrap();
    MODELS[0].agree(
        &step(&mut executor, &[(0, 20, &tokens[20..32], LogitRows::All)]).unwrap(),
        20,
        "after it",
    );
}

#[test]
fn states_are_not_handed_over() {
    let mut executor = qwen().executor();
    run(&mut executor, 0, &tokens()[..20], 20);
    let refused = executor.read_kv(SlotId(0), 0..20).unwrap_err().to_string();
    assert!(refused.contains("layers with states cannot hand over"), "{refused}");
    let [prefill, decode] = [(), ()].map(|()| Box::new(qwen().executor()));
    let refused = SplitExecutor::new(prefill, decode, SplitOptions { break_even: 2 }).err().unwrap();
    assert!(refused.to_string().contains("layers with states, which run on one device"), "{refused}");
    let folder = qwen().folder.path();
    let opened = DynamicExecutor::open(
        runtime(),
        folder,
        &qwen().manifest,
        &Device::WebGpu(WebGpuOptions::default()),
        &OPTIONS,
    );
    assert!(matches!(opened.err(), Some(DeviceError::States { .. })));
}

/// Answers a prompt with tokens that are the likeliest. Returns them, and the number of the prompt's tokens that did not
/// run.
fn answer(engine_loop: &mut EngineLoop, prompt: &[TokenId]) -> (Vec<TokenId>, usize) {
    let sink = Recorder::new();
    engine_loop.submit(Request::greedy(prompt.to_vec(), 6, sink.clone())).unwrap();
    while engine_loop.step() == Work::Busy {}
    let recording = sink.recording();
    (recording.tokens, recording.ends[0].1.cached_tokens)
}

#[test]
fn a_conversation_is_read_from_the_checkpoint_before_the_end_of_its_last_prompt() {
    let engine = || {
        let executor = qwen().executor();
        let config = EngineConfig::for_limits(executor.limits());
        EngineLoop::new(Box::new(executor), config)
    };
    let mut engine_loop = engine();
    let mut history = tokens()[..30].to_vec();
    for turn in 0..3 {
        // The mark that requests an answer.
        let prompt = [&history[..], &[5, 6]].concat();
        let (tokens, _) = answer(&mut engine(), &prompt);
        let found = answer(&mut engine_loop, &prompt);
        // The last prompt was ten tokens shorter.
        assert_eq!(
            found,
            (tokens.clone(), if turn == 0 { 0 } else { prompt.len() - 12 - 16 }),
            "turn {turn}"
        );
        // Only the last tokens of the answer stay.
        history.extend(&tokens[3..]);
        history.extend([9, 8, 7, 6, 5, 4, 3, 2, 1]);
    }
    // Two answers to one prompt at the same time.
    let prompt = [&history[..54], &[4, 4]].concat();
    let (tokens, _) = answer(&mut engine(), &prompt);
    let sinks = [(), ()].map(|()| {
        let sink = Recorder::new();
        engine_loop.submit(Request::greedy(prompt.clone(), 6, sink.clone())).unwrap();
        sink
    });
    while engine_loop.step() == Work::Busy {}
    for sink in sinks {
        assert_eq!(sink.recording().tokens, tokens);
    }
}

#[test]
fn weights_of_fewer_bits_give_the_same_in_any_division() {
    let schemes = [Scheme::W8, Scheme::W4];
    for (family, scheme) in
        schemes.into_iter().flat_map(|scheme| [("qwen3.5", scheme), ("granite-4-h", scheme)])
    {
        let recipe = Recipe { accuracy_level: 0, ..Recipe::new(scheme) };
        let package = package(family, Format::Safetensors, recipe, None);
        let whole = run(&mut package.executor(), 0, &tokens(), TOKENS);
        let parts = alone(&package, &tokens(), 7);
        let distance = farthest(&[parts], &whole[TOKENS - 1..]);
        assert!(distance <= SINGLE, "{family} {scheme}: {distance}");
    }
}
