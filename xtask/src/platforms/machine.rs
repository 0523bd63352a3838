//! The machines that run the program: this one, and those that are emulated.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use super::{
    qemu::{PROCESSORS, Processor, Qemu},
    target::ForeignTarget,
    tools,
    wine::Wine,
};
use xtask_tools::{
    process::{self, ProgramOutput},
    session::{BuiltProgram, Session, built_narthex, built_programs},
};

/// A way to run programs.
pub(super) enum Emulator {
    /// None: programs of this machine.
    Host,
    /// Windows x64.
    Wine(Wine),
    /// Linux on arm64.
    Qemu(Qemu),
}

/// A machine with a program and a store.
pub(super) struct Machine<'a> {
    pub(super) session: &'a Session<'a>,
    pub(super) emulator: Emulator,
    /// The command-line program.
    pub(super) program: PathBuf,
    /// A folder with the files of a user and the store.
    pub(super) folder: PathBuf,
    /// Number of questions for greedy answers.
    pub(super) questions: usize,
    /// Maximum number of tokens of each greedy answer.
    pub(super) tokens: usize,
}

/// Builds the program for a target. It has the features of tests, so that its crates are compiled once for both.
pub(super) fn build(session: &Session<'_>, target: ForeignTarget, folder: &Path) -> anyhow::Result<PathBuf> {
    tools::install(session, target.compilers())?;
    target.add(session)?;
    // The integration test needs the program.
    built_narthex(cargo_test(session, target, folder).args(["--test", "cli"]))
}

/// Builds the unit tests of every crate for a target.
pub(super) fn build_tests(
    session: &Session<'_>,
    target: ForeignTarget,
    folder: &Path,
) -> anyhow::Result<Vec<BuiltProgram>> {
    let programs = built_programs(cargo_test(session, target, folder).arg("--lib"))?;
    ensure!(!programs.is_empty(), "cargo built no tests");
    Ok(programs)
}

fn cargo_test(session: &Session<'_>, target: ForeignTarget, folder: &Path) -> Command {
    let mut command = session.cargo(&["test", "--workspace", "--exclude", "xtask", "--no-run"]);
    command.args(["--target", target.triple(), "--target-dir"]).arg(folder).envs(target.variables());
    command
}

impl Emulator {
    /// Returns a command that starts a program.
    pub(super) fn command(&self, session: &Session<'_>, program: &Path) -> Command {
        match self {
            Self::Host => session.command(program),
            Self::Wine(wine) => wine.command(session, program),
            Self::Qemu(qemu) => qemu.command(session, PROCESSORS[0], program),
        }
    }

    /// Returns a path as programs of the machine name it.
    pub(super) fn path(&self, path: &Path) -> String {
        match self {
            Self::Host | Self::Qemu(_) => path.display().to_string(),
            Self::Wine(wine) => wine.path(path),
        }
    }

    /// Returns its name and version.
    pub(super) fn version(&self, session: &Session<'_>) -> String {
        match self {
            Self::Host => "no emulation".to_owned(),
            Self::Wine(_) => Wine::version(session),
            Self::Qemu(_) => Qemu::version(session),
        }
    }

    /// Returns the processors on which tests of the kernels run, with their commands for a program.
    pub(super) fn processors(&self, session: &Session<'_>, program: &Path) -> Vec<(Processor, Command)> {
        match self {
            Self::Qemu(qemu) => PROCESSORS
                .iter()
                .map(|processor| (*processor, qemu.command(session, *processor, program)))
                .collect(),
            Self::Host | Self::Wine(_) => {
                let here = Processor { name: "this machine's", features: "" };
                vec![(here, self.command(session, program))]
            }
        }
    }
}

impl Machine<'_> {
    /// Removes the files of an earlier run.
    pub(super) fn clear(&self) -> anyhow::Result<()> {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder).with_context(|| self.folder.display().to_string())?;
        }
        fs::create_dir_all(&self.folder).with_context(|| self.folder.display().to_string())
    }

    /// Returns the store.
    pub(super) fn store(&self) -> PathBuf {
        self.folder.join("store")
    }

    /// Returns a file as the machine names it.
    pub(super) fn path(&self, path: &Path) -> String {
        self.emulator.path(path)
    }

    /// Returns a command of the program without a network.
    pub(super) fn narthex(&self, arguments: &[&str]) -> Command {
        let mut command = self.emulator.command(self.session, &self.program);
        command
            .args(arguments)
            .current_dir(&self.folder)
            .env("NARTHEX_HOME", self.path(&self.store()))
            .env("HF_HUB_CACHE", self.path(&self.folder.join("hub")))
            .env("NARTHEX_OFFLINE", "1")
            .env("NARTHEX_PYTHON", "/nonexistent/python")
            .env_remove("ORT_DYLIB_PATH")
            .env_remove("RUST_BACKTRACE")
            .env_remove("RUST_LOG");
        if let Emulator::Qemu(_) = self.emulator {
            // The choice of the type reads hundreds of tokens with each, which takes hours under emulation.
            command.env("NARTHEX_KV_CACHE_DTYPE", "f16");
        }
        command
    }

    /// Runs the program and returns its output.
    pub(super) fn run(&self, arguments: &[&str]) -> anyhow::Result<ProgramOutput> {
        process::output(&mut self.narthex(arguments))
    }

    /// Runs the program and checks that its output contains a text.
    pub(super) fn expect(&self, arguments: &[&str], text: &str) -> anyhow::Result<ProgramOutput> {
        let printed = self.run(arguments)?;
        let both = format!("{}{}", printed.stdout, printed.stderr);
        ensure!(both.contains(text), "`narthex {}`: expected {text:?}, found {both:?}", arguments.join(" "));
        Ok(printed)
    }
}
