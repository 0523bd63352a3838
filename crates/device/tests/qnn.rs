//! Qualcomm's compiler and its HTP emulation with tiny models. Emulated results are those of the NPU's arithmetic.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{collections::BTreeMap, fs, ops::ControlFlow, path::Path};

use narthex_device::{
    DeviceError,
    ep::{Device, QnnOptions},
    placement::GraphPlacement,
    precompile::{FallbackPolicy, Job, Weights, precompile},
    split::{SplitExecutor, SplitOptions},
    static_shapes::{Form, GraphLoad, StaticAudioTower, StaticVisionTower},
};
use narthex_engine::{
    encoder::Encoder,
    executor::{Executor, LogitRows, StepPlan},
    speech::SpeechModel,
};
use narthex_graph::{Graph, Initializer};
use narthex_spec::{
    Ep, Recipe, Scheme, SlotId, Target, TokenId, Variant,
    manifest::{Context, PlacementRecord},
    recipe::FixedShapes,
    target::QnnChip,
};
use narthex_testkit::checkpoint::{
    HEAD_SIZE, HEADS, HIDDEN, KV_HEADS, hf_tensors, safetensors_bytes, tiny_llama_safetensors,
    tiny_llama_weights,
};
use support::{
    Package,
    encoders::{Golden, Head, served},
    families::{self, FAMILIES, Format},
    fixed::{agree, logits, open, open_encoder, open_speech, plugin, shapes, vectors},
    prompt, relative, runtime, texts,
    towers::{ON_CPU, WIDTH, package_of},
};

/// Maximum relative L2 distance between HTP emulation and the CPU.
const EMULATED: f32 = 0.01;

/// The same for activations in 8 bits. One product with them differs by 0.01 to 0.02, because half precision rounds some
/// values to the next integer; each of the 15 products of the tiny decoder adds to it (0.105 was measured).
const EMULATED_EIGHT_BITS: f32 = 0.15;

/// Maximum mean KL divergence between HTP emulation and the CPU, in nats. The numerics check has the same limit.
const NATS: f64 = 0.02;

fn emulation(chips: &[QnnChip]) -> Device {
    let library = plugin(Ep::Qnn);
    runtime().register(Ep::Qnn, &library).unwrap_or_else(|error| panic!("{error}"));
    Device::Qnn(QnnOptions::new(&library, chips))
}

/// Checks that every node of a graph is on the NPU, in one part.
fn check_whole(GraphPlacement { graph, placement }: GraphPlacement, model: &str) {
    let places: Vec<Ep> = placement.ops_per_ep().into_keys().collect();
    assert_eq!((places, placement.subgraphs[&Ep::Qnn]), (vec![Ep::Qnn], 1), "{model} {graph}");
}

/// Checks that the rows of a medium agree with those of the CPU.
fn agree_in_rows(found: &[f32], expected: &[f32]) {
    let [found, expected] =
        [found, expected].map(|values| values.chunks_exact(WIDTH).map(<[f32]>::to_vec).collect::<Vec<_>>());
    agree(&found, &expected, EMULATED);
}

/// Compiles every fixed graph for some chips, and adds the contexts to the package's manifest.
fn contexts(package: &mut Package, chips: &[QnnChip], weights: Weights) -> Target {
    let target = Target::Qnn(chips.to_vec());
    let folder = package.folder.path();
    let place = folder.join("contexts");
    fs::create_dir(&place).unwrap();
    let graphs = package.manifest.graphs.iter().filter(|graph| graph.variant == Variant::Static);
    let graphs: Vec<String> = graphs.map(|graph| graph.file.clone()).collect();
    let paths: Vec<_> = graphs.iter().map(|graph| (folder.join(graph), place.join(graph))).collect();
    let jobs: Vec<_> = paths.iter().map(|(graph, context)| Job { graph, context }).collect();
    let mut done = |_| ControlFlow::Continue(());
    let placements =
        precompile(runtime(), &emulation(chips), &jobs, weights, FallbackPolicy::Refused, &mut done).unwrap();
    assert!(placements.iter().all(|placement| placement.subgraphs.len() == 1));
    for graph in graphs {
        package.manifest.contexts.push(Context {
            target: target.clone(),
            file: format!("contexts/{graph}"),
            graph,
            compiler: "test".to_owned(),
            placement: PlacementRecord::default(),
        });
    }
    target
}

#[test]
fn a_decoder_runs_whole_under_htp_emulation_and_agrees_with_the_cpu() {
    let device = emulation(&[QnnChip::XElite]);
    for scheme in [Scheme::W8, Scheme::W4, Scheme::F16, Scheme::W8A16, Scheme::W8A8, Scheme::W4A16] {
        let package = Package::fixed_llama(scheme, shapes());
        let tokens = prompt(6, 13);
        let expected = logits(&mut open(&package, &Device::Cpu, Form::Graph).unwrap(), &tokens);
        let mut emulated = open(&package, &device, Form::Graph).unwrap();
        let bound = if scheme == Scheme::W8A8 { EMULATED_EIGHT_BITS } else { EMULATED };
        agree(&logits(&mut emulated, &tokens), &expected, bound);
        // Graphs for one token, for eight tokens and for the head, each in one part.
        let placements = emulated.placements();
        assert_eq!(placements.len(), 3);
        for placement in placements {
            check_whole(placement, &scheme.to_string());
        }
    }
}

/// A tiny model with towers: `vision` (Gemma 3) or `gemma3n` of `crates/checkpoint/tests/goldens`.
fn tower_package(model: &str, scheme: Scheme) -> Package {
    package_of(model, Recipe { fixed: Some(shapes()), ..Recipe::new(scheme) })
}

#[test]
fn vision_towers_run_whole_under_htp_emulation_and_agree_with_the_cpu() {
    let emulated = emulation(&[QnnChip::XElite]);
    let towers = [("vision", 32), ("gemma3n", 64)];
    for (model, side) in towers {
        for scheme in [Scheme::W8, Scheme::F16] {
            check_tower(&emulated, model, scheme, side);
        }
    }
}

fn check_tower(emulated: &Device, model: &str, scheme: Scheme, side: usize) {
    let pixels: Vec<f32> = (0..3 * side * side).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let package = tower_package(model, scheme);
    let open = |device: &Device| {
        let place = GraphLoad { device, ..ON_CPU };
        StaticVisionTower::open(runtime(), package.folder.path(), &package.manifest, place).unwrap()
    };
    let expected = open(&Device::Cpu).encode(&pixels).unwrap();
    let mut tower = open(emulated);
    check_whole(tower.placement(), &format!("{model} {scheme}"));
    let found = tower.encode(&pixels).unwrap();
    agree_in_rows(&found, &expected);
}

#[test]
fn the_audio_tower_runs_whole_under_htp_emulation_and_agrees_with_the_cpu() {
    let emulated = emulation(&[QnnChip::XElite]);
    let features: Vec<f32> = (0..157 * 16).map(|i| ((i * 37) % 101) as f32 / 20.0 - 5.0).collect();
    for scheme in [Scheme::W8, Scheme::F16] {
        let package = tower_package("gemma3n", scheme);
        let open = |device: &Device| {
            let place = GraphLoad { device, ..ON_CPU };
            StaticAudioTower::open(runtime(), package.folder.path(), &package.manifest, place).unwrap()
        };
        let expected = open(&Device::Cpu).encode(&features).unwrap();
        let mut tower = open(&emulated);
        check_whole(tower.placement(), &scheme.to_string());
        let found = tower.encode(&features).unwrap();
        agree_in_rows(&found, &expected);
    }
}

/// A tiny Whisper (`crates/checkpoint/tests/goldens/speech.py`).
fn speech_package(scheme: Scheme) -> Package {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/goldens/speech");
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(goldens.join(file), folder.path().join(file)).unwrap();
    }
    let fixed = FixedShapes { context: 24, shorter: vec![], prefill: vec![10], buckets: vec![] };
    Package::make(
        folder.path().to_owned(),
        Recipe { accuracy_level: 0, fixed: Some(fixed), ..Recipe::new(scheme) },
    )
}

/// Returns the logits after each of some tokens, and the attention of the alignment heads, as rows.
fn transcript(model: &mut dyn SpeechModel) -> Vec<Vec<f32>> {
    let limits = *model.limits();
    let features: Vec<f32> =
        (0..limits.bins * limits.frames).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let tokens = [257, 258, 261, 266, 40, 41, 99, 33, 290, 290, 77, 256];
    model.encode(&features).unwrap();
    let rows: Vec<usize> = (0..tokens.len()).collect();
    let logits = model.decode(0, &tokens, &rows).unwrap().to_vec();
    let rows = logits.chunks_exact(limits.vocab).map(<[f32]>::to_vec);
    rows.chain([model.alignment().unwrap()]).collect()
}

/// Checks that the tiny Whisper runs as a whole under HTP emulation, and returns its distance from the CPU.
fn speech_under_emulation(scheme: Scheme) -> f32 {
    let package = speech_package(scheme);
    let expected = transcript(&mut open_speech(&package, &Device::Cpu));
    let mut model = open_speech(&package, &emulation(&[QnnChip::XElite]));
    // The encoder, the layers for one token and for ten tokens, and the head.
    let placements = model.placements();
    assert_eq!(placements.len(), 4);
    for placement in placements {
        check_whole(placement, &scheme.to_string());
    }
    agree(&transcript(&mut model), &expected, EMULATED)
}

#[test]
fn a_model_for_speech_runs_whole_under_htp_emulation_and_agrees_with_the_cpu() {
    speech_under_emulation(Scheme::W8);
}

#[test]
#[ignore = "compiles a model for the emulation three times; `cargo xtask npu` runs it"]
fn every_scheme_of_a_model_for_speech_runs_whole() {
    for scheme in [Scheme::W8, Scheme::W4, Scheme::F16] {
        let distance = speech_under_emulation(scheme);
        println!(
            "HTP emulation: tiny whisper in {scheme}: every node placed, relative L2 {distance:.4} to the CPU"
        );
    }
}

#[test]
fn every_part_of_a_divided_decoder_runs_whole_under_htp_emulation() {
    let package = Package::divided_llama(Scheme::W8, shapes());
    let tokens = prompt(6, 13);
    let expected = logits(&mut open(&package, &Device::Cpu, Form::Graph).unwrap(), &tokens);
    let mut emulated = open(&package, &emulation(&[QnnChip::XElite]), Form::Graph).unwrap();
    // There is one more rounding between the parts.
    agree(&logits(&mut emulated, &tokens), &expected, 2.0 * EMULATED);
    let placements = emulated.placements();
    assert_eq!(placements.len(), 5, "two parts for one token, two for eight, and the head");
    for placement in placements {
        check_whole(placement, "divided");
    }
}

/// Returns the logits after each token, run in whole chunks and then in single steps. All rows of a chunk count:
/// Qualcomm's backend computes some operators correctly for the first 8 rows only.
fn in_chunks(executor: &mut dyn Executor, tokens: &[TokenId], chunk: usize) -> Vec<Vec<f32>> {
    let whole = tokens.chunks_exact(chunk);
    let single = whole.remainder().chunks(1);
    let mut rows = Vec::new();
    let mut at = 0;
    for part in whole.chain(single) {
        let mut plan = StepPlan::default();
        plan.push(SlotId(0), at, part, LogitRows::All);
        let logits = executor.step(&plan).unwrap();
        rows.extend((0..logits.rows()).map(|row| logits.row(row).to_vec()));
        at += part.len();
    }
    rows
}

/// Returns the mean Kullback-Leibler divergence of the distributions of rows from those of expected rows, in nats.
fn divergence(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&logit| f64::from(logit - top).exp()).sum();
        row.iter().map(|&logit| f64::from(logit - top) - sum.ln()).collect()
    };
    let of_row = |(found, expected): (&Vec<f32>, &Vec<f32>)| -> f64 {
        let (p, q) = (log_softmax(expected), log_softmax(found));
        p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
    };
    found.iter().zip(expected).map(of_row).sum::<f64>() / expected.len() as f64
}

/// Distances of HTP emulation from the CPU.
struct Distance {
    /// Largest relative L2 distance of the logits after a token.
    relative: f32,
    /// Mean divergence of the distributions, in nats.
    nats: f64,
}

/// Checks that a family runs as a whole under HTP emulation with prefill graphs of `chunk` tokens, and agrees with the
/// CPU.
fn family_under_emulation(device: &Device, family: &str, scheme: Scheme, chunk: usize) -> Distance {
    let shapes = FixedShapes { prefill: vec![chunk], ..families::shapes() };
    let recipe = Recipe { accuracy_level: 0, fixed: Some(shapes), ..Recipe::new(scheme) };
    let package = families::package(family, Format::Safetensors, recipe, None);
    let tokens = families::tokens();
    let expected = in_chunks(&mut open(&package, &Device::Cpu, Form::Graph).unwrap(), &tokens, chunk);
    let mut emulated = open(&package, device, Form::Graph).unwrap();
    for placement in emulated.placements() {
        check_whole(placement, &format!("{family} {scheme}"));
    }
    let found = in_chunks(&mut emulated, &tokens, chunk);
    // For one of the tokens, the tiny Gemma 3n triples each rounding error, on the CPU as well.
    let bound = if family == "gemma3n" { 2.0 * EMULATED } else { EMULATED };
    let distance =
        Distance { relative: agree(&found, &expected, bound), nats: divergence(&found, &expected) };
    assert!(distance.nats <= NATS, "{family} {scheme}: {} nats", distance.nats);
    distance
}

/// Checks every family, and returns its distances.
fn every_family(scheme: Scheme) -> BTreeMap<&'static str, Distance> {
    let device = emulation(&[QnnChip::XElite]);
    let chunk = families::shapes().prefill[0];
    FAMILIES.map(|family| (family, family_under_emulation(&device, family, scheme, chunk))).into()
}

#[test]
fn gemma_3n_agrees_with_the_cpu_under_htp_emulation_in_every_scheme() {
    let device = emulation(&[QnnChip::XElite]);
    for scheme in [Scheme::W8, Scheme::W4, Scheme::F16] {
        for chunk in [12, 32] {
            let Distance { relative, nats } = family_under_emulation(&device, "gemma3n", scheme, chunk);
            println!("gemma3n in {scheme}, prefill of {chunk}: relative L2 {relative:.4}, {nats:.6} nats");
        }
    }
}

#[test]
fn every_family_runs_whole_under_htp_emulation_and_agrees_with_the_cpu() {
    every_family(Scheme::W8);
}

#[test]
#[ignore = "compiles every family for the emulation twice more; `cargo xtask npu` runs it"]
fn every_family_runs_whole_in_other_schemes_too() {
    for scheme in [Scheme::F16, Scheme::W4] {
        for (family, Distance { relative, nats }) in every_family(scheme) {
            println!(
                "HTP emulation: tiny {family} in {scheme}: every node placed, relative L2 {relative:.4} to the CPU, mean \
                 divergence {nats:.6} nats"
            );
        }
    }
}

#[test]
fn prefill_under_htp_emulation_and_decode_on_the_cpu_agree_with_the_cpu() {
    let package = Package::fixed_llama(Scheme::W8, shapes());
    let tokens = prompt(8, 13);
    let expected = logits(&mut package.executor(), &tokens);
    let emulated = open(&package, &emulation(&[QnnChip::XElite]), Form::Graph).unwrap();
    let whole = |found: &GraphPlacement| found.placement.ops_per_ep().into_keys().eq([Ep::Qnn]);
    assert!(emulated.placements().iter().all(whole));
    let options = SplitOptions { break_even: 0 };
    let mut split = SplitExecutor::new(Box::new(emulated), Box::new(package.executor()), options).unwrap();
    agree(&logits(&mut split, &tokens), &expected, EMULATED);
}

#[test]
fn an_encoder_runs_whole_under_htp_emulation_and_agrees_with_the_cpu() {
    let package = Package::fixed_bert(Scheme::W8, shapes());
    let mut emulated = open_encoder(&package, &emulation(&[QnnChip::XElite]));
    assert_eq!(emulated.placements()[0].placement.subgraphs, BTreeMap::from([(Ep::Qnn, 1)]));
    let expected = vectors(&mut open_encoder(&package, &Device::Cpu));
    agree(&vectors(&mut emulated), &expected, EMULATED);
}

#[test]
#[ignore = "compiles 25 encoders for the emulation; `cargo xtask npu` runs it"]
fn every_encoder_family_and_head_runs_whole_under_htp_emulation() {
    let device = emulation(&[QnnChip::XElite]);
    for golden in Golden::every() {
        for head in golden.heads().filter(|head| !matches!(head, Head::Cls | Head::Last)) {
            let what = format!("{} {head:?}", golden.family);
            let checkpoint = golden.checkpoint(head);
            let fixed =
                Some(FixedShapes { context: 64, shorter: vec![], prefill: vec![], buckets: vec![64] });
            let recipe = Recipe { accuracy_level: 0, fixed, ..Recipe::new(Scheme::W8) };
            let package = Package::with_runner(checkpoint.path().to_owned(), recipe, None);
            let (inputs, _) = golden.texts(head);
            let texts = texts(&inputs);
            let mut emulated = open_encoder(&package, &device);
            for placement in emulated.placements() {
                check_whole(placement, &what);
            }
            let (found, expected) =
                (emulated.run(&texts).unwrap(), open_encoder(&package, &Device::Cpu).run(&texts).unwrap());
            let distance = relative(&served(head, found.data), &served(head, expected.data));
            println!(
                "HTP emulation: tiny {what} in w8: every node placed, relative L2 {distance:.4} to the CPU"
            );
            assert!(distance <= EMULATED && distance > 0.0, "{what}: {distance}");
        }
    }
}

#[test]
fn a_context_runs_in_place_of_its_graph() {
    let mut package = Package::fixed_llama(Scheme::W8, shapes());
    let tokens = prompt(7, 13);
    let expected = logits(&mut open(&package, &Device::Cpu, Form::Graph).unwrap(), &tokens);
    let target = contexts(&mut package, &[QnnChip::XElite], Weights::Separate);
    // Without the graph files, only the contexts can run.
    for graph in &package.manifest.graphs {
        fs::remove_file(package.folder.path().join(&graph.file)).unwrap();
    }
    let device = emulation(&[QnnChip::XElite]);
    let mut emulated = open(&package, &device, Form::Context(&target)).unwrap();
    agree(&logits(&mut emulated, &tokens), &expected, EMULATED);
}

#[test]
fn one_binary_serves_all_graphs_of_one_chip() {
    let mut package = Package::fixed_llama(Scheme::W8, shapes());
    contexts(&mut package, &[QnnChip::XElite], Weights::Shared);
    let binaries = fs::read_dir(package.folder.path().join("contexts")).unwrap().filter(|entry| {
        entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "bin")
    });
    assert_eq!(binaries.count(), 1);
}

/// Writes a Llama of two layers, as wide as SmolLM2's, with narrow feed-forward networks.
fn wide_llama(folder: &Path) {
    tiny_llama_safetensors(folder, 7).unwrap();
    let mut config = fs::read_to_string(folder.join("config.json")).unwrap();
    for (key, from, to) in [
        ("hidden_size", HIDDEN, 576),
        ("num_attention_heads", HEADS, 9),
        ("num_key_value_heads", KV_HEADS, 3),
        ("head_dim", HEAD_SIZE, 64),
    ] {
        config = config.replace(&format!("\"{key}\":{from},"), &format!("\"{key}\":{to},"));
    }
    fs::write(folder.join("config.json"), config).unwrap();
    let mut tensors = hf_tensors(&tiny_llama_weights(7));
    for (seed, tensor) in (1_u32..).zip(&mut tensors) {
        let keys = ["k_proj", "v_proj"].iter().any(|part| tensor.name.contains(part));
        for extent in &mut tensor.shape {
            *extent = match *extent {
                HIDDEN => 576,
                extent if keys && extent == KV_HEADS * HEAD_SIZE => 192,
                other => other,
            };
        }
        // Numbers of similar size and either sign; no two tensors are equal.
        let count = tensor.shape.iter().product::<usize>() as u32;
        let mixed = |i: u32| (i.wrapping_add(seed << 20)).wrapping_mul(2_654_435_761) >> 16;
        let bytes = (0..count).flat_map(|i| [mixed(i) as u8, 0x3C | ((mixed(i) >> 8) as u8 & 0x80)]);
        (tensor.bytes, tensor.dtype) = (bytes.collect(), "BF16");
    }
    fs::write(folder.join("model.safetensors"), safetensors_bytes(&tensors)).unwrap();
}

#[test]
fn a_binary_of_several_graphs_holds_their_weights_once() {
    let checkpoint = tempfile::tempdir().unwrap();
    wide_llama(checkpoint.path());
    let recipe = Recipe { fixed: Some(shapes()), ..Recipe::new(Scheme::W8) };
    let mut package = Package::make(checkpoint.path().to_owned(), recipe);
    contexts(&mut package, &[QnnChip::XElite], Weights::Shared);
    let folder = package.folder.path();
    let mut weights = BTreeMap::new();
    for graph in &package.manifest.graphs[1..] {
        let graph = Graph::decode(&fs::read(folder.join(&graph.file)).unwrap()).unwrap();
        let bytes = |constant: Initializer| (constant.name.clone(), constant.expected_bytes().unwrap());
        weights.extend(graph.initializers.into_iter().map(bytes));
    }
    let files = fs::read_dir(folder.join("contexts")).unwrap().map(|entry| entry.unwrap());
    let binaries = files.filter(|file| file.path().extension() == Some("bin".as_ref()));
    let bytes: u64 = binaries.map(|file| file.metadata().unwrap().len()).sum();
    let ratio = bytes as f64 / weights.values().sum::<u64>() as f64;
    // The nodes of three graphs and a few weights give a ratio of 1.13; storing the attention projections twice would
    // give 1.36.
    assert!((0.9..=1.25).contains(&ratio), "{ratio}");
}

#[test]
fn several_chips_share_a_file_for_each_graph() {
    let mut package = Package::fixed_llama(Scheme::W8, shapes());
    contexts(&mut package, &[QnnChip::XElite, QnnChip::X2Elite, QnnChip::Gen3], Weights::Separate);
    for context in &package.manifest.contexts {
        let text = fs::read(package.folder.path().join(&context.file)).unwrap();
        let found = |word: &str| text.windows(word.len()).any(|part| part == word.as_bytes());
        assert!(found("is_multi_soc_ep_context"), "{}", context.file);
        // The provider compares these with a machine: the chips' architectures, then their numbers.
        assert!(found(":73,81,75:60,88,57:"), "{}", context.file);
    }
}

#[test]
fn a_damaged_context_is_refused() {
    let mut package = Package::fixed_llama(Scheme::W8, shapes());
    let target = contexts(&mut package, &[QnnChip::XElite], Weights::Separate);
    for entry in fs::read_dir(package.folder.path().join("contexts")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "bin") {
            let mut bytes = fs::read(&path).unwrap();
            let half = bytes.len() / 2;
            bytes.truncate(half);
            fs::write(&path, bytes).unwrap();
        }
    }
    let device = emulation(&[QnnChip::XElite]);
    let error = open(&package, &device, Form::Context(&target)).err().expect("a damaged context was loaded");
    assert!(matches!(error, DeviceError::Ort { what: "load the graph", .. }), "{error}");
}

#[test]
fn a_graph_that_the_npu_refuses_names_its_nodes() {
    // The NPU does not support the dynamic variant's attention and skip norms, nor symbolic shapes.
    let package = Package::fixed_llama(Scheme::W8, shapes());
    let folder = package.folder.path();
    let (graph, context) = (folder.join("model.onnx"), folder.join("context.onnx"));
    let jobs = [Job { graph: &graph, context: &context }];
    let device = emulation(&[QnnChip::XElite]);
    let mut done = |_| ControlFlow::Continue(());
    let error = precompile(runtime(), &device, &jobs, Weights::Separate, FallbackPolicy::Refused, &mut done)
        .unwrap_err();
    let DeviceError::NotWhole { nodes, refused, .. } = &error else { panic!("{error}") };
    assert!(!refused.is_empty() && refused.len() <= *nodes, "{error}");
    // The provider's own trace has the reason.
    let attention = refused.iter().find(|node| node.op == "GroupQueryAttention").unwrap();
    assert!(attention.name.starts_with("/layers.0/") && attention.reason.is_some(), "{attention:?}");
}

#[test]
fn a_compile_can_be_broken_off() {
    let package = Package::fixed_llama(Scheme::W8, shapes());
    let (graph, context) = (package.folder.path().join("head.onnx"), package.folder.path().join("c.onnx"));
    let jobs = [Job { graph: &graph, context: &context }];
    let mut done = |_| ControlFlow::Break(());
    let device = emulation(&[QnnChip::XElite]);
    let error = precompile(runtime(), &device, &jobs, Weights::Separate, FallbackPolicy::Refused, &mut done)
        .unwrap_err();
    assert_eq!(error, DeviceError::Cancelled);
}
