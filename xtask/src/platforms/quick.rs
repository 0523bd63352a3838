//! The stage `platforms` of `cargo xtask test`: type checks for every foreign target, and the tests of the kernels on
//! Arm. Where a target or a tool cannot be had, that part is skipped with the reason.

use std::path::Path;

use anyhow::Context;

use super::{
    qemu::{PROCESSORS, Qemu},
    target::ForeignTarget,
    tools::{self, Zig},
};
use crate::test_count::TestCount;
use xtask_tools::{
    process,
    session::{Session, built_programs},
    terminal,
};

/// Runs the stage and returns a remark for the summary.
pub(crate) fn check(session: &Session<'_>) -> anyhow::Result<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(skipped("all of it", &anyhow::anyhow!("the tools are for Linux on x86-64")));
    }
    let folder = session.workspace.target.join("platforms");
    std::fs::create_dir_all(&folder)?;
    let mut remarks = vec![check_types(session, &folder)?];
    remarks.push(match prepare_kernels(session, &folder) {
        Ok(qemu) => test_kernels(session, &folder, &qemu)?,
        Err(error) => skipped("tests of the kernels on Arm", &error),
    });
    remarks.retain(|remark| !remark.is_empty());
    Ok(remarks.join("; "))
}

/// Checks the types for every target whose standard library can be had, in one build.
fn check_types(session: &Session<'_>, folder: &Path) -> anyhow::Result<String> {
    let zig = match Zig::prepare(session) {
        Ok(zig) => zig,
        Err(error) => return Ok(skipped("type checks", &error)),
    };
    let mut remarks = Vec::new();
    let mut targets = Vec::new();
    for target in ForeignTarget::ALL {
        match target.add(session) {
            Ok(()) => targets.push(target),
            Err(error) => remarks.push(skipped(target.triple(), &error)),
        }
    }
    if !targets.is_empty() {
        let mut check = zig.cargo(session, "check");
        check.args(["--package", "narthex", "--target-dir"]).arg(folder);
        for target in &targets {
            check.args(["--target", target.triple()]);
        }
        process::run(&mut check)?;
        let names: Vec<&str> = targets.iter().map(|target| target.triple()).collect();
        remarks.insert(0, format!("checked {}", names.join(", ")));
    }
    Ok(remarks.join("; "))
}

fn prepare_kernels(session: &Session<'_>, folder: &Path) -> anyhow::Result<Qemu> {
    tools::install(session, ForeignTarget::LinuxArm64.compilers())?;
    ForeignTarget::LinuxArm64.add(session)?;
    Qemu::prepare(session, folder)
}

/// Runs the tests of the kernels on every emulated processor.
fn test_kernels(session: &Session<'_>, folder: &Path, qemu: &Qemu) -> anyhow::Result<String> {
    let target = ForeignTarget::LinuxArm64;
    let mut build = session.cargo(&["test", "--package", "narthex-kernels", "--no-run"]);
    build.args(["--lib", "--tests", "--target", target.triple(), "--target-dir"]).arg(folder);
    build.envs(target.variables());
    let programs = built_programs(&mut build)?;
    let mut count = TestCount::default();
    for processor in PROCESSORS {
        for program in &programs {
            let mut test = qemu.command(session, processor, &program.path);
            let outcome = process::each_line(test.current_dir(&program.package), |line| {
                terminal::line(line);
                count.add(line);
            });
            outcome
                .with_context(|| format!("the kernels on an Arm processor with {}", processor.features))?;
        }
    }
    Ok(format!("kernels on Arm: {count}"))
}

/// Says loudly that a part is skipped, and returns the remark about it.
fn skipped(part: &str, error: &anyhow::Error) -> String {
    let remark = format!("SKIPPED {part}: {error:#}");
    terminal::problem(format!("warning: {remark}"));
    remark
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_part_has_its_reason() {
        let error = anyhow::anyhow!("no network").context("rustup failed");
        assert_eq!(skipped("macOS", &error), "SKIPPED macOS: rustup failed: no network");
    }
}
