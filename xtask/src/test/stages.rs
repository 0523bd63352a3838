//! The stages of `cargo xtask test` that have no module of their own. Each prints the commands that it runs.

use anyhow::bail;
use narthex_catalog::{CancelFlag, speech_detector, store::Store};
use narthex_spec::progress::Quiet;
use xtask_tools::{process, session::Session, terminal, workspace::cargo};

use crate::{test::cargo_tool::CargoTool, test_count::TestCount};

/// Checker of licences, bans and sources.
const DENY: CargoTool = CargoTool { name: "cargo-deny", version: "0.20.2", options: &[] };

/// Checker of versions.
const VET: CargoTool = CargoTool { name: "cargo-vet", version: "0.10.3", options: &[] };

/// Arguments of cargo-deny; `deny.toml` configures the checks.
const DENY_CHECKS: [&str; 4] = ["check", "licenses", "bans", "sources"];

/// Models for the tests of the complete product.
const MODELS: [&str; 3] = ["smollm2:135m", "all-minilm-l6-v2", "hibari"];

/// Checks the format of every crate.
pub(crate) fn format(session: &Session<'_>) -> anyhow::Result<String> {
    process::run(&mut session.cargo(&["fmt", "--all", "--check"]))?;
    Ok(String::new())
}

/// Checks the house rules.
pub(crate) fn tidy(session: &Session<'_>) -> anyhow::Result<String> {
    process::run(&mut session.cargo(&["run", "--quiet", "--package", "xtask-tidy", "--", "tidy"]))?;
    Ok(String::new())
}

/// Runs Clippy on all code, including tests.
pub(crate) fn clippy(session: &Session<'_>) -> anyhow::Result<String> {
    process::run(&mut session.cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    Ok(String::new())
}

/// Builds the documentation of every crate, private items included, which fails at a broken link.
pub(crate) fn doc(session: &Session<'_>) -> anyhow::Result<String> {
    let mut command = session.cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
    process::run(command.env("RUSTDOCFLAGS", "-D warnings"))?;
    Ok(String::new())
}

/// Checks licences, bans and sources of dependencies.
pub(crate) fn deny(session: &Session<'_>) -> anyhow::Result<String> {
    let program = DENY.find(session)?;
    process::run(session.command(program).args(DENY_CHECKS))?;
    Ok(String::new())
}

/// Checks that `supply-chain/` lists the version of every dependency.
pub(crate) fn vet(session: &Session<'_>) -> anyhow::Result<String> {
    let program = VET.find(session)?;
    process::run(session.command(program).env("CARGO", cargo()).args(["vet", "--locked"]))?;
    Ok(String::new())
}

/// Fills the store through the command line, as a user would.
pub(crate) fn store(session: &Session<'_>) -> anyhow::Result<String> {
    let narthex = session.build_narthex()?;
    for runtime in ["cpu", "qnn", "openvino"] {
        process::run(session.command(&narthex).args(["runtime", "install", runtime]))?;
    }
    for model in MODELS {
        process::run(session.command(&narthex).args(["pull", model]))?;
    }
    let store = Store::open(Some(session.home.clone()))?;
    speech_detector::fetch(&store, &Quiet, &CancelFlag::new(false))?;
    Ok(session.home.display().to_string())
}

/// Runs every unit and integration test.
pub(crate) fn tests(session: &Session<'_>) -> anyhow::Result<String> {
    let mut count = TestCount::default();
    // A run of CI names every failed test, not only those of the first program.
    let result = process::each_line(&mut session.cargo(&["test", "--workspace", "--no-fail-fast"]), |line| {
        terminal::line(line);
        count.add(line);
    });
    match result {
        Ok(()) => Ok(format!("test result: ok. {count}")),
        Err(error) => bail!("{error:#} ({count})"),
    }
}
