//! Measurement of one side by a process that loads the model, warms up, and measures a few repetitions.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::Deserialize;
use xtask_tools::process;

use crate::{
    cost::ModelCost,
    llama::Llama,
    measurement::{Measurement, Overhead, Rates},
    setup::{MODEL, Setup},
    side::Side,
    weights::Weights,
    workload::Workload,
};

/// Packages of the onnxruntime-genai side.
const GENAI: &[&str] = &["onnx==1.23.2", "onnxruntime-genai==0.18.0"];

/// Packages of the OpenVINO sides.
pub(super) const OPENVINO: &[&str] = &["openvino==2026.4.1", "openvino-genai==2026.4.1.0"];

/// Output of a loop in `bench/peers`.
#[derive(Deserialize)]
struct LoopAnswer {
    prefill: Vec<f64>,
    decode: Vec<f64>,
    load_ms: f64,
    versions: BTreeMap<String, String>,
}

/// The parts of the output of `narthex bench --json` that are recorded.
#[derive(Deserialize)]
struct BenchAnswer {
    machine: BenchMachine,
    prefill_tokens_per_second: Middle,
    decode_tokens_per_second: Middle,
    gateway: Option<GatewayAnswer>,
    load_ms: f64,
}

#[derive(Deserialize)]
struct BenchMachine {
    narthex: String,
    onnxruntime: String,
}

#[derive(Deserialize)]
struct GatewayAnswer {
    token_ratio: Middle,
    request_ms: Middle,
}

#[derive(Deserialize)]
struct Middle {
    median: f64,
}

impl BenchAnswer {
    fn into_measurement(self) -> anyhow::Result<Measurement> {
        let versions = [("narthex", self.machine.narthex), ("onnxruntime", self.machine.onnxruntime)];
        let versions = versions.map(|(name, version)| (name.to_owned(), version)).into();
        let (prefill, decode) = (self.prefill_tokens_per_second, self.decode_tokens_per_second);
        let rates = Rates { prefill: vec![prefill.median], decode: vec![decode.median] };
        let measurement = Measurement::new(&rates, self.load_ms, versions)?;
        let gateway = self.gateway.map(|gateway| Overhead {
            token_ratio: gateway.token_ratio.median,
            request_ms: gateway.request_ms.median,
        });
        Ok(Measurement { gateway, ..measurement })
    }
}

/// A side that is ready to run.
pub(super) enum Runner<'a> {
    Narthex {
        model: &'static str,
        scheme: &'static str,
    },
    Llama {
        llama: Llama<'a>,
        file: PathBuf,
    },
    /// A loop in `bench/peers`.
    Script {
        name: &'static str,
        model: PathBuf,
        weights: ScriptWeights,
    },
}

/// Place of the weights in a loop's folder.
pub(super) enum ScriptWeights {
    /// The folder is a package.
    Package,
    /// One file.
    File(&'static str),
}

impl<'a> Runner<'a> {
    /// Installs and generates what a side requires and is missing.
    pub(super) fn prepare(side: Side, setup: &'a Setup<'a>, weights: &Weights) -> anyhow::Result<Self> {
        let llama = |kind| {
            let llama = Llama::prepare(setup)?;
            let file = weights.quantized(&llama, setup, kind)?;
            Ok(Self::Llama { llama, file })
        };
        let model = weights.model;
        match (side, side.scheme()) {
            (Side::NarthexW8 | Side::NarthexW4, Some(scheme)) => Ok(Self::Narthex { model, scheme }),
            (Side::GenaiW4, Some(scheme)) => {
                setup.install("genai", GENAI)?;
                let (name, model) = ("loop_genai.py", genai_folder(setup, weights, scheme)?);
                Ok(Self::Script { name, model, weights: ScriptWeights::File("model.onnx.data") })
            }
            (_, Some(scheme)) => {
                let (name, model) = ("loop_onnxruntime.py", setup.package(model, scheme));
                Ok(Self::Script { name, model, weights: ScriptWeights::Package })
            }
            (Side::LlamaQ8, None) => llama("Q8_0"),
            (Side::LlamaQ4, None) => llama("Q4_0"),
            (_, None) => {
                let (name, model) = ("loop_openvino.py", openvino_folder(setup, weights)?);
                Ok(Self::Script { name, model, weights: ScriptWeights::File("openvino_model.bin") })
            }
        }
    }

    /// Returns the size of the weights that it reads, in bytes.
    pub(super) fn weight_bytes(&self, setup: &Setup<'_>) -> anyhow::Result<u64> {
        let size = |file: &Path| Ok(fs::metadata(file).with_context(|| file.display().to_string())?.len());
        match self {
            Self::Narthex { model, scheme } => {
                Ok(ModelCost::of_package(&setup.package(model, scheme))?.weight_bytes)
            }
            Self::Llama { file, .. } => size(file),
            Self::Script { model, weights, .. } => match weights {
                ScriptWeights::Package => Ok(ModelCost::of_package(model)?.weight_bytes),
                ScriptWeights::File(name) => size(&model.join(name)),
            },
        }
    }

    /// Measures the side once.
    pub(super) fn measure(&self, setup: &Setup<'_>, work: Workload) -> anyhow::Result<Measurement> {
        let text = |number: usize| number.to_string();
        let (threads, repeat) = (text(setup.threads), text(work.repeat));
        let (prompt, decode) = (text(work.prompt), text(work.decode));
        match self {
            Self::Llama { llama, file } => llama.measure(file, work),
            Self::Narthex { model, scheme } => {
                let mut bench = setup.session.command(&setup.narthex);
                bench.args(["bench", "--json", "--model", model, "--scheme", scheme, "--threads", &threads]);
                bench.args(["--prompt-tokens", &prompt, "--generate-tokens", &decode, "--rounds", &repeat]);
                if work.is_deep() {
                    bench.arg("--engine-only");
                }
                let (printed, peak_bytes) = process::output_with_peak(&mut bench)?;
                let answer = serde_json::from_str(&printed.stdout);
                let answer: BenchAnswer =
                    answer.context("`narthex bench --json` printed something unexpected")?;
                Ok(Measurement { peak_bytes, ..answer.into_measurement()? })
            }
            Self::Script { name, model, .. } => {
                let mut command = setup.script(name);
                command.arg(model).args(["--threads", &threads, "--repeat", &repeat]);
                command.args(["--prompt", &prompt, "--decode", &decode]);
                let (printed, peak_bytes) = process::output_with_peak(&mut command)?;
                let answer: LoopAnswer = serde_json::from_value(printed.answer()?)?;
                let rates = Rates { prefill: answer.prefill, decode: answer.decode };
                let measurement = Measurement::new(&rates, answer.load_ms, answer.versions)?;
                Ok(Measurement { peak_bytes, ..measurement })
            }
        }
    }
}

/// Writes the graph of a package for onnxruntime-genai. It is written every time, because the package may have changed.
fn genai_folder(setup: &Setup<'_>, weights: &Weights, scheme: &str) -> anyhow::Result<PathBuf> {
    let folder = weights.derived(setup, &format!("genai-{scheme}"));
    let package = setup.package(weights.model, scheme);
    process::output(setup.script("export_genai.py").arg(package).arg(&folder))?;
    Ok(folder)
}

/// Installs OpenVINO GenAI and converts the weights for it, if this has not been done.
pub(super) fn openvino_folder(setup: &Setup<'_>, weights: &Weights) -> anyhow::Result<PathBuf> {
    setup.install("openvino", OPENVINO)?;
    let folder = weights.derived(setup, "openvino");
    let mark = folder.join("written");
    if !mark.is_file() {
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let copy = folder.join("model.gguf");
        fs::copy(&weights.q4_1, &copy).with_context(|| copy.display().to_string())?;
        process::output(setup.script("loop_openvino.py").arg(&copy).arg("--read"))?;
        fs::write(&mark, "").with_context(|| mark.display().to_string())?;
    }
    Ok(folder)
}

/// Measures the time from the start of `narthex chat` to the first byte of its answer, with a compiled package.
pub(super) fn cold_start(setup: &Setup<'_>, scheme: &str) -> anyhow::Result<Duration> {
    let mut chat = setup.session.command(&setup.narthex);
    chat.args([
        "chat",
        "--quiet",
        "--model",
        MODEL,
        "--scheme",
        scheme,
        "--max-tokens",
        "4",
        "--temperature",
        "0",
    ]);
    chat.args(["--threads", &setup.threads.to_string(), "What is the capital of France?"]);
    let start = Instant::now();
    let mut child = chat.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut first = [0];
    let read = child.stdout.as_mut().context("no standard output")?.read_exact(&mut first);
    let duration = start.elapsed();
    // The rest of the output fits into the pipe, so the program can end.
    let status = child.wait()?;
    read.with_context(|| format!("`narthex chat` answered nothing and ended with {status}"))?;
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_measurements() {
        let json = r#"{"machine": {"narthex": "0.1.0", "onnxruntime": "1.31.1", "cpu": "x"},
            "prefill_tokens_per_second": {"min": 1.0, "median": 400.0, "max": 500.0},
            "decode_tokens_per_second": {"min": 1.0, "median": 60.0, "max": 61.0},
            "gateway": {"prompt_tokens": 280, "token_ratio": {"median": 1.01}, "request_ms": {"median": 0.4}},
            "load_ms": 80.5}"#;
        let answer: BenchAnswer = serde_json::from_str(json).unwrap();
        let measurement = answer.into_measurement().unwrap();
        assert_eq!((measurement.prefill, measurement.decode), (400.0, 60.0));
        assert_eq!(measurement.gateway, Some(Overhead { token_ratio: 1.01, request_ms: 0.4 }));
        assert_eq!(measurement.versions["onnxruntime"], "1.31.1");
        assert_eq!(measurement.load_ms, 80.5);
        let check_refused = |prefill| {
            let rates = Rates { prefill, decode: vec![1.0] };
            assert!(Measurement::new(&rates, 1.0, BTreeMap::new()).is_err(), "{rates:?}");
        };
        check_refused(vec![]);
        check_refused(vec![f64::NAN]);
    }
}
