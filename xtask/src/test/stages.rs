//! The stages of `cargo xtask test`, except for the clients'. Each prints the commands that it runs.

use std::{env, path::PathBuf};

use anyhow::bail;

use crate::{
    process::{self, works},
    session::Session,
    terminal,
    test::count::TestCount,
    tidy::{self, TidyArgs},
    workspace::cargo,
};

/// Version of cargo-deny that is built if none is installed.
const DENY_VERSION: &str = "0.20.2";

/// Version of cargo-vet that is built if none is installed.
const VET_VERSION: &str = "0.10.3";

/// Arguments of cargo-deny; `deny.toml` configures the checks.
const DENY_CHECKS: [&str; 4] = ["check", "licenses", "bans", "sources"];

/// Models for the tests of the whole product.
const MODELS: [&str; 2] = ["smollm2:135m", "all-minilm-l6-v2"];

/// Checks the format of every crate.
pub(crate) fn format(session: &Session<'_>) -> anyhow::Result<String> {
    process::run(&mut session.cargo(&["fmt", "--all", "--check"]))?;
    Ok(String::new())
}

/// Checks the house rules.
pub(crate) fn tidy(session: &Session<'_>) -> anyhow::Result<String> {
    tidy::report(session.workspace, TidyArgs { pending: false })?;
    Ok(String::new())
}

/// Runs Clippy on everything, tests included.
pub(crate) fn clippy(session: &Session<'_>) -> anyhow::Result<String> {
    process::run(&mut session.cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    Ok(String::new())
}

/// Checks licences, bans and sources of dependencies.
pub(crate) fn deny(session: &Session<'_>) -> anyhow::Result<String> {
    let program = cargo_tool(session, "cargo-deny", DENY_VERSION)?;
    process::run(session.command(program).args(DENY_CHECKS))?;
    Ok(String::new())
}

/// Checks that `supply-chain/` lists every dependency in its version.
pub(crate) fn vet(session: &Session<'_>) -> anyhow::Result<String> {
    let program = cargo_tool(session, "cargo-vet", VET_VERSION)?;
    process::run(session.command(program).env("CARGO", cargo()).args(["vet", "--locked"]))?;
    Ok(String::new())
}

/// Returns a subcommand of Cargo, which is built into the target folder if none is installed.
fn cargo_tool(session: &Session<'_>, name: &str, version: &str) -> anyhow::Result<PathBuf> {
    if works(session.command(name).env("CARGO", cargo()).arg("--version")) {
        return Ok(PathBuf::from(name));
    }
    let tools = session.workspace.target.join("tools");
    let own = tools.join("bin").join(format!("{name}{}", env::consts::EXE_SUFFIX));
    if !works(session.command(&own).env("CARGO", cargo()).arg("--version")) {
        terminal::line(format!("{name} is not installed; building it takes a few minutes, once"));
        let mut install = session.cargo(&["install", "--locked", "--version", version, name]);
        process::run(install.arg("--root").arg(&tools))?;
    }
    Ok(own)
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
    Ok(session.home.display().to_string())
}

/// Runs every unit and integration test.
pub(crate) fn tests(session: &Session<'_>) -> anyhow::Result<String> {
    let mut count = TestCount::default();
    let result = process::each_line(&mut session.cargo(&["test", "--workspace"]), |line| {
        terminal::line(line);
        count.add(line);
    });
    match result {
        Ok(()) => Ok(format!("test result: ok. {count}")),
        Err(error) => bail!("{error:#} ({count})"),
    }
}
