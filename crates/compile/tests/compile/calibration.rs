//! Calibration with invented measurements: the inputs of the runner, and the use of its results.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a step that fails fails its test")]

use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, atomic::AtomicBool},
};

use half::f16;
use narthex_compile::{
    CompileError,
    calibration::{GraphRunner, RunnerError},
    calibration_text::CalibrationText,
    pipeline::{self, CompileJob},
};
use narthex_graph::{Graph, Initializer, InitializerData};
use narthex_spec::{
    Calibration, Elements, Feed, Fetch, Recipe, RoundingMethod, ScalingMethod, Scheme,
    manifest::{MANIFEST_FILE, Manifest},
    progress::{Progress, Quiet},
    recipe::FixedShapes,
};
use narthex_testkit::checkpoint::{
    HIDDEN, INNER, LAYERS, LLAMA_CONTEXT, Meta, tiny_bert_safetensors, tiny_llama,
};
use serde_json::json;

use crate::{families, support::job};

/// Answer of a runner for one requested output.
type Answer = fn(&Fetch) -> Vec<f32>;

/// Graph, feeds and requested outputs of a run.
type Call = (Graph, Vec<Feed>, Vec<Fetch>);

/// A runner that does not run the graph and returns invented values.
struct MadeUp {
    answer: Answer,
    calls: RefCell<Vec<Call>>,
}

impl MadeUp {
    fn new(answer: Answer) -> Self {
        Self { answer, calls: RefCell::default() }
    }
}

impl GraphRunner for MadeUp {
    fn run(&self, graph: &Path, feeds: Vec<Feed>, wanted: &[Fetch]) -> Result<Vec<Vec<f32>>, RunnerError> {
        let decoded = Graph::decode(&fs::read(graph).unwrap()).unwrap();
        assert!(graph.with_file_name("model.onnx.data").exists());
        self.calls.borrow_mut().push((decoded, feeds, wanted.to_vec()));
        Ok(wanted.iter().map(self.answer).collect())
    }
}

/// A runner that always fails.
struct Broken;

impl GraphRunner for Broken {
    fn run(&self, _: &Path, _: Vec<Feed>, _: &[Fetch]) -> Result<Vec<Vec<f32>>, RunnerError> {
        Err(RunnerError { reason: "the library is gone".to_owned(), hint: Some("install it".to_owned()) })
    }
}

/// A compiled tiny model.
struct Package {
    folder: tempfile::TempDir,
    manifest: Manifest,
}

fn compile(
    checkpoint: &Path,
    scheme: Scheme,
    runner: Option<&dyn GraphRunner>,
    keep_stages: Option<&Path>,
) -> Result<Package, CompileError> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let job = CompileJob { runner, keep_stages, ..job(checkpoint, Recipe::new(scheme), out) };
    let result = pipeline::compile(job, &Quiet, &AtomicBool::new(false));
    assert_eq!(out.join(MANIFEST_FILE).exists(), result.is_ok());
    Ok(Package { manifest: result?, folder })
}

fn llama(folder: &Path) -> PathBuf {
    let path = folder.join("tiny.gguf");
    fs::write(&path, tiny_llama(7).to_bytes()).unwrap();
    path
}

impl Package {
    fn graph(&self) -> Graph {
        Graph::decode(&fs::read(self.folder.path().join("model.onnx")).unwrap()).unwrap()
    }

    /// Returns the bytes of a constant.
    fn bytes(&self, name: &str) -> Vec<u8> {
        let graph = self.graph();
        let constant: &Initializer =
            graph.initializers.iter().find(|constant| constant.name == name).unwrap();
        match &constant.data {
            InitializerData::Inline(bytes) => bytes.to_vec(),
            InitializerData::External { file, offset, length } => {
                let data = fs::read(self.folder.path().join(file)).unwrap();
                data[*offset as usize..(offset + length) as usize].to_vec()
            }
        }
    }

    fn singles(&self, name: &str) -> Vec<f32> {
        self.bytes(name).chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    fn halves(&self, name: &str) -> Vec<f32> {
        self.bytes(name).chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
    }
}

/// Measurements in which every block of 32 channels has its own mean square: 1, 16, 256, ….
fn blocks(fetch: &Fetch) -> Vec<f32> {
    (0..fetch.shape[0]).map(|channel| 16f32.powi(channel as i32 / 32)).collect()
}

/// Measurements in which all channels are equal, except two of the head's input.
fn outliers(fetch: &Fetch) -> Vec<f32> {
    let size = |channel| if fetch.name.ends_with("head") && [3, 40].contains(&channel) { 400.0 } else { 1.0 };
    (0..fetch.shape[0]).map(size).collect()
}

#[test]
fn a_runner_gets_a_whole_probe() {
    let source = tempfile::tempdir().unwrap();
    let runner = MadeUp::new(blocks);
    compile(&llama(source.path()), Scheme::W8, Some(&runner), None).unwrap();
    let calls = runner.calls.into_inner();
    let [(graph, feeds, wanted)] = calls.as_slice() else { panic!("{} runs", calls.len()) };
    graph.check().unwrap();
    assert_eq!(wanted.len(), 3 * LAYERS + 1);
    let outputs: Vec<&str> = graph.outputs.iter().map(|value| value.name.as_str()).collect();
    assert_eq!(outputs, wanted.iter().map(|fetch| fetch.name.as_str()).collect::<Vec<_>>());
    let width = |name: &str| wanted.iter().find(|fetch| fetch.name.ends_with(name)).unwrap().shape.clone();
    assert_eq!((width("1.attn"), width("1.down"), width("head")), (vec![HIDDEN], vec![INNER], vec![HIDDEN]));
    // The logits are not requested; the product of the last layer is computed for the head's input.
    assert!(graph.nodes.iter().all(|node| !node.name.starts_with("/head/")));
    assert!(graph.nodes.iter().any(|node| node.name == "/layers.1/mlp/down_proj/MatMulNBits"));

    let inputs: Vec<&str> = graph.inputs.iter().map(|value| value.name.as_str()).collect();
    assert_eq!(inputs, feeds.iter().map(|feed| feed.name.as_str()).collect::<Vec<_>>());
    for feed in feeds {
        assert_eq!(feed.elements.len(), feed.shape.iter().product::<usize>(), "{}", feed.name);
    }
    // The text is longer than the tiny model's context.
    let embeds = feeds.iter().find(|feed| feed.name == "embeds").unwrap();
    assert_eq!(embeds.shape, [1, LLAMA_CONTEXT, HIDDEN]);
}

#[test]
fn gated_delta_rules_are_measured_without_padding() {
    let source = families::copy("qwen3.5", &json!({}));
    let runner = MadeUp::new(blocks);
    compile(source.path(), Scheme::W8, Some(&runner), None).unwrap();
    let calls = runner.calls.into_inner();
    let [(graph, feeds, _)] = calls.as_slice() else { panic!("{} runs", calls.len()) };
    assert!(graph.nodes.iter().any(|node| node.op == "LinearAttention"));
    let mask = feeds.iter().find(|feed| feed.name == "token_mask").unwrap();
    assert_eq!(mask.elements, Elements::F32(vec![1.0; mask.shape[1]]));
    // A value of integers would keep the graph of a large model from being divided.
    assert!(graph.nodes.iter().all(|node| node.op != "GatherND"));
}

#[test]
fn what_divides_an_input_multiplies_its_readers() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama(source.path());
    let plain = compile(&gguf, Scheme::W8, None, None).unwrap();
    let stages = source.path().join("stages");
    let scaled = compile(&gguf, Scheme::W8, Some(&MadeUp::new(blocks)), Some(&stages)).unwrap();
    let recipes = (plain.manifest.recipe.calibration, scaled.manifest.recipe.calibration);
    assert_eq!(recipes, (Calibration::None, Calibration::Standard));
    // The median of two blocks is the larger one: the exponents are -1 and 0. The median of three blocks is the middle
    // one.
    let two = |channel: usize| if channel < 32 { 0.5 } else { 1.0 };
    let three = |channel: usize| [0.5, 1.0, 2.0][channel / 32];
    for layer in 0..LAYERS {
        let at = |rest: &str| format!("layers.{layer}.{rest}");
        for norm in ["attn_norm.weight", "mlp_norm.weight"] {
            let (before, after) = (plain.singles(&at(norm)), scaled.singles(&at(norm)));
            assert!(before.iter().any(|gain| *gain != 0.0));
            for (channel, (before, after)) in before.iter().zip(&after).enumerate() {
                assert_eq!(*after, before / two(channel), "{norm} {channel}");
            }
        }
        // A power of two that a whole block shares changes only the block's scale; the integers stay the same.
        for part in ["attn/qkv_proj", "mlp/gate_proj", "mlp/up_proj", "mlp/down_proj"] {
            let name = |what: &str| format!("/layers.{layer}/{part}/{what}");
            assert!(plain.bytes(&name("quants")) == scaled.bytes(&name("quants")), "{part}");
            let (before, after) = (plain.halves(&name("scales")), scaled.halves(&name("scales")));
            let blocks = if part.ends_with("down_proj") { 3 } else { 2 };
            for (index, (before, after)) in before.iter().zip(&after).enumerate() {
                let column = index % blocks * 32;
                let factor = match part {
                    "mlp/down_proj" => three(column),
                    "mlp/up_proj" => two(column) / three(index / blocks),
                    _ => two(column),
                };
                assert_eq!(*after, before * factor, "{part} {index}");
            }
        }
    }
    let kept = fs::read_to_string(stages.join("scaling.json")).unwrap();
    assert!(kept.contains("\"layers.1.down\"") && kept.contains("\"exponents\""), "{kept}");
    let mut files: Vec<_> = scaled.manifest.files.keys().collect();
    files.sort();
    assert_eq!(files.len(), fs::read_dir(scaled.folder.path()).unwrap().count() - 1, "{files:?}");
}

#[test]
fn outliers_of_a_tied_head_go_past_the_rounding() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama(source.path());
    let plain = compile(&gguf, Scheme::W8, None, None).unwrap();
    let split = compile(&gguf, Scheme::W8, Some(&MadeUp::new(outliers)), None).unwrap();
    let keep = split.singles("/head/keep");
    let dropped: Vec<usize> = (0..HIDDEN).filter(|&channel| keep[channel] == 0.0).collect();
    assert_eq!(dropped, [3, 40]);
    assert_eq!(keep.iter().sum::<f32>(), HIDDEN as f32 - 2.0);
    // The host's table is unchanged.
    assert_eq!(plain.manifest.tables[0].encoding, split.manifest.tables[0].encoding);
    assert_eq!(plain.bytes("/head/quants"), split.bytes("/head/quants"));
    let columns = split.singles("/head/outliers/weight");
    let exact = compile(&gguf, Scheme::F32, None, None).unwrap().singles("/head/weight");
    let vocab = exact.len() / HIDDEN;
    assert_eq!(columns.len(), 2 * vocab);
    for row in 0..vocab {
        let expected = [exact[row * HIDDEN + 3], exact[row * HIDDEN + 40]];
        assert_eq!([columns[row], columns[vocab + row]], expected, "{row}");
    }
}

#[test]
fn only_chat_models_in_w8_are_calibrated() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama(source.path());
    let bert = source.path().join("bert");
    fs::create_dir(&bert).unwrap();
    tiny_bert_safetensors(&bert, 7).unwrap();
    for (checkpoint, scheme) in [(&gguf, Scheme::W4), (&gguf, Scheme::F32), (&bert, Scheme::W8)] {
        let package = compile(checkpoint, scheme, Some(&Broken), None).unwrap();
        assert_eq!(package.manifest.recipe.calibration, Calibration::None, "{scheme}");
    }
}

#[test]
fn integer_activations_of_fixed_shapes_need_measurements() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama(source.path());
    let bert = source.path().join("bert");
    fs::create_dir(&bert).unwrap();
    tiny_bert_safetensors(&bert, 7).unwrap();
    let small_heads = source.path().join("heads.gguf");
    let mut file = tiny_llama(7);
    for (key, value) in
        [("attention.head_count", 16), ("attention.head_count_kv", 8), ("rope.dimension_count", 4)]
    {
        file.set(&format!("llama.{key}"), Meta::U32(value));
    }
    fs::write(&small_heads, file.to_bytes()).unwrap();

    let check = |checkpoint: &Path, runner: Option<&dyn GraphRunner>, expected: &str| {
        let out = tempfile::tempdir().unwrap();
        let recipe = Recipe { fixed: Some(FixedShapes::new(32)), ..Recipe::new(Scheme::W8A16) };
        let job = CompileJob { runner, ..job(checkpoint, recipe, out.path()) };
        let error = pipeline::compile(job, &Quiet, &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&gguf, None, "compile with --calibrate standard");
    check(&bert, None, "compile with --calibrate standard");
    check(&bert, Some(&Broken), "the library is gone");
    check(&small_heads, Some(&Broken), "this model has heads of 4");
    check(&gguf, Some(&Broken), "the library is gone");
    check(&gguf, Some(&MadeUp::new(|fetch| vec![f32::INFINITY; fetch.shape[0]])), "not finite");
    // Without fixed shapes, only the weights are quantised.
    compile(&gguf, Scheme::W8A16, None, None).unwrap();
    compile(&bert, Scheme::W8A8, None, None).unwrap();
}

#[test]
fn encoders_are_measured_over_documents_without_padding() {
    let source = tempfile::tempdir().unwrap();
    let bert = source.path().join("bert");
    fs::create_dir(&bert).unwrap();
    tiny_bert_safetensors(&bert, 7).unwrap();
    let out = tempfile::tempdir().unwrap();
    let runner = MadeUp::new(|fetch| vec![1.0; fetch.shape[0]]);
    let fixed = FixedShapes { buckets: vec![16], ..FixedShapes::new(32) };
    let recipe = Recipe { fixed: Some(fixed), ..Recipe::new(Scheme::W8A8) };
    let job = CompileJob { runner: Some(&runner), ..job(&bert, recipe, out.path()) };
    let manifest = pipeline::compile(job, &Quiet, &AtomicBool::new(false)).unwrap();
    assert_eq!(manifest.recipe.calibration, Calibration::Standard);

    let calls = runner.calls.into_inner();
    assert!(calls.len() > 1, "{} texts", calls.len());
    let rows = |(_, feeds, _): &Call| {
        let embeds = feeds.iter().find(|feed| feed.name == "embeds").unwrap();
        let mask = feeds.iter().find(|feed| feed.name == "padding_mask").unwrap();
        let Elements::F32(rows) = &embeds.elements else { panic!("no rows") };
        assert_eq!(mask.elements, Elements::I32(vec![1; embeds.shape[1]]));
        assert_eq!(embeds.shape[1], manifest.max_length);
        let width = embeds.shape[2];
        [rows[..width].to_vec(), rows[rows.len() - width..].to_vec(), rows[width..2 * width].to_vec()]
    };
    let [first, second] = [rows(&calls[0]), rows(&calls[1])];
    assert_eq!(first[..2], second[..2], "every document begins and ends with the same special tokens");
    assert_ne!(first[2], second[2], "the documents differ");
}

/// Second moments of inputs whose channels are independent and of equal size.
fn independent(fetch: &Fetch) -> Vec<f32> {
    let channels = fetch.shape[0];
    (0..channels * channels).map(|at| if at % (channels + 1) == 0 { 1.0 } else { 0.0 }).collect()
}

/// Second moments of inputs whose channels are correlated with their neighbours.
fn correlated(fetch: &Fetch) -> Vec<f32> {
    let channels = fetch.shape[0];
    (0..channels * channels).map(|at| 0.9f32.powi((at / channels).abs_diff(at % channels) as i32)).collect()
}

#[test]
fn weights_of_4_bits_are_rounded_by_the_inputs_of_their_layers() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama(source.path());
    let rounded = |rounding, runner: &MadeUp| {
        let folder = tempfile::tempdir().unwrap();
        let recipe = Recipe { rounding, symmetric: true, ..Recipe::new(Scheme::W4) };
        let job = CompileJob { runner: Some(runner), ..job(&gguf, recipe, folder.path()) };
        let manifest = pipeline::compile(job, &Quiet, &AtomicBool::new(false)).unwrap();
        // The temporary file of the rounded weights is gone.
        let files = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(manifest.files.len(), files - 1);
        Package { folder, manifest }
    };
    let data = |package: &Package| package.manifest.files["model.onnx.data"].sha256;

    let nearest = rounded(RoundingMethod::Nearest, &MadeUp::new(independent));
    assert_eq!(nearest.manifest.recipe.calibration, Calibration::None);
    let runner = MadeUp::new(independent);
    let uncompensated = rounded(RoundingMethod::Gptq, &runner);
    assert_eq!(data(&uncompensated), data(&nearest), "there is nothing to compensate");
    let recipe = &uncompensated.manifest.recipe;
    assert_eq!((recipe.rounding, recipe.calibration), (RoundingMethod::Gptq, Calibration::Standard));
    let compensated = rounded(RoundingMethod::Gptq, &MadeUp::new(correlated));
    assert_ne!(data(&compensated), data(&nearest));
    assert_eq!(data(&compensated), data(&rounded(RoundingMethod::Gptq, &MadeUp::new(correlated))));

    // Layers that read one input share its moments, which are measured in 8 bits.
    let calls = runner.calls.into_inner();
    assert!(calls.len() > 1, "{} windows", calls.len());
    let (graph, _, wanted) = &calls[0];
    graph.check().unwrap();
    let moments = wanted.iter().filter(|fetch| fetch.name.starts_with("moments"));
    let outputs: Vec<(&str, &[usize])> =
        moments.map(|fetch| (fetch.name.as_str(), fetch.shape.as_slice())).collect();
    assert_eq!(outputs.len(), 4 * LAYERS);
    // Each of five layers has the mean square of its outputs.
    assert_eq!(wanted.len(), (4 + 5) * LAYERS);
    assert_eq!(
        outputs[..4],
        [
            ("moments/layers.0/attn/qkv_proj", [HIDDEN; 2].as_slice()),
            ("moments/layers.0/attn/o_proj", &[HIDDEN; 2]),
            ("moments/layers.0/mlp/gate_proj", &[HIDDEN; 2]),
            ("moments/layers.0/mlp/down_proj", &[INNER; 2]),
        ]
    );
    let products = graph.nodes.iter().filter(|node| node.op == "MatMulNBits");
    assert!(products.map(|node| node.int("bits")).all(|bits| bits == Some(8)));
}

#[test]
fn gptq_refuses_inputs_that_are_not_finite() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama(source.path());
    let runner = MadeUp::new(|fetch| vec![f32::NAN; fetch.shape.iter().product()]);
    let out = tempfile::tempdir().unwrap();
    let copied = Recipe { rounding: RoundingMethod::Gptq, ..Recipe::new(Scheme::W4) };
    let recipe = Recipe { symmetric: true, ..copied.clone() };
    let compile = |recipe: &Recipe, runner| {
        let job = CompileJob { runner, ..job(&gguf, recipe.clone(), out.path()) };
        pipeline::compile(job, &Quiet, &AtomicBool::new(false))
    };
    let error = compile(&recipe, Some(&runner as &dyn GraphRunner)).unwrap_err();
    assert!(error.to_string().contains("not finite: moments/layers.0/attn/qkv_proj"), "{error}");
    // The blocks of the checkpoint are copied, so nothing is measured.
    assert_eq!(compile(&copied, Some(&Broken)).unwrap().recipe.rounding, RoundingMethod::Nearest);
}

#[test]
fn channels_are_scaled_by_the_inputs_of_their_layers() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama(source.path());
    let folder = tempfile::tempdir().unwrap();
    let stages = tempfile::tempdir().unwrap();
    let runner = MadeUp::new(|fetch| vec![1.0; fetch.shape.iter().product()]);
    let recipe = Recipe { scaling: ScalingMethod::Awq, symmetric: true, ..Recipe::new(Scheme::W4) };
    let job = CompileJob {
        runner: Some(&runner),
        keep_stages: Some(stages.path()),
        ..job(&gguf, recipe, folder.path())
    };
    let manifest = pipeline::compile(job, &Quiet, &AtomicBool::new(false)).unwrap();
    let recipe = &manifest.recipe;
    assert_eq!((recipe.scaling, recipe.calibration), (ScalingMethod::Awq, Calibration::Standard));
    let kept = fs::read_to_string(stages.path().join("scaling.json")).unwrap();
    assert_eq!(kept.matches("\"strength\"").count(), 4 * LAYERS, "{kept}");
}

#[test]
fn a_text_of_the_user_takes_the_place_of_the_compiler_s() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama(source.path());
    let bert = source.path().join("bert");
    fs::create_dir(&bert).unwrap();
    tiny_bert_safetensors(&bert, 7).unwrap();
    let compile = |checkpoint: &Path, recipe: Recipe, name: &str, text: &str| {
        let file = source.path().join(name);
        fs::write(&file, text).unwrap();
        let text = CalibrationText::read(&file).unwrap();
        let runner = MadeUp::new(blocks);
        let out = tempfile::tempdir().unwrap();
        let job =
            CompileJob { runner: Some(&runner), text: Some(&text), ..job(checkpoint, recipe, out.path()) };
        let manifest = pipeline::compile(job, &Quiet, &AtomicBool::new(false))?;
        assert_eq!(manifest.recipe.calibration_text, Some(text.sha256()));
        let calls = runner.calls.into_inner();
        let embeds = calls[0].1.iter().find(|feed| feed.name == "embeds").unwrap();
        Ok::<_, CompileError>(embeds.shape[1])
    };
    let tokens = |name: &str, text: &str| compile(&gguf, Recipe::new(Scheme::W8), name, text).unwrap();
    let plain = tokens("a.txt", "xyz");
    assert!((1..=4).contains(&plain), "{plain}");
    assert_eq!(tokens("b.jsonl", "{\"text\": \"xyz\"}\n"), plain);
    assert!(tokens("c.jsonl", "\"xyz\"\n\"xyz\"\n") > plain);
    // The template adds its markers.
    let conversation = "{\"messages\": [{\"role\": \"user\", \"content\": \"xyz\"}]}\n";
    assert!(tokens("d.jsonl", conversation) > plain);

    let fixed = Some(FixedShapes::new(64));
    let recipe = Recipe { fixed, ..Recipe::new(Scheme::W8A16) };
    let error = compile(&bert, recipe, "e.jsonl", conversation).unwrap_err().to_string();
    assert!(
        error.ends_with("e.jsonl, line 1: the model has no chat template; expected lines with a text"),
        "{error}"
    );
    // Without a runner, no text is read.
    let out = tempfile::tempdir().unwrap();
    let text = CalibrationText::read(&source.path().join("a.txt")).unwrap();
    let job = CompileJob { text: Some(&text), ..job(&gguf, Recipe::new(Scheme::W8), out.path()) };
    let recipe = pipeline::compile(job, &Quiet, &AtomicBool::new(false)).unwrap().recipe;
    assert_eq!((recipe.calibration, recipe.calibration_text), (Calibration::None, None));
}

/// Compiles, and returns the result with the notes.
fn noted(job: CompileJob<'_>) -> (Result<Manifest, CompileError>, Vec<String>) {
    let notes = Mutex::new(Vec::new());
    let sink = |event: Progress| {
        if let Progress::Note(note) = event {
            notes.lock().unwrap().push(note);
        }
    };
    let made = pipeline::compile(job, &sink, &AtomicBool::new(false));
    (made, notes.into_inner().unwrap())
}

#[test]
fn requests_that_need_measurements_are_refused_or_noted_without_them() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama(source.path());
    let bert = source.path().join("bert");
    fs::create_dir(&bert).unwrap();
    tiny_bert_safetensors(&bert, 7).unwrap();
    let gptq = Recipe { rounding: RoundingMethod::Gptq, ..Recipe::new(Scheme::W4) };
    let budget = Recipe { budget: Some("kl=0.1".parse().unwrap()), ..Recipe::new(Scheme::W4) };
    let awq = Recipe { scaling: ScalingMethod::Awq, ..Recipe::new(Scheme::W4) };
    let compile = |checkpoint: &Path, recipe: &Recipe, runner| {
        let out = tempfile::tempdir().unwrap();
        noted(CompileJob { runner, ..job(checkpoint, recipe.clone(), out.path()) })
    };

    let refused = |recipe: &Recipe, expected: &str| {
        let error = compile(&gguf, recipe, None).0.unwrap_err().to_string();
        assert!(error.starts_with(expected) && error.contains("--calibrate standard"), "{error}");
    };
    refused(&Recipe { symmetric: true, ..gptq.clone() }, "rounding gptq ");
    refused(&Recipe { symmetric: true, ..budget.clone() }, "budget kl=0.1 ");
    refused(&Recipe { symmetric: true, ..awq.clone() }, "scaling awq ");
    refused(
        &Recipe { symmetric: true, rounding: RoundingMethod::Gptq, ..budget.clone() },
        "rounding gptq with budget kl=0.1 ",
    );

    let has_note = |checkpoint: &Path, recipe: &Recipe, expected: &str| {
        let (made, notes) = compile(checkpoint, recipe, Some(&Broken));
        let recipe = made.unwrap().recipe;
        assert_eq!((recipe.rounding, recipe.scaling), (RoundingMethod::Nearest, ScalingMethod::Powers));
        assert!(notes.iter().any(|note| note == expected), "{notes:?}");
    };
    let none = "has no effect on tiny: none of its weights is rounded to 4 bits.";
    has_note(&gguf, &gptq, &format!("The rounding gptq {none}"));
    has_note(&gguf, &budget, &format!("The budget kl=0.1 {none}"));
    let only = "The rounding gptq has no effect on tiny: only layers of chat models are measured.";
    has_note(&bert, &gptq, only);
    has_note(&gguf, &awq, &format!("The scaling awq {none}"));
    has_note(&bert, &awq, "The scaling awq has no effect on tiny: only layers of chat models are scaled.");
}

/// A runner whose logits differ from the first ones by the same divergence in all later runs.
#[derive(Default)]
struct Divergent {
    runs: std::cell::Cell<usize>,
    windows: usize,
}

impl GraphRunner for Divergent {
    fn run(&self, _: &Path, _: Vec<Feed>, wanted: &[Fetch]) -> Result<Vec<Vec<f32>>, RunnerError> {
        let Some(logits) = wanted.iter().find(|fetch| fetch.name == "logits") else {
            return Ok(wanted.iter().map(|fetch| vec![1.0; fetch.shape.iter().product()]).collect());
        };
        let run = self.runs.replace(self.runs.get() + 1);
        let vocab = *logits.shape.last().unwrap();
        let first = if run < self.windows { 0.0 } else { 3.0 };
        let value = |at: usize| if at.is_multiple_of(vocab) { first } else { 0.0 };
        Ok(vec![(0..logits.shape.iter().product()).map(value).collect()])
    }
}

#[test]
fn a_divergence_that_was_not_measured_is_noted() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama(source.path());
    let notes_of = |budget: &str| {
        let out = tempfile::tempdir().unwrap();
        let recipe =
            Recipe { budget: Some(budget.parse().unwrap()), symmetric: true, ..Recipe::new(Scheme::W4) };
        let runner = Divergent { windows: 4, ..Divergent::default() };
        let (made, notes) = noted(CompileJob { runner: Some(&runner), ..job(&gguf, recipe, out.path()) });
        made.unwrap();
        notes.into_iter().filter(|note| note.contains("predicted and not measured")).collect::<Vec<_>>()
    };
    // The divergence of each selection is 0.052 nats.
    assert_eq!(notes_of("kl=0.053"), Vec::<String>::new());
    let predicted = notes_of("kl=0.051");
    assert!(predicted.len() == 1 && predicted[0].contains("none of 4 measured selections"), "{predicted:?}");
    // Every layer has 8 bits.
    assert_eq!(notes_of("kl=0.000001"), Vec::<String>::new());
}

#[test]
fn layers_that_lose_most_keep_8_bits_within_the_budget() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama(source.path());
    let check = |budget: &str, expected: std::ops::RangeInclusive<usize>| {
        let out = tempfile::tempdir().unwrap();
        let stages = tempfile::tempdir().unwrap();
        let recipe = Recipe {
            rounding: RoundingMethod::Gptq,
            budget: Some(budget.parse().unwrap()),
            symmetric: true,
            ..Recipe::new(Scheme::W4)
        };
        let runner = MadeUp::new(correlated);
        let job = CompileJob {
            runner: Some(&runner),
            keep_stages: Some(stages.path()),
            ..job(&gguf, recipe.clone(), out.path())
        };
        let manifest = pipeline::compile(job, &Quiet, &AtomicBool::new(false)).unwrap();
        assert_eq!(manifest.recipe.budget, recipe.budget);
        let graph = Graph::decode(&fs::read(out.path().join("model.onnx")).unwrap()).unwrap();
        let wide = graph.nodes.iter().filter(|node| node.op == "MatMulNBits" && node.int("bits") == Some(8));
        let mut wide: Vec<&str> = wide.filter_map(|node| node.name.strip_suffix("/MatMulNBits")).collect();
        wide.retain(|path| *path != "/head");
        let stated = manifest.layer_widths.iter().filter(|layer| layer.is_wide());
        assert_eq!(wide, stated.map(|layer| layer.path.as_str()).collect::<Vec<_>>(), "{budget}");
        assert!(expected.contains(&wide.len()), "{budget}: {wide:?}");
        let layers = fs::read_to_string(stages.path().join("layers.json")).unwrap();
        assert_eq!(layers.matches("\"is_wide\": true").count(), wide.len());
    };
    check("size=+0%", 0..=0);
    check("size=+20%", 1..=5 * LAYERS - 1);
    check("size=+100%", 5 * LAYERS..=5 * LAYERS);
}

#[test]
fn heads_that_onnx_runtime_cannot_run_are_not_calibrated() {
    let source = tempfile::tempdir().unwrap();
    let path = source.path().join("tiny.gguf");
    let mut gguf = tiny_llama(7);
    for (key, value) in
        [("attention.head_count", 16), ("attention.head_count_kv", 8), ("rope.dimension_count", 4)]
    {
        gguf.set(&format!("llama.{key}"), Meta::U32(value));
    }
    fs::write(&path, gguf.to_bytes()).unwrap();
    let out = tempfile::tempdir().unwrap();
    let job = CompileJob { runner: Some(&Broken), ..job(&path, Recipe::new(Scheme::W8), out.path()) };
    let (made, notes) = noted(job);
    assert_eq!(made.unwrap().recipe.calibration, Calibration::None);
    assert!(notes.iter().any(|note| note.contains("this model has heads of 4")), "{notes:?}");
}

#[test]
fn a_calibration_that_fails_fails_the_compile() {
    let source = tempfile::tempdir().unwrap();
    let gguf = llama(source.path());
    let check = |runner: &dyn GraphRunner, reason: &str| {
        let error =
            compile(&gguf, Scheme::W8, Some(runner), None).map(|package| package.manifest).unwrap_err();
        assert!(matches!(error, CompileError::Calibration(_)), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
        error.hint().unwrap()
    };
    let hint = check(&Broken, "the library is gone");
    assert!(hint.contains("install it") && hint.contains("--calibrate none"), "{hint}");
    check(&MadeUp::new(|fetch| vec![1.0; fetch.shape[0] - 1]), "has 64 channels, but 63 were measured");
    check(&MadeUp::new(|fetch| vec![f32::NAN; fetch.shape[0]]), "a mean square of layers.0.attn is NaN");
    check(&MadeUp::new(|fetch| vec![-1.0; fetch.shape[0]]), "is -1");
}
