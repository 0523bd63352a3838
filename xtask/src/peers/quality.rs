//! How well a package predicts a fixed text, beside llama.cpp with the same number of bits.
//!
//! llama.cpp cuts the text into tokens and windows, and `bench/peers/perplexity.py` takes both from it.

use std::{fs, path::Path};

use anyhow::Context;
use serde::Serialize;

use crate::{
    peers::{
        llama::Llama,
        program,
        side::Side,
        stand::{MODEL, Stand},
    },
    terminal,
};

/// The text, relative to the root.
const TEXT: &str = "bench/text/ferry.txt";

/// Whose perplexities are compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub(super) ours: Side,
    pub(super) theirs: Side,
    scheme: &'static str,
    kind: &'static str,
    /// The largest ratio wanted.
    bound: Option<f64>,
}

/// The comparisons.
pub(super) const PAIRS: [Pair; 2] = [
    Pair { ours: Side::NarthexW4, theirs: Side::LlamaQ4, scheme: "w4", kind: "Q4_0", bound: Some(1.02) },
    Pair { ours: Side::NarthexW8, theirs: Side::LlamaQ8, scheme: "w8", kind: "Q8_0", bound: None },
];

/// Two perplexities of one text, or why there are none.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Comparison {
    pub(super) ours: String,
    pub(super) theirs: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) found: Option<Found>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bound: Option<f64>,
}

/// Two perplexities of one text.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Found {
    pub(super) ours: f64,
    pub(super) theirs: f64,
    /// The first over the second.
    pub(super) ratio: f64,
    pub(super) windows: u64,
    pub(super) window_tokens: u64,
    pub(super) predicted_tokens: u64,
}

/// Measures both.
pub(super) fn compare(pair: Pair, stand: &Stand<'_>) -> Comparison {
    let found = measure(pair, stand);
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

fn measure(pair: Pair, stand: &Stand<'_>) -> anyhow::Result<Found> {
    let llama = Llama::prepare(stand)?;
    found(stand, &llama, &stand.package(MODEL, pair.scheme), &llama.quantized(pair.kind)?)
}

/// The perplexities of a package and of a GGUF file in llama.cpp.
pub(super) fn found(
    stand: &Stand<'_>,
    llama: &Llama<'_>,
    package: &Path,
    file: &Path,
) -> anyhow::Result<Found> {
    let tokens = stand.folder.join("tokens.bin");
    let theirs = llama.perplexity(file, TEXT, &tokens)?;
    let mut script = stand.script("perplexity.py");
    script.arg(package).arg(&tokens).args(["--threads", &stand.threads.to_string()]);
    let answer = program::output(&mut script)?.answer()?;
    // It holds every logit of the text, and only its tokens were wanted.
    fs::remove_file(&tokens).with_context(|| tokens.display().to_string())?;
    let count = |name: &str| answer[name].as_u64().with_context(|| format!("perplexity.py gave no {name}"));
    let ours = answer["perplexity"].as_f64().context("perplexity.py gave no perplexity")?;
    Ok(Found {
        ours,
        theirs,
        ratio: ours / theirs,
        windows: count("windows")?,
        window_tokens: count("window_tokens")?,
        predicted_tokens: count("predicted_tokens")?,
    })
}
