//! Comparison of a package's perplexity over a fixed text with that of llama.cpp with the same number of bits.
//!
//! llama.cpp divides the text into tokens and windows. `bench/peers/perplexity.py` uses the same ones.

use std::{fs, path::Path};

use anyhow::Context;
use serde::Serialize;
use xtask_tools::{process, terminal};

use crate::{llama::Llama, setup::Setup, side::Side, weights::Weights, workload::TEXT};

/// Two sides whose perplexities are compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct PerplexityPair {
    pub(super) ours: Side,
    pub(super) theirs: Side,
    scheme: &'static str,
    kind: &'static str,
    /// Maximum ratio.
    bound: Option<f64>,
}

/// The comparisons.
pub(super) const PAIRS: [PerplexityPair; 2] = [
    PerplexityPair {
        ours: Side::NarthexW4,
        theirs: Side::LlamaQ4,
        scheme: "w4",
        kind: "Q4_0",
        bound: Some(1.02),
    },
    PerplexityPair { ours: Side::NarthexW8, theirs: Side::LlamaQ8, scheme: "w8", kind: "Q8_0", bound: None },
];

/// Two perplexities of one text, or the reason why they could not be measured.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Comparison {
    pub(super) ours: String,
    pub(super) theirs: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) found: Option<Perplexities>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bound: Option<f64>,
}

/// Two perplexities of one text.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Perplexities {
    pub(super) ours: f64,
    pub(super) theirs: f64,
    /// The first divided by the second.
    pub(super) ratio: f64,
    pub(super) windows: u64,
    pub(super) window_tokens: u64,
    pub(super) predicted_tokens: u64,
}

/// Measures both sides.
pub(super) fn compare(pair: PerplexityPair, setup: &Setup<'_>, weights: &Weights) -> Comparison {
    let found = measure(pair, setup, weights);
    match &found {
        Ok(found) => terminal::line(format!(
            "\nperplexity: {} {:.3}, llama.cpp {} {:.3}",
            pair.scheme, found.ours, pair.kind, found.theirs
        )),
        Err(error) => terminal::problem(format!("the perplexity was not measured: {error:#}")),
    }
    let (found, failed) = match found {
        Ok(found) => (Some(found), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let (ours, theirs) = (format!("package {}", pair.scheme), format!("llama.cpp {}", pair.kind));
    Comparison { ours, theirs, found, failed, bound: pair.bound }
}

fn measure(pair: PerplexityPair, setup: &Setup<'_>, weights: &Weights) -> anyhow::Result<Perplexities> {
    let llama = Llama::prepare(setup)?;
    let package = setup.package(weights.model, pair.scheme);
    perplexities(setup, &llama, &package, &weights.quantized(&llama, setup, pair.kind)?)
}

/// Measures the perplexities of a package and of a GGUF file in llama.cpp.
pub(super) fn perplexities(
    setup: &Setup<'_>,
    llama: &Llama<'_>,
    package: &Path,
    file: &Path,
) -> anyhow::Result<Perplexities> {
    let tokens = setup.folder.join("tokens.bin");
    let theirs = llama.perplexity(file, TEXT, &tokens)?;
    let mut script = setup.script("perplexity.py");
    script.arg(package).arg(&tokens).args(["--threads", &setup.threads.to_string()]);
    let answer = process::output(&mut script)?.answer()?;
    // The file contains all logits of the text, but only its tokens are needed.
    fs::remove_file(&tokens).with_context(|| tokens.display().to_string())?;
    let count = |name: &str| answer[name].as_u64().with_context(|| format!("perplexity.py gave no {name}"));
    let ours = answer["perplexity"].as_f64().context("perplexity.py gave no perplexity")?;
    Ok(Perplexities {
        ours,
        theirs,
        ratio: ours / theirs,
        windows: count("windows")?,
        window_tokens: count("window_tokens")?,
        predicted_tokens: count("predicted_tokens")?,
    })
}
