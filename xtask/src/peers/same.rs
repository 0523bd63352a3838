//! `cargo xtask perplexity`: how well models in single precision predict a fixed text, beside llama.cpp over the very files
//! that they were made of. Both compute with the same weights, so the figures agree but for how each rounds on the way.
//!
//! Nothing is timed, and the program is the one that tests run.

use std::fmt::Write as _;

use crate::{
    package::LLAMA_CPP,
    peers::{
        llama::Llama,
        program,
        quality::{self, Found},
        stand::{CHECKPOINT, MODEL, Stand},
    },
    stamp::{self, Keep},
    terminal,
    test::session::Session,
    workspace::Workspace,
};

/// Models by name, and the files that they are made of.
const MODELS: [(&str, &str); 2] = [(MODEL, CHECKPOINT), ("gemma3:270m-base", "gemma-3-270m-q4_k_m.gguf")];

/// The package that has the file's own numbers.
const SCHEME: &str = "f32";

/// How far from one a ratio may be.
const BOUND: f64 = 0.01;

/// Compiles what is missing, measures, and writes the result; fails where a ratio is beyond the bound.
pub(crate) fn run(workspace: &Workspace, keep: Keep) -> anyhow::Result<()> {
    let session = Session::new(workspace)?;
    let stand = Stand::untimed(&session, session.build_narthex()?)?;
    let llama = Llama::prepare(&stand)?;
    let mut rows = Vec::new();
    for (model, file) in MODELS {
        let package = stand.package(model, SCHEME);
        if !package.is_dir() {
            terminal::line(format!("compiling {model} in {SCHEME}"));
            let mut compile = session.command(&stand.narthex);
            program::output(compile.args(["compile", model, "--scheme", SCHEME]))?;
        }
        let found = quality::found(&stand, &llama, &package, &stand.checkpoint(model, file)?)?;
        terminal::line(format!("{model}: {:.4} beside {:.4}", found.ours, found.theirs));
        rows.push((model, file, found));
    }
    let about = format!(
        "Narthex {} on {}, {} threads, {}; commit {}",
        env!("CARGO_PKG_VERSION"),
        stand.cpu()?,
        stand.threads,
        stamp::platform(),
        stamp::commit(workspace)?,
    );
    let page = page(&about, &rows)?;
    terminal::line(&page);
    if keep == Keep::Record {
        stamp::keep(workspace, stamp::BENCH, "perplexity", &page)?;
    }
    match rows.iter().find(|(_, _, found)| !holds(found)) {
        Some((model, _, found)) => anyhow::bail!("{model}: the ratio is {:.4}", found.ratio),
        None => Ok(()),
    }
}

fn holds(found: &Found) -> bool {
    (found.ratio - 1.0).abs() <= BOUND
}

/// What was found, for people.
fn page(about: &str, rows: &[(&str, &str, Found)]) -> anyhow::Result<String> {
    let mut text = format!(
        "# Perplexity over the same file, {}\n\n{about}; `cargo xtask perplexity --record`.\n\nPackages in {SCHEME} beside \
         llama.cpp {}, which reads the very file that the package is made of, over the fixed text. llama.cpp rounds \
         activations to 8 bits where a weight has fewer. Wanted is a ratio within {:.0} % of one.\n\n\
         | Model | File | Narthex | llama.cpp | Ratio | Tokens predicted | Met |\n|---|---|---:|---:|---:|---:|---|\n",
        stamp::today(),
        LLAMA_CPP.version,
        BOUND * 100.0,
    );
    for (model, file, found) in rows {
        let met = if holds(found) { "yes" } else { "**no**" };
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
    fn a_ratio_beyond_the_bound_is_marked() {
        let row = |ratio: f64| {
            let found = Found {
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
