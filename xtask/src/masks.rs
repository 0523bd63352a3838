//! `cargo xtask masks`: measures the masks of constrained decoding over 2,000 generated schemas for each tokenizer.
//!
//! The measurement is an ignored test of `narthex-text`, which also validates every answer. It runs with the release
//! profile, on the vocabulary of an installed model and on two small ones.

use anyhow::{Context, ensure};
use xtask_tools::{
    process,
    record::{self, RecordArgs},
    session::Session,
    terminal,
    workspace::Workspace,
};

/// Name of the ignored test.
const TEST: &str = "every_answer_is_valid_for_two_thousand_schemas";

/// Model whose vocabulary is measured, and the folder of its package in the store.
const MODEL: &str = "smollm2:135m";
const PACKAGE: &str = "packages/smollm2--135m/w8/tokenizer.json";

/// Runs the measurement and records its times.
pub(crate) fn run(workspace: &Workspace, args: RecordArgs) -> anyhow::Result<()> {
    let session = Session::new(workspace)?;
    let tokenizer = session.home.join(PACKAGE);
    ensure!(
        tokenizer.is_file(),
        "expected {MODEL} in {}; install it with `narthex pull {MODEL}`",
        session.home.display()
    );
    let mut tests = session.cargo(&["test", "--release", "--package", "narthex-text", "--test", "grammar"]);
    tests.args(["--", "--ignored", "--nocapture", TEST]).env("NARTHEX_TOKENIZER", tokenizer);
    let (mut times, mut passed) = (Vec::new(), false);
    process::each_line(&mut tests, |line| {
        terminal::line(line);
        times.extend(line.contains(" masks of ").then(|| format!("- {line}\n")));
        passed |= line.contains("1 passed");
    })
    .context("the answers under 2,000 schemas")?;
    ensure!(passed && !times.is_empty(), "no test is called {TEST}");
    if args.record {
        let page = page(&record::commit(workspace)?, &times.concat());
        record::write(workspace, record::BENCH, "masks", &page)?;
    }
    Ok(())
}

fn page(commit: &str, times: &str) -> String {
    let (day, platform) = (record::today(), record::platform());
    format!(
        "# Times of masks, {day}\n\n`cargo xtask masks --record` on {commit}, {platform}, release profile. 2,000 generated schemas \
         for each of three tokenizers: bytes with merges, bytes as a fallback, and {MODEL}. Every complete answer of a model \
         with random logits was valid under its schema, or the schema was refused.\n\n{times}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_holds_commit_and_times() {
        let page = page("abc", "- 7 masks of 49152 tokens: mean 40.0µs, 99 % 90.0µs\n");
        assert!(page.contains("on abc,") && page.ends_with("99 % 90.0µs\n"), "{page}");
    }
}
