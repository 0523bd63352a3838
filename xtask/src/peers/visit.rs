//! One visit to one side: a process that loads the model, warms up, and measures a few repetitions.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::peers::{
    Workload,
    figures::median,
    llama::Llama,
    program,
    side::Side,
    stand::{CHECKPOINT, MODEL, Stand},
};

/// What the onnxruntime-genai side needs.
const GENAI: &[&str] = &["onnx==1.23.2", "onnxruntime-genai==0.18.0"];

/// What the OpenVINO side needs.
const OPENVINO: &[&str] = &["openvino==2026.4.1", "openvino-genai==2026.4.1.0"];

/// What a visit found.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Visit {
    /// Prompt tokens a second up to the first generated token: the median of the repetitions.
    pub(super) prefill: f64,
    /// Generated tokens a second after it.
    pub(super) decode: f64,
    /// What ran.
    pub(super) versions: BTreeMap<String, String>,
    /// What the gateway added, where Narthex was visited.
    pub(super) gateway: Option<Added>,
}

/// What the gateway adds to the engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Added {
    /// Time per token through the gateway over the engine's own.
    pub(super) token_ratio: f64,
    /// Milliseconds per request.
    pub(super) request_ms: f64,
}

/// A loop's answer.
#[derive(Deserialize)]
struct LoopAnswer {
    prefill: Vec<f64>,
    decode: Vec<f64>,
    versions: BTreeMap<String, String>,
}

/// The part of `narthex bench --json` that is recorded.
#[derive(Deserialize)]
struct BenchAnswer {
    machine: BenchMachine,
    prefill_tokens_per_second: Middle,
    decode_tokens_per_second: Middle,
    gateway: Option<GatewayAnswer>,
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

impl Visit {
    /// The medians of repetitions, of which there is at least one each.
    pub(super) fn of(
        prefill: &[f64],
        decode: &[f64],
        versions: BTreeMap<String, String>,
    ) -> anyhow::Result<Self> {
        let (prefill, decode) = (median(prefill), median(decode));
        let (prefill, decode) = prefill.zip(decode).context("nothing was measured")?;
        if !(prefill > 0.0 && decode > 0.0) {
            bail!("expected tokens a second, found {prefill} in prefill and {decode} in decode");
        }
        Ok(Self { prefill, decode, versions, gateway: None })
    }

    fn of_bench(answer: BenchAnswer) -> anyhow::Result<Self> {
        let versions = [("narthex", answer.machine.narthex), ("onnxruntime", answer.machine.onnxruntime)];
        let versions = versions.map(|(name, version)| (name.to_owned(), version)).into();
        let (prefill, decode) = (answer.prefill_tokens_per_second, answer.decode_tokens_per_second);
        let visit = Self::of(&[prefill.median], &[decode.median], versions)?;
        let gateway = answer.gateway.map(|gateway| Added {
            token_ratio: gateway.token_ratio.median,
            request_ms: gateway.request_ms.median,
        });
        Ok(Self { gateway, ..visit })
    }
}

/// A side that is ready to be visited.
pub(super) enum Ready<'a> {
    Narthex(&'static str),
    Llama(Llama<'a>, &'static str),
    Script(&'static str, PathBuf),
}

impl<'a> Ready<'a> {
    /// Installs and writes what a side needs, where it is not there yet.
    pub(super) fn prepare(side: Side, stand: &'a Stand<'a>) -> anyhow::Result<Self> {
        let llama = |kind| {
            let llama = Llama::prepare(stand)?;
            llama.quantized(kind)?;
            Ok(Self::Llama(llama, kind))
        };
        match (side, side.scheme()) {
            (Side::NarthexW8 | Side::NarthexW4, Some(scheme)) => Ok(Self::Narthex(scheme)),
            (Side::GenaiW4, Some(scheme)) => {
                stand.install("genai", GENAI)?;
                Ok(Self::Script("loop_genai.py", genai_folder(stand, scheme)?))
            }
            (_, Some(scheme)) => Ok(Self::Script("loop_onnxruntime.py", stand.package(MODEL, scheme))),
            (Side::LlamaQ8, None) => llama("Q8_0"),
            (Side::LlamaQ4, None) => llama("Q4_0"),
            (_, None) => {
                stand.install("openvino", OPENVINO)?;
                Ok(Self::Script("loop_openvino.py", openvino_folder(stand)?))
            }
        }
    }

    /// Measures it once.
    pub(super) fn visit(&self, stand: &Stand<'_>, work: Workload) -> anyhow::Result<Visit> {
        let text = |number: usize| number.to_string();
        let (threads, repeat) = (text(stand.threads), text(work.repeat));
        let (prompt, decode) = (text(work.prompt), text(work.decode));
        match self {
            Self::Llama(llama, kind) => llama.visit(kind, work),
            Self::Narthex(scheme) => {
                let mut bench = stand.session.command(&stand.narthex);
                bench.args(["bench", "--json", "--model", MODEL, "--scheme", scheme, "--threads", &threads]);
                bench.args(["--prompt-tokens", &prompt, "--generate-tokens", &decode, "--rounds", &repeat]);
                let json = program::output(&mut bench)?.stdout;
                let answer = serde_json::from_str(&json);
                Visit::of_bench(answer.context("`narthex bench --json` printed something unexpected")?)
            }
            Self::Script(script, model) => {
                let mut command = stand.script(script);
                command.arg(model).args(["--threads", &threads, "--repeat", &repeat]);
                command.args(["--prompt", &prompt, "--decode", &decode]);
                let answer: LoopAnswer = serde_json::from_value(program::output(&mut command)?.answer()?)?;
                Visit::of(&answer.prefill, &answer.decode, answer.versions)
            }
        }
    }
}

/// The graph of a package as genai runs it, written anew: the package may have been compiled anew.
fn genai_folder(stand: &Stand<'_>, scheme: &str) -> anyhow::Result<PathBuf> {
    let folder = stand.folder.join(format!("genai-{scheme}"));
    program::output(stand.script("export_genai.py").arg(stand.package(MODEL, scheme)).arg(&folder))?;
    Ok(folder)
}

/// What OpenVINO makes of the checkpoint, written once.
fn openvino_folder(stand: &Stand<'_>) -> anyhow::Result<PathBuf> {
    let folder = stand.folder.join("openvino");
    let mark = folder.join("written");
    if !mark.is_file() {
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let copy = folder.join("model.gguf");
        fs::copy(stand.checkpoint(MODEL, CHECKPOINT)?, &copy).with_context(|| copy.display().to_string())?;
        program::output(stand.script("loop_openvino.py").arg(&copy).arg("--read"))?;
        fs::write(&mark, "").with_context(|| mark.display().to_string())?;
    }
    Ok(folder)
}

/// From the start of `narthex chat` to the first byte of its answer, with a compiled package.
pub(super) fn cold_start(stand: &Stand<'_>, scheme: &str) -> anyhow::Result<Duration> {
    let mut chat = stand.session.command(&stand.narthex);
    chat.args(["chat", "--quiet", "--model", MODEL, "--scheme", scheme, "--max-tokens", "4"]);
    chat.args(["--threads", &stand.threads.to_string(), "What is the capital of France?"]);
    let begun = Instant::now();
    let mut child = chat.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut first = [0];
    let read = child.stdout.as_mut().context("no standard output")?.read_exact(&mut first);
    let took = begun.elapsed();
    // Whatever else it prints fits the pipe, so that it ends by itself.
    let status = child.wait()?;
    read.with_context(|| format!("`narthex chat` answered nothing and ended with {status}"))?;
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_visits() {
        let json = r#"{"machine": {"narthex": "0.1.0", "onnxruntime": "1.31.1", "cpu": "x"},
            "prefill_tokens_per_second": {"min": 1.0, "median": 400.0, "max": 500.0},
            "decode_tokens_per_second": {"min": 1.0, "median": 60.0, "max": 61.0},
            "gateway": {"prompt_tokens": 280, "token_ratio": {"median": 1.01}, "request_ms": {"median": 0.4}}}"#;
        let visit = Visit::of_bench(serde_json::from_str(json).unwrap()).unwrap();
        assert_eq!((visit.prefill, visit.decode), (400.0, 60.0));
        assert_eq!(visit.gateway, Some(Added { token_ratio: 1.01, request_ms: 0.4 }));
        assert_eq!(visit.versions["onnxruntime"], "1.31.1");
        assert!(Visit::of(&[], &[1.0], BTreeMap::new()).is_err());
        assert!(Visit::of(&[f64::NAN], &[1.0], BTreeMap::new()).is_err());
    }
}
