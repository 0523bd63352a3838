//! Pages that record a run: their folders, and the date, commit and platform in them.

use std::{
    fs,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use clap::Args;

use crate::{
    terminal,
    workspace::{Workspace, relative},
};

/// Folder for the pages of checks.
pub(crate) const CONFORMANCE: &str = "conformance/runs";

/// Folder for the pages of benchmarks.
pub(crate) const BENCH: &str = "bench/runs";

/// The choice between showing a run's result and recording it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub(crate) struct RecordArgs {
    /// Record the result with the sources, in conformance/runs or bench/runs.
    #[arg(long)]
    pub(crate) record: bool,
}

/// Writes a page, named after its kind and the day, and prints its path.
pub(crate) fn write(workspace: &Workspace, folder: &str, kind: &str, page: &str) -> anyhow::Result<()> {
    let folder = workspace.root.join(folder);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let path = folder.join(format!("{kind}-{}.md", today()));
    fs::write(&path, page).with_context(|| path.display().to_string())?;
    terminal::line(format!("written to {}", relative(&path, &workspace.root)));
    Ok(())
}

/// Returns the checked-out commit, with a note if files were changed since.
pub(crate) fn commit(workspace: &Workspace) -> anyhow::Result<String> {
    let git = |arguments: &[&str]| -> anyhow::Result<String> {
        let output = Command::new("git").current_dir(&workspace.root).args(arguments).output();
        Ok(String::from_utf8_lossy(&output.context("git cannot be started")?.stdout).trim().to_owned())
    };
    let id = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Ok(if changed { format!("{id} with changes") } else { id })
}

/// Returns the operating system, the processor's architecture and number of threads, and its name where Linux states
/// it, as `linux x86_64, 2 threads, AMD EPYC`.
pub(crate) fn platform() -> String {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let machine = format!("{} {}, {threads} threads", std::env::consts::OS, std::env::consts::ARCH);
    let information = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    match processor(&information) {
        Some(name) => format!("{machine}, {name}"),
        None => machine,
    }
}

/// Returns the processor's name in Linux's description of it.
fn processor(information: &str) -> Option<&str> {
    let mut fields = information.lines().filter_map(|line| line.split_once(':'));
    let (_, name) = fields.find(|(name, _)| name.trim() == "model name")?;
    Some(name.trim()).filter(|name| !name.is_empty())
}

/// Formats findings as a list in Markdown.
pub(crate) fn list(findings: &[String]) -> String {
    findings.iter().map(|finding| format!("- {finding}\n")).collect()
}

/// Returns today's date in UTC, as `2026-11-21`.
pub(crate) fn today() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = date(now / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Returns the date of a day counted from 1970-01-01, by Hinnant's algorithm.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_named() {
        let check = |text: &str, expect| assert_eq!(processor(text), expect, "{text}");
        check("processor\t: 0\nmodel name\t: AMD EPYC\nmodel name\t: other\n", Some("AMD EPYC"));
        check("model name\t: \n", None);
        check("processor\t: 0\n", None);
    }

    #[test]
    fn days_have_dates() {
        let check = |days, expect| assert_eq!(date(days), expect);
        check(0, (1970, 1, 1));
        check(11_016, (2000, 2, 29));
        check(20_778, (2026, 11, 21));
    }
}
