//! Compares decoders with a reference over a text: perplexity, divergence and agreement of the most likely tokens, with
//! KV caches of every precision:
//! `cargo run --example quality -p narthex-gateway -- TEXT REFERENCE_PACKAGE PACKAGE...`.
//!
//! The text is divided into windows of 512 tokens. The second half of each window is predicted, as llama.cpp does it.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::{error::Error, fs, path::Path};

use narthex_catalog::{runtimes, store::Store};
use narthex_device::{
    dynamic::{DynamicExecutor, ExecutorOptions},
    ep::Device,
    runtime::{Runtime, disable_telemetry},
};
use narthex_engine::executor::{Executor, LogitRows, StepPlan};
use narthex_spec::{
    KvPrecision, SlotId, TokenId,
    manifest::{MANIFEST_FILE, Manifest},
};
use narthex_text::tokenizer::{Specials, Tokenizer};

/// Number of tokens in a window.
const WINDOW: usize = 512;

/// Maximum number of windows.
const WINDOWS: usize = 8;

/// Number of tokens in a step, which bounds the memory of the logits.
const STEP: usize = 64;

/// A package with a cache of one precision, and its sums over the predicted tokens.
struct Candidate {
    name: String,
    executor: DynamicExecutor,
    loss: f64,
    divergence: f64,
    agreeing: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "expected TEXT REFERENCE_PACKAGE PACKAGE...";
    let text = fs::read_to_string(arguments.next().ok_or(usage)?)?;
    let reference = arguments.next().ok_or(usage)?;
    let others: Vec<String> = arguments.collect();
    disable_telemetry();
    let store = Store::open(None)?;
    let runtime = Runtime::load(&runtimes::core_library(&store)?.ok_or("no ONNX Runtime is installed")?)?;

    let mut candidates = vec![Candidate::open(runtime, Path::new(&reference), KvPrecision::F32)?];
    for folder in &others {
        for precision in [KvPrecision::F32, KvPrecision::F16, KvPrecision::I8] {
            candidates.push(Candidate::open(runtime, Path::new(folder), precision)?);
        }
    }

    let windows = windows(Path::new(&reference), &text)?;
    for window in &windows {
        for (index, tokens) in window.chunks(STEP).enumerate() {
            step(&mut candidates, window, index * STEP, tokens)?;
        }
    }

    let count = windows.len() * (WINDOW / 2 - 1);
    println!("{count} predicted tokens in {} windows of {WINDOW}\n", windows.len());
    println!("| Package | Perplexity | Change | Divergence, nats | Same most likely token |");
    println!("|---|---:|---:|---:|---:|");
    let loss = candidates.first().map_or(0.0, |reference| reference.loss);
    for candidate in &candidates {
        let of_all = count as f64;
        println!(
            "| {} | {:.3} | {:+.2} % | {:.4} | {:.1} % |",
            candidate.name,
            (candidate.loss / of_all).exp(),
            100.0 * (((candidate.loss - loss) / of_all).exp() - 1.0),
            candidate.divergence / of_all,
            100.0 * candidate.agreeing as f64 / of_all,
        );
    }
    Ok(())
}

impl Candidate {
    fn open(
        runtime: &'static Runtime,
        folder: &Path,
        kv_precision: KvPrecision,
    ) -> Result<Self, Box<dyn Error>> {
        let manifest = manifest(folder)?;
        let bytes = manifest.bytes();
        let options = ExecutorOptions {
            threads: 0,
            slots: 1,
            kv_budget: 1 << 30,
            kv_step: WINDOW,
            chunk: STEP,
            kv_precision,
            packed_weights: None,
        };
        let executor = DynamicExecutor::open(runtime, folder, &manifest, &Device::Cpu, &options)?;
        let scheme = manifest.recipe.scheme;
        let name = format!("{} {scheme}, {} MB, KV in {kv_precision:?}", manifest.name, bytes / 1_000_000);
        Ok(Self { name, executor, loss: 0.0, divergence: 0.0, agreeing: 0 })
    }
}

fn manifest(folder: &Path) -> Result<Manifest, Box<dyn Error>> {
    Ok(serde_json::from_slice(&fs::read(folder.join(MANIFEST_FILE))?)?)
}

/// Returns the windows of a text.
fn windows(folder: &Path, text: &str) -> Result<Vec<Vec<TokenId>>, Box<dyn Error>> {
    let entry = manifest(folder)?.tokenizer.ok_or("a voice has no tokenizer")?;
    let tokens = Tokenizer::from_json(&fs::read(folder.join(entry.file))?)?.encode(text, Specials::AsText)?;
    let mut windows: Vec<Vec<TokenId>> =
        tokens.chunks_exact(WINDOW).take(WINDOWS).map(<[_]>::to_vec).collect();
    for window in &mut windows {
        window[0] = entry.bos.unwrap_or(window[0]);
    }
    Ok(windows)
}

/// Runs a step of every candidate, the first of which is the reference, and adds its predicted tokens to the sums.
fn step(
    candidates: &mut [Candidate],
    window: &[TokenId],
    first: usize,
    tokens: &[TokenId],
) -> Result<(), Box<dyn Error>> {
    // The token after the last of the window is unknown.
    let predicts = |row: usize| (WINDOW / 2..WINDOW - 1).contains(&(first + row));
    let rows = if (0..tokens.len()).any(predicts) { LogitRows::All } else { LogitRows::Last };
    let mut expected: Vec<Vec<f64>> = Vec::new();
    for candidate in candidates {
        if first == 0 {
            candidate.executor.truncate(SlotId(0), 0).map_err(|error| format!("{error:?}"))?;
        }
        let mut plan = StepPlan::default();
        plan.push(SlotId(0), first, tokens, rows);
        let logits = candidate.executor.step(&plan).map_err(|error| format!("{error:?}"))?;
        if logits.rows() != tokens.len() {
            continue;
        }
        let is_reference = expected.is_empty();
        for row in (0..tokens.len()).filter(|&row| predicts(row)) {
            let found = logarithms(logits.row(row));
            candidate.loss -= found[window[first + row + 1] as usize];
            if is_reference {
                expected.push(found);
                continue;
            }
            let expected = &expected[row - (WINDOW / 2).saturating_sub(first)];
            let divergence = expected.iter().zip(&found).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            candidate.divergence += divergence;
            candidate.agreeing += usize::from(best(expected) == best(&found));
        }
    }
    Ok(())
}

/// Returns the logarithms of the probabilities of a row of logits.
fn logarithms(row: &[f32]) -> Vec<f64> {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total = f64::from(most) + row.iter().map(|x| f64::from(x - most).exp()).sum::<f64>().ln();
    row.iter().map(|&x| f64::from(x) - total).collect()
}

fn best(row: &[f64]) -> Option<usize> {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]))
}
