//! Comparison of real models under Qualcomm's HTP emulation with the same graphs on the CPU. It tests the NPU's
//! arithmetic, not its speed.
//!
//! The ordinary suite runs a few tokens through small graphs. `cargo xtask npu` runs the ignored tests, which take
//! minutes, on whole prompts with calibrated weights.

use std::{
    collections::BTreeMap,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Instant,
};

use narthex_audio::{SPEECH_RATE, mel};
use narthex_catalog::{fetch, index::Catalog, resolve::ModelRef, runtimes, store::Store};
use narthex_compile::{
    calibration::{GraphRunner, RunnerError},
    pipeline::{self, CompileJob},
};
use narthex_device::{
    ep::{Device, QnnOptions},
    placement::GraphPlacement,
    precompile::{FallbackPolicy, Job, Weights, precompile},
    single_run,
    split::{SplitExecutor, SplitOptions},
    static_shapes::{Form, GraphLoad, StaticEncoder, StaticExecutor, StaticOptions, StaticSpeech},
};
use narthex_engine::{
    encoder::Encoder,
    executor::{Executor, LogitRows, StepPlan},
    speech::SpeechModel,
};
use narthex_graph::{Graph, context::CONTEXT_OP, work::multiply_accumulates};
use narthex_spec::{
    Ep, Feed, Fetch, Recipe, Scheme, SlotId, TokenId, Variant,
    manifest::{Manifest, Provenance},
    progress::Quiet,
    recipe::FixedShapes,
    target::QnnChip,
};
use tempfile::TempDir;

use crate::{
    DECODER, best,
    decoder::divergence,
    dynamic,
    encoder::{self, cosine},
    goldens, package, runtime,
};

/// Maximum mean divergence of the emulation from the CPU, in nats; the bound of the numerics check.
const DIVERGENCE: f64 = 0.02;

/// Minimum difference of the CPU's two best logits from which both must prefer the same token.
const MARGIN: f32 = 0.5;

/// Minimum cosine of an embedding.
const COSINE: f64 = 0.999;

/// Lock that runs one test at a time, because the emulation uses every core.
static ALONE: Mutex<()> = Mutex::new(());

pub(crate) fn emulation() -> Device {
    let store = Store::open(None).unwrap();
    let info = runtimes::locate(&store, Ep::Qnn);
    let library =
        info.unwrap_or_else(|| panic!("no QNN runtime: run `cargo xtask test --only store`")).library;
    runtime().register(Ep::Qnn, &library).unwrap();
    Device::Qnn(QnnOptions::new(&library, &[QnnChip::XElite]))
}

/// Runs calibration graphs on the CPU.
pub(crate) struct Runner;

impl GraphRunner for Runner {
    fn run(&self, graph: &Path, feeds: Vec<Feed>, wanted: &[Fetch]) -> Result<Vec<Vec<f32>>, RunnerError> {
        single_run::run(runtime(), graph, 0, feeds, wanted)
            .map_err(|error| RunnerError { reason: error.to_string(), hint: None })
    }
}

/// Compiles a model of the store with graphs of these shapes. With a runner it is calibrated, as for users.
pub(crate) fn compiled(
    model: &str,
    shapes: FixedShapes,
    runner: Option<&dyn GraphRunner>,
) -> (TempDir, Manifest) {
    package(model, Scheme::W8);
    let resolved = ModelRef::parse(model).unwrap().resolve(&Catalog::builtin().unwrap()).unwrap();
    let files = fetch::fetch(&Store::open(None).unwrap(), &resolved, &Quiet, &false.into()).unwrap();
    let out = tempfile::tempdir().unwrap();
    let provenance = Provenance {
        source: files.source,
        checkpoint: BTreeMap::new(),
        license: None,
        compiler: "test".to_owned(),
    };
    let job = CompileJob {
        checkpoint: &files.path,
        name: model.parse().unwrap(),
        recipe: Recipe { fixed: Some(shapes), ..Recipe::new(Scheme::W8) },
        runner,
        text: None,
        vocabulary: None,
        widths: None,
        measured_bytes: 0,
        out: out.path(),
        adapters: &[],
        pooling: None,
        rerank: false,
        keep_stages: None,
        provenance,
    };
    let manifest = pipeline::compile(job, &Quiet, &false.into());
    (out, manifest.unwrap_or_else(|error| panic!("{error}")))
}

/// Asserts that every node of every graph is on the HTP, with each graph in one part.
fn whole(graphs: &[GraphPlacement]) {
    for GraphPlacement { graph, placement } in graphs {
        let places: Vec<Ep> = placement.ops_per_ep().into_keys().collect();
        assert_eq!((places, placement.subgraphs[&Ep::Qnn]), (vec![Ep::Qnn], 1), "{graph}");
        println!("HTP emulation: {graph}: {} nodes in 1 part", placement.nodes.len());
    }
}

/// Checks the NPU's share of a decoder's multiply-accumulates. The host computes none of them: it copies rows of the
/// embedding, and writes angles and masks.
fn share(folder: &Path, graphs: &[GraphPlacement]) {
    let (mut npu, mut all) = (0, 0);
    for GraphPlacement { graph, placement } in graphs {
        let elsewhere =
            |name: &str| placement.nodes.iter().any(|node| node.name == name && node.ep != Ep::Qnn);
        let decoded = Graph::decode(&fs::read(folder.join(graph)).unwrap()).unwrap();
        let known = decoded.infer(&|_| None);
        for node in &decoded.nodes {
            let work = multiply_accumulates(node, &known);
            let work = work.unwrap_or_else(|| panic!("{graph}: the extents of {} are not known", node.name));
            all += work;
            npu += if elsewhere(&node.name) { 0 } else { work };
        }
    }
    let share = npu as f64 / all as f64;
    println!("HTP emulation: {:.2} % of {all} multiply-accumulates are the NPU's", 100.0 * share);
    assert!(share >= 0.99, "{share}");
}

pub(crate) fn executor(folder: &Path, manifest: &Manifest, device: &Device) -> StaticExecutor {
    let place = GraphLoad { device, threads: 0, form: Form::Graph, fallback: FallbackPolicy::Refused };
    let options = StaticOptions { slots: 1, kv_budget: 1 << 30 };
    StaticExecutor::open(runtime(), folder, manifest, place, &options)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the logits after the last of `prompt`, and after each of `forced`, with one token per step.
fn forced(executor: &mut dyn Executor, prompt: &[TokenId], forced: &[TokenId]) -> Vec<Vec<f32>> {
    let slot = SlotId(0);
    let chunk = executor.limits().chunk;
    let (mut at, mut rows) = (0, Vec::new());
    let parts = prompt.chunks(chunk).map(|part| (part, at_end(prompt, part)));
    for (part, wanted) in
        parts.chain(forced.iter().map(|token| (std::slice::from_ref(token), LogitRows::Last)))
    {
        let mut plan = StepPlan::default();
        plan.push(slot, at, part, wanted);
        let logits = executor.step(&plan).unwrap();
        rows.extend((0..logits.rows()).map(|row| logits.row(row).to_vec()));
        at += part.len();
    }
    executor.truncate(slot, 0).unwrap();
    rows
}

/// Returns the logits to request for a part: the last row if the part ends the prompt.
fn at_end(prompt: &[TokenId], part: &[TokenId]) -> LogitRows {
    if part.as_ptr_range().end == prompt.as_ptr_range().end { LogitRows::Last } else { LogitRows::Nothing }
}

fn margin(row: &[f32]) -> f32 {
    let top = best(row) as usize;
    let others = row.iter().enumerate().filter(|(index, _)| *index != top).map(|(_, logit)| *logit);
    row[top] - others.fold(f32::NEG_INFINITY, f32::max)
}

/// Extent of a test on the committed prompts.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    /// Number of prompts.
    pub(crate) prompts: usize,
    /// Maximum tokens of each prompt.
    pub(crate) length: usize,
    /// Number of tokens of the reference's answer that are fed after the prompt.
    pub(crate) steps: usize,
}

/// Extent of the full test: three prompts with sixteen tokens each.
pub(crate) const FULL: Extent = Extent { prompts: 3, length: 64, steps: 16 };

fn decoder_agrees((folder, manifest): (&Path, &Manifest), extent: Extent) {
    let mut cpu = executor(folder, manifest, &Device::Cpu);
    let mut emulated = executor(folder, manifest, &emulation());
    whole(&emulated.placements());
    share(folder, &emulated.placements());
    agree("HTP emulation", &mut cpu, &mut emulated, extent);
}

/// Compares an executor's logits with the CPU's, teacher-forced. `name` begins the printed line.
pub(crate) fn agree(name: &str, cpu: &mut dyn Executor, other: &mut dyn Executor, extent: Extent) {
    let Extent { prompts, length, steps } = extent;
    let (_, answers) = goldens::decoder();
    let (mut nats, mut positions, mut close) = (0.0, 0u32, 0u32);
    for answer in answers.iter().take(prompts) {
        let (prompt, tail) = answer.tokens.split_at(answer.start.min(length));
        let tail = &tail[..steps.min(tail.len())];
        let (expected, found) = (forced(cpu, prompt, tail), forced(other, prompt, tail));
        assert_eq!((expected.len(), found.len()), (tail.len() + 1, tail.len() + 1));
        for (index, (expected, found)) in expected.iter().zip(&found).enumerate() {
            let lead = margin(expected);
            assert!(
                best(expected) == best(found) || lead <= MARGIN,
                "token {index}: the CPU leads by {lead}"
            );
            // Half precision on other hardware always differs in some bits; equal rows would mean that the CPU ran the
            // graph.
            assert!(expected != found, "token {index} is the CPU's");
            nats += divergence(expected, found);
            positions += 1;
            close += u32::from(lead <= MARGIN);
        }
    }
    let mean = nats / f64::from(positions);
    println!("{name}: {positions} positions, mean divergence {mean:.6} nats, {close} too close to call");
    assert!(mean <= DIVERGENCE, "{mean}");
}

/// Compares the embeddings of the first `texts` committed texts.
fn encoder_agrees((folder, manifest): (&Path, &Manifest), texts: usize) {
    let open = |device: &Device| {
        let place = GraphLoad { device, threads: 0, form: Form::Graph, fallback: FallbackPolicy::Refused };
        StaticEncoder::open(runtime(), folder, manifest, place).unwrap_or_else(|error| panic!("{error}"))
    };
    let (mut cpu, mut emulated) = (open(&Device::Cpu), open(&emulation()));
    whole(&emulated.placements());
    let longest = emulated.limits().max_length;
    let tokenizer = fs::read(folder.join(&manifest.tokenizer.as_ref().unwrap().file)).unwrap();
    let tokenizer = narthex_text::tokenizer::Tokenizer::from_json(&tokenizer).unwrap();
    let tokens = goldens::encoder().into_iter().map(|(text, _)| tokenizer.encode_document(&text).unwrap());
    let tokens: Vec<Vec<TokenId>> = tokens.filter(|tokens| tokens.len() <= longest).take(texts).collect();
    assert_eq!(tokens.len(), texts);
    let batch: Vec<&[TokenId]> = tokens.iter().map(Vec::as_slice).collect();
    let (expected, found) = (cpu.run_tokens(&batch).unwrap(), emulated.run_tokens(&batch).unwrap());
    let rows = expected.data.chunks(expected.width).zip(found.data.chunks(found.width));
    let least = rows.map(|(a, b)| cosine(a, b)).fold(f64::INFINITY, f64::min);
    println!("HTP emulation: {texts} texts, least cosine {least:.7} to the CPU's");
    assert!((COSINE..1.0).contains(&least), "{least}");
}

/// Model that transcribes.
const SPEECH: &str = "whisper:base";

/// Compares a transcript of a sound, teacher-forced with the CPU's best tokens.
fn speech_agrees((folder, manifest): (&Path, &Manifest), steps: usize) {
    let open = |device: &Device| {
        let place = GraphLoad { device, threads: 0, form: Form::Graph, fallback: FallbackPolicy::Refused };
        StaticSpeech::open(runtime(), folder, manifest, place).unwrap_or_else(|error| panic!("{error}"))
    };
    let (mut cpu, mut emulated) = (open(&Device::Cpu), open(&emulation()));
    whole(&emulated.placements());
    share(folder, &emulated.placements());

    // Overtones of a pitch that glides.
    let mut phase = 0.0;
    let sound = (0..10 * SPEECH_RATE).map(|at| {
        phase += 0.05 + 0.02 * (at as f32 / 9_000.0).sin();
        (1..12).map(|overtone| (phase * overtone as f32).sin() / overtone as f32).sum::<f32>() * 0.2
    });
    let sound: Vec<f32> = sound.collect();
    let features = mel::log_mel(&sound, mel::MelBins::Eighty);
    cpu.encode(&features).unwrap();
    emulated.encode(&features).unwrap();

    let speech = manifest.speech.as_ref().unwrap();
    let mut tokens =
        vec![speech.start, speech.languages["en"], speech.transcribe.unwrap(), speech.no_timestamps];
    let (mut at, mut nats) = (0, 0.0);
    for _ in 0..steps {
        let last = [tokens.len() - 1];
        let expected = cpu.decode(at, &tokens, &last).unwrap().to_vec();
        let found = emulated.decode(at, &tokens, &last).unwrap();
        let lead = margin(&expected);
        assert!(best(&expected) == best(found) || lead <= MARGIN, "token {at}: the CPU leads by {lead}");
        assert!(expected != found, "token {at} is the CPU's");
        nats += divergence(&expected, found);
        at += tokens.len();
        tokens = vec![best(&expected)];
    }
    let mean = nats / steps as f64;
    println!("HTP emulation: {SPEECH}: {steps} positions, mean divergence {mean:.6} nats");
    assert!(mean <= DIVERGENCE, "{mean}");
}

/// Compiles every static graph ahead of time with shared weights, and checks the result: one context node for each
/// graph, and one binary of about the size of the weights.
fn contexts_are_whole((folder, manifest): (&Path, &Manifest)) {
    let graphs = manifest.graphs.iter().filter(|graph| graph.variant == Variant::Static);
    let graphs: Vec<&String> = graphs.map(|graph| &graph.file).collect();
    let place = folder.join("contexts");
    fs::create_dir(&place).unwrap();
    let paths: Vec<(PathBuf, PathBuf)> =
        graphs.iter().map(|graph| (folder.join(graph), place.join(graph))).collect();
    let jobs: Vec<Job<'_>> = paths.iter().map(|(graph, context)| Job { graph, context }).collect();
    let mut go_on = |_| ControlFlow::Continue(());
    precompile(runtime(), &emulation(), &jobs, Weights::Shared, FallbackPolicy::Refused, &mut go_on).unwrap();
    let mut weights = BTreeMap::new();
    for (graph, context) in &paths {
        let context = Graph::decode(&fs::read(context).unwrap()).unwrap();
        let ops: Vec<&str> = context.nodes.iter().map(|node| node.op.as_str()).collect();
        assert_eq!(ops, [CONTEXT_OP]);
        for constant in Graph::decode(&fs::read(graph).unwrap()).unwrap().initializers {
            weights.insert(constant.name.clone(), constant.expected_bytes().unwrap());
        }
    }
    let binaries = fs::read_dir(&place)
        .unwrap()
        .flatten()
        .filter(|file| file.path().extension() == Some("bin".as_ref()));
    let bytes: u64 = binaries.map(|file| file.metadata().unwrap().len()).sum();
    let ratio = bytes as f64 / weights.values().sum::<u64>() as f64;
    println!("compiled for qnn:x-elite: {} graphs, {bytes} bytes, {ratio:.4} of their weights", graphs.len());
    assert!((0.9..=1.1).contains(&ratio), "{ratio}");
}

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_real_decoder_runs_whole_under_htp_emulation() {
    let _alone = alone();
    let shapes = FixedShapes { context: 32, shorter: vec![], prefill: vec![8], buckets: Vec::new() };
    let (folder, manifest) = compiled(DECODER, shapes, None);
    decoder_agrees((folder.path(), &manifest), Extent { prompts: 1, length: 8, steps: 2 });
}

#[test]
fn a_real_encoder_runs_whole_under_htp_emulation() {
    let _alone = alone();
    let shapes = FixedShapes { context: 32, shorter: vec![], prefill: vec![8], buckets: vec![32] };
    let (folder, manifest) = compiled(encoder::MODEL, shapes, None);
    encoder_agrees((folder.path(), &manifest), 2);
}

#[test]
#[ignore = "minutes of emulation; `cargo xtask npu` runs it"]
fn npu_decoder_in_full() {
    let _alone = alone();
    let (folder, manifest) = compiled(DECODER, FixedShapes::new(512), Some(&Runner));
    decoder_agrees((folder.path(), &manifest), FULL);
    contexts_are_whole((folder.path(), &manifest));
}

#[test]
#[ignore = "minutes of emulation; `cargo xtask npu` runs it"]
fn npu_split_in_full() {
    let _alone = alone();
    let (folder, manifest) = compiled(DECODER, FixedShapes::new(512), Some(&Runner));
    let mut cpu = executor(folder.path(), &manifest, &Device::Cpu);
    let prefill = executor(folder.path(), &manifest, &emulation());
    whole(&prefill.placements());
    // On the CPU, the dynamic graph generates the answers.
    let decode = dynamic((folder.path(), &manifest), &Device::Cpu, 1);
    let options = SplitOptions { break_even: 0 };
    let mut split = SplitExecutor::new(Box::new(prefill), Box::new(decode), options).unwrap();
    agree("HTP emulation: prefill there and decode on the CPU", &mut cpu, &mut split, FULL);
}

#[test]
#[ignore = "minutes of emulation; `cargo xtask npu` runs it"]
fn npu_encoder_in_full() {
    let _alone = alone();
    let (folder, manifest) = compiled(encoder::MODEL, FixedShapes::new(512), Some(&Runner));
    encoder_agrees((folder.path(), &manifest), 8);
}

#[test]
#[ignore = "minutes of emulation; `cargo xtask npu` runs it"]
fn npu_speech_is_compiled_in_full() {
    let _alone = alone();
    let (folder, manifest) = compiled(SPEECH, FixedShapes::new(448), None);
    let started = Instant::now();
    contexts_are_whole((folder.path(), &manifest));
    println!("compiled for qnn:x-elite: {SPEECH} in w8 in {} s", started.elapsed().as_secs());
}

#[test]
#[ignore = "minutes of emulation; `cargo xtask npu` runs it"]
fn npu_speech_in_full() {
    let _alone = alone();
    let (folder, manifest) = compiled(SPEECH, FixedShapes::new(448), None);
    speech_agrees((folder.path(), &manifest), 12);
}
