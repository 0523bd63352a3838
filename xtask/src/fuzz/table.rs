//! Table of the results.

use std::{fmt::Write as _, fs, num::NonZeroUsize};

use anyhow::Context;
use xtask_tools::{record, workspace::Workspace};

use crate::fuzz::{build::rustc, campaign::CampaignResult};

/// Formats the results of a commit as Markdown, with the versions and limits. `jobs` targets ran at once.
pub(super) fn table(
    workspace: &Workspace,
    commit: &str,
    jobs: NonZeroUsize,
    results: &[CampaignResult],
) -> anyhow::Result<String> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let fuzzer = locked_version(workspace, "libfuzzer-sys")?;
    let mut text = format!(
        "# Fuzzing, {}\n\nCommit {commit}; {}; libfuzzer-sys {fuzzer}; {} with {cores} cores, {jobs} targets at once. Heap limit 256 MiB; \
         process limit 1 GiB; 20 s for one input.\n\n",
        record::today(),
        rustc(&["-V"])?,
        record::platform(),
    );
    text.push_str("| Target | Seeds | Executions | Edges | Features | Peak RSS, MB | Seconds | Crashes |\n");
    text.push_str("|---|---:|---:|---:|---:|---:|---:|---:|\n");
    for result in results {
        let (name, seconds, crashes) =
            (result.target.name(), result.duration.as_secs(), result.crashes.len());
        let row = format!(
            "| {name} | {} | {} | {} | {} | {} | {seconds} | {crashes} |",
            result.seeds, result.executions, result.coverage, result.features, result.peak_mb
        );
        writeln!(text, "{row}")?;
    }
    Ok(text)
}

/// Returns the version of a package in the lock file of the targets.
fn locked_version(workspace: &Workspace, package: &str) -> anyhow::Result<String> {
    let path = workspace.root.join("fuzz/Cargo.lock");
    let lock = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let version = lock.split_once(&format!("name = \"{package}\"\nversion = \"")).map(|(_, rest)| rest);
    let version = version.and_then(|rest| rest.split('"').next());
    Ok(version.with_context(|| format!("fuzz/Cargo.lock has no {package}"))?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuzzer_s_version_is_found() {
        let workspace = Workspace::read().unwrap();
        assert!(locked_version(&workspace, "libfuzzer-sys").unwrap().starts_with("0."));
        assert!(locked_version(&workspace, "no-such-package").is_err());
    }
}
