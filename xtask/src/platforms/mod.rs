//! `cargo xtask platforms`: the program on Windows and on Arm, under emulation.
//!
//! It is built for Windows x64 and Linux arm64, and runs under wine and qemu: the unit tests of every crate, and the
//! first hour of a user. Answers and packages are compared with those of this machine, Linux on x86-64. What the
//! machine lacks is installed if that is permitted. Start at [`Platform`]; [`quick`] is the stage of `cargo xtask test`.

mod comparison;
mod first_hour;
mod image;
mod machine;
mod page;
mod qemu;
pub(crate) mod quick;
mod requests;
mod steps;
pub(crate) mod target;
pub(crate) mod tools;
mod unit_tests;
pub(crate) mod wheels;
pub(crate) mod wine;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::ensure;
use clap::{Args, ValueEnum};
use strum::{IntoStaticStr, VariantArray};

use self::{
    first_hour::{CHAT, ChatModel, EMBEDDING, Wheels},
    machine::{Emulator, Machine},
    qemu::Qemu,
    steps::Steps,
    target::ForeignTarget,
    unit_tests::KnownLimit,
    wine::Wine,
};
use xtask_tools::{
    process,
    record::{self, RecordArgs},
    session::Session,
    terminal,
    workspace::Workspace,
};

/// Arguments of `cargo xtask platforms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub(crate) struct PlatformsArgs {
    /// The platform \[default: both\].
    platform: Option<Platform>,
    /// Leave out the unit tests and the build for Windows on arm64.
    #[arg(long)]
    first_hour: bool,
    #[command(flatten)]
    output: RecordArgs,
}

impl PlatformsArgs {
    /// Returns the command that records a run with these arguments.
    fn command(self) -> String {
        let platform: Option<&str> = self.platform.map(Into::into);
        let first_hour = self.first_hour.then_some("--first-hour");
        let words = [Some("cargo xtask platforms"), platform, first_hour, Some("--record")];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

/// A platform that is emulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, ValueEnum, VariantArray)]
#[strum(serialize_all = "lowercase")]
enum Platform {
    /// Windows on x64, under wine. The program for Windows on arm64 is built too, but nothing here runs it.
    Windows,
    /// Linux on arm64, under qemu.
    Arm,
}

/// The results of one platform.
struct PlatformReport {
    platform: Platform,
    emulator: String,
    steps: Steps,
    took: Duration,
}

/// Tests that wine cannot run.
const WINE_LIMITS: &[KnownLimit] = &[KnownLimit {
    library: "narthex_files",
    test: "files_with_long_paths_are_inside_their_folder",
    reason: "wine 8 resolves no path of more than 260 characters",
}];

/// Tests that qemu cannot run.
const QEMU_LIMITS: &[KnownLimit] = &[];

impl Platform {
    fn target(self) -> ForeignTarget {
        match self {
            Self::Windows => ForeignTarget::WindowsX64,
            Self::Arm => ForeignTarget::LinuxArm64,
        }
    }

    fn limits(self) -> &'static [KnownLimit] {
        match self {
            Self::Windows => WINE_LIMITS,
            Self::Arm => QEMU_LIMITS,
        }
    }

    /// Returns the parts of the product that need other hardware or another system, with the reason.
    fn beyond(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Windows => &[
                (
                    "DirectML, WebGPU and CUDA",
                    "wine has no GPU here, and DirectML needs DXIL shaders, which wine 8 lacks",
                ),
                ("Qualcomm's and Intel's NPUs", "no driver runs under wine"),
                ("`service install`", "wine has no Task Scheduler"),
            ],
            Self::Arm => &[
                (
                    "choice of the KV cache's type at the first load",
                    "it reads hundreds of tokens with each type, which takes hours under emulation; `f16` is stated",
                ),
                ("Qualcomm's NPU and GPU", "qemu emulates a processor only"),
                ("`service install`", "no systemd runs for arm64 here"),
            ],
        }
    }

    /// Prepares the emulator.
    fn emulator(self, session: &Session<'_>, folder: &Path) -> anyhow::Result<Emulator> {
        match self {
            Self::Windows => Wine::prepare(session, folder).map(Emulator::Wine),
            Self::Arm => Qemu::prepare(session, folder).map(Emulator::Qemu),
        }
    }

    /// Returns the folder of the user. Windows users have spaces and other scripts in theirs.
    fn user_folder(self, emulator: &Emulator, folder: &Path) -> PathBuf {
        match emulator {
            Emulator::Wine(wine) => {
                wine.drive().join("users/J\u{f6}rg M\u{fc}ller/AI Modelle/\u{65e5}\u{672c}\u{8a9e}")
            }
            Emulator::Host | Emulator::Qemu(_) => folder.join("user-arm"),
        }
    }
}

/// Runs the platforms and fails if a step fails.
pub(crate) fn run(workspace: &Workspace, args: PlatformsArgs) -> anyhow::Result<()> {
    ensure!(cfg!(all(target_os = "linux", target_arch = "x86_64")), "expected Linux on x86-64");
    let commit = record::commit(workspace)?;
    let session = Session::new(workspace)?;
    let folder = workspace.target.join("platforms");
    std::fs::create_dir_all(&folder)?;
    let mut linux_steps = Steps::default();
    let linux = reference(&session, &folder, &mut linux_steps)?;
    ensure!(
        linux_steps.failed() == 0,
        "the first hour fails on this machine, so nothing can be compared with it"
    );
    let mut reports = Vec::new();
    for platform in args.platform.map_or_else(|| Platform::VARIANTS.to_vec(), |only| vec![only]) {
        let name: &str = platform.into();
        terminal::line(format!("== {name}"));
        reports.push(platform.run(&session, &linux, &folder, args)?);
        // A run of hours that is cut off leaves the record of the platforms before.
        if args.output.record {
            let page = page::page(&args.command(), &commit, &reports, &linux_steps);
            // Errors contain paths of this machine.
            let page = page.replace(&format!("{}/", workspace.root.display()), "");
            record::write(workspace, record::CONFORMANCE, "platforms", &page)?;
        }
    }
    let failed: usize = reports.iter().map(|report| report.steps.failed()).sum();
    ensure!(failed == 0, "{failed} steps failed");
    terminal::line("platforms: no step failed");
    Ok(())
}

/// The program for Windows on x64, with a store that has the CPU runtime and nothing else.
pub(crate) struct WindowsProgram {
    pub(crate) wine: Wine,
    pub(crate) program: PathBuf,
    /// The store, as Linux names it.
    pub(crate) store: PathBuf,
}

/// Builds the program for Windows, prepares wine, and installs the CPU runtime.
pub(crate) fn windows_program(session: &Session<'_>) -> anyhow::Result<WindowsProgram> {
    let folder = session.workspace.target.join("platforms");
    std::fs::create_dir_all(&folder)?;
    let wine = Wine::prepare(session, &folder)?;
    let target = ForeignTarget::WindowsX64;
    let program = machine::build(session, target, &folder)?;
    let wheel = wheels::runtime(session, target.runtime_platform()?, &folder.join("wheels"))?;
    let store = folder.join("windows-runtime");
    let mut install = wine.command(session, &program);
    install.args(["runtime", "install", "cpu", "--from", &wine.path(&wheel)]);
    process::run(install.env("NARTHEX_HOME", wine.path(&store)))?;
    Ok(WindowsProgram { wine, program, store })
}

/// Runs the first hour on this machine, for comparison.
fn reference<'a>(session: &'a Session<'a>, folder: &Path, steps: &mut Steps) -> anyhow::Result<Machine<'a>> {
    let program = session.build_narthex()?;
    let emulator = Emulator::Host;
    let linux =
        Machine { session, emulator, program, folder: folder.join("user-linux"), questions: 4, tokens: 24 };
    first_hour::write_files(&linux)?;
    let wheels = fetch_wheels(session, "linux-x64", folder)?;
    run_first_hour(steps, &linux, &wheels, ChatModel::Compile);
    Ok(linux)
}

/// Runs the first hour of a user.
fn run_first_hour(steps: &mut Steps, machine: &Machine<'_>, wheels: &Wheels, chat: ChatModel<'_>) {
    first_hour::run(steps, machine, wheels, chat);
    requests::run(steps, machine);
    first_hour::remove(steps, machine);
}

fn fetch_wheels(session: &Session<'_>, platform: &str, folder: &Path) -> anyhow::Result<Wheels> {
    let folder = folder.join("wheels");
    Ok(Wheels {
        runtime: wheels::runtime(session, platform, &folder)?,
        chat: wheels::model(session, CHAT, &folder)?,
        embedding: wheels::model(session, EMBEDDING, &folder)?,
    })
}

impl Platform {
    fn run(
        self,
        session: &Session<'_>,
        linux: &Machine<'_>,
        folder: &Path,
        args: PlatformsArgs,
    ) -> anyhow::Result<PlatformReport> {
        let start = Instant::now();
        let target = self.target();
        let emulator = self.emulator(session, folder)?;
        let version = emulator.version(session);
        let mut steps = Steps::default();
        let mut built = None;
        steps.run(&format!("build for {}", target.triple()), || {
            built = Some(machine::build(session, target, folder)?);
            Ok(String::new())
        });
        let Some(program) = built else {
            return Ok(PlatformReport { platform: self, emulator: version, steps, took: start.elapsed() });
        };

        // An emulated processor generates two tokens a second.
        let (questions, tokens, chat) = match self {
            Self::Windows => (4, 24, ChatModel::Compile),
            Self::Arm => (2, 8, ChatModel::Copy(&linux.store())),
        };
        let user = self.user_folder(&emulator, folder);
        let machine = Machine { session, emulator, program, folder: user, questions, tokens };
        first_hour::write_files(&machine)?;
        let wheels = fetch_wheels(session, target.runtime_platform()?, folder)?;
        run_first_hour(&mut steps, &machine, &wheels, chat);
        let compiled: &[&str] = if self == Self::Windows { &[CHAT, EMBEDDING] } else { &[EMBEDDING] };
        comparison::run(&mut steps, &machine, linux, compiled);
        if !args.first_hour {
            let mut tests = Vec::new();
            steps.run("build of the unit tests", || {
                tests = machine::build_tests(session, target, folder)?;
                Ok(format!("{} programs", tests.len()))
            });
            unit_tests::run(&mut steps, &machine, &tests, self.limits());
        }
        if self == Self::Windows && !args.first_hour {
            steps.run("build for aarch64-pc-windows-gnullvm, with its imports", || {
                image::build(session, folder)
            });
        }
        for (name, reason) in self.beyond() {
            steps.impossible(name, reason);
        }
        if let Emulator::Wine(wine) = &machine.emulator {
            wine.stop(session);
        }
        Ok(PlatformReport { platform: self, emulator: version, steps, took: start.elapsed() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        let check = |line: &str, platform, first_hour, record| {
            let expect = PlatformsArgs { platform, first_hour, output: RecordArgs { record } };
            assert_eq!(crate::parse(line).unwrap(), crate::Command::Platforms(expect), "{line}");
            let without_record = line.trim_end_matches(" --record");
            assert_eq!(expect.command(), format!("cargo xtask {without_record} --record"));
        };
        check("platforms", None, false, false);
        check("platforms windows --record", Some(Platform::Windows), false, true);
        check("platforms arm --first-hour", Some(Platform::Arm), true, false);
        assert!(crate::parse("platforms amiga").is_err());
    }
}
