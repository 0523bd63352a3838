//! The table of a run, and the file that keeps it.

use std::{
    fmt::Write as _,
    fs,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context;

use crate::{
    fuzz::{build::rustc, campaign::Outcome},
    workspace::{Workspace, relative},
};

/// Where tables are kept.
const FOLDER: &str = "conformance/runs";

/// The table as Markdown, with what it was made of.
pub(super) fn table(workspace: &Workspace, outcomes: &[Outcome]) -> anyhow::Result<String> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let fuzzer = locked_version(workspace, "libfuzzer-sys")?;
    let mut text = format!(
        "# Fuzzing, {}\n\nCommit {}; {}; libfuzzer-sys {fuzzer}; {} {} with {cores} cores. Heap limit 256 MiB; \
         process limit 1 GiB; 20 s for one input.\n\n",
        today(),
        commit(workspace)?,
        rustc(&["-V"])?,
        std::env::consts::OS,
        std::env::consts::ARCH,
    );
    text.push_str("| Target | Seeds | Executions | Edges | Features | Peak RSS, MB | Seconds | Crashes |\n");
    text.push_str("|---|---:|---:|---:|---:|---:|---:|---:|\n");
    for o in outcomes {
        let (name, seconds, crashes) = (o.target.name(), o.took.as_secs(), o.crashes.len());
        let row = format!(
            "| {name} | {} | {} | {} | {} | {} | {seconds} | {crashes} |",
            o.seeds, o.executions, o.coverage, o.features, o.peak_mb
        );
        writeln!(text, "{row}")?;
    }
    Ok(text)
}

/// Writes a table and gives its path relative to the root.
pub(super) fn write(workspace: &Workspace, table: &str) -> anyhow::Result<String> {
    let folder = workspace.root.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let path = folder.join(format!("fuzz-{}.md", today()));
    fs::write(&path, table).with_context(|| path.display().to_string())?;
    Ok(relative(&path, &workspace.root))
}

/// The version of a package in the lock file of the targets.
fn locked_version(workspace: &Workspace, package: &str) -> anyhow::Result<String> {
    let path = workspace.root.join("fuzz/Cargo.lock");
    let lock = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let version = lock.split_once(&format!("name = \"{package}\"\nversion = \"")).map(|(_, rest)| rest);
    let version = version.and_then(|rest| rest.split('"').next());
    Ok(version.with_context(|| format!("fuzz/Cargo.lock has no {package}"))?.to_owned())
}

/// The commit that lies in the workspace, and whether it was changed.
fn commit(workspace: &Workspace) -> anyhow::Result<String> {
    let git = |arguments: &[&str]| -> anyhow::Result<String> {
        let output = Command::new("git").current_dir(&workspace.root).args(arguments).output();
        Ok(String::from_utf8_lossy(&output.context("git cannot be started")?.stdout).trim().to_owned())
    };
    let id = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Ok(if changed { format!("{id} with changes") } else { id })
}

fn today() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = date(now / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The date of a day counted from 1970-01-01, by Hinnant's rule.
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
    fn days_have_dates() {
        let check = |days, expect| assert_eq!(date(days), expect);
        check(0, (1970, 1, 1));
        check(11_016, (2000, 2, 29));
        check(20_778, (2026, 11, 21));
    }

    #[test]
    fn the_fuzzer_s_version_is_found() {
        let workspace = Workspace::read().unwrap();
        assert!(locked_version(&workspace, "libfuzzer-sys").unwrap().starts_with("0."));
        assert!(locked_version(&workspace, "no-such-package").is_err());
    }
}
