//! `cargo xtask memory`: measures the peak memory of compiling a large checkpoint.
//!
//! The generated checkpoint has the shape of a 7B Llama. The checkpoint and the packages are removed afterwards. Its
//! first file contains noise. The others are sparse files, which read as zeros and take no disk space. Memory use does
//! not depend on the contents.
//!
//! Anonymous memory (`RssAnon`), which belongs to no file, is sampled every few milliseconds. The program is built with
//! the profile of tests: optimisation affects the time, not the memory.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use narthex_engine::sample::SplitMix64;
use narthex_testkit::checkpoint::tiny_llama_safetensors;
use serde_json::{Map, Value, json};
use xtask_tools::{
    record::{self, RecordArgs},
    session::Session,
    terminal,
    usage::Usage,
    workspace::Workspace,
};

use crate::test;

/// Maximum memory of a compile in bytes, in addition to three times the largest tensor.
const BASE: u64 = 2 << 30;

/// Free disk space in bytes that the checkpoint and a package need.
const DISK: u64 = 14_000_000_000;

const HIDDEN: usize = 4096;
const INNER: usize = 11008;
const LAYERS: usize = 32;
const VOCAB: usize = 32000;
const SHARDS: usize = 4;

/// Arguments of the measured compiles.
const COMPILES: [[&str; 4]; 3] = [
    ["--scheme", "w8", "--calibrate", "none"],
    ["--scheme", "w4", "--calibrate", "none"],
    ["--scheme", "w8", "--calibrate", "standard"],
];

/// One measured compile.
struct CompileRun {
    arguments: String,
    peak: u64,
    seconds: f64,
}

/// Measured compiles and the bound that follows from the checkpoint.
struct MemoryProfile {
    /// Size of the largest tensor in bytes.
    largest_tensor: u64,
    runs: Vec<CompileRun>,
}

impl MemoryProfile {
    /// Returns the maximum memory of a compile in bytes.
    fn bound(&self) -> u64 {
        BASE + 3 * self.largest_tensor
    }
}

/// Generates the checkpoint, compiles it, and compares the peaks with the bound.
pub(crate) fn run(workspace: &Workspace, args: RecordArgs) -> anyhow::Result<()> {
    let (commit, session) = test::prepare(workspace)?;
    let narthex = session.build_narthex()?;
    let folder = workspace.target.join("memory");
    let outcome = measure(&session, &narthex, &folder);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let profile = outcome?;
    let bound = profile.bound();
    let page = report(&commit, &profile);
    terminal::line(&page);
    if args.record {
        record::write(workspace, record::BENCH, "memory", &page)?;
    }
    match profile.runs.iter().find(|run| run.peak > bound) {
        Some(over) => bail!("{} held {} bytes; at most {bound} are allowed", over.arguments, over.peak),
        None => Ok(()),
    }
}

fn measure(session: &Session<'_>, narthex: &Path, folder: &Path) -> anyhow::Result<MemoryProfile> {
    let checkpoint = folder.join("checkpoint");
    fs::create_dir_all(&checkpoint).with_context(|| checkpoint.display().to_string())?;
    let free = free_bytes(folder)?;
    if free < DISK {
        bail!("{} has {free} bytes free; {DISK} are needed", folder.display());
    }
    terminal::line("generating a checkpoint in the shape of a 7B Llama");
    let largest_tensor = write_checkpoint(&checkpoint)?;
    let library = library(&session.home)?;
    let mut runs = Vec::new();
    for arguments in COMPILES {
        let home = folder.join("home");
        let mut command = session.command(narthex);
        command.env("NARTHEX_HOME", &home).env("ORT_DYLIB_PATH", &library);
        command.arg("compile").arg(&checkpoint).args(arguments).stdout(Stdio::null());
        let arguments = arguments.join(" ");
        terminal::line(format!("compiling with {arguments}"));
        let start = Instant::now();
        let peak = peak_memory(&mut command)?;
        runs.push(CompileRun { arguments, peak, seconds: start.elapsed().as_secs_f64() });
        fs::remove_dir_all(&home).with_context(|| home.display().to_string())?;
    }
    Ok(MemoryProfile { largest_tensor, runs })
}

/// Runs a program and returns the peak of its anonymous memory in bytes.
fn peak_memory(command: &mut Command) -> anyhow::Result<u64> {
    let mut child = command.spawn().context("narthex cannot be started")?;
    let mut peak = 0;
    let status = loop {
        peak = peak.max(Usage::of(child.id()).map_or(0, |usage| usage.anonymous));
        if let Some(status) = child.try_wait()? {
            break status;
        }
        thread::sleep(Duration::from_millis(5));
    };
    if !status.success() {
        bail!("narthex ended with {status}");
    }
    if peak == 0 {
        bail!("the memory of a process cannot be read on this system; run this on Linux");
    }
    Ok(peak)
}

/// Returns the free space in bytes of the disk with a folder.
fn free_bytes(folder: &Path) -> anyhow::Result<u64> {
    let output = Command::new("df").args(["-B1", "--output=avail"]).arg(folder).output();
    let text = String::from_utf8_lossy(&output.context("df cannot be started")?.stdout).into_owned();
    let last = text.lines().last().unwrap_or_default();
    last.trim().parse().with_context(|| format!("df printed no free space: {text:?}"))
}

/// Finds ONNX Runtime's library in the store.
fn library(home: &Path) -> anyhow::Result<std::path::PathBuf> {
    let mut folders = vec![home.join("runtimes")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.starts_with("libonnxruntime.so") {
                return Ok(path);
            }
        }
    }
    bail!("{} has no ONNX Runtime; `cargo xtask test --only store` installs it", home.display())
}

/// Returns names and shapes of the tensors of one shard.
fn tensors(shard: usize) -> Vec<(String, [usize; 2])> {
    let mut all = Vec::new();
    if shard == 0 {
        all.push(("model.embed_tokens".to_owned(), [VOCAB, HIDDEN]));
        all.push(("lm_head".to_owned(), [VOCAB, HIDDEN]));
        all.push(("model.norm".to_owned(), [1, HIDDEN]));
    }
    for layer in (0..LAYERS).filter(|layer| layer % SHARDS == shard) {
        let named = |part: &str, shape| (format!("model.layers.{layer}.{part}"), shape);
        let attention = ["q_proj", "k_proj", "v_proj", "o_proj"];
        all.extend(attention.map(|part| named(&format!("self_attn.{part}"), [HIDDEN, HIDDEN])));
        all.extend(["mlp.gate_proj", "mlp.up_proj"].map(|part| named(part, [INNER, HIDDEN])));
        all.push(named("mlp.down_proj", [HIDDEN, INNER]));
        all.extend(["input_layernorm", "post_attention_layernorm"].map(|part| named(part, [1, HIDDEN])));
    }
    all
}

/// Writes the checkpoint and returns the size of its largest tensor in bytes.
fn write_checkpoint(folder: &Path) -> anyhow::Result<u64> {
    tiny_llama_safetensors(folder, 7)?;
    fs::remove_file(folder.join("model.safetensors"))?;
    let config = folder.join("config.json");
    let mut keys: Value = serde_json::from_slice(&fs::read(&config)?)?;
    for (key, value) in [
        ("hidden_size", HIDDEN),
        ("intermediate_size", INNER),
        ("num_hidden_layers", LAYERS),
        ("num_attention_heads", 32),
        ("num_key_value_heads", 32),
        ("head_dim", HIDDEN / 32),
        ("vocab_size", VOCAB),
        ("max_position_embeddings", 4096),
    ] {
        keys[key] = value.into();
    }
    keys["tie_word_embeddings"] = false.into();
    fs::write(&config, keys.to_string())?;
    let noise = noise();
    let (mut weight_map, mut largest) = (Map::new(), 0);
    for shard in 0..SHARDS {
        let file = format!("model-{:05}-of-{SHARDS:05}.safetensors", shard + 1);
        for (name, [rows, cols]) in tensors(shard) {
            largest = largest.max(2 * (rows * cols) as u64);
            weight_map.insert(format!("{name}.weight"), file.clone().into());
        }
        let filling = if shard == 0 { noise.as_slice() } else { &[] };
        write_shard(&folder.join(&file), &tensors(shard), filling)?;
    }
    let index = json!({"metadata": {}, "weight_map": weight_map});
    fs::write(folder.join("model.safetensors.index.json"), index.to_string())?;
    Ok(largest)
}

/// Writes one file. Without `noise` its tensors are a sparse region.
fn write_shard(path: &Path, tensors: &[(String, [usize; 2])], noise: &[u8]) -> anyhow::Result<()> {
    let (mut header, mut at) = (Map::new(), 0);
    for (name, [rows, cols]) in tensors {
        let end = at + 2 * rows * cols;
        let shape = if *rows == 1 { json!([cols]) } else { json!([rows, cols]) };
        header.insert(
            format!("{name}.weight"),
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}),
        );
        at = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::new(File::create(path).with_context(|| path.display().to_string())?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut left = if noise.is_empty() { 0 } else { at };
    while left > 0 {
        let piece = noise.get(..left.min(noise.len())).unwrap_or(noise);
        file.write_all(piece)?;
        left -= piece.len();
    }
    file.flush()?;
    Ok(file.get_ref().set_len((8 + header.len() + at) as u64)?)
}

/// Returns 64 MiB of bfloat16 numbers between -1/16 and 1/16.
fn noise() -> Vec<u8> {
    let mut rng = SplitMix64::new(7);
    // Sign, an exponent from 2^-12 to 2^-5, and seven bits of the fraction.
    let bits = |z: u64| ((z as u16 & 1) << 15) | ((115 + (z >> 1 & 7) as u16) << 7) | (z >> 4 & 127) as u16;
    (0..32 << 20).flat_map(|_| bits(rng.next_u64()).to_le_bytes()).collect()
}

fn report(commit: &str, profile: &MemoryProfile) -> String {
    let bound = profile.bound();
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("? unknown processor");
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    let rows: String = profile
        .runs
        .iter()
        .map(|run| {
            format!(
                "| `{}` | {:.2} GB | {:.2} | {:.0} s |\n",
                run.arguments,
                gigabytes(run.peak),
                run.peak as f64 / bound as f64,
                run.seconds
            )
        })
        .collect();
    format!(
        "# Memory of a compile, {}\n\nCommit {commit}; narthex {}, onnxruntime 1.31.1; {}, {} threads, {}; `cargo xtask \
         memory --record`.\n\nThe checkpoint has the shape of a 7B Llama, a quarter of it noise and the rest zeros: {LAYERS} layers of width {HIDDEN}, {VOCAB} tokens, \
         bf16, {:.1} GB in {SHARDS} files. Its largest tensor has {:.0} MB, so the bound, 2 GiB plus three times that, is {:.2} GB. \
         Memory that belongs to no file (RssAnon) was sampled every 5 ms. Times are those of the build for tests.\n\n\
         | Compile | Peak | Share of the bound | Time |\n|---|---:|---:|---:|\n{rows}",
        record::today(),
        env!("CARGO_PKG_VERSION"),
        cpu.trim_start_matches([' ', '\t', ':']),
        thread::available_parallelism().map_or(1, usize::from),
        record::platform(),
        gigabytes((0..SHARDS).flat_map(tensors).map(|(_, [rows, cols])| 2 * (rows * cols) as u64).sum()),
        profile.largest_tensor as f64 / 1e6,
        gigabytes(bound),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checkpoint_has_seven_billion_parameters() {
        let all: usize = (0..SHARDS).flat_map(tensors).map(|(_, [rows, cols])| rows * cols).sum();
        assert_eq!(all, 6_738_415_616);
    }

    #[test]
    fn noise_is_small_and_finite() {
        let noise = noise();
        let bits = |at: usize| u32::from(u16::from_le_bytes([noise[at], noise[at + 1]])) << 16;
        let values: Vec<f32> = (0..2000).map(|at| f32::from_bits(bits(2 * at))).collect();
        assert!(values.iter().all(|x| x.abs() < 0.0625) && values.iter().any(|x| *x < 0.0));
    }
}
