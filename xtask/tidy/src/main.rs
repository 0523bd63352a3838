//! `cargo xtask tidy`: the house rules, checked on the sources. This program does not build or run the product, and is
//! small, so that it answers soon after a fresh clone.
//!
//! Each rule is a pure function from facts to findings; `exceptions.toml` excuses some. To add a rule, add it
//! to [`finding::Rule`] and call it in [`check`].

mod attributes;
mod cycles;
mod dense_code;
mod density;
mod documents;
mod exceptions;
mod finding;
mod layers;
mod parameters;
mod prose;
mod scopes;
mod sizes;
mod source;
mod style;
mod texts;
mod types;

use std::{env, fs, path::Path, process::ExitCode};

use anyhow::{Context, bail};
use xtask_workspace::{terminal, workspace::Workspace};

use crate::{exceptions::Exceptions, finding::Finding};

/// Result of all rules.
struct TidyResult {
    /// Violations that are not excused, in order.
    findings: Vec<Finding>,
    /// Violations in crates to which the rule does not apply yet.
    pending: Vec<Finding>,
    /// Remarks that are not violations.
    notes: Vec<String>,
}

/// Help of `cargo xtask tidy`.
const HELP: &str = "\
Check the house rules: layers, module cycles, sizes, names, prose, documents

Usage: cargo xtask tidy [--pending]

Options:
      --pending  Print the findings in crates to which a rule does not apply yet
  -h, --help     Print help";

/// Task of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    /// Print the help.
    Help,
    /// Print the findings.
    Check,
    /// Print the findings, and those in crates to which a rule does not apply yet.
    CheckPending,
}

impl Task {
    /// Reads the words after `cargo xtask`, the first of which is `tidy`.
    fn parse(arguments: &[String]) -> anyhow::Result<Self> {
        match arguments.iter().skip(1).map(String::as_str).collect::<Vec<_>>().as_slice() {
            [] => Ok(Self::Check),
            ["--pending"] => Ok(Self::CheckPending),
            ["-h" | "--help"] => Ok(Self::Help),
            other => bail!("unexpected argument '{}'\n\n{HELP}", other.join(" ")),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match Task::parse(&arguments).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::problem(format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints every finding. Fails if there is one.
fn run(task: Task) -> anyhow::Result<()> {
    if task == Task::Help {
        terminal::line(HELP);
        return Ok(());
    }
    let TidyResult { findings, pending, notes } = check(&Workspace::read()?)?;
    if task == Task::CheckPending {
        pending.iter().for_each(terminal::line);
    }
    notes.iter().for_each(terminal::line);
    findings.iter().for_each(terminal::line);
    match findings.len() {
        0 => terminal::line("tidy: no rule is violated"),
        count => bail!("{count} finding{} above", if count == 1 { "" } else { "s" }),
    }
    Ok(())
}

/// Runs every rule.
fn check(workspace: &Workspace) -> anyhow::Result<TidyResult> {
    let (root, packages) = (workspace.root.as_path(), workspace.packages.as_slice());
    let exceptions = Exceptions::parse(&read(root, exceptions::FILE)?)?;
    let mut sources = source::read_all(root, packages)?;
    let written = |path: &str| sources.iter().any(|source| source.path == path);
    let mut findings = exceptions.check_generated(written);
    sources.retain(|source| !exceptions.generated.iter().any(|generated| generated.path == source.path));

    findings.extend(layers::check(packages));
    findings.extend(style::check_folders(packages));
    for package in packages {
        findings
            .extend(style::check_lints(package, &read(root, &format!("{}/Cargo.toml", package.folder))?)?);
    }
    findings.extend(sources.iter().flat_map(sizes::check));
    findings.extend(sources.iter().flat_map(style::check));
    findings.extend(sources.iter().flat_map(prose::check));
    findings.extend(packages.iter().flat_map(|package| cycles::check(package, &sources)));
    findings.extend(packages.iter().flat_map(|package| types::check(package, &sources)));
    findings.extend(packages.iter().flat_map(|package| density::check(package, &sources)));
    findings.extend(check_documents(workspace)?);

    let mut findings = exceptions.apply(findings);
    findings.sort_by(|a, b| (a.rule, &a.subject).cmp(&(b.rule, &b.subject)));
    let (findings, pending) = exceptions.split_pending(findings);
    let mut notes = exceptions.pending_notes(&pending);
    notes.extend(sizes::long_functions(&sources));
    notes.push(density::note(&sources));
    Ok(TidyResult { findings, pending, notes })
}

fn check_documents(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let documents = documents::read_all(&workspace.root)?;
    let mut findings = documents::check_maps(&documents, &workspace.packages);
    for document in &documents {
        findings.extend(documents::check_hosts(document));
        if document.path.ends_with(".md") {
            findings.extend(documents::check_links(document, |path| workspace.root.join(path).exists()));
        }
    }
    Ok(findings)
}

fn read(root: &Path, path: &str) -> anyhow::Result<String> {
    fs::read_to_string(root.join(path)).with_context(|| format!("{path} cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        let parse = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            Task::parse(&words).map_err(|error| error.to_string())
        };
        assert_eq!(parse("tidy"), Ok(Task::Check));
        assert_eq!(parse("tidy --pending"), Ok(Task::CheckPending));
        assert_eq!(parse("tidy --help"), Ok(Task::Help));
        assert!(parse("tidy --pendign").unwrap_err().contains("unexpected argument '--pendign'"));
    }

    #[test]
    fn the_workspace_is_tidy() {
        let outcome = check(&Workspace::read().unwrap()).unwrap();
        let lines: Vec<String> = outcome.findings.iter().map(Finding::to_string).collect();
        assert!(lines.is_empty(), "\n{}", lines.join("\n"));
    }
}
