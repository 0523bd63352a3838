//! `cargo xtask test`: runs every check, one stage after another, starting from a bare checkout.
//!
//! Cheap stages come first. The first failure ends the run and prints the command that repeats its stage. The store
//! with two models and the Python environments are created under the target folder and reused. Start at [`Stage`];
//! [`stages`] implements most of them; [`tools`], [`book`], [`notebook`],
//! [`clients`], [`page`], [`kubernetes`] and [`mod@quick`] implement one each.

mod book;
mod cargo_tool;
mod clients;
mod kubernetes;
mod notebook;
pub(crate) mod page;
mod stages;
mod tools;

use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Args, ValueEnum};
use strum::{IntoStaticStr, VariantArray};
use xtask_tools::{record, session::Session, terminal, workspace::Workspace};

use crate::platforms::quick;

/// Arguments of `cargo xtask test`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub(crate) struct TestArgs {
    /// List the stages.
    #[arg(long, conflicts_with = "only")]
    pub(crate) list: bool,
    /// Run one stage. The results of earlier stages must exist.
    #[arg(long, value_name = "STAGE")]
    pub(crate) only: Option<Stage>,
}

/// One stage of the run. The variants are in the order of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, ValueEnum, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Stage {
    /// The programs that the other stages call.
    Tools,
    /// rustfmt.
    Format,
    /// The house rules.
    Tidy,
    /// Clippy.
    Clippy,
    /// The documentation of the crates.
    Doc,
    /// Licences and origins of dependencies.
    Deny,
    /// Versions of dependencies.
    Vet,
    /// A store with runtimes and two models.
    Store,
    /// Unit and integration tests.
    Tests,
    /// Type checks for other platforms, and tests of the kernels on Arm.
    Platforms,
    /// The book, its links and the commands in it.
    Book,
    /// The example notebook.
    Notebook,
    /// Python clients against a live server.
    Clients,
    /// The page in a browser.
    Page,
    /// The files for Kubernetes.
    Kubernetes,
}

/// Stages to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    /// Every stage.
    All,
    /// One stage.
    Only(Stage),
}

impl From<Option<Stage>> for Selection {
    fn from(only: Option<Stage>) -> Self {
        only.map_or(Self::All, Self::Only)
    }
}

impl Stage {
    /// Returns the name used with `--only`.
    fn name(self) -> &'static str {
        self.into()
    }

    /// Prints the stages with their descriptions.
    pub(crate) fn print_list() {
        for stage in Self::VARIANTS {
            terminal::line(format!("{:<10} {}", stage.name(), stage.about()));
        }
    }

    /// Returns a description of the stage.
    fn about(self) -> &'static str {
        match self {
            Self::Tools => "look for the programs that the stages call",
            Self::Format => "rustfmt changes nothing",
            Self::Tidy => "the sources follow the house rules",
            Self::Clippy => "clippy and the compiler have no warning",
            Self::Doc => "rustdoc has no warning",
            Self::Deny => "licences, bans and sources of dependencies (cargo-deny)",
            Self::Vet => "every dependency is listed in supply-chain (cargo-vet)",
            Self::Store => "install runtimes and compile two models into a store",
            Self::Tests => "unit and integration tests",
            Self::Platforms => "types on Windows, Arm and macOS, and the kernels on Arm under qemu",
            Self::Book => {
                "the book builds, its links are valid, and its commands and those of the README run"
            }
            Self::Notebook => "the example notebook runs",
            Self::Clients => "Python clients of OpenAI, Anthropic and Ollama against a live server",
            Self::Page => "the page is that of its sources, and works in Chromium",
            Self::Kubernetes => "kubectl renders the files for Kubernetes, and they follow its schemas",
        }
    }

    /// Runs the stage and returns a remark for the summary, which may be empty.
    fn run(self, session: &Session<'_>) -> anyhow::Result<String> {
        match self {
            Self::Tools => tools::check(session),
            Self::Format => stages::format(session),
            Self::Tidy => stages::tidy(session),
            Self::Clippy => stages::clippy(session),
            Self::Doc => stages::doc(session),
            Self::Deny => stages::deny(session),
            Self::Vet => stages::vet(session),
            Self::Store => stages::store(session),
            Self::Tests => stages::tests(session),
            Self::Platforms => quick::check(session),
            Self::Book => book::check(session),
            Self::Notebook => notebook::check(session),
            Self::Clients => clients::check(session),
            Self::Page => page::check(session),
            Self::Kubernetes => kubernetes::check(session),
        }
    }
}

/// Fills the store for a command that uses real models. Also returns the commit at this time, because the workspace may
/// change while the command runs.
pub(crate) fn prepare(workspace: &Workspace) -> anyhow::Result<(String, Session<'_>)> {
    let commit = record::commit(workspace)?;
    run(workspace, Selection::Only(Stage::Store))?;
    Ok((commit, Session::new(workspace)?))
}

/// Runs the selected stages in order, up to the first that fails.
pub(crate) fn run(workspace: &Workspace, selection: Selection) -> anyhow::Result<()> {
    let session = Session::new(workspace)?;
    let chosen = match selection {
        Selection::All => Stage::VARIANTS.to_vec(),
        Selection::Only(stage) => vec![stage],
    };
    let start = Instant::now();
    let mut summary = Vec::new();
    for (index, stage) in chosen.iter().enumerate() {
        terminal::line(format!("\n== {}/{} {}: {}", index + 1, chosen.len(), stage.name(), stage.about()));
        let stage_start = Instant::now();
        let outcome = stage.run(&session);
        summary.push(line(*stage, &outcome, stage_start.elapsed()));
        if let Err(error) = outcome {
            finish(&summary, start.elapsed());
            bail!("{}: {error:#}\nrun it again: cargo xtask test --only {}", stage.name(), stage.name());
        }
    }
    finish(&summary, start.elapsed());
    Ok(())
}

/// Returns the line of a stage in the summary.
fn line(stage: Stage, outcome: &anyhow::Result<String>, took: Duration) -> String {
    let (word, detail) = match outcome {
        Ok(detail) => ("ok", detail.as_str()),
        Err(_) => ("FAILED", ""),
    };
    format!("{:<9} {word:<6} {:>7.1} s  {detail}", stage.name(), took.as_secs_f64()).trim_end().to_owned()
}

fn finish(summary: &[String], took: Duration) {
    terminal::line("\n== summary");
    summary.iter().for_each(terminal::line);
    terminal::line(format!("{:<16} {:>7.1} s", "all", took.as_secs_f64()));
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn the_summary_marks_failures() {
        let took = Duration::from_millis(1500);
        let check = |outcome, expect: &str| assert_eq!(line(Stage::Deny, &outcome, took), expect);
        check(Ok(String::new()), "deny      ok         1.5 s");
        check(Ok("3 passed".into()), "deny      ok         1.5 s  3 passed");
        check(Err(anyhow!("no")), "deny      FAILED     1.5 s");
    }
}
