//! Programs that Cargo builds for the stages if they are not installed.

use std::{env, path::PathBuf};

use xtask_tools::{
    process::{self, works},
    session::Session,
    terminal,
    workspace::cargo,
};

/// A program from a crate. `version` is built if the program is not installed.
pub(super) struct CargoTool {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    /// Further arguments of `cargo install`.
    pub(super) options: &'static [&'static str],
}

impl CargoTool {
    /// Returns the path of the program. If it is not installed, it is built into the target folder.
    pub(super) fn find(&self, session: &Session<'_>) -> anyhow::Result<PathBuf> {
        let Self { name, version, options } = *self;
        if works(session.command(name).env("CARGO", cargo()).arg("--version")) {
            return Ok(PathBuf::from(name));
        }
        let tools = session.workspace.target.join("tools");
        let own = tools.join("bin").join(format!("{name}{}", env::consts::EXE_SUFFIX));
        if !works(session.command(&own).env("CARGO", cargo()).arg("--version")) {
            terminal::line(format!("{name} is not installed; building it takes a few minutes, once"));
            // Without optimization, because the programs are built for a few seconds of use.
            let mut install = session.cargo(&["install", "--locked", "--debug", "--version", version, name]);
            process::run(install.args(options).arg("--root").arg(&tools))?;
        }
        Ok(own)
    }
}
