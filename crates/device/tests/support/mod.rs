//! Shared parts of these tests: the one runtime of a process, tiny packages, and a short form of steps.

#![allow(dead_code, reason = "each test program uses a part of this")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub(crate) mod encoders;
pub(crate) mod families;
pub(crate) mod fixed;
pub(crate) mod towers;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    sync::atomic::AtomicBool,
    time::SystemTime,
};

use narthex_catalog::{runtimes, store::Store};
use narthex_compile::{
    calibration::{GraphRunner, RunnerError},
    import::{self, ImportJob},
    pipeline::{CompileJob, compile},
    vocab_subset::VocabSubset,
};
use narthex_device::{
    dynamic::{DynamicExecutor, ExecutorOptions},
    encoder::{DynamicEncoder, EncoderOptions},
    ep::Device,
    runtime::{Runtime, disable_telemetry},
    single_run,
};
use narthex_engine::{
    encoder::Text,
    executor::{Executor, LogitRows, StepError, StepPlan},
    position::{MediaRows, Position},
};
use narthex_spec::{
    Feed, Fetch, KvPrecision, Recipe, Scheme, SlotId, TokenId,
    manifest::{Manifest, Provenance},
    progress::Quiet,
    recipe::FixedShapes,
};
use narthex_testkit::checkpoint::{tiny_bert_safetensors, tiny_llama_gguf};
use tempfile::TempDir;

/// Returns a golden's texts as inputs of an encoder.
pub(crate) fn texts(inputs: &[encoders::Input]) -> Vec<Text<'_>> {
    inputs.iter().map(text).collect()
}

fn text(input: &encoders::Input) -> Text<'_> {
    Text { tokens: &input.tokens, second: input.second, requested: &input.requested }
}

/// Returns the path of ONNX Runtime's library, located in the same way as by the product.
pub(crate) fn library() -> PathBuf {
    let store = Store::open(None).unwrap_or_else(|error| panic!("{error}"));
    runtimes::core_library(&store)
        .unwrap_or_else(|error| panic!("{error}"))
        .expect("no ONNX Runtime: run `cargo xtask test` once, which installs it, or set ORT_DYLIB_PATH")
}

/// Returns the runtime of this process.
pub(crate) fn runtime() -> &'static Runtime {
    static LOADED: OnceLock<&'static Runtime> = OnceLock::new();
    LOADED.get_or_init(|| {
        disable_telemetry();
        Runtime::load(&library()).unwrap_or_else(|error| panic!("{error}"))
    })
}

/// Runs the compiler's graphs on the CPU.
pub(crate) struct CpuRunner;

impl GraphRunner for CpuRunner {
    fn run(&self, graph: &Path, feeds: Vec<Feed>, wanted: &[Fetch]) -> Result<Vec<Vec<f32>>, RunnerError> {
        single_run::run(runtime(), graph, 1, feeds, wanted)
            .map_err(|error| RunnerError { reason: error.to_string(), hint: None })
    }
}

/// A compiled package; its folder is removed when it is dropped.
pub(crate) struct Package {
    pub(crate) folder: TempDir,
    pub(crate) manifest: Manifest,
    /// Precision of the executors' caches.
    pub(crate) kv_precision: KvPrecision,
}

impl Package {
    /// Imports an export.
    pub(crate) fn imported(export: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let job = ImportJob {
            name: "tiny".parse().unwrap(),
            out: folder.path(),
            source: "test".to_owned(),
            compiler: "test".to_owned(),
        };
        let found =
            import::open(export, None, None).unwrap_or_else(|error| panic!("{}: {error}", export.display()));
        let manifest = found.write(job, &Quiet, &AtomicBool::new(false)).unwrap();
        Self { folder, manifest, kv_precision: KvPrecision::F32 }
    }

    /// Compiles the tiny Llama.
    pub(crate) fn llama(scheme: Scheme) -> Self {
        let checkpoint = tempfile::tempdir().unwrap();
        let file = checkpoint.path().join("tiny.gguf");
        fs::write(&file, tiny_llama_gguf(7)).unwrap();
        Self::compile(file, scheme)
    }

    /// Compiles the tiny BERT.
    pub(crate) fn bert(scheme: Scheme) -> Self {
        let checkpoint = tempfile::tempdir().unwrap();
        tiny_bert_safetensors(checkpoint.path(), 7).unwrap();
        Self::compile(checkpoint.path().to_owned(), scheme)
    }

    /// Compiles the tiny Llama in both variants, with exact activations.
    pub(crate) fn fixed_llama(scheme: Scheme, shapes: FixedShapes) -> Self {
        let checkpoint = tempfile::tempdir().unwrap();
        let file = checkpoint.path().join("tiny.gguf");
        fs::write(&file, tiny_llama_gguf(7)).unwrap();
        let recipe = Recipe { accuracy_level: 0, fixed: Some(shapes), ..Recipe::new(scheme) };
        // Only integer activations need measurements.
        let runner = recipe.activations.map(|_| &CpuRunner as &dyn GraphRunner);
        Self::with_runner(file, recipe, runner)
    }

    /// Compiles the tiny Llama in both variants; in the fixed one, each layer is a graph of its own.
    pub(crate) fn divided_llama(scheme: Scheme, shapes: FixedShapes) -> Self {
        let checkpoint = tempfile::tempdir().unwrap();
        let file = checkpoint.path().join("tiny.gguf");
        fs::write(&file, tiny_llama_gguf(7)).unwrap();
        let recipe = Recipe { accuracy_level: 0, fixed: Some(shapes), ..Recipe::new(scheme) };
        Self::make(file, Recipe { part_bytes: 1, ..recipe })
    }

    /// Compiles the tiny BERT in both variants, with exact activations.
    pub(crate) fn fixed_bert(scheme: Scheme, shapes: FixedShapes) -> Self {
        let checkpoint = tempfile::tempdir().unwrap();
        tiny_bert_safetensors(checkpoint.path(), 7).unwrap();
        let recipe = Recipe { accuracy_level: 0, fixed: Some(shapes), ..Recipe::new(scheme) };
        Self::make(checkpoint.path().to_owned(), recipe)
    }

    /// Changes the times of all files, as a program that writes to them does.
    pub(crate) fn change_files(&self) {
        for entry in fs::read_dir(self.folder.path()).unwrap() {
            let file = fs::File::options().append(true).open(entry.unwrap().path()).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
    }

    fn compile(checkpoint: PathBuf, scheme: Scheme) -> Self {
        Self::make(checkpoint, Recipe::new(scheme))
    }

    pub(crate) fn make(checkpoint: PathBuf, recipe: Recipe) -> Self {
        Self::with_runner(checkpoint, recipe, None)
    }

    /// Compiles a checkpoint, calibrated if there is a runner.
    pub(crate) fn with_runner(checkpoint: PathBuf, recipe: Recipe, runner: Option<&dyn GraphRunner>) -> Self {
        Self::of(&checkpoint, recipe, (runner, None))
    }

    /// Compiles a checkpoint, calibrated if there is a runner, with a pruned head if there is a vocabulary.
    pub(crate) fn of(
        checkpoint: &Path,
        recipe: Recipe,
        (runner, vocabulary): (Option<&dyn GraphRunner>, Option<&VocabSubset>),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let provenance = Provenance {
            source: "test".to_owned(),
            checkpoint: std::collections::BTreeMap::new(),
            license: None,
            compiler: "test".to_owned(),
        };
        let job = CompileJob {
            checkpoint,
            name: "tiny".parse().unwrap(),
            recipe,
            runner,
            text: None,
            vocabulary,
            widths: None,
            measured_bytes: 0,
            out: folder.path(),
            adapters: &[],
            pooling: None,
            rerank: false,
            keep_stages: None,
            provenance,
        };
        let manifest =
            compile(job, &Quiet, &AtomicBool::new(false)).unwrap_or_else(|error| panic!("{error}"));
        Self { folder, manifest, kv_precision: KvPrecision::F32 }
    }

    /// Returns the package with executors whose caches have this precision.
    pub(crate) fn with_cache(self, kv_precision: KvPrecision) -> Self {
        Self { kv_precision, ..self }
    }

    /// Opens the dynamic variant of an encoder.
    pub(crate) fn encoder(&self, device: &Device) -> DynamicEncoder {
        let options = EncoderOptions { threads: 1, max_batch_tokens: 1000, packed_weights: None };
        DynamicEncoder::open(runtime(), self.folder.path(), &self.manifest, device, &options)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Opens an executor with enough room for all tests.
    pub(crate) fn executor(&self) -> DynamicExecutor {
        self.executor_with(&OPTIONS)
    }

    /// Opens an executor with these options.
    pub(crate) fn executor_with(&self, options: &ExecutorOptions<'_>) -> DynamicExecutor {
        let options = ExecutorOptions { kv_precision: self.kv_precision, ..*options };
        DynamicExecutor::open(runtime(), self.folder.path(), &self.manifest, &Device::Cpu, &options)
            .unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Options with enough room for all tests.
pub(crate) const OPTIONS: ExecutorOptions<'_> = ExecutorOptions {
    threads: 1,
    slots: 5,
    kv_budget: 1 << 30,
    kv_step: 32,
    chunk: 64,
    kv_precision: KvPrecision::F32,
    packed_weights: None,
};

/// A span of a step: slot, position, tokens and requested rows of logits.
pub(crate) type Part<'a> = (u32, usize, &'a [TokenId], LogitRows);

/// Runs one step. Returns its rows of logits.
pub(crate) fn step(executor: &mut impl Executor, parts: &[Part<'_>]) -> Result<Vec<Vec<f32>>, StepError> {
    let mut plan = StepPlan::default();
    for &(slot, at, tokens, wanted) in parts {
        plan.push(SlotId(slot), at, tokens, wanted);
    }
    let logits = executor.step(&plan)?;
    Ok((0..logits.rows()).map(|row| logits.row(row).to_vec()).collect())
}

/// Runs tokens, the rows of a medium, and further tokens in one slot, in spans of at most `chunk`. Returns the rows of
/// logits after each of them.
pub(crate) fn with_media(executor: &mut dyn Executor, media: &MediaRows, chunk: usize) -> Vec<Vec<f32>> {
    let text = |range: std::ops::Range<u32>| range.map(|i| Position::token(i * 7 + 3)).collect::<Vec<_>>();
    let tokens = [text(0..3), media.positions().collect(), text(3..9)].concat();
    let mut rows = Vec::new();
    for (index, part) in tokens.chunks(chunk).enumerate() {
        let mut plan = StepPlan { media: vec![media.clone()], ..StepPlan::default() };
        plan.push_span(SlotId(0), index * chunk, part.iter().copied(), LogitRows::All);
        let logits = executor.step(&plan).unwrap();
        rows.extend((0..logits.rows()).map(|row| logits.row(row).to_vec()));
    }
    executor.truncate(SlotId(0), 0).unwrap();
    rows
}

/// Returns a medium of five rows, which is different for every seed.
pub(crate) fn media(seed: u8, width: usize) -> MediaRows {
    let value = |i: usize| ((i * (usize::from(seed) + 5)) % 23) as f32 / 100.0 - 0.1;
    MediaRows::new([seed; 32], width, (0..5 * width).map(value).collect()).unwrap()
}

/// Runs a prompt in one slot of a fresh executor, in spans of at most `chunk` tokens. Returns the last row.
pub(crate) fn alone(package: &Package, tokens: &[TokenId], chunk: usize) -> Vec<f32> {
    let mut executor = package.executor();
    let mut last = Vec::new();
    for (index, part) in tokens.chunks(chunk).enumerate() {
        last = step(&mut executor, &[(0, index * chunk, part, LogitRows::Last)]).unwrap().remove(0);
    }
    last
}

/// Returns a prompt that is different for every seed.
pub(crate) fn prompt(seed: u32, length: usize) -> Vec<TokenId> {
    (0..length as u32).map(|i| (seed * 131 + i * i * 7 + i * 31 + 3) % 300).collect()
}

/// Returns the largest difference between elements of two rows.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Returns the greatest relative L2 distance of two rows; NaN if one is NaN.
pub(crate) fn farthest(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let distances = found.iter().zip(expected).map(|(found, expected)| relative(found, expected));
    distances.fold(0.0, |most, distance| if distance.is_nan() || distance > most { distance } else { most })
}

/// Copies a folder with its subfolders.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Returns the relative L2 distance.
pub(crate) fn relative(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}
