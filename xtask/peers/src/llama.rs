//! llama.cpp, built from the source in its package for this processor.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;
use serde::Deserialize;
use xtask_tools::{process, pypi::LLAMA_CPP};

use crate::{
    measurement::{Measurement, Rates},
    setup::Setup,
    workload::{WINDOW, Workload},
};

/// Packages of the build tools.
const BUILDERS: &[&str] = &["cmake==4.4.4", "ninja==1.13.2"];

/// Programs that are built.
const PROGRAMS: [&str; 4] = ["llama-bench", "llama-quantize", "llama-perplexity", "llama-server"];

/// CMake options that exclude unused programs and network access.
const OPTIONS: [&str; 7] = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_BUILD_MTMD=OFF",
    "-DLLAMA_OPENSSL=OFF",
];

/// CMake options for processors with AMX: all instruction sets of such a processor but AMX. The code for AMX of this
/// version, compiled by GCC 12, ends with SIGILL or SIGSEGV when it loads the shapes of tiles.
const WITHOUT_AMX: [&str; 13] = [
    "-DGGML_NATIVE=OFF",
    "-DGGML_SSE42=ON",
    "-DGGML_AVX=ON",
    "-DGGML_AVX2=ON",
    "-DGGML_BMI2=ON",
    "-DGGML_FMA=ON",
    "-DGGML_F16C=ON",
    "-DGGML_AVX_VNNI=ON",
    "-DGGML_AVX512=ON",
    "-DGGML_AVX512_VBMI=ON",
    "-DGGML_AVX512_VNNI=ON",
    "-DGGML_AVX512_BF16=ON",
    "-DGGML_AMX_TILE=OFF",
];

/// One test in llama-bench's answer.
#[derive(Debug, Deserialize)]
struct Test {
    n_prompt: usize,
    n_gen: usize,
    samples_ts: Vec<f64>,
}

/// A built llama.cpp.
pub(super) struct Llama<'a> {
    setup: &'a Setup<'a>,
    folder: PathBuf,
}

impl<'a> Llama<'a> {
    /// Builds llama.cpp, unless it is already built. The build takes ten minutes on two cores.
    pub(super) fn prepare(setup: &'a Setup<'a>) -> anyhow::Result<Self> {
        let llama = Self { setup, folder: setup.folder.join(format!("llama-{}", LLAMA_CPP.version)) };
        if !PROGRAMS.iter().all(|name| llama.path(name).is_file()) {
            setup.install("builders", BUILDERS)?;
            fs::create_dir_all(&llama.folder).with_context(|| llama.folder.display().to_string())?;
            let source = LLAMA_CPP.fetch(setup.session, &llama.folder.join("source"))?;
            llama.build(&source)?;
        }
        Ok(llama)
    }

    fn build(&self, source: &PathBuf) -> anyhow::Result<()> {
        let (cmake, ninja) = (self.setup.tool("cmake"), self.setup.tool("ninja"));
        let build = self.folder.join("build");
        let mut configure = self.setup.session.command(cmake);
        configure.args(["-G", "Ninja"]).arg(format!("-DCMAKE_MAKE_PROGRAM={}", ninja.display()));
        configure.arg("-S").arg(source).arg("-B").arg(&build).args(OPTIONS);
        if has_amx() {
            configure.args(WITHOUT_AMX);
        }
        process::output(&mut configure)?;
        process::run(self.setup.session.command(ninja).arg("-C").arg(&build).args(PROGRAMS))
    }

    fn path(&self, program: &str) -> PathBuf {
        let file = format!("{program}{}", std::env::consts::EXE_SUFFIX);
        self.folder.join("build").join("bin").join(file)
    }

    /// Returns a command for one of its programs.
    pub(super) fn command(&self, program: &str) -> Command {
        self.setup.session.command(self.path(program))
    }

    /// Quantises a checkpoint to another type. llama.cpp selects the types of the embedding and the head.
    pub(super) fn quantize(&self, checkpoint: &Path, kind: &str, file: &Path) -> anyhow::Result<()> {
        let part = file.with_extension("part");
        let mut quantize = self.command("llama-quantize");
        process::output(quantize.arg("--allow-requantize").arg(checkpoint).arg(&part).arg(kind))?;
        fs::rename(&part, file).with_context(|| file.display().to_string())
    }

    /// Measures prefill from an empty cache and decode after a prompt, as for the other sides. The peak of memory is that
    /// of prefill, because llama-bench copies the cache before it measures decode at a depth.
    pub(super) fn measure(&self, file: &Path, work: Workload) -> anyhow::Result<Measurement> {
        let (prompt, decode, repeat) =
            (work.prompt.to_string(), work.decode.to_string(), work.repeat.to_string());
        // A repetition that is not counted takes as long as the one that is, and a long prompt hardly gains by it.
        let warm: &[&str] = if work.is_deep() { &["--no-warmup"] } else { &[] };
        let bench = |what: [&str; 6]| {
            let mut bench = self.bench(file);
            process::output_with_peak(bench.args(what).args(warm).args(["-r", &repeat, "-o", "json"]))
        };
        let (printed, peak_bytes) = bench(["-p", &prompt, "-n", "0", "-d", "0"])?;
        let prefill = rates(&printed.stdout)?;
        let decode = rates(&bench(["-p", "0", "-n", &decode, "-d", &prompt])?.0.stdout)?;
        let without = if has_amx() { " without AMX" } else { "" };
        let versions = [("llama.cpp".to_owned(), format!("{}{without}", LLAMA_CPP.version))].into();
        let measurement = Measurement::new(&Rates { prefill, decode }, self.load_ms(file)?, versions)?;
        Ok(Measurement { peak_bytes, ..measurement })
    }

    /// Measures the time until a model is loaded and has computed its first token.
    fn load_ms(&self, file: &Path) -> anyhow::Result<f64> {
        let mut bench = self.bench(file);
        let printed = process::output(bench.args(["-p", "0", "-n", "1", "-r", "1", "-o", "json", "-v"]))?;
        load_time(&printed.stderr)
    }

    fn bench(&self, file: &Path) -> Command {
        let mut bench = self.command("llama-bench");
        bench.arg("-m").arg(file).args(["-t", &self.setup.threads.to_string()]);
        bench
    }

    /// Measures the perplexity of a text with a GGUF file, and writes the text's tokens to `tokens`.
    pub(super) fn perplexity(&self, file: &Path, text: &str, tokens: &Path) -> anyhow::Result<f64> {
        let mut command = self.command("llama-perplexity");
        command.arg("-m").arg(file).arg("-f").arg(self.setup.session.workspace.root.join(text));
        command.args(["-c", WINDOW, "-t", &self.setup.threads.to_string(), "--save-all-logits"]);
        let printed = process::output(command.arg(tokens))?;
        estimate(&(printed.stdout + &printed.stderr))
    }
}

/// Returns whether Linux states that the processor has AMX.
fn has_amx() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" amx_tile"))
}

/// Returns the tokens per second of the only test in llama-bench's JSON.
fn rates(json: &str) -> anyhow::Result<Vec<f64>> {
    let tests: Vec<Test> = serde_json::from_str(json).context("llama-bench printed something unexpected")?;
    let test = tests.into_iter().find(|test| test.n_prompt + test.n_gen > 0);
    Ok(test.context("llama-bench measured nothing")?.samples_ts)
}

/// Returns the milliseconds in llama.cpp's line about the load time.
fn load_time(printed: &str) -> anyhow::Result<f64> {
    let line = printed.lines().find(|line| line.contains(" load time = "));
    let figure = line.and_then(|line| line.split_once('=')?.1.split_whitespace().next()?.parse().ok());
    figure.context("llama-bench printed no load time")
}

/// Parses the perplexity from the output of llama-perplexity.
fn estimate(printed: &str) -> anyhow::Result<f64> {
    let figure =
        printed.split_once("Final estimate: PPL = ").and_then(|(_, rest)| rest.split_whitespace().next());
    figure.and_then(|figure| figure.parse().ok()).context("llama-perplexity gave no final estimate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_parsed() {
        let json = r#"[{"n_prompt": 256, "n_gen": 0, "n_depth": 0, "avg_ts": 1.0, "samples_ts": [ 510.5, 498.25 ]}]"#;
        assert_eq!(rates(json).unwrap(), [510.5, 498.25]);
        assert!(rates("[]").unwrap_err().to_string().contains("measured nothing"));
        let printed =
            "load: x = 1\nllama_perf_context_print:        load time =      61.25 ms\nllama_perf: 7 ms\n";
        assert_eq!(load_time(printed).unwrap(), 61.25);
        assert!(load_time("load time\n").unwrap_err().to_string().contains("no load time"));
        let output = "[1]20.1,[2]21.9\nFinal estimate: PPL = 21.9876 +/- 1.25\n";
        assert_eq!(estimate(output).unwrap(), 21.9876);
        assert!(estimate("Final estimate: PPL = nothing").is_err());
    }
}
