//! The unit tests of every crate on an emulated machine.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::{machine::Machine, qemu::Processor, steps::Steps};
use crate::test_count::TestCount;
use xtask_tools::session::BuiltProgram;

/// A test that cannot pass under an emulator.
pub(super) struct KnownLimit {
    /// Library of its crate.
    pub(super) library: &'static str,
    /// Part of its name.
    pub(super) test: &'static str,
    /// Reason.
    pub(super) reason: &'static str,
}

/// The crate of the CPU kernels, whose tests run on several processors.
const KERNELS: &str = "narthex_kernels";

/// Runs the programs; each is one step.
pub(super) fn run(
    steps: &mut Steps,
    machine: &Machine<'_>,
    programs: &[BuiltProgram],
    limits: &[KnownLimit],
) {
    for program in programs {
        let skipped: Vec<&KnownLimit> = limits.iter().filter(|limit| limit.library == program.name).collect();
        for (processor, command) in commands(machine, program) {
            let on = if processor.features.is_empty() {
                String::new()
            } else {
                format!(" ({})", processor.features)
            };
            let name = format!("unit tests of {}{on}", program.name.replace('_', "-"));
            steps.run(&name, || test(command, program, &skipped));
        }
        for KnownLimit { test, reason, .. } in skipped {
            steps.impossible(&format!("`{test}` of {}", program.name.replace('_', "-")), reason);
        }
    }
}

/// Returns the commands that run a program, one for each processor for the kernels, with one for all other crates.
fn commands(machine: &Machine<'_>, program: &BuiltProgram) -> Vec<(Processor, Command)> {
    let mut commands = machine.emulator.processors(machine.session, &program.path);
    if program.name != KERNELS {
        commands.truncate(1);
        for (processor, _) in &mut commands {
            processor.features = "";
        }
    }
    commands
}

/// Runs a test program and returns the counts. The error names the failed tests.
fn test(mut command: Command, program: &BuiltProgram, skipped: &[&KnownLimit]) -> anyhow::Result<String> {
    command.current_dir(&program.package).env("CARGO_MANIFEST_DIR", &program.package);
    // A wrong snapshot must fail, and Cargo is not there to find the workspace.
    command.env("INSTA_UPDATE", "no").env("INSTA_WORKSPACE_ROOT", &program.package);
    for limit in skipped {
        command.args(["--skip", limit.test]);
    }
    let output = command.stdin(Stdio::null()).output().with_context(|| program.path.display().to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut count = TestCount::default();
    text.lines().for_each(|line| count.add(line));
    if !output.status.success() {
        let last = String::from_utf8_lossy(&output.stderr);
        let last = last.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned();
        bail!("{} ({count}): {last}", output.status);
    }
    Ok(count.to_string())
}
