//! The static variant computes the same as the dynamic variant, for any division of its tokens into steps.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_device::{
    dynamic::DynamicExecutor,
    ep::Device,
    placement::GraphPlacement,
    static_shapes::{Form, StaticExecutor},
};
use narthex_engine::{
    encoder::Encoder,
    executor::{Executor, LogitRows, StepError, StepPlan},
};
use narthex_spec::{Ep, Scheme, SlotId, TokenId, manifest::GraphEntry, recipe::FixedShapes};

use crate::support::{
    Package,
    fixed::{open, open_encoder},
    media, prompt, relative, with_media,
};

/// Maximum relative L2 distance between half and single precision.
const HALF: f32 = 0.01;

/// Maximum relative L2 distance between layers in one graph and in several. ONNX Runtime's CPU kernels add and
/// normalise in one operator, in single precision; between graphs, the sum is rounded to half precision.
const PARTED: f32 = 0.002;

fn shapes() -> FixedShapes {
    FixedShapes { context: 48, shorter: vec![], prefill: vec![4, 16], buckets: vec![8, 64] }
}

fn executor(package: &Package) -> StaticExecutor {
    open(package, &Device::Cpu, Form::Graph).unwrap_or_else(|error| panic!("{error}"))
}

fn run(
    executor: &mut impl Executor,
    slot: u32,
    at: usize,
    tokens: &[TokenId],
    wanted: LogitRows,
) -> Vec<Vec<f32>> {
    let mut plan = StepPlan::default();
    plan.push(SlotId(slot), at, tokens, wanted);
    let logits = executor.step(&plan).unwrap();
    (0..logits.rows()).map(|row| logits.row(row).to_vec()).collect()
}

/// Returns the logits of the dynamic variant after every token.
fn expected(package: &Package, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let mut executor: DynamicExecutor = package.executor();
    run(&mut executor, 0, 0, tokens, LogitRows::All)
}

#[test]
fn rows_of_a_medium_run_as_in_variant_a() {
    let package = Package::fixed_llama(Scheme::W8, shapes());
    let mut dynamic = package.executor();
    let width = dynamic.media_width().unwrap();
    let expected = with_media(&mut dynamic, &media(1, width), 64);
    let mut executor = executor(&package);
    assert_eq!(executor.media_width(), Some(width));
    for chunk in [1, 4, 14] {
        let found = with_media(&mut executor, &media(1, width), chunk);
        let largest = found.iter().zip(&expected).map(|(a, b)| relative(a, b)).fold(0.0, f32::max);
        assert!(largest <= HALF, "{largest}");
    }
}

#[test]
fn logits_are_those_of_variant_a_however_tokens_are_cut() {
    for scheme in [Scheme::W8, Scheme::W4, Scheme::F16] {
        let package = Package::fixed_llama(scheme, shapes());
        let tokens = prompt(3, 40);
        let expected = expected(&package, &tokens);
        let mut executor = executor(&package);
        assert_eq!((executor.limits().context, executor.limits().chunk), (48, 16));
        for (slot, cuts) in
            [vec![16, 16, 8], vec![1, 3, 16, 4, 1, 15], vec![5, 11, 1, 1, 16, 6]].iter().enumerate()
        {
            let mut at = 0;
            for &length in cuts {
                let rows = run(&mut executor, slot as u32, at, &tokens[at..at + length], LogitRows::All);
                for (index, row) in rows.iter().enumerate() {
                    let found = relative(row, &expected[at + index]);
                    assert!(found <= HALF, "{scheme} {cuts:?} token {}: {found}", at + index);
                }
                at += length;
            }
        }
        for GraphPlacement { graph, placement } in executor.placements() {
            assert_eq!(placement.ops_per_ep().into_keys().collect::<Vec<_>>(), [Ep::Cpu], "{graph}");
        }
    }
}

#[test]
fn a_sequence_moves_from_context_to_context() {
    let several = FixedShapes { shorter: vec![6, 20], ..shapes() };
    let package = Package::fixed_llama(Scheme::W8, several);
    let layers = package.manifest.graphs.iter().map(|graph| graph.file.as_str());
    let layers: Vec<&str> = layers.filter(|file| file.starts_with("layers")).collect();
    let shapes = ["1x6", "4x6", "1x20", "4x20", "16x20", "1x48", "4x48", "16x48"];
    assert_eq!(layers, shapes.map(|shape| format!("layers-{shape}.onnx")));
    let tokens = prompt(3, 40);
    let expected = expected(&package, &tokens);
    let mut executor = executor(&package);
    assert_eq!((executor.limits().context, executor.limits().chunk), (48, 16));
    let near = |executor: &mut StaticExecutor, slot, at: usize, length: usize| {
        let rows = run(executor, slot, at, &tokens[at..at + length], LogitRows::All);
        for (index, row) in rows.iter().enumerate() {
            let found = relative(row, &expected[at + index]);
            assert!(found <= HALF, "slot {slot}, token {}: {found}", at + index);
        }
    };
    // Two sequences alternate, so that the graphs are bound to each in turn, with different context lengths.
    let mut at = 0;
    for length in [4, 1, 1, 1, 13, 4, 16] {
        near(&mut executor, 0, at, length);
        at += length;
        near(&mut executor, 1, 0, 5);
        executor.truncate(SlotId(1), 0).unwrap();
    }
    // Handed-over tokens are arranged for their length, and a truncated sequence continues with a shorter context.
    let block = executor.read_kv(SlotId(0), 0..18).unwrap();
    executor.write_kv(SlotId(2), 0, &block).unwrap();
    near(&mut executor, 2, 18, 4);
    for left in [19, 5, 3] {
        let before = executor.read_kv(SlotId(0), 0..left).unwrap();
        executor.truncate(SlotId(0), left).unwrap();
        near(&mut executor, 0, left, 1);
        assert_eq!(executor.read_kv(SlotId(0), 0..left).unwrap(), before, "{left} tokens are left");
    }
}

#[test]
fn layers_in_parts_compute_what_they_do_in_one() {
    for scheme in [Scheme::W8, Scheme::W4] {
        let whole = Package::fixed_llama(scheme, shapes());
        let divided = Package::divided_llama(scheme, shapes());
        let files: Vec<&str> = divided.manifest.graphs.iter().map(|graph| graph.file.as_str()).collect();
        let expected = ["layers-1x48.0-0.onnx", "layers-1x48.1-1.onnx", "layers-4x48.0-0.onnx"];
        assert_eq!(files[1..4], expected, "{files:?}");
        let tokens = prompt(3, 40);
        let (mut whole, mut divided) = (executor(&whole), executor(&divided));
        assert_eq!(divided.placements().len(), 7, "two parts for each of three lengths, and a head");
        let mut at = 0;
        let near = |found: Vec<Vec<f32>>, expected: Vec<Vec<f32>>| {
            for (found, expected) in found.iter().zip(&expected) {
                let distance = relative(found, expected);
                assert!(distance <= PARTED, "{scheme}: {distance}");
            }
        };
        for length in [16, 1, 3, 13, 4, 1] {
            let next = &tokens[at..at + length];
            // With two slots, the parts are bound to each in turn.
            let expected = run(&mut whole, 0, at, next, LogitRows::All);
            let found = run(&mut divided, 0, at, next, LogitRows::All);
            assert_eq!(run(&mut divided, 1, at, next, LogitRows::All), found);
            near(found, expected);
            at += length;
        }
        let block = divided.read_kv(SlotId(1), 0..at).unwrap();
        // Keys and values of the first part are equal to those of the whole, bit for bit. Those of the others depend on
        // its rounded states.
        assert_eq!(whole.read_kv(SlotId(0), 0..at).unwrap().layers()[0], block.layers()[0]);
        // After a handover, both slots continue equally.
        let rest = &tokens[at..];
        let expected = run(&mut divided, 1, at, rest, LogitRows::Last);
        divided.write_kv(SlotId(0), 0, &block).unwrap();
        assert_eq!(run(&mut divided, 0, at, rest, LogitRows::Last), expected);
    }
}

#[test]
fn parts_that_do_not_make_up_the_model_are_refused() {
    let mut package = Package::divided_llama(Scheme::W8, shapes());
    let graphs = package.manifest.graphs.clone();
    let mut check = |change: &dyn Fn(&mut Vec<GraphEntry>), expected: &str| {
        package.manifest.graphs.clone_from(&graphs);
        change(&mut package.manifest.graphs);
        let error = open(&package, &Device::Cpu, Form::Graph).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(
        &|graphs| graphs.retain(|graph| !graph.file.contains("4x48.1-1")),
        "graphs of 2 layers in all, found 1",
    );
    check(&|graphs| graphs.retain(|graph| !graph.file.contains("4x48.0-0")), "a graph with layer 0");
    check(&|graphs| graphs.push(graphs[2].clone()), "a graph with layer 2, found none, or two");
    check(&|graphs| graphs.retain(|graph| !graph.file.contains("layers-1x")), "a graph for one token");
}

#[test]
fn a_slot_that_is_cut_back_forgets() {
    let package = Package::fixed_llama(Scheme::W8, shapes());
    let mut executor = executor(&package);
    let (kept, dropped, new) = (prompt(1, 10), prompt(2, 12), prompt(4, 9));
    run(&mut executor, 1, 0, &kept, LogitRows::Nothing);
    run(&mut executor, 1, 10, &dropped, LogitRows::Nothing);
    // Another slot runs in between, so that the graphs are bound to it.
    run(&mut executor, 2, 0, &dropped, LogitRows::Nothing);
    executor.truncate(SlotId(1), 10).unwrap();
    let row = run(&mut executor, 1, 10, &new, LogitRows::Last).remove(0);
    let text = [kept, new].concat();
    let found = relative(&row, expected(&package, &text).last().unwrap());
    assert!(found <= HALF, "{found}");
}

#[test]
fn a_whole_context_fits_and_no_more() {
    let package = Package::fixed_llama(Scheme::W8, shapes());
    let mut executor = executor(&package);
    let tokens = prompt(5, 49);
    for (index, chunk) in tokens[..48].chunks(16).enumerate() {
        run(&mut executor, 0, index * 16, chunk, LogitRows::Nothing);
    }
    let mut plan = StepPlan::default();
    plan.push(SlotId(0), 48, &tokens[48..], LogitRows::Last);
    assert!(matches!(executor.step(&plan), Err(StepError::BadPlan { .. })));
}

#[test]
fn vectors_are_those_of_variant_a() {
    for scheme in [Scheme::W8, Scheme::F16] {
        vectors_of(scheme);
    }
}

fn vectors_of(scheme: Scheme) {
    let package = Package::fixed_bert(scheme, shapes());
    let mut fixed = open_encoder(&package, &Device::Cpu);
    let mut dynamic = package.encoder(&Device::Cpu);
    let texts: Vec<Vec<TokenId>> = [1, 8, 9, 64]
        .iter()
        .map(|&n| prompt(n, n as usize).iter().map(|token| token % 40).collect())
        .collect();
    let texts: Vec<&[TokenId]> = texts.iter().map(Vec::as_slice).collect();
    let (found, expected) = (fixed.run_tokens(&texts).unwrap(), dynamic.run_tokens(&texts).unwrap());
    for (index, (a, b)) in found.data.chunks(found.width).zip(expected.data.chunks(found.width)).enumerate() {
        let distance = relative(a, b);
        assert!(distance <= HALF, "text {index}: {distance}");
    }
    let long = prompt(1, 65);
    assert!(matches!(fixed.run_tokens(&[&long]), Err(StepError::BadPlan { .. })));
}

#[test]
fn a_step_fails_once_a_file_of_the_package_has_changed() {
    let check = |error: StepError| {
        let error = error.to_string();
        assert!(error.contains("the file changed while it was read"), "{error}");
    };
    let package = Package::fixed_llama(Scheme::F16, shapes());
    let mut executor = executor(&package);
    run(&mut executor, 0, 0, &prompt(1, 1), LogitRows::Last);
    package.change_files();
    let mut plan = StepPlan::default();
    plan.push(SlotId(1), 0, &prompt(1, 1), LogitRows::Last);
    check(executor.step(&plan).err().unwrap());

    let package = Package::fixed_bert(Scheme::F16, shapes());
    let mut encoder = open_encoder(&package, &Device::Cpu);
    encoder.run_tokens(&[&[1]]).unwrap();
    package.change_files();
    check(encoder.run_tokens(&[&[1]]).unwrap_err());
}
