//! The platforms for which runtimes are published.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An operating system and processor for which runtime wheels are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Platform {
    /// Linux on x86-64, with glibc.
    LinuxX64,
    /// Linux on arm64, with glibc.
    LinuxArm64,
    /// Windows on x64.
    WindowsX64,
    /// Windows on arm64.
    WindowsArm64,
    /// macOS on arm64.
    MacArm64,
}

impl Platform {
    /// Every platform.
    pub const ALL: [Self; 5] =
        [Self::LinuxX64, Self::LinuxArm64, Self::WindowsX64, Self::WindowsArm64, Self::MacArm64];

    /// Returns the platform with these names, which are those of [`std::env::consts`].
    pub(crate) fn of(os: &str, arch: &str) -> Option<Self> {
        match (os, arch) {
            ("linux", "x86_64") => Some(Self::LinuxX64),
            ("linux", "aarch64") => Some(Self::LinuxArm64),
            ("windows", "x86_64") => Some(Self::WindowsX64),
            ("windows", "aarch64") => Some(Self::WindowsArm64),
            ("macos", "aarch64") => Some(Self::MacArm64),
            _ => None,
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LinuxX64 => "Linux x86-64",
            Self::LinuxArm64 => "Linux arm64",
            Self::WindowsX64 => "Windows x64",
            Self::WindowsArm64 => "Windows arm64",
            Self::MacArm64 => "macOS arm64",
        })
    }
}
