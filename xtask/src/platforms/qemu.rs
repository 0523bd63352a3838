//! Linux on arm64 by qemu, one process at a time.
//!
//! ONNX Runtime reads `/proc/cpuinfo` while it is loaded and crashes if it finds an x86 processor there. Qemu looks up
//! files in a folder of ours first, which has such a file for an Arm processor beside the C library.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use super::tools::{self, DebianProgram};
use xtask_tools::{process, session::Session};

const PROGRAM: &str = "qemu-aarch64-static";

const NEEDS: [DebianProgram; 1] = [DebianProgram { path: PROGRAM, package: "qemu-user-static" }];

/// Processors to emulate. The first has every feature that Narthex uses; SVE and SME are slow to emulate and unused.
pub(super) const PROCESSORS: [Processor; 2] = [
    Processor { name: "max,sme=off,sve=off", features: "dotprod, i8mm, bf16" },
    Processor { name: "neoverse-n1", features: "dotprod" },
];

/// A processor that qemu emulates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Processor {
    /// Its name for qemu.
    pub(super) name: &'static str,
    /// Its features beside NEON that Narthex uses.
    pub(super) features: &'static str,
}

/// Folder with Debian's libraries for arm64.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu/lib";

/// Linux's description of a processor with two cores.
const CPUINFO: &str = "processor\t: 0\n\
    BogoMIPS\t: 100.00\n\
    Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop \
    asimddp i8mm bf16\n\
    CPU implementer\t: 0x41\n\
    CPU architecture: 8\n\
    CPU variant\t: 0x0\n\
    CPU part\t: 0xd49\n\
    CPU revision\t: 0\n\n";

/// A folder with the libraries and the processor of an Arm machine.
pub(super) struct Qemu {
    root: PathBuf,
}

impl Qemu {
    /// Installs qemu and makes the folder.
    pub(super) fn prepare(session: &Session<'_>, folder: &Path) -> anyhow::Result<Self> {
        tools::install(session, &NEEDS)?;
        let qemu = Self { root: folder.join("arm") };
        let information = qemu.root.join("proc/cpuinfo");
        fs::create_dir_all(qemu.root.join("proc")).with_context(|| qemu.root.display().to_string())?;
        let second = CPUINFO.replacen("processor\t: 0", "processor\t: 1", 1);
        fs::write(&information, format!("{CPUINFO}{second}"))?;
        let libraries = qemu.root.join("lib");
        if !libraries.exists() {
            process::run(session.command("ln").args(["-s", LIBRARIES]).arg(&libraries))?;
        }
        Ok(qemu)
    }

    /// Returns a command that starts a program for arm64 on a processor.
    pub(super) fn command(&self, session: &Session<'_>, processor: Processor, program: &Path) -> Command {
        let mut command = session.command(PROGRAM);
        command.args(["-cpu", processor.name, "-L"]).arg(&self.root).arg(program);
        command
    }

    /// Returns the version.
    pub(super) fn version(session: &Session<'_>) -> String {
        let version = process::output(session.command(PROGRAM).arg("--version"));
        let line = version.ok().and_then(|printed| printed.stdout.lines().next().map(str::to_owned));
        line.unwrap_or_else(|| "qemu".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_has_the_features_of_the_kernels() {
        let features = CPUINFO.lines().find(|line| line.starts_with("Features")).unwrap();
        for feature in ["asimd", "asimddp", "i8mm", "bf16"] {
            assert!(features.split(' ').any(|found| found == feature), "{feature}: {features}");
        }
    }
}
