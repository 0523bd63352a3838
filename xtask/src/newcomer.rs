//! `cargo xtask newcomer`: what a new user does, from the wheel to a first answer in the page, a second model, an alias, a
//! pinned model and a schema.
//!
//! The wheel is installed by pip into a fresh environment. `page/test/newcomer.mjs` starts the program with an empty store
//! and uses the page in Chromium; it writes a picture of each step.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use clap::Args;
use xtask_tools::{
    process,
    python::VirtualEnvironment,
    record::{self, RecordArgs},
    session::Session,
    terminal,
    workspace::Workspace,
};

use crate::test::page;

/// Arguments of `cargo xtask newcomer`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct NewcomerArgs {
    /// The wheel, as `cargo xtask package --only pip` makes it in target/packages.
    #[arg(long, value_name = "FILE")]
    wheel: PathBuf,
    #[command(flatten)]
    output: RecordArgs,
}

/// Installs the wheel and takes the steps.
pub(crate) fn run(workspace: &Workspace, args: &NewcomerArgs) -> anyhow::Result<()> {
    let commit = record::commit(workspace)?;
    let wheel = fs::canonicalize(&args.wheel).with_context(|| args.wheel.display().to_string())?;
    let session = Session::new(workspace)?;
    let folder = workspace.root.join("page");
    page::install(&session, &folder)?;
    let home = tempfile::tempdir_in(&workspace.target)?;
    let environment = VirtualEnvironment::prepare(&session, home.path())?;
    environment.install(&session, "narthex", &[&wheel.to_string_lossy()])?;

    let pictures = workspace.target.join("newcomer");
    let mut steps = session.command("node");
    steps.current_dir(&folder).arg("test/newcomer.mjs");
    steps.arg(environment.python.with_file_name("narthex")).arg(home.path().join("store")).arg(&pictures);
    let mut lines = Vec::new();
    process::each_line(&mut steps, |line| {
        terminal::line(line);
        lines.push(line.to_owned());
    })?;

    let taken: Vec<NewcomerStep> = lines.iter().filter_map(|line| NewcomerStep::read(line)).collect();
    ensure!(taken.len() == lines.len() && !taken.is_empty(), "expected steps, found {lines:?}");
    if args.output.record {
        write_record(workspace, &wheel, &commit, &taken, &pictures)?;
    }
    Ok(())
}

/// Writes the page of the record, and copies its pictures beside it.
fn write_record(
    workspace: &Workspace,
    wheel: &Path,
    commit: &str,
    steps: &[NewcomerStep],
    pictures: &Path,
) -> anyhow::Result<()> {
    let folder = format!("newcomer-{}", record::today());
    let copies = workspace.root.join(record::CONFORMANCE).join(&folder);
    fs::create_dir_all(&copies).with_context(|| copies.display().to_string())?;
    for picture in steps.iter().filter_map(|step| step.picture.as_ref()) {
        let from = pictures.join(picture);
        fs::copy(&from, copies.join(picture)).with_context(|| from.display().to_string())?;
    }
    let wheel = wheel.file_name().unwrap_or_default().to_string_lossy();
    record::write(workspace, record::CONFORMANCE, "newcomer", &report(commit, &wheel, &folder, steps))
}

/// A step, as the script prints it: the picture or `-`, its time and what was done, between tabs.
#[derive(Debug, PartialEq, Eq)]
struct NewcomerStep {
    picture: Option<String>,
    took: String,
    text: String,
}

impl NewcomerStep {
    fn read(line: &str) -> Option<Self> {
        let mut fields = line.splitn(3, '\t').map(str::to_owned);
        let picture = fields.next().filter(|name| name != "-");
        Some(Self { picture, took: fields.next()?, text: fields.next()? })
    }
}

/// Formats the page.
fn report(commit: &str, wheel: &str, folder: &str, steps: &[NewcomerStep]) -> String {
    let sections: String = steps
        .iter()
        .enumerate()
        .map(|(index, NewcomerStep { picture, took, text })| {
            let shown = picture.as_ref().map(|name| format!("\n![{text}]({folder}/{name})\n"));
            format!("\n{}. {text} (after {took})\n{}", index + 1, shown.unwrap_or_default())
        })
        .collect();
    format!(
        "# A new user, {}\n\nCommit {commit}; {}. `cargo xtask newcomer` installed {wheel} with pip into a fresh environment, \
         started the program with an empty store, and used the page in Chromium as a user does who reads nothing but the \
         screen. The models came from pip. The times are those since the step before.\n{sections}",
        record::today(),
        record::platform(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        let expect = NewcomerArgs { wheel: "a.whl".into(), output: RecordArgs { record: true } };
        let parsed = crate::parse("newcomer --wheel a.whl --record").unwrap();
        assert_eq!(parsed, crate::Command::Newcomer(expect));
        assert!(crate::parse("newcomer").is_err());
    }

    #[test]
    fn steps_have_pictures_in_the_record() {
        assert_eq!(NewcomerStep::read("node is old"), None);
        let steps = ["-\t0.1 s\tthe program starts", "02.png\t3.4 s\tthe page opens"].map(NewcomerStep::read);
        let steps: Vec<NewcomerStep> = steps.into_iter().flatten().collect();
        let page = report("abc", "n.whl", "newcomer-2026-11-30", &steps);
        assert!(
            page.contains("\n1. the program starts (after 0.1 s)\n\n2. the page opens (after 3.4 s)\n"),
            "{page}"
        );
        assert!(page.ends_with("\n![the page opens](newcomer-2026-11-30/02.png)\n"), "{page}");
    }
}
