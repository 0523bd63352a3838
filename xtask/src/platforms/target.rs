//! The foreign targets: their compilers, and the environment of Cargo that names them.

use std::path::Path;

use anyhow::{Context, bail};

use super::tools::DebianProgram;
use crate::fuzz::rustc;
use xtask_tools::{process, session::Session};

/// A target other than this machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForeignTarget {
    /// Windows on x64, linked by MinGW.
    WindowsX64,
    /// Linux on arm64, with glibc.
    LinuxArm64,
    /// Windows on arm64, linked by Zig.
    WindowsArm64,
    /// macOS on arm64, which is checked but not linked.
    MacArm64,
}

impl ForeignTarget {
    /// Every target.
    pub(crate) const ALL: [Self; 4] =
        [Self::WindowsX64, Self::LinuxArm64, Self::WindowsArm64, Self::MacArm64];

    /// Returns its name in Rust.
    pub(crate) fn triple(self) -> &'static str {
        match self {
            Self::WindowsX64 => "x86_64-pc-windows-gnu",
            Self::LinuxArm64 => "aarch64-unknown-linux-gnu",
            Self::WindowsArm64 => "aarch64-pc-windows-gnullvm",
            Self::MacArm64 => "aarch64-apple-darwin",
        }
    }

    /// Returns Debian's programs that compile C and link for it. Zig needs none.
    pub(crate) fn compilers(self) -> &'static [DebianProgram] {
        const WINDOWS: &[DebianProgram] =
            &[DebianProgram { path: "x86_64-w64-mingw32-gcc", package: "gcc-mingw-w64-x86-64" }];
        const ARM: &[DebianProgram] = &[
            DebianProgram { path: "aarch64-linux-gnu-gcc", package: "gcc-aarch64-linux-gnu" },
            DebianProgram {
                path: "/usr/aarch64-linux-gnu/include/stdio.h",
                package: "libc6-dev-arm64-cross",
            },
            DebianProgram {
                path: "/usr/aarch64-linux-gnu/lib/libstdc++.so.6",
                package: "libstdc++6-arm64-cross",
            },
        ];
        match self {
            Self::WindowsX64 => WINDOWS,
            Self::LinuxArm64 => ARM,
            Self::WindowsArm64 | Self::MacArm64 => &[],
        }
    }

    /// Returns the variables for Cargo and the build scripts, with their values.
    pub(crate) fn variables(self) -> Vec<(String, String)> {
        let prefix = match self {
            Self::WindowsX64 => "x86_64-w64-mingw32",
            Self::LinuxArm64 => "aarch64-linux-gnu",
            Self::WindowsArm64 | Self::MacArm64 => return Vec::new(),
        };
        let underscored = self.triple().replace('-', "_");
        let tool = |tool: &str| format!("{prefix}-{tool}");
        vec![
            (format!("CARGO_TARGET_{}_LINKER", underscored.to_uppercase()), tool("gcc")),
            (format!("CC_{underscored}"), tool("gcc")),
            (format!("AR_{underscored}"), tool("ar")),
        ]
    }

    /// Adds Rust's standard library for the target to the toolchain, if it is missing.
    pub(crate) fn add(self, session: &Session<'_>) -> anyhow::Result<()> {
        let triple = self.triple();
        let folder = rustc(&["--print", "target-libdir", "--target", triple])?;
        if Path::new(&folder).is_dir() {
            return Ok(());
        }
        process::run(session.command("rustup").args(["target", "add", triple])).with_context(|| {
            format!("the toolchain has no standard library for {triple}; add it with rustup or your package manager")
        })
    }

    /// Returns the platform's name in the list of runtimes.
    pub(crate) fn runtime_platform(self) -> anyhow::Result<&'static str> {
        match self {
            Self::WindowsX64 => Ok("windows-x64"),
            Self::LinuxArm64 => Ok("linux-arm64"),
            Self::WindowsArm64 | Self::MacArm64 => bail!("nothing runs {} here", self.triple()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_name_the_tools_of_the_target() {
        let variables = ForeignTarget::LinuxArm64.variables();
        for (name, value) in [
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"),
            ("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc"),
            ("AR_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-ar"),
        ] {
            assert!(variables.contains(&(name.to_owned(), value.to_owned())), "{name}: {variables:?}");
        }
        assert!(ForeignTarget::MacArm64.variables().is_empty());
    }

    #[test]
    fn every_target_is_known_to_the_compiler() {
        let targets = rustc(&["--print", "target-list"]).unwrap();
        for target in ForeignTarget::ALL {
            assert!(targets.lines().any(|line| line == target.triple()), "{target:?}");
        }
    }
}
