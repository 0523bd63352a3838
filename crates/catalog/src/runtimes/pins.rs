//! The pinned wheel of each runtime for each platform, and the members to unpack.
//!
//! `runtimes.toml` has the table. Tests check that it is readable and consistent.

use std::sync::LazyLock;

use narthex_spec::Sha256;
use serde::Deserialize;

use super::RuntimeKind;
use crate::platform::Platform;

/// The wheel of a runtime for one platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The runtime.
    pub package: &'static RuntimePackage,
    /// Its wheel.
    pub wheel: RuntimeWheel,
}

/// One wheel of a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeWheel {
    /// The platform.
    pub platform: Platform,
    /// Platform tag for pip.
    pub tag: String,
    /// Size of the wheel in bytes.
    pub bytes: u64,
    /// Digest of the wheel.
    pub sha256: Sha256,
    /// Path in the wheel of the library to load.
    pub library: String,
    /// Parts of the names of libraries that are not needed.
    #[serde(default)]
    omitted: Vec<String>,
}

/// Prefixes of the names of libraries that only Python uses.
const PYTHON_ONLY_LIBRARIES: &[&str] = &["onnxruntime_pybind11_state", "libDlModelToolsPy", "DlModelToolsPy"];

impl RuntimeWheel {
    /// Returns true if a member is unpacked: libraries in the folders of the library to load, and licences.
    pub(super) fn is_unpacked(&self, member: &str) -> bool {
        let file = member.rsplit('/').next().unwrap_or(member);
        let lower = file.to_ascii_lowercase();
        if ["license", "thirdpartynotices", "privacy"].iter().any(|word| lower.starts_with(word)) {
            return true;
        }
        if lower.ends_with("_license.pdf") {
            return true;
        }
        let near = self.folders().any(|folder| member.starts_with(&folder));
        let library = [".so", ".dll", ".dylib", ".cat"].iter().any(|ending| lower.ends_with(ending))
            || lower.contains(".so.")
            || file == "cache.json";
        let omitted = self.omitted.iter().any(|part| file.contains(part));
        near && library && !omitted && !PYTHON_ONLY_LIBRARIES.iter().any(|name| file.starts_with(name))
    }

    /// Returns the library's own folder, and the folder in which repaired Linux wheels have their dependencies.
    fn folders(&self) -> impl Iterator<Item = String> {
        let own = self.library.rsplit_once('/').map_or("", |(folder, _)| folder);
        let top = self.library.split('/').next().unwrap_or("");
        [format!("{own}/"), format!("{top}.libs/")].into_iter()
    }
}

/// A runtime as its publisher packages it, in the same version for every platform.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimePackage {
    /// The runtime.
    pub kind: RuntimeKind,
    /// Name of the package.
    pub name: String,
    /// Pinned version.
    pub version: String,
    /// The runtime's requirements on the machine.
    pub needs: Option<String>,
    /// Reason why some platforms have no wheel.
    absent: String,
    /// Its wheels.
    #[serde(rename = "wheel")]
    pub wheels: Vec<RuntimeWheel>,
}

impl RuntimePackage {
    /// Returns the name of its folder in the store.
    pub(super) fn folder_name(&self) -> String {
        format!("{}-{}", self.kind, self.version)
    }
}

/// Returns the wheel of a runtime for a platform, or the reason why it has no wheel.
pub(super) fn find(kind: RuntimeKind, platform: Platform) -> Result<Pin, &'static str> {
    let package = super::package(kind).ok_or("it is part of other software")?;
    let wheel =
        package.wheels.iter().find(|wheel| wheel.platform == platform).ok_or(package.absent.as_str())?;
    Ok(Pin { package, wheel: wheel.clone() })
}

/// The table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuntimeFile {
    runtime: Vec<RuntimePackage>,
}

/// All runtimes, in display order.
pub(super) static PACKAGES: LazyLock<Vec<RuntimePackage>> = LazyLock::new(|| {
    let file: Result<RuntimeFile, _> = toml::from_str(include_str!("../../runtimes.toml"));
    file.map_or_else(|_| Vec::new(), |file| file.runtime)
});
