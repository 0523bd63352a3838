//! A decoder returns the same logits for any division of its tokens into steps and any position of its rows.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_device::dynamic::ExecutorOptions;
use narthex_engine::executor::{Executor, LogitRows, StepError, StepPlan};
use narthex_spec::{DType, Ep, KvPrecision, Scheme, SlotId, TokenId};
use narthex_testkit::checkpoint::LAYERS;

use crate::support::{
    OPTIONS, Package, Part, alone, distance, farthest, media, prompt, relative, step, with_media,
};

/// Precisions of a cache that is not in single precision.
const ROUNDED: [KvPrecision; 2] = [KvPrecision::F16, KvPrecision::I8];

const SCHEMES: [Scheme; 4] = [Scheme::F32, Scheme::F16, Scheme::W8, Scheme::W4];

/// Fills slots with prompts of these lengths, in one step each.
fn fill(executor: &mut narthex_device::dynamic::DynamicExecutor, lengths: &[(u32, usize)]) {
    for &(slot, length) in lengths {
        step(executor, &[(slot, 0, &prompt(slot, length), LogitRows::Last)]).unwrap();
    }
}

/// Returns the logits after the slot's prompt and one more token in a fresh executor.
fn expected(package: &Package, slot: u32, length: usize, token: TokenId) -> Vec<f32> {
    let mut executor = package.executor();
    step(&mut executor, &[(slot, 0, &prompt(slot, length), LogitRows::Last)]).unwrap();
    step(&mut executor, &[(slot, length, &[token], LogitRows::Last)]).unwrap().remove(0)
}

#[test]
fn rows_of_a_batch_equal_each_alone_bit_for_bit() {
    let single = SCHEMES.map(|scheme| (scheme, Package::llama(scheme)));
    let rounded = ROUNDED.map(|precision| (Scheme::W8, Package::llama(Scheme::W8).with_cache(precision)));
    for (scheme, package) in single.into_iter().chain(rounded) {
        let mut executor = package.executor();
        let lengths = [(0, 5), (1, 11), (2, 40), (3, 1)];
        fill(&mut executor, &lengths);
        let tokens = [17, 200, 3, 99, 42];
        let mut parts: Vec<_> = lengths
            .iter()
            .map(|&(slot, at)| (slot, at, &tokens[slot as usize..][..1], LogitRows::Last))
            .collect();
        // A sequence of one token is part of the batch too.
        parts.push((4, 0, &tokens[4..], LogitRows::Last));
        let rows = step(&mut executor, &parts).unwrap();
        for (&(slot, length), row) in lengths.iter().zip(&rows) {
            let expected = expected(&package, slot, length, tokens[slot as usize]);
            assert!(*row == expected, "{scheme} slot {slot}: {}", distance(row, &expected));
        }
        assert!(rows[4] == alone(&package, &tokens[4..], 1), "{scheme}");
    }
}

#[test]
fn a_prompt_in_chunks_equals_a_whole_one() {
    let rounded = ROUNDED.map(|precision| (Scheme::W8, Package::llama(Scheme::W8).with_cache(precision)));
    let single = [Scheme::F32, Scheme::W8, Scheme::W4].map(|scheme| (scheme, Package::llama(scheme)));
    for (scheme, package) in single.into_iter().chain(rounded) {
        let tokens = prompt(9, 50);
        let whole = alone(&package, &tokens, 50);
        let check = |cuts: &[usize], wanted| {
            let mut executor = package.executor();
            let (mut at, mut rows) = (0, Vec::new());
            for &length in cuts {
                let wanted = if at + length == tokens.len() { LogitRows::Last } else { wanted };
                rows = step(&mut executor, &[(2, at, &tokens[at..at + length], wanted)]).unwrap();
                let expected = if at + length == tokens.len() { 1 } else { wanted.rows(length) };
                assert_eq!(rows.len(), expected);
                at += length;
            }
            let found = distance(&rows[0], &whole);
            // ONNX Runtime's own products depend on the number of rows.
            let limit = if scheme == Scheme::F32 { 1e-5 } else { 0.0 };
            assert!(found <= limit, "{scheme} {cuts:?} {wanted:?}: {found}");
        };
        check(&[16, 16, 16, 2], LogitRows::Nothing);
        check(&[1, 1, 48], LogitRows::Nothing);
        check(&[49, 1], LogitRows::Last);
        check(&[7, 33, 10], LogitRows::All);
    }
}

#[test]
fn all_rows_of_a_span_equal_each_prefixs_last() {
    let package = Package::llama(Scheme::F32);
    let tokens = prompt(4, 12);
    let mut executor = package.executor();
    let rows = step(&mut executor, &[(0, 0, &tokens, LogitRows::All)]).unwrap();
    assert_eq!(rows.len(), 12);
    for (index, row) in rows.iter().enumerate() {
        assert!(distance(row, &alone(&package, &tokens[..=index], 64)) <= 1e-5, "row {index}");
    }
}

#[test]
fn prompts_and_single_tokens_share_a_step() {
    let package = Package::llama(Scheme::W8);
    let mut executor = package.executor();
    fill(&mut executor, &[(0, 6), (3, 9)]);
    let (long, other) = (prompt(1, 20), prompt(2, 33));
    let rows = step(
        &mut executor,
        &[
            (3, 9, &[5], LogitRows::Last),
            (1, 0, &long, LogitRows::Nothing),
            (0, 6, &[8], LogitRows::Last),
            (2, 0, &other, LogitRows::Last),
        ],
    )
    .unwrap();
    assert_eq!(rows.len(), 3);
    let check = |row: &[f32], expected: Vec<f32>| assert!(distance(row, &expected) <= 1e-5);
    check(&rows[0], expected(&package, 3, 9, 5));
    check(&rows[1], expected(&package, 0, 6, 8));
    check(&rows[2], alone(&package, &other, 64));
    let rows = step(&mut executor, &[(1, 20, &[77], LogitRows::Last)]).unwrap();
    check(&rows[0], expected(&package, 1, 20, 77));
}

#[test]
fn rows_of_a_medium_run_like_tokens_and_determine_the_logits() {
    for scheme in [Scheme::F32, Scheme::W8] {
        let package = Package::llama(scheme);
        let mut executor = package.executor();
        let width = executor.media_width().unwrap();
        let whole = with_media(&mut executor, &media(1, width), 64);
        assert_eq!(whole.len(), 14);
        for chunk in [1, 4, 6] {
            let found = with_media(&mut executor, &media(1, width), chunk);
            let largest = farthest(&found, &whole);
            assert!(if scheme == Scheme::W8 { found == whole } else { largest <= 1e-5 }, "{largest}");
        }
        let other = with_media(&mut executor, &media(2, width), 64);
        assert!(other[..3] == whole[..3], "the medium changes the logits before it");
        assert!(other[3..].iter().zip(&whole[3..]).all(|(a, b)| distance(a, b) > 1e-4));
        let mut plan = StepPlan { media: vec![media(1, width + 1)], ..StepPlan::default() };
        plan.push_span(SlotId(0), 0, media(1, width + 1).positions(), LogitRows::Last);
        let error = executor.step(&plan).unwrap_err().to_string();
        assert!(error.contains(&format!("expected rows of {width} elements")), "{error}");
        plan.media.clear();
        let error = executor.step(&plan).unwrap_err().to_string();
        assert!(error.contains("a row of a medium is not in the plan"), "{error}");
    }
}

#[test]
fn growing_keeps_what_slots_hold() {
    check_growth(&Package::llama(Scheme::F32));
    for precision in ROUNDED {
        check_growth(&Package::llama(Scheme::F32).with_cache(precision));
    }
}

fn check_growth(package: &Package) {
    let run = |kv_step| {
        let mut executor = package.executor_with(&ExecutorOptions { kv_step, ..OPTIONS });
        fill(&mut executor, &[(0, 3), (2, 5)]);
        let mut rows = Vec::new();
        for index in 0..40 {
            let parts = [
                (0, 3 + index, &[index as TokenId][..], LogitRows::Last),
                (2, 5 + index, &[7][..], LogitRows::Last),
            ];
            rows.extend(step(&mut executor, &parts).unwrap());
        }
        rows
    };
    let (often, never) = (run(4), run(256));
    assert!(often == never, "rows differ");
    assert!(often[0] != often[79]);
}

#[test]
fn any_set_of_slots_may_decode() {
    check_sets_of_slots(&Package::llama(Scheme::W8));
    for precision in ROUNDED {
        check_sets_of_slots(&Package::llama(Scheme::W8).with_cache(precision));
    }
}

fn check_sets_of_slots(package: &Package) {
    let mut executor = package.executor();
    let mut texts: Vec<Vec<TokenId>> = (0..5).map(|slot| prompt(slot, 2 + 7 * slot as usize)).collect();
    fill(&mut executor, &[(0, 2), (1, 9), (2, 16), (3, 23), (4, 30)]);
    for (round, set) in [&[0, 2][..], &[4, 1], &[3, 0, 4], &[1], &[4, 3, 2, 1, 0], &[2, 4]].iter().enumerate()
    {
        let token = [round as TokenId * 11 + 1];
        let parts: Vec<_> = set
            .iter()
            .map(|&slot: &u32| (slot, texts[slot as usize].len(), &token[..], LogitRows::Last))
            .collect();
        let rows = step(&mut executor, &parts).unwrap();
        for (&slot, row) in set.iter().zip(&rows) {
            let text = &mut texts[slot as usize];
            text.push(token[0]);
            let found = distance(row, &alone(package, text, 64));
            assert!(found <= 1e-4, "round {round}, slot {slot}: {found}");
        }
    }
}

#[test]
fn a_shortened_slot_goes_on_from_there() {
    check_shortening(&Package::llama(Scheme::F32));
    for precision in ROUNDED {
        check_shortening(&Package::llama(Scheme::F32).with_cache(precision));
    }
}

fn check_shortening(package: &Package) {
    let mut executor = package.executor();
    fill(&mut executor, &[(0, 20), (1, 4)]);
    executor.truncate(SlotId(0), 7).unwrap();
    let mut tokens = prompt(0, 7);
    tokens.extend([50, 51, 52]);
    let rows = step(&mut executor, &[(0, 7, &tokens[7..], LogitRows::Last)]).unwrap();
    assert!(distance(&rows[0], &alone(package, &tokens, 64)) <= 1e-5);
    executor.truncate(SlotId(0), 0).unwrap();
    let other = prompt(8, 15);
    let rows = step(&mut executor, &[(0, 0, &other, LogitRows::Last)]).unwrap();
    assert!(rows[0] == alone(package, &other, 64));
    let error = executor.truncate(SlotId(1), 5).unwrap_err();
    assert!(error.to_string().contains("slot 1 holds only 4 tokens"), "{error}");
    let error = executor.truncate(SlotId(9), 0).unwrap_err();
    assert!(error.to_string().contains("slot 9"), "{error}");
}

#[test]
fn wrong_plans_are_refused_and_do_no_harm() {
    let package = Package::llama(Scheme::F32);
    let mut executor = package.executor();
    fill(&mut executor, &[(0, 6)]);
    let mut check = |parts: &[Part<'_>], word: &str| {
        let error = step(&mut executor, parts).unwrap_err();
        let refused = matches!(&error, StepError::BadPlan { reason } if reason.contains(word));
        assert!(refused, "{parts:?}: {error}");
    };
    let long = prompt(1, 65);
    check(&[(0, 5, &[1], LogitRows::Last)], "holds 6 tokens, the span begins at 5");
    check(&[(1, 1, &[1], LogitRows::Last)], "holds 0 tokens, the span begins at 1");
    check(&[(0, 6, &[1], LogitRows::Last), (0, 6, &[1], LogitRows::Last)], "occurs twice");
    check(&[(5, 0, &[1], LogitRows::Last)], "slot 5");
    check(&[(1, 0, &[], LogitRows::Last)], "a span of 0 tokens");
    check(&[(1, 0, &long, LogitRows::Last)], "a span of 65 tokens");
    check(&[(1, 0, &[300], LogitRows::Last)], "token 300");
    let mut plan = StepPlan::default();
    plan.push(SlotId(1), 0, &[1, 2], LogitRows::Last);
    plan.tokens.clear();
    assert!(matches!(executor.step(&plan), Err(StepError::BadPlan { .. })));
    let rows = step(&mut executor, &[(0, 6, &[1], LogitRows::Last)]).unwrap();
    assert!(rows[0] == expected(&package, 0, 6, 1));
    assert_eq!(step(&mut executor, &[]).unwrap().len(), 0);
}

#[test]
fn the_context_is_the_end() {
    let package = Package::llama(Scheme::F32);
    let mut executor = package.executor();
    let tokens = prompt(3, 256);
    for at in (0..256).step_by(64) {
        step(&mut executor, &[(0, at, &tokens[at..at + 64], LogitRows::Nothing)]).unwrap();
    }
    let error = step(&mut executor, &[(0, 256, &[1], LogitRows::Last)]).unwrap_err();
    assert!(matches!(error, StepError::BadPlan { .. }), "{error}");
}

#[test]
fn the_budget_is_kept() {
    let package = Package::llama(Scheme::F32);
    let per_token: usize = package.manifest.graphs[0].kv.iter().map(|layer| layer.bytes_per_token()).sum();
    let options = ExecutorOptions { kv_budget: 64 * per_token, kv_step: 16, ..OPTIONS };
    let mut executor = package.executor_with(&options);
    assert_eq!(executor.limits().kv.budget, 64 * per_token);
    fill(&mut executor, &[(0, 10), (1, 30)]);
    let error = step(&mut executor, &[(2, 0, &[1], LogitRows::Last)]).unwrap_err();
    assert_eq!(error, StepError::OutOfMemory { rows: 3, capacity: 32, wanted: 96 * per_token });
    executor.truncate(SlotId(1), 0).unwrap();
    let rows = step(&mut executor, &[(2, 0, &prompt(2, 1), LogitRows::Last), (0, 10, &[4], LogitRows::Last)])
        .unwrap();
    assert!(distance(&rows[1], &expected(&package, 0, 10, 4)) <= 1e-5);
}

/// The index of the largest logit.
fn best(row: &[f32]) -> TokenId {
    (0..row.len()).fold(0, |best, at| if row[at] > row[best] { at } else { best }) as TokenId
}

/// Returns the best token after a prompt and after each of 30 tokens of its answer, and their logits. The answer is given,
/// or greedy.
fn answer(
    executor: &mut impl Executor,
    tokens: &[TokenId],
    given: Option<&[TokenId]>,
) -> (Vec<TokenId>, Vec<Vec<f32>>) {
    let mut rows = step(executor, &[(0, 0, tokens, LogitRows::Last)]).unwrap();
    let mut answer = vec![best(&rows[0])];
    for at in tokens.len()..tokens.len() + 30 {
        let last = answer.len() - 1;
        let token = given.map_or(answer[last], |given| given[last]);
        rows.extend(step(executor, &[(0, at, &[token], LogitRows::Last)]).unwrap());
        answer.push(best(&rows[rows.len() - 1]));
    }
    (answer, rows)
}

#[test]
fn a_cache_of_fewer_bits_takes_less_memory_and_keeps_the_answers() {
    // Heads have 16 elements. Activations that are rounded to eight bits may round the other way.
    check_rounded_cache(KvPrecision::F16, DType::F16, [2 * 16, 4 * 16], 2e-3);
    check_rounded_cache(KvPrecision::I8, DType::I8, [16 + 4, 4 * 16], 2e-2);
}

/// Compares a cache with one in single precision. `sizes` are the bytes of a row in both.
fn check_rounded_cache(precision: KvPrecision, dtype: DType, sizes: [usize; 2], bound: f32) {
    for scheme in SCHEMES {
        let single = Package::llama(scheme);
        let (tokens, per_token) = (prompt(6, 40), single.executor().limits().kv.bytes_per_token);
        let expected = answer(&mut single.executor(), &tokens, None);
        let rounded = single.with_cache(precision);
        let mut executor = rounded.executor();
        assert!(executor.cache_layouts().iter().all(|layer| layer.dtype == dtype), "{scheme}");
        assert_eq!(executor.limits().kv.bytes_per_token * sizes[1], per_token * sizes[0], "{scheme}");
        let found = answer(&mut executor, &tokens, Some(&expected.0));
        assert_ne!(found.1, expected.1, "{scheme}: nothing was rounded");
        let quantised = [Scheme::W8, Scheme::W4].contains(&scheme);
        let bound = if quantised { 0.05 } else { bound };
        assert!(quantised || found.0 == expected.0, "{scheme}: {:?}", found.0);
        for (found, expected) in found.1.iter().zip(&expected.1) {
            assert!(relative(found, expected) <= bound, "{scheme}: {}", relative(found, expected));
        }
        // A budget holds more tokens.
        let options = ExecutorOptions { kv_budget: 64 * per_token, kv_step: 16, ..OPTIONS };
        let tokens = (64 * sizes[1] / sizes[0] / 16 * 16).min(256);
        assert_eq!(rounded.executor_with(&options).limits().kv.tokens_alone(256), tokens, "{scheme}");
    }
}

#[test]
fn every_node_runs_on_the_cpu() {
    let package = Package::llama(Scheme::W8);
    let executor = package.executor();
    let placement = &executor.placements()[0].placement;
    assert_eq!(placement.ops_per_ep().keys().collect::<Vec<_>>(), [&Ep::Cpu]);
    let ops = &placement.ops_per_ep()[&Ep::Cpu];
    assert_eq!(ops.get("Attention"), Some(&LAYERS), "{ops:?}");
    assert_eq!(ops.values().sum::<usize>(), placement.nodes.len());
}

#[test]
fn a_step_fails_once_a_file_of_the_package_has_changed() {
    let package = Package::llama(Scheme::W8);
    let mut executor = package.executor();
    let tokens = prompt(1, 2);
    step(&mut executor, &[(0, 0, &tokens[..1], LogitRows::Last)]).unwrap();
    package.change_files();
    let error = step(&mut executor, &[(0, 1, &tokens[1..], LogitRows::Last)]).unwrap_err().to_string();
    assert!(error.contains("the file changed while it was read"), "{error}");
}
