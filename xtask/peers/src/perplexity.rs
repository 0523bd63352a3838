//! `cargo xtask perplexity`: compares the perplexity of models in f32 over a fixed text with llama.cpp over the same
//! GGUF files.
//!
//! Both compute with the same weights, so the results differ only by rounding. No times are measured, and the program
//! is built with the profile of tests.

use std::fmt::Write as _;

use xtask_tools::{
    process,
    pypi::LLAMA_CPP,
    record::{self, RecordArgs},
    session::Session,
    terminal,
    workspace::Workspace,
};

use crate::{
    llama::Llama,
    quality::{self, Perplexities},
    setup::{CHECKPOINT, MODEL, Setup},
};

/// Models, and their GGUF files.
const MODELS: [(&str, &str); 2] = [(MODEL, CHECKPOINT), ("gemma3:270m-base", "gemma-3-270m-q4_k_m.gguf")];

/// Scheme of the packages, which stores the numbers of the file exactly.
const SCHEME: &str = "f32";

/// Maximum difference of a ratio from one.
const BOUND: f64 = 0.01;

/// Compiles missing packages, measures, and writes the result. Fails if a ratio is out of bounds.
pub(crate) fn run(workspace: &Workspace, args: RecordArgs) -> anyhow::Result<()> {
    let session = Session::new(workspace)?;
    let setup = Setup::untimed(&session, session.build_narthex()?)?;
    let llama = Llama::prepare(&setup)?;
    let mut rows = Vec::new();
    for (model, file) in MODELS {
        let package = setup.package(model, SCHEME);
        if !package.is_dir() {
            terminal::line(format!("compiling {model} in {SCHEME}"));
            let mut compile = session.command(&setup.narthex);
            process::output(compile.args(["compile", model, "--scheme", SCHEME]))?;
        }
        let found = quality::perplexities(&setup, &llama, &package, &setup.checkpoint(model, file)?)?;
        terminal::line(format!("{model}: {:.4} beside {:.4}", found.ours, found.theirs));
        rows.push((model, file, found));
    }
    let about = format!(
        "Narthex {} on {}, {} threads, {}; commit {}",
        env!("CARGO_PKG_VERSION"),
        setup.cpu()?,
        setup.threads,
        record::platform(),
        record::commit(workspace)?,
    );
    let page = page(&about, &rows)?;
    terminal::line(&page);
    if args.record {
        record::write(workspace, record::BENCH, "perplexity", &page)?;
    }
    match rows.iter().find(|(_, _, found)| !is_met(found)) {
        Some((model, _, found)) => anyhow::bail!("{model}: the ratio is {:.4}", found.ratio),
        None => Ok(()),
    }
}

fn is_met(found: &Perplexities) -> bool {
    (found.ratio - 1.0).abs() <= BOUND
}

/// Formats the results as a Markdown page.
fn page(about: &str, rows: &[(&str, &str, Perplexities)]) -> anyhow::Result<String> {
    let mut text = format!(
        "# Perplexity over the same file, {}\n\n{about}; `cargo xtask perplexity --record`.\n\nPackages in {SCHEME} beside \
         llama.cpp {} with the GGUF file of each package, over the fixed text. llama.cpp rounds \
         activations to 8 bits for weights with fewer bits. The bound is a ratio within {:.0} % of one.\n\n\
         | Model | File | Narthex | llama.cpp | Ratio | Tokens predicted | Met |\n|---|---|---:|---:|---:|---:|---|\n",
        record::today(),
        LLAMA_CPP.version,
        BOUND * 100.0,
    );
    for (model, file, found) in rows {
        let met = if is_met(found) { "yes" } else { "**no**" };
        writeln!(
            text,
            "| {model} | {file} | {:.4} | {:.4} | {:.4} | {} in {} windows of {} | {met} |",
            found.ours, found.theirs, found.ratio, found.predicted_tokens, found.windows, found.window_tokens
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_out_of_bounds_is_marked() {
        let row = |ratio: f64| {
            let found = Perplexities {
                ours: 20.0 * ratio,
                theirs: 20.0,
                ratio,
                windows: 4,
                window_tokens: 256,
                predicted_tokens: 508,
            };
            page("Narthex", &[("tiny", "tiny.gguf", found)]).unwrap()
        };
        let line = "| tiny | tiny.gguf | 19.9000 | 20.0000 | 0.9950 | 508 in 4 windows of 256 | yes |";
        assert!(row(0.995).lines().any(|found| found == line), "{}", row(0.995));
        for beyond in [0.98, 1.02] {
            assert!(row(beyond).contains("| **no** |"));
        }
    }
}
