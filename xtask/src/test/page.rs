//! The page for browsers: the files in `crates/server/page` are those of the sources in `page`, and the page works in
//! Chromium against live servers.
//!
//! `page/test/run.mjs` has the tests. This module installs the pinned packages and runs the servers.

use std::{fs, path::Path};

use anyhow::{Context, bail};
use xtask_tools::{
    process::{self, works},
    server::Server,
    session::Session,
    terminal,
};

/// Key of the server that needs one.
const KEY: &str = "narthex-test-key";

/// Builds the page again, compares it with the committed files, and tests it in a browser. Without npm or Chromium, it
/// says so and skips what needs them.
pub(crate) fn check(session: &Session<'_>) -> anyhow::Result<String> {
    if !works(session.command("npm").arg("--version")) {
        return Ok(skipped(
            "the page was not built and not tested, because npm is missing; on Debian: apt-get install npm",
        ));
    }
    let folder = session.workspace.root.join("page");
    install(session, &folder)?;
    process::run(session.command("npm").current_dir(&folder).args(["run", "--silent", "check"]))?;
    process::run(session.command("node").current_dir(&folder).args(["build.mjs", "--check"]))?;
    if !works(session.command("node").current_dir(&folder).arg("test/browser.mjs")) {
        return Ok(skipped(
            "the page was not tested, because Chromium is missing; on Debian: apt-get install chromium",
        ));
    }

    let narthex = session.build_narthex()?;
    let arguments = ["serve", "--port", "0", "--auto-pull", "never"];
    let log = |name: &str| session.workspace.target.join(name);
    let mut command = session.command(&narthex);
    command.args(arguments);
    let open = Server::listen(command, &log("page-server.log"))?;
    let mut command = session.command(&narthex);
    command.args(arguments).env("NARTHEX_API_KEY", KEY);
    let keyed = Server::listen(command, &log("page-server-with-key.log"))?;

    let mut verdict = String::new();
    let mut tests = session.command("node");
    tests.current_dir(&folder).arg("test/run.mjs");
    tests.args([format!("http://{}", open.address), format!("http://{}", keyed.address), KEY.to_owned()]);
    let outcome = process::each_line(&mut tests, |line| {
        terminal::line(line);
        verdict = line.to_owned();
    });
    if let Err(error) = outcome {
        bail!("{error:#}\nlast lines of the server's log ({}):\n{}", open.log.display(), open.last_lines());
    }
    Ok(verdict)
}

/// Installs the packages of the lock file, unless they are installed.
pub(crate) fn install(session: &Session<'_>, folder: &Path) -> anyhow::Result<()> {
    let lock = folder.join("package-lock.json");
    let lock = fs::read_to_string(&lock).with_context(|| lock.display().to_string())?;
    let mark = folder.join("node_modules/.installed");
    if fs::read_to_string(&mark).is_ok_and(|installed| installed == lock) {
        return Ok(());
    }
    process::run(session.command("npm").current_dir(folder).args([
        "ci",
        "--no-audit",
        "--no-fund",
        "--silent",
    ]))?;
    fs::write(&mark, lock).with_context(|| mark.display().to_string())
}

/// Reports a check that could not run.
fn skipped(reason: &str) -> String {
    terminal::problem(format!("SKIPPED: {reason}"));
    format!("SKIPPED: {reason}")
}
