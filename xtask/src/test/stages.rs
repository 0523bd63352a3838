//! The stages of `cargo xtask test`, except for the clients'. Each prints the commands that it runs.

use std::{env, path::PathBuf};

use anyhow::bail;

use crate::{
    process::{self, works},
    session::Session,
    terminal,
    test::count::TestCount,
    tidy::{self, TidyArgs},
};

/// Version of cargo-deny that is built if none is installed.
const DENY_VERSION: &str = "0.20.2";

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

/// Runs cargo-deny, which is built into the target folder if none is installed.
pub(crate) fn deny(session: &Session<'_>) -> anyhow::Result<String> {
    let tools = session.workspace.target.join("tools");
    let own = tools.join("bin").join(format!("cargo-deny{}", env::consts::EXE_SUFFIX));
    let program = if works(session.command("cargo-deny").arg("--version")) {
        PathBuf::from("cargo-deny")
    } else {
        if !works(session.command(&own).arg("--version")) {
            terminal::line("cargo-deny is not installed; building it takes a few minutes, once");
            let mut install =
                session.cargo(&["install", "--locked", "--version", DENY_VERSION, "cargo-deny"]);
            process::run(install.arg("--root").arg(&tools))?;
        }
        own
    };
    process::run(session.command(program).args(DENY_CHECKS))?;
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
