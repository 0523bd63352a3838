//! What each stage does, but for the clients'. A stage prints what it runs and fails with what it ran.

use std::{env, path::PathBuf};

use anyhow::bail;

use crate::{
    terminal,
    test::{
        count::Count,
        session::{self, Session, works},
    },
    tidy,
};

/// The cargo-deny that is built where none is installed.
const DENY_VERSION: &str = "0.20.2";

/// What cargo-deny checks; `deny.toml` says how.
const DENY_CHECKS: [&str; 4] = ["check", "licenses", "bans", "sources"];

/// The models that tests of the whole product use.
const MODELS: [&str; 2] = ["smollm2:135m", "all-minilm-l6-v2"];

/// rustfmt on every crate.
pub(crate) fn format(session: &Session<'_>) -> anyhow::Result<String> {
    session::run(&mut session.cargo(&["fmt", "--all", "--check"]))?;
    Ok(String::new())
}

/// The house rules.
pub(crate) fn tidy(session: &Session<'_>) -> anyhow::Result<String> {
    tidy::report(session.workspace, tidy::Pending::Count)?;
    Ok(String::new())
}

/// Clippy on everything, tests included.
pub(crate) fn clippy(session: &Session<'_>) -> anyhow::Result<String> {
    session::run(&mut session.cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    Ok(String::new())
}

/// cargo-deny, built into the target folder where none is installed.
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
            session::run(install.arg("--root").arg(&tools))?;
        }
        own
    };
    session::run(session.command(program).args(DENY_CHECKS))?;
    Ok(String::new())
}

/// Fills the store the way a user would: through the command line.
pub(crate) fn store(session: &Session<'_>) -> anyhow::Result<String> {
    let narthex = session.build_narthex()?;
    for runtime in ["cpu", "qnn", "openvino"] {
        session::run(session.command(&narthex).args(["runtime", "install", runtime]))?;
    }
    for model in MODELS {
        session::run(session.command(&narthex).args(["pull", model]))?;
    }
    Ok(session.home.display().to_string())
}

/// Every unit and integration test.
pub(crate) fn tests(session: &Session<'_>) -> anyhow::Result<String> {
    let mut count = Count::default();
    let result = session::each_line(&mut session.cargo(&["test", "--workspace"]), |line| {
        terminal::line(line);
        count.add(line);
    });
    match result {
        Ok(()) => Ok(format!("test result: ok. {count}")),
        Err(error) => bail!("{error:#} ({count})"),
    }
}
