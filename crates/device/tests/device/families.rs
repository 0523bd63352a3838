//! Every decoder family returns the logits of the reference implementation, from either format, in either variant.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{fs, path::Path};

use narthex_compile::calibration::{self, GraphRunner, RunnerError};
use narthex_device::{
    ep::Device,
    precompile::FallbackPolicy,
    static_shapes::{Form, GraphLoad, StaticExecutor, StaticOptions},
};
use narthex_engine::executor::{Executor, KvCopy, LogitRows};
use narthex_graph::Graph;
use narthex_spec::{
    BlockSize, Calibration, DType, Feed, Fetch, KvPrecision, LayerList, MatFormer, Recipe, ScalingMethod,
    Scheme, SlotId, Target, TokenId, Variant,
    manifest::{GraphEntry, Part},
};
use narthex_text::tokenizer::{Specials, Tokenizer};

use crate::support::{
    CpuRunner, Package, alone, distance,
    families::{
        EXPERTS, FAMILIES, Format, TOKENS, all, comes_in, logits, package, rows, shapes, tokens, with_values,
    },
    relative, runtime, step,
};

/// Maximum relative L2 distance between single precision and the reference.
const SINGLE: f32 = 1e-3;

/// Maximum relative L2 distance between half and single precision.
const HALF: f32 = 0.01;

/// Maximum relative L2 distance between half and single precision if weights in integers are decoded to half precision.
/// This rounding of the weights alone moves the hidden rows of these random models by 0.013.
const DECODED: f32 = 4.0 * HALF;

/// Maximum relative L2 distance between a cache of integers and single precision.
const INTEGERS: f32 = 0.05;

/// Maximum relative L2 distance between 8 bits and the reference, whose random weights amplify small errors. A
/// forgotten bias or a wrongly scaled channel is far above it.
const EIGHT_BITS: f32 = 0.2;

/// Returns [`EIGHT_BITS`], or a larger distance for experts that are selected by sigmoids: those of random routers lie close
/// together, so that rounding selects others for some tokens.
fn eight_bits(family: &str) -> f32 {
    if family.starts_with("lfm2-moe") { 3.0 * EIGHT_BITS } else { EIGHT_BITS }
}

/// Checks a package's logits, for several divisions of its tokens into steps and with other sequences in the batch.
fn check(family: &str, package: &Package, way: &str, bound: f32) {
    check_rows(family, package, way, (&logits(family), bound));
}

fn check_rows(family: &str, package: &Package, way: &str, (expected, bound): (&[Vec<f32>], f32)) {
    let agree = |rows: &[Vec<f32>], first: usize, how: &str| {
        for (index, row) in rows.iter().enumerate() {
            let found = relative(row, &expected[first + index]);
            assert!(found <= bound, "{family} {way}, {how}, token {}: {found}", first + index);
        }
    };
    let tokens = tokens();
    let mut executor = package.executor();
    agree(&step(&mut executor, &[(0, 0, &tokens, LogitRows::All)]).unwrap(), 0, "whole");
    agree(&[alone(package, &tokens, 7)], TOKENS - 1, "in chunks");
    // Two sequences in one batch, at different positions.
    let starts = [28, 9];
    for (slot, start) in (1..).zip(starts) {
        let rows = step(&mut executor, &[(slot, 0, &tokens[..start], LogitRows::Last)]).unwrap();
        agree(&rows, start - 1, "a prefix");
    }
    for ahead in 0..TOKENS - starts[0] {
        let part = |(slot, start): (u32, usize)| {
            (slot, start + ahead, &tokens[start + ahead..][..1], LogitRows::Last)
        };
        let parts: Vec<_> = (1..).zip(starts).map(part).collect();
        for (row, start) in step(&mut executor, &parts).unwrap().iter().zip(starts) {
            agree(std::slice::from_ref(row), start + ahead, "a batch of two");
        }
    }
    copy_and_cut_back(&mut executor, &tokens, |rows, first| agree(rows, first, "a copy"));
}

/// Continues in slot 3 from copies of slot 0, which has all tokens. Windows and rotary factors must be those of the
/// copied length.
fn copy_and_cut_back(executor: &mut impl Executor, tokens: &[TokenId], agree: impl Fn(&[Vec<f32>], usize)) {
    for (held, end) in [(0, 30), (9, 33), (4, 12)] {
        executor.truncate(SlotId(3), held).unwrap();
        executor.copy_kv(&KvCopy { from: SlotId(0), to: SlotId(3), tokens: held..end }).unwrap();
        agree(&step(executor, &[(3, end, &tokens[end..end + 5], LogitRows::All)]).unwrap(), end);
    }
}

#[test]
fn single_precision_gives_the_reference_s_logits() {
    for family in all() {
        for format in [Format::Safetensors, Format::Gguf] {
            if comes_in(family, format) {
                let package = package(family, format, Recipe::new(Scheme::F32), None);
                check(family, &package, &format!("{format:?}"), SINGLE);
            }
        }
    }
}

/// Maximum difference between the logits of a model in single precision with and without scales, relative to the largest
/// logit.
const FOLDED: f32 = 1e-5;

#[test]
fn scales_of_channels_change_no_logit() {
    for family in all() {
        for format in [Format::Safetensors, Format::Gguf] {
            if !comes_in(family, format) {
                continue;
            }
            let float = Recipe::new(Scheme::F32);
            let plain = package(family, format, float.clone(), None);
            let smooth = Recipe { scaling: ScalingMethod::Smooth, ..float };
            let scaled = package(family, format, smooth, Some(&CpuRunner));
            assert_eq!(scaled.manifest.recipe.scaling, ScalingMethod::Smooth, "{family}");
            let data = |package: &Package| package.manifest.files["model.onnx.data"].sha256;
            assert_ne!(data(&plain), data(&scaled), "{family}");
            let [before, after] = [&plain, &scaled].map(|package| {
                step(&mut package.executor(), &[(0, 0, &tokens(), LogitRows::All)]).unwrap().concat()
            });
            let peak = before.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
            let distance = distance(&before, &after);
            assert!(distance <= FOLDED * peak, "{family} {format:?}: {distance} of {peak}");
        }
    }
}

#[test]
fn a_cache_of_fewer_bits_loses_next_to_nothing() {
    let types = [(KvPrecision::F16, DType::F16, HALF), (KvPrecision::I8, DType::I8, INTEGERS)];
    for (family, (precision, dtype, limits)) in all().flat_map(|family| types.map(|one| (family, one))) {
        let package =
            package(family, Format::Safetensors, Recipe::new(Scheme::F32), None).with_cache(precision);
        let executor = package.executor();
        let layouts = executor.cache_layouts();
        assert!(layouts.iter().all(|layer| *layer == layer.with_dtype(dtype)), "{family}");
        check(family, &package, &format!("with a cache of {dtype:?}"), limits);
    }
}

#[test]
fn a_slice_gives_the_logits_of_the_reference_s_smaller_model() {
    let matformer: MatFormer = "ffn=32+64+32+96+32,skip=1+5".parse().unwrap();
    let sliced = |recipe: Recipe| Recipe { matformer: Some(matformer.clone()), ..recipe };
    let expected = rows("gemma3n", "slice.f32");
    for format in [Format::Safetensors, Format::Gguf] {
        let package = package("gemma3n", format, sliced(Recipe::new(Scheme::F32)), None);
        check_rows("gemma3n", &package, &format!("sliced, {format:?}"), (&expected, SINGLE));
    }
    let package = package("gemma3n", Format::Safetensors, sliced(exact(Scheme::W8)), None);
    assert_eq!(package.manifest.recipe.matformer, Some(matformer));
    assert!(package.manifest.graphs.iter().all(|graph| [0, 3].contains(&graph.kv.len())));
    check_static(&package, "a sliced gemma3n", HALF);
}

/// Returns the layers that the reference left out for `dropped.f32`.
fn dropped(family: &str) -> LayerList {
    let layers = match family {
        "smollm3" => "0,2",
        "gemma3" => "1,4",
        "gemma3n" | "gemma4" => "1,5",
        _ => "0",
    };
    layers.parse().unwrap()
}

#[test]
fn without_layers_a_model_gives_what_the_reference_does_without_them() {
    for family in all() {
        let without = |recipe: Recipe| Recipe { drop_layers: Some(dropped(family)), ..recipe };
        let expected = rows(family, "dropped.f32");
        for format in [Format::Safetensors, Format::Gguf] {
            if comes_in(family, format) {
                let package = package(family, format, without(Recipe::new(Scheme::F32)), None);
                check_rows(family, &package, &format!("dropped, {format:?}"), (&expected, SINGLE));
            }
        }
        if EXPERTS.contains(&family) {
            continue;
        }
        let package = package(family, Format::Safetensors, without(exact(Scheme::W8)), None);
        assert_eq!(package.manifest.recipe.drop_layers, Some(dropped(family)));
        let most = package.manifest.graphs.iter().map(|graph| graph.kv.len()).max();
        let kept = match family {
            "smollm3" => 2,
            "gemma3" => 4,
            "gemma3n" | "gemma4" | "lfm2" | "exaone4-window" => 3,
            _ => 1,
        };
        assert_eq!(most, Some(kept), "{family}: slots of the cache go with their layers");
        check_static(&package, &format!("{family} without layers"), HALF);
    }
}

#[test]
fn half_precision_loses_next_to_nothing() {
    for family in all() {
        let package = package(family, Format::Safetensors, Recipe::new(Scheme::F16), None);
        check(family, &package, "f16", HALF);
    }
}

/// Returns made-up measurements with channels of several sizes, so that all kinds of inputs are scaled.
struct MadeUp;

impl GraphRunner for MadeUp {
    fn run(&self, _: &Path, _: Vec<Feed>, wanted: &[Fetch]) -> Result<Vec<Vec<f32>>, RunnerError> {
        let sizes = |channels| (0..channels).map(|channel| (1 << (4 * (channel % 2))) as f32).collect();
        Ok(wanted.iter().map(|fetch| sizes(fetch.shape[0])).collect())
    }
}

#[test]
fn eight_bits_lose_little_whatever_channels_are_scaled_by() {
    let recipe = Recipe { accuracy_level: 0, ..Recipe::new(Scheme::W8) };
    for family in all() {
        let plain = package(family, Format::Safetensors, recipe.clone(), None);
        check(family, &plain, "w8", eight_bits(family));
        let scaled = package(family, Format::Safetensors, recipe.clone(), Some(&MadeUp));
        assert_eq!(scaled.manifest.recipe.calibration, Calibration::Standard);
        check(family, &scaled, "w8, scaled", eight_bits(family));
    }
}

#[test]
fn experts_on_the_kernels_give_the_same_logits_in_any_division() {
    for family in EXPERTS {
        let eight = package(family, Format::Safetensors, Recipe::new(Scheme::W8), None);
        check(family, &eight, "w8 on the kernels", eight_bits(family));
        for format in
            [Format::Safetensors, Format::Gguf].into_iter().filter(|&format| comes_in(family, format))
        {
            let four = package(family, format, Recipe::new(Scheme::W4), None);
            let whole = step(&mut four.executor(), &[(0, 0, &tokens(), LogitRows::All)]).unwrap();
            check_rows(family, &four, "w4 on the kernels", (&whole, SINGLE));
        }
    }
}

/// Checks that the static graphs of a package return the logits of its dynamic graph.
fn check_static(package: &Package, what: &str, bound: f32) {
    check_static_on(package, &tokens(), what, bound);
}

fn check_static_on(package: &Package, tokens: &[TokenId], what: &str, bound: f32) {
    let expected = step(&mut package.executor(), &[(0, 0, tokens, LogitRows::All)]).unwrap();
    let place =
        GraphLoad { device: &Device::Cpu, threads: 1, form: Form::Graph, fallback: FallbackPolicy::Refused };
    let options = StaticOptions { slots: 4, kv_budget: 1 << 30 };
    let (folder, manifest) = (package.folder.path(), &package.manifest);
    let mut fixed = StaticExecutor::open(runtime(), folder, manifest, place, &options).unwrap();
    let agree = |rows: &[Vec<f32>], first: usize| {
        for (index, row) in rows.iter().enumerate() {
            let found = relative(row, &expected[first + index]);
            assert!(found <= bound, "{what} token {}: {found}", first + index);
        }
    };
    let mut at = 0;
    for length in [8, 8, 5, 1, 1, 8, 7, 1, 1] {
        agree(&step(&mut fixed, &[(0, at, &tokens[at..at + length], LogitRows::All)]).unwrap(), at);
        at += length;
    }
    assert_eq!(at, TOKENS);
    copy_and_cut_back(&mut fixed, tokens, agree);
}

fn exact(scheme: Scheme) -> Recipe {
    Recipe { accuracy_level: 0, fixed: Some(shapes()), ..Recipe::new(scheme) }
}

#[test]
fn the_static_variant_gives_what_the_dynamic_one_does() {
    for family in FAMILIES {
        for scheme in [Scheme::W8, Scheme::W4, Scheme::F16] {
            let package = package(family, Format::Safetensors, exact(scheme), None);
            check_static(&package, &format!("{family} {scheme}"), HALF);
        }
    }
}

#[test]
fn the_form_for_intel_s_compiler_gives_what_the_dynamic_variant_does() {
    let target: Target = "openvino:npu".parse().unwrap();
    let forms =
        [(Scheme::W8, None), (Scheme::W4, None), (Scheme::W4, Some(BlockSize::Channel)), (Scheme::F16, None)];
    for family in FAMILIES {
        for (scheme, block) in forms {
            let recipe = exact(scheme).for_targets(vec![target.clone()], block);
            let package = package(family, Format::Safetensors, recipe, None);
            check_static(&package, &format!("{family} {scheme} for Intel"), DECODED);
            if scheme == Scheme::W8 {
                check(family, &package, "w8 with one scale per channel", EIGHT_BITS);
            }
        }
    }
}

/// Maximum relative L2 distance between a decoder with activations of 8 bits and single precision. The random weights of
/// these models amplify small errors. A wrong scale or zero point is far above it.
const EIGHT_BIT_ACTIVATIONS: f32 = 0.2;

/// Returns the first tokens of the calibration, whose activations are those that were measured. Those of other tokens may
/// be outside the ranges of these random models, whose calibration has 64 tokens.
fn calibrated_tokens(package: &Package) -> Vec<TokenId> {
    let json = fs::read(package.folder.path().join("tokenizer.json")).unwrap();
    let text = Tokenizer::from_json(&json).unwrap().encode(calibration::TEXT, Specials::AsText).unwrap();
    package.manifest.bos().into_iter().chain(text).take(TOKENS).collect()
}

#[test]
fn integer_activations_give_what_the_dynamic_variant_does() {
    let schemes = [(Scheme::W8A16, DECODED), (Scheme::W8A8, EIGHT_BIT_ACTIVATIONS), (Scheme::W4A16, HALF)];
    for (scheme, bound) in schemes {
        for family in FAMILIES {
            check_integers(family, exact(scheme), bound);
            let for_intel = exact(scheme).for_targets(vec!["openvino:npu".parse().unwrap()], None);
            check_integers(family, for_intel, bound.max(DECODED));
        }
    }
}

/// Compares the static variant of a family in a scheme with integer activations with its dynamic variant, and checks the
/// integers in its graphs.
fn check_integers(family: &str, recipe: Recipe, bound: f32) {
    let scheme = recipe.scheme;
    let what = format!("{family} {scheme} {:?}", recipe.head_order);
    let in_blocks = recipe.block != BlockSize::Channel;
    let package = package(family, Format::Safetensors, recipe, Some(&CpuRunner));
    assert_eq!(package.manifest.recipe.calibration, Calibration::Standard);
    if scheme.of_weights() == Scheme::W8 {
        check(family, &package, "weights with one scale per channel", EIGHT_BITS);
    }
    check_static_on(&package, &calibrated_tokens(&package), &what, bound);
    for entry in package.manifest.graphs.iter().filter(|entry| entry.variant == Variant::Static) {
        let graph = Graph::decode(&fs::read(package.folder.path().join(&entry.file)).unwrap()).unwrap();
        // Each layer has a weight in integers, and integers before and after its product.
        let count = |op: &str| graph.nodes.iter().filter(|node| node.op == op).count();
        let [rounded, decoded] = ["QuantizeLinear", "DequantizeLinear"].map(count);
        let layers = count("MatMulNBits") + decoded - rounded;
        assert!(layers > 0 && rounded == 2 * layers, "{what} {}: {rounded}", entry.file);
        assert_eq!(count("MatMulNBits") > 0, in_blocks, "{what} {}", entry.file);
    }
}

#[test]
fn graphs_for_intel_rotate_before_they_transpose_and_keep_integers_by_channel() {
    let recipe = exact(Scheme::W8).for_targets(vec!["openvino:npu".parse().unwrap()], None);
    let package = package("qwen3", Format::Safetensors, recipe, None);
    for entry in package.manifest.graphs.iter().filter(|entry| entry.variant == Variant::Static) {
        let graph = Graph::decode(&fs::read(package.folder.path().join(&entry.file)).unwrap()).unwrap();
        let count = |op: &str| graph.nodes.iter().filter(|node| node.op == op).count();
        // One product for queries, keys and values, and the other products of a layer.
        let products = if matches!(entry.part, Part::Head { .. }) { 1 } else { 5 * entry.kv.len() };
        assert_eq!((count("DequantizeLinear"), count("MatMulNBits")), (products, 0), "{}", entry.file);
        let at = |name: &str| graph.nodes.iter().position(|node| node.name == name);
        if let (Some(rotated), Some(transposed)) =
            (at("/layers.0/attn/q/rotate/Concat"), at("/layers.0/attn/q/heads/Transpose"))
        {
            assert!(rotated < transposed, "{}", entry.file);
        }
    }
}

#[test]
fn several_streams_go_from_part_to_part() {
    let recipe = Recipe { part_bytes: 1, ..exact(Scheme::W8) };
    let package = package("gemma3n", Format::Safetensors, recipe, None);
    let range = |graph: &GraphEntry| match graph.part {
        Part::Layers { tokens: 1, range, .. } => range.map(|range| (range.first, range.end)),
        _ => None,
    };
    let parts: Vec<_> = package.manifest.graphs.iter().filter_map(range).collect();
    assert_eq!(parts, [(0, 1), (1, 2), (2, 7)], "the last three share what layers 2 and 3 keep");
    check_static(&package, "a divided gemma3n", HALF);
}

#[test]
fn a_stream_past_what_half_precision_holds_is_carried() {
    // Elements of the vectors that each layer adds have about this size.
    let loud = ("post_feedforward_layernorm", 30_000.0);
    // Small values next to them are rounded to the same precision; with several streams, small differences of large
    // values occur.
    for (family, bound) in [("gemma3", 1.5 * HALF), ("gemma3n", 2.0 * HALF)] {
        let package = with_values(family, exact(Scheme::W8), loud);
        check_static(&package, &format!("a loud {family}"), bound);
    }
}
