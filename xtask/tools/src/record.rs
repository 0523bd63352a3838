//! Pages that record a run: their folders, and the date, commit and platform in them.

use std::{fs, process::Command};

use anyhow::Context;
use clap::Args;
use narthex_spec::Date;
use xtask_workspace::{
    terminal,
    workspace::{Workspace, relative},
};

/// Folder for the pages of checks.
pub const CONFORMANCE: &str = "conformance/runs";

/// Folder for the pages of benchmarks.
pub const BENCH: &str = "bench/runs";

/// The choice between showing a run's result and recording it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct RecordArgs {
    /// Record the result with the sources, in conformance/runs or bench/runs.
    #[arg(long)]
    pub record: bool,
}

/// Writes a page, named after its kind and the day, and prints its path.
pub fn write(workspace: &Workspace, folder: &str, kind: &str, page: &str) -> anyhow::Result<()> {
    let folder = workspace.root.join(folder);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let path = folder.join(format!("{kind}-{}.md", today()));
    fs::write(&path, page).with_context(|| path.display().to_string())?;
    terminal::line(format!("written to {}", relative(&path, &workspace.root)));
    Ok(())
}

/// Returns the checked-out commit, with a note if files were changed since.
pub fn commit(workspace: &Workspace) -> anyhow::Result<String> {
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
pub fn platform() -> String {
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
pub fn list(findings: &[String]) -> String {
    findings.iter().map(|finding| format!("- {finding}\n")).collect()
}

/// Returns today's date in UTC, as `2026-11-21`.
pub fn today() -> String {
    Date::today().to_string()
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
}
