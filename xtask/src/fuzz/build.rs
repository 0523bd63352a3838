//! Building of the targets with instrumentation for libFuzzer.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use xtask_tools::{
    process,
    workspace::{Workspace, cargo},
};

use crate::fuzz::{Folders, Target};

/// Counters of edges, table of their addresses, and tracing of comparison operands. They are LLVM's own options, which
/// stable Rust accepts. They do not include AddressSanitizer: parsers are safe Rust, the targets limit memory, and
/// `cargo xtask sanitize` checks the kernels' `unsafe` code with similar operands.
const INSTRUMENTATION: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Builds the targets and returns the paths of their programs, in the same order.
pub(super) fn build(
    workspace: &Workspace,
    folders: &Folders,
    targets: &[Target],
) -> anyhow::Result<Vec<PathBuf>> {
    if !cfg!(unix) {
        bail!("fuzzing needs Linux or macOS, where the system's C++ compiler builds libFuzzer");
    }
    let host = host()?;
    let mut command = Command::new(cargo());
    command
        .current_dir(&workspace.root)
        .args(["build", "--release", "--locked", "--manifest-path", "fuzz/Cargo.toml"])
        // With an explicit target, build scripts and macros are not instrumented.
        .args(["--target", &host])
        .arg("--target-dir")
        .arg(&folders.build)
        .env("RUSTFLAGS", INSTRUMENTATION.join(" "))
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .stdin(Stdio::null());
    for target in targets {
        command.args(["--bin", target.name()]);
    }
    process::run(&mut command)
        .context("libFuzzer is built with a C++ compiler; on Debian: apt-get install g++")?;
    let folder = folders.build.join(host).join("release");
    Ok(targets
        .iter()
        .map(|target| folder.join(format!("{}{}", target.name(), env::consts::EXE_SUFFIX)))
        .collect())
}

/// Returns the target triple of the machine.
pub(crate) fn host() -> anyhow::Result<String> {
    let version = rustc(&["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("`rustc -vV` names no host")
}

/// Runs the compiler and returns its output.
pub(crate) fn rustc(arguments: &[&str]) -> anyhow::Result<String> {
    let program = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(program).args(arguments).output().context("rustc cannot be started")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
